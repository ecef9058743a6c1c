//! Comparisons of two recordings of one program.

use burn::tensor::{Device, Distribution, Tensor};
use tinderbox_fake::{DynTensor, Graph, RecordOptions, ValueId, record};

/// The graph that a closure records, and the value of the tensor that it returns.
fn recorded(run: impl FnOnce(&Device) -> Tensor<1>) -> (Graph, ValueId) {
    let (id, recording) = record(&RecordOptions::default(), |device| {
        DynTensor::from(run(device)).captured_id().unwrap()
    })
    .unwrap();
    let value = recording.value_of(id).unwrap();
    (recording.into_graph(), value)
}

fn draw(device: &Device) -> Tensor<1> {
    Tensor::random([8], Distribution::Normal(0.0, 1.0), device)
}

#[test]
fn a_recipe_is_the_same_at_any_position() {
    let recipe = |device: &Device| draw(device) + Tensor::from_floats([f32::NAN; 8], device);
    let (alone, value) = recorded(recipe);
    let (later, later_value) = recorded(|device| {
        let _ = draw(device).exp();
        let _ = Tensor::<1>::from_floats([1.0], device);
        recipe(device)
    });
    assert_ne!(value, later_value);
    assert_eq!(alone.recipe_difference(value, &later, later_value), None);
    let whole = alone.difference(&later).unwrap().to_string();
    assert!(
        whole.starts_with("operation 2 was NumericFloat.Add"),
        "{whole}"
    );
    assert_eq!(later.difference(&later.clone()), None);
}

#[test]
fn each_difference_has_a_text() {
    let (before, value) = recorded(|device| draw(device).add_scalar(1.0));
    let check = |expected: &str, run: fn(&Device) -> Tensor<1>| {
        let (now, value_now) = recorded(run);
        let difference = before.recipe_difference(value, &now, value_now);
        assert_eq!(difference.unwrap().to_string(), expected);
    };
    check(
        "operation 2 was NumericFloat.AddScalar(Float(1.0)) -> f32[8] and no longer exists",
        draw,
    );
    check(
        "operation 3 is new: NumericFloat.AddScalar(Float(2.0)) -> f32[8]",
        |device| draw(device).add_scalar(1.0).add_scalar(2.0),
    );
    check(
        "operation 1 was Float.Random(Normal(0.0, 1.0)) -> f32[8] and is now \
         BaseFloat.Ones() -> f32[8]",
        |device| Tensor::ones([8], device).add_scalar(1.0),
    );
    check(
        "operation 1 was Float.Random(Normal(0.0, 1.0)) -> f32[8] and no longer exists",
        |device| Tensor::from_floats([0.0], device),
    );
}

#[test]
fn constants_that_nothing_reads_count_in_the_whole() {
    let with = |constants: &[f32]| {
        recorded(|device| {
            for value in constants {
                let _ = Tensor::<1>::from_floats([*value, 2.0], device);
            }
            draw(device)
        })
    };
    let (before, value) = with(&[1.0]);
    for (now, expected) in [
        (
            with(&[3.0]),
            "constant 1 was f32[2] with 1 at element 0 and is now f32[2] with 3 at element 0",
        ),
        (with(&[1.0, 1.0]), "constant 2 is new: f32[2]"),
        (with(&[]), "constant 1 was f32[2] and no longer exists"),
    ] {
        assert_eq!(before.difference(&now.0).unwrap().to_string(), expected);
        assert_eq!(before.recipe_difference(value, &now.0, now.1), None);
    }
}

#[test]
fn another_output_of_one_operation_is_a_difference() {
    let largest = |device: &Device| {
        let matrix = Tensor::<2>::random([1, 8], Distribution::Default, device);
        matrix.sort_with_indices(1)
    };
    let (float, value) = recorded(|device| largest(device).0.reshape([8]));
    let (index, index_value) = recorded(|device| largest(device).1.float().reshape([8]));
    assert!(
        float
            .recipe_difference(value, &index, index_value)
            .is_some()
    );
}
