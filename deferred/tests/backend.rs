//! The backend's own generator: the bits of plain Burn, of the whole model or a part.

use std::sync::{Mutex, MutexGuard};

use burn::module::{Module, Param};
use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::{DType, Device, Distribution, Int, Tensor, TensorData};
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{Deferred, MaterializeOptions, ParameterPath, Rng, parameter_values};
use tinderbox_fake::Region;

/// The generator is global, and tests run concurrently.
static GENERATOR: Mutex<()> = Mutex::new(());

fn hold() -> MutexGuard<'static, ()> {
    GENERATOR
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

const SEED: u64 = 11;

/// Lazy and eager parameters, shared draws, and a random field that is not a parameter.
#[derive(Module, Debug)]
struct Net {
    embedding: Embedding,
    layers: Vec<Linear>,
    norm: LayerNorm,
    eager: Param<Tensor<2>>,
    of_one_draw: Param<Tensor<2>>,
    ints: Param<Tensor<1, Int>>,
    orthogonal: Param<Tensor<2>>,
    noise: Tensor<2>,
}

fn net(device: &Device) -> Net {
    let linear = |from, to| LinearConfig::new(from, to).init(device);
    let draw = Tensor::<2>::random([3, 5], Distribution::Normal(0.0, 1.0), device);
    let ints = Tensor::<1, Int>::random([9], Distribution::Uniform(0.0, 100.0), device);
    Net {
        embedding: EmbeddingConfig::new(7, 4).init(device),
        layers: vec![linear(4, 6), linear(6, 6), linear(6, 2)],
        norm: LayerNormConfig::new(6).init(device),
        eager: Param::from_tensor(draw.clone().exp()),
        of_one_draw: Param::from_tensor(draw * 2.0),
        ints: Param::initialized(burn::module::ParamId::new(), ints),
        orthogonal: Initializer::Orthogonal { gain: 0.5 }.init([4, 3], device),
        noise: Tensor::random([2, 2], Distribution::Default, device),
    }
}

fn flex() -> Device {
    Device::flex()
}

/// Plain Burn: seeded, constructed, and its parameters visited in order.
fn plain() -> (Net, Vec<(ParameterPath, TensorData)>) {
    flex().seed(SEED);
    let net = net(&flex());
    let values = parameter_values(&net).into_iter();
    let values = values.map(|(path, value)| (path, value.to_data().unwrap()));
    let values = values.collect();
    (net, values)
}

fn deferred() -> (Deferred<Net>, tinderbox_deferred::Initializer) {
    let model = Deferred::new(net).unwrap();
    let initializer = model.initializer(Seed::new(SEED)).with_rng(Rng::Backend);
    (model, initializer)
}

#[test]
fn the_whole_is_plain_burn() {
    let _held = hold();
    let (expected, values) = plain();
    let after = Tensor::<1>::random([8], Distribution::Default, &flex()).into_data();
    let (model, initializer) = deferred();
    for _ in 0..2 {
        let made = model.materialize(&flex(), &initializer).unwrap();
        // The next draw is the one that plain Burn would make next.
        let next = Tensor::<1>::random([8], Distribution::Default, &flex()).into_data();
        assert_eq!(next, after);
        assert_eq!(made.noise.to_data(), expected.noise.to_data());
        for ((path, value), (expected, bits)) in parameter_values(&made).into_iter().zip(&values) {
            assert_eq!(path, *expected);
            assert_eq!(value.to_data().unwrap(), *bits, "{path}");
        }
    }
}

#[test]
fn every_part_is_plain_burn() {
    let _held = hold();
    let (_, values) = plain();
    let (model, initializer) = deferred();
    let check = |selected: &dyn Fn(usize) -> bool| {
        let at = |path: &ParameterPath| values.iter().position(|(p, _)| p == path).unwrap();
        let options = MaterializeOptions::on(&flex()).only(|p| selected(at(&p.path)));
        let part = model.materialize_parameters(options, &initializer).unwrap();
        let expected = values.iter().enumerate().filter(|(at, _)| selected(*at));
        assert_eq!(part.len(), expected.clone().count());
        for ((path, value), (_, (_, bits))) in part.values().zip(expected) {
            assert_eq!(value.to_data().unwrap(), *bits, "{path}");
        }
    };
    let count = values.len();
    for one in 0..count {
        check(&|at| at == one);
        check(&|at| at != one);
        check(&|at| at >= one);
    }
    // Requests in any order have the same values.
    for (path, bits) in values.iter().rev() {
        let value = model
            .materialize_tensor(path.as_str(), &flex(), &initializer)
            .unwrap();
        assert_eq!(value.to_data().unwrap(), *bits, "{path}");
    }
}

#[test]
fn regions_and_casts_equal_plain_burn() {
    let _held = hold();
    let (expected, _) = plain();
    let (model, initializer) = deferred();
    let region = Region::new(vec![2, 1], vec![3, 4]).unwrap();
    let part = model.materialize_region("layers.1.weight", &region, &flex(), &initializer);
    let weight = expected.layers[1].weight.val();
    let cut = weight.clone().slice([2..5, 1..5]).into_data();
    assert_eq!(part.unwrap().to_data().unwrap(), cut);
    let options = MaterializeOptions::on(&flex())
        .only(|p| p.path.as_str() == "layers.1.weight")
        .dtype(|_| Some(DType::BF16));
    let cast = model.materialize_parameters(options, &initializer).unwrap();
    let expected = weight.cast(DType::BF16).into_data();
    assert_eq!(cast.value(0).to_data().unwrap(), expected);
}

/// A random field that is not a parameter is the same at every materialization, also with the
/// counter-based generator, which does not generate it.
#[test]
fn a_seed_determines_the_random_fields() {
    let _held = hold();
    let (model, initializer) = deferred();
    let counter = initializer.with_rng(Rng::Counter);
    let first = model.materialize(&flex(), &counter).unwrap();
    let _ = Tensor::<1>::random([8], Distribution::Default, &flex());
    let second = model.materialize(&flex(), &counter).unwrap();
    assert_eq!(first.noise.into_data(), second.noise.into_data());
}
