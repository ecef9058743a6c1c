//! Batches with many different lengths: the memory for each of them is bounded, in a child process under a
//! limit.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor};
use tinderbox::deferred::random::Seed;
use tinderbox::{Cut, Deferred, Outputs, Pipeline, Traceable};

use crate::memory::{MIB, status, under_limit};

const WIDTH: usize = 6;
const LENGTHS: usize = 1000;
/// Number of lengths after which the memory of the process no longer grows.
const WARM_UP: usize = 60;
/// Allowed for all later lengths.
const GROWTH: u64 = 24 * MIB;
const LR: f64 = 1e-2;

#[derive(Module, Debug)]
struct Recurrent {
    input: Linear,
    hidden: Linear,
    output: Linear,
}

fn init(device: &Device) -> Recurrent {
    let linear = || LinearConfig::new(WIDTH, WIDTH).init(device);
    Recurrent {
        input: linear(),
        hidden: linear(),
        output: linear(),
    }
}

/// Each length has operations of other shapes, and its remainder determines their number.
fn loss(net: &Recurrent, x: Tensor<3>) -> Tensor<1> {
    let [samples, length, _] = x.dims();
    let mut state = Tensor::<2>::zeros([samples, WIDTH], &x.device());
    let input = net.input.forward(x);
    for from in 0..1 + length % 5 {
        let seen = input
            .clone()
            .narrow(1, from % length, length - from % length);
        let seen: Tensor<2> = seen.mean_dim(1).squeeze_dim(1);
        state = tanh(net.hidden.forward(state) + seen);
    }
    net.output.forward(state).square().mean()
}

fn batch(length: usize, device: &Device) -> Tensor<3> {
    let elements = 2 * length * WIDTH;
    let values = Tensor::<1>::from_floats([0.37], device).repeat(&[elements]);
    let positions = Tensor::<1, burn::tensor::Int>::arange(0..elements as i64, device).float();
    (values * positions).sin().reshape([2, length, WIDTH])
}

/// Every length once, then the first ones, which have been evicted.
fn lengths() -> impl Iterator<Item = usize> {
    (1..=LENGTHS).chain(1..=20)
}

fn plain_losses(model: &Deferred<Recurrent>) -> Vec<f32> {
    let device = Device::flex().autodiff();
    let initializer = model.initializer(Seed::new(5));
    let mut net = model.materialize(&device, &initializer).unwrap();
    let mut optimizer = SgdConfig::new().init();
    let losses = lengths().map(|length| {
        let loss = loss(&net, batch(length, &device));
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(LR, net.clone(), gradients);
        loss.into_scalar::<f32>()
    });
    losses.collect()
}

#[test]
#[cfg(target_os = "linux")]
fn a_thousand_lengths_take_no_more_than_a_few() {
    let test = "lengths::a_thousand_lengths_take_no_more_than_a_few";
    under_limit(test, 256 * MIB, |_| {
        let model = Deferred::new(init).unwrap();
        let expected = plain_losses(&model);
        let example = batch(7, &Device::flex());
        let trace = model.trace(&example, 1, |net, x| Outputs::loss(loss(net, x)));
        let trace = trace.unwrap();
        let plan = trace.plan_at(&[Cut::before("output")]).unwrap();
        let mut pipeline = Pipeline::builder(&model, &trace, &plan)
            .optimizer(SgdConfig::new())
            .seed(5)
            .start()
            .unwrap();
        let mut warm = 0;
        for (number, (length, expected)) in lengths().zip(expected).enumerate() {
            let output = pipeline.step(LR, batch(length, &Device::flex())).unwrap();
            assert_eq!(output.loss, f64::from(expected), "length {length}");
            if number == WARM_UP {
                warm = status("VmRSS");
            }
        }
        let taken = status("VmRSS").saturating_sub(warm);
        println!("{} KiB for {LENGTHS} lengths", taken >> 10);
        assert!(taken <= GROWTH, "{} MiB for {LENGTHS} lengths", taken / MIB);
    });
}
