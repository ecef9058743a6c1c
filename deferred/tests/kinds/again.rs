//! Repeated and concurrent materialization.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{
    Deferred, MaterializeError, MaterializeOptions, check_materialized, parameter_values,
};
use tinderbox_fake::Region;

use crate::check::{SEED, devices, flex, hold};
use crate::facts::values;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    norm: BatchNorm,
    eager: Param<Tensor<2>>,
    noise: Tensor<2>,
}

fn net(device: &Device) -> Net {
    let random = || Tensor::random([2, 2], Default::default(), device);
    Net {
        layers: (0..3)
            .map(|_| LinearConfig::new(2, 2).init(device))
            .collect(),
        norm: BatchNormConfig::new(2).init(device),
        eager: Param::from_tensor(random()),
        noise: random(),
    }
}

type Bits = Vec<burn::tensor::TensorData>;

fn bits(net: &Net) -> Bits {
    let values = values(net).into_iter().map(|(.., data)| data);
    values.chain([net.noise.to_data()]).collect()
}

#[test]
fn a_deferred_model_is_never_consumed() {
    let _held = hold();
    let model = Deferred::new(net).unwrap();
    let listed = model.parameters().clone();
    let source = model.initializer(Seed::new(SEED));
    let first = bits(&model.materialize(&flex(), &source).unwrap());
    let one = MaterializeOptions::on(&flex()).only(|p| p.path.is_under("layers.1"));
    let part = model.materialize_parameters(one, &source).unwrap();
    let region = Region::new(vec![0, 1], vec![2, 1]).unwrap();
    let region = model.materialize_region("eager", &region, &flex(), &source);
    let eager = model.materialize_tensor("eager", &flex(), &source).unwrap();
    assert_eq!(part.value(0).to_data().unwrap(), first[2]);
    assert_eq!(eager.to_data().unwrap(), first[10]);
    let column = Tensor::<2>::from_data(first[10].clone(), &flex()).narrow(1, 1, 1);
    assert_eq!(region.unwrap().to_data().unwrap(), column.into_data());
    for device in devices() {
        let again = model.materialize(&device, &source).unwrap();
        assert_eq!(bits(&again), first);
        let made_on = again.layers[0].weight.val().device();
        assert_eq!(made_on.is_autodiff(), device.is_autodiff());
    }
    // It is unchanged: fake, with the same table.
    assert_eq!(*model.parameters(), listed);
    let MaterializeError::NotMaterialized { paths } =
        check_materialized(model.module()).unwrap_err()
    else {
        panic!("the fake module has values")
    };
    assert_eq!(paths.len(), listed.len());
}

#[test]
fn materialized_models_share_nothing() {
    let _held = hold();
    let model = Deferred::new(net).unwrap();
    let source = model.initializer(Seed::new(SEED));
    let first = model.materialize(&flex(), &source).unwrap();
    let before = bits(&first);
    let second = model.materialize(&flex(), &source).unwrap();
    assert_ne!(first.eager.id, second.eager.id);
    let weight = second.layers[0].weight.val();
    let changed = weight.slice_assign([0..1, 0..1], Tensor::zeros([1, 1], &flex()));
    assert_ne!(changed.into_data(), before[0]);
    let shift = Tensor::<1>::ones([2], &flex());
    second.norm.running_mean.update(shift.clone());
    second.norm.running_mean.update(shift);
    assert_ne!(bits(&second), before);
    assert_eq!(bits(&first), before);
}

#[test]
fn clones_share_the_fake_model() {
    let _held = hold();
    let model = Deferred::new(net).unwrap();
    let clone = model.clone();
    assert!(Arc::ptr_eq(model.graph(), clone.graph()));
    assert!(Arc::ptr_eq(model.parameters(), clone.parameters()));
    let ids = |net: &Net| -> Vec<_> {
        let values = parameter_values(net).into_iter();
        values
            .map(|(_, value)| value.captured_id().unwrap())
            .collect()
    };
    let fake = model.module().clone();
    assert_eq!(ids(&fake), ids(model.module()));
    assert_eq!(ids(clone.module()), ids(model.module()));
    let source = model.initializer(Seed::new(SEED));
    let expected = bits(&model.materialize(&flex(), &source).unwrap());
    // The effects of one of them are not undone when it is dropped.
    drop((model, source));
    let source = clone.initializer(Seed::new(SEED));
    assert_eq!(
        bits(&clone.materialize(&flex(), &source).unwrap()),
        expected
    );
    assert_eq!(fake.num_params(), clone.module().num_params());
}

#[test]
fn threads_materialize_at_once() {
    let _held = hold();
    let model = Deferred::new(net).unwrap();
    let expected = bits(
        &model
            .materialize(&flex(), &model.initializer(Seed::new(SEED)))
            .unwrap(),
    );
    let shared: &(dyn Fn(Device) -> Bits + Sync) = &|device| {
        let source = model.initializer(Seed::new(SEED));
        bits(&model.materialize(&device, &source).unwrap())
    };
    std::thread::scope(|scope| {
        let started = devices().map(|device| scope.spawn(move || shared(device)));
        for thread in started {
            assert_eq!(thread.join().unwrap(), expected);
        }
    });
}
