//! Errors of models that can't be recorded or materialized.

use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{DType, Device, Int, Tensor};
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{
    Deferred, DeferredError, MaterializeOptions, MemoryCheck, ParameterPath, PartialModule, Recipe,
};
use tinderbox_fake::Region;

fn chain(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(|cause| format!(": {}", chain(cause)));
    format!("{error}{}", cause.unwrap_or_default())
}

/// The place in this file where the recorded code failed, with its operation.
fn origin(error: &DeferredError) -> String {
    let (DeferredError::Record { source } | DeferredError::Parameter { source, .. }) = error else {
        panic!("{error}");
    };
    source.origin().to_string()
}

#[test]
fn a_closure_that_can_not_be_recorded() {
    let constructed = "the model could not be constructed on a recording device: the recorded code";
    let error = Deferred::new(|_| -> Linear { panic!("no such file") }).unwrap_err();
    assert_eq!(
        chain(&error),
        format!("{constructed} panicked{}: no such file", origin(&error))
    );
    let line = line!() + 3;
    let error = Deferred::new(|d: &Device| {
        let linear = LinearConfig::new(2, 2).init(d);
        let _ = linear.weight.val().into_data();
        linear
    })
    .unwrap_err();
    assert_eq!(
        chain(&error),
        format!(
            "{constructed} read the data of a fake tensor in `Tensor::into_data`, called at \
             models/errors.rs:{line}:37; a fake tensor has a shape and no data: keep the value as a tensor, and \
             return it as a named output to inspect it"
        )
    );
    let error = Deferred::new(|d| {
        let path = || ParameterPath::new("a.w");
        let twice = [(); 2].map(|()| (path(), Tensor::<1>::zeros([1], d).into()));
        PartialModule::new(twice).unwrap()
    })
    .unwrap_err();
    assert_eq!(
        chain(&error),
        "two parameters of the model have the path `a.w`: name their fields differently"
    );
}

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    counts: Vec<Param<Tensor<1, Int>>>,
}

fn net(device: &Device) -> Net {
    let count = || Param::initialized(Default::default(), Tensor::zeros([4], device));
    Net {
        layers: vec![LinearConfig::new(2, 3).init(device)],
        counts: (0..6).map(|_| count()).collect(),
    }
}

/// Burn rejects orthogonal vectors when the bias is initialized, which is after the closure.
#[test]
fn a_parameter_that_can_not_be_recorded_is_named() {
    let orthogonal = |d: &Device| Net {
        layers: vec![
            LinearConfig::new(2, 2).init(d),
            LinearConfig::new(2, 2)
                .with_initializer(Initializer::Orthogonal { gain: 1.0 })
                .init(d),
        ],
        counts: Vec::new(),
    };
    let error = Deferred::new(orthogonal).unwrap_err();
    assert_eq!(
        chain(&error).replace(&origin(&error), ""),
        "parameter `layers.1.bias` could not be created on a recording device: the recorded code \
         panicked: Expected D (in Tensor<D>) to be greater or equal 2; (D >= 2)"
    );
    // The next recording is not affected.
    let error = Deferred::new(|_| -> Net { panic!("no such file") }).unwrap_err();
    assert!(!chain(&error).contains("layers.1.bias"), "{error}");
}

#[test]
fn a_region_outside_of_its_parameter() {
    let model = Deferred::new(net).unwrap();
    let initializer = model.initializer(Seed::new(1));
    let make = |offset: &[u64], size: &[u64]| {
        let region = Region::new(offset.to_vec(), size.to_vec()).unwrap();
        let made =
            model.materialize_region("layers.0.weight", &region, &Device::flex(), &initializer);
        chain(&made.unwrap_err())
    };
    assert_eq!(
        make(&[1, 0], &[2, 3]),
        "parameter `layers.0.weight` has no such region: region [1..3, 0..3] reaches past the shape \
         [2, 3]"
    );
    assert_eq!(
        make(&[0], &[2]),
        "parameter `layers.0.weight` has no such region: region [0..2] has 1 \
         dimension(s), the shape [2, 3] has 2: give a range for each"
    );
}

#[test]
fn the_empty_path_is_the_whole_model() {
    let model = Deferred::new(net).unwrap();
    assert_eq!(
        model.parameters().find("").unwrap_err().to_string(),
        "the empty path is a module of 8 parameters: `layers.0.weight`, `layers.0.bias`, `counts.0`, and 5 more"
    );
}

#[test]
fn many_casts_that_are_refused_are_counted() {
    let model = Deferred::new(net).unwrap();
    let options = MaterializeOptions::on(&Device::flex()).dtype(|_| Some(DType::BF16));
    let initializer = model.initializer(Seed::new(1));
    let error = model.materialize(options, &initializer);
    let error = error.unwrap_err().to_string();
    let listed = "`counts.2` is i32, not bf16, `counts.3` is i32, not bf16, and 2 more; choose";
    assert!(error.contains(listed), "{error}");
    // A float type that parameters can't have.
    let options = MaterializeOptions::on(&Device::flex())
        .dtype(|p| p.dtype.is_float().then_some(DType::Flex32));
    let error = model.materialize(options, &initializer);
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("`layers.0.weight` is f32, not flex32"),
        "{error}"
    );
}

#[test]
fn bytes_that_are_needed_and_available_never_look_the_same() {
    let model = Deferred::new(|d| LinearConfig::new(256, 256).with_bias(false).init(d)).unwrap();
    let initializer = model.initializer(Seed::new(1));
    let refused = |available: u64| {
        let options =
            MaterializeOptions::on(&Device::flex()).memory_check(MemoryCheck::Bytes(available));
        let made = model.materialize(options, &initializer);
        let text = made.unwrap_err().to_string();
        text.split_once(": ").unwrap().0.to_owned()
    };
    assert_eq!(
        refused(1000),
        "1 parameter(s) need 256 KiB on flex, and 1000 B are available"
    );
    assert_eq!(
        refused((256 << 10) - 1),
        "1 parameter(s) need 262144 B on flex, and 262143 B are available"
    );
}

#[test]
fn files_that_are_no_recipes() {
    let model = Deferred::new(net).unwrap();
    let recipe = model.initializer(Seed::new(1)).recipe("layers.0.weight");
    let bytes = recipe.unwrap().to_bytes();
    let refused = |bytes: &[u8]| chain(&Recipe::from_bytes(bytes).unwrap_err());
    let no_recipe = "file of a recipe: not a file of recorded operations, or a damaged one";
    assert_eq!(refused(&[]), format!("{no_recipe}: the file is truncated"));
    assert_eq!(
        refused(&bytes[..20]),
        format!("{no_recipe}: the file is truncated")
    );
    assert_eq!(
        refused(b"hello"),
        format!("{no_recipe}: invalid type: string, expected map")
    );
    let torn = refused(&bytes[..bytes.len() - 1]);
    let damaged = "file of a recipe: the file is damaged: its digest is ";
    assert!(torn.starts_with(damaged), "{torn}");
}
