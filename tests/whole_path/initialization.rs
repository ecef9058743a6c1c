//! The same seed results in the same model, whatever the ranks, the order or the rest of the model.

use std::collections::BTreeMap;

use burn::tensor::{Device, TensorData};
use tinderbox::deferred::MaterializeOptions;
use tinderbox::deferred::random::Seed;
use tinderbox::{Deferred, Machine, Pipeline};
use tinderbox_models::language_model::{Gpt, GptConfig};

use crate::models::{LanguageModel, trace};
use crate::plain::{SEED, data};

type Bits = BTreeMap<String, TensorData>;

fn whole(model: &Deferred<Gpt>) -> Bits {
    let initializer = model.initializer(Seed::new(SEED));
    let module = model.materialize(&Device::flex(), &initializer).unwrap();
    let values = tinderbox::deferred::parameter_values(&module).into_iter();
    values
        .map(|(path, value)| (path.to_string(), data(value)))
        .collect()
}

fn gpt(layers: usize) -> Deferred<Gpt> {
    let config = GptConfig::new(13)
        .with_width(16)
        .with_heads(2)
        .with_layers(layers);
    Deferred::new(move |device| config.init(device)).unwrap()
}

fn assert_equal_bits(found: &TensorData, expected: &TensorData, what: &str) {
    assert!(found.as_bytes() == expected.as_bytes(), "{what}");
}

#[test]
fn any_number_of_ranks_makes_the_same_bits() {
    let model = gpt(3);
    let expected = whole(&model);
    assert!(expected.len() > 20);
    for ranks in 1..=4 {
        let trace = trace(&LanguageModel::<0>, &model, ranks);
        let plan = trace.plan(&Machine::local(ranks).unwrap()).unwrap();
        let mut pipeline = Pipeline::builder(&model, &trace, &plan)
            .seed(SEED)
            .start()
            .unwrap();
        let found = pipeline
            .on_ranks(|_, stages| {
                let values = stages.iter().flat_map(|stage| stage.parameters().values());
                values
                    .map(|(path, value)| (path.to_string(), data(value)))
                    .collect::<Vec<_>>()
            })
            .unwrap();
        assert_eq!(found.len(), ranks);
        let found: Bits = found.into_iter().flatten().collect();
        assert_eq!(found.len(), expected.len());
        for (path, value) in &found {
            assert_equal_bits(value, &expected[path], &format!("{path}, {ranks} ranks"));
        }
    }
}

#[test]
fn any_order_makes_the_same_bits() {
    let model = gpt(2);
    let expected = whole(&model);
    let initializer = model.initializer(Seed::new(SEED));
    // In reverse order, one at a time.
    for parameter in model.parameters().iter().rev() {
        let options = MaterializeOptions::on(&Device::flex());
        let options = options.only(|p| p.path == parameter.path);
        let one = model.materialize_parameters(options, &initializer).unwrap();
        assert_eq!(one.len(), 1);
        let path = parameter.path.as_str();
        assert_equal_bits(&data(one.value(0)), &expected[path], path);
    }
}

#[test]
fn adding_a_layer_leaves_all_other_bits() {
    let (small, large) = (whole(&gpt(2)), whole(&gpt(3)));
    assert!(large.len() > small.len());
    for (path, value) in &small {
        assert_equal_bits(&large[path], value, path);
    }
}

#[test]
fn another_seed_is_another_model() {
    let model = gpt(1);
    let initializer = model.initializer(Seed::new(SEED + 1));
    let module = model.materialize(&Device::flex(), &initializer).unwrap();
    let expected = whole(&model);
    let mut differing = 0;
    for (path, value) in tinderbox::deferred::parameter_values(&module) {
        let same = data(value).as_bytes() == expected[path.as_str()].as_bytes();
        let constant = path.as_str().ends_with("gamma") || path.as_str().ends_with("beta");
        assert!(same == constant, "{path}");
        differing += usize::from(!same);
    }
    assert!(differing > 10);
}
