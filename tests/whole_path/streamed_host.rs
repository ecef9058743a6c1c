//! Streamed models with a second memory, the host's, between a device and the source.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use tinderbox::deferred::random::Seed;
use tinderbox::deferred::{Observer, Request};
use tinderbox::error::SourceError;
use tinderbox::planner::DiskRate;
use tinderbox::{
    Deferred, DynTensor, MemoryBudget, Outputs, Pipeline, Source, Streamed, Traceable,
};

use crate::models::floats;
use crate::plain::data;
use crate::streamed::least;
use crate::streamed_training::{FINE, SEED, working_dir};

const LAYERS: usize = 8;
const WIDTH: usize = 16;
const LAYER_BYTES: u64 = (WIDTH * WIDTH * 4) as u64;

type Tower = Vec<Linear>;

fn layer(device: &Device) -> Linear {
    let config = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
    config.init(device)
}

fn forward(layers: &Tower, x: Tensor<2>) -> Outputs {
    let y = layers.iter().fold(x, |x, layer| layer.forward(x).tanh());
    Outputs::none().with("y", y)
}

fn loss(layers: &Tower, x: Tensor<2>) -> Outputs {
    let y = layers.iter().fold(x, |x, layer| layer.forward(x).tanh());
    Outputs::loss(y.clone().powf_scalar(2.0).mean()).with("y", y)
}

fn batch(number: u64) -> Tensor<2> {
    floats([4, WIDTH], number, &Device::flex())
}

/// Adds up the bytes that are asked of a source.
struct Counted<S>(S, Arc<AtomicU64>);

impl<S: Source> Source for Counted<S> {
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        let bytes: u64 = requests.iter().map(Request::bytes).sum();
        self.1.fetch_add(bytes, Ordering::Relaxed);
        self.0.load(requests, observer)
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}

/// Only what fits neither on the device nor on the host is read again.
#[test]
fn parameters_stay_on_the_host() {
    let tower = |device: &Device| (0..LAYERS).map(|_| layer(device)).collect::<Tower>();
    let model = Deferred::new(tower).unwrap();
    let traced = model.trace_forward(&batch(0), forward).unwrap();
    let whole = traced.plan_at(&[]).unwrap();
    let mut pipeline = Pipeline::builder(&model, &traced, &whole)
        .seed(SEED)
        .start()
        .unwrap();
    let fine = traced.plan_streamed(FINE).unwrap();
    let device_bytes = 3 * LAYER_BYTES;
    for host_layers in [0, 3, LAYERS as u64] {
        let read = Arc::new(AtomicU64::new(0));
        let source = Counted(model.initializer(Seed::new(SEED)), read.clone());
        let mut streamed = Streamed::builder(&model, &traced, &fine)
            .memory_limit(MemoryBudget::Values(device_bytes))
            .host_memory(host_layers * LAYER_BYTES + 1)
            .source(source)
            .start()
            .unwrap();
        let passes = 5;
        for number in 0..passes {
            let expected = pipeline.evaluate(batch(number)).unwrap().tensor::<2>("y");
            let found = streamed.evaluate(batch(number)).unwrap().tensor::<2>("y");
            assert_eq!(data(found.unwrap().into()), data(expected.unwrap().into()));
        }
        let missing = streamed.predict(DiskRate::new(1 << 30)).unwrap().read_bytes;
        assert!(missing > 5 * LAYER_BYTES, "{missing}");
        drop(streamed);
        let each = missing.saturating_sub(host_layers * LAYER_BYTES);
        // All of them once, and what was read ahead at the end.
        let first = LAYERS as u64 * LAYER_BYTES;
        let read = read.load(Ordering::Relaxed);
        let least = first + (passes - 1) * each;
        assert!(
            read >= least && read <= least + each,
            "{read} with {host_layers} layers on the host"
        );
    }
}

/// What a step changes is not read from the host after it.
#[test]
fn trained_parameters_do_not_stay_on_the_host() {
    let model = Deferred::new(|device: &Device| {
        let layers = (0..LAYERS).map(|at| match at % 2 {
            0 => layer(device).no_grad(),
            _ => layer(device),
        });
        layers.collect::<Tower>()
    });
    let model = model.unwrap();
    let traced = model.trace(&batch(0), 1, loss).unwrap();
    let whole = traced.plan_at(&[]).unwrap();
    let pipeline = Pipeline::builder(&model, &traced, &whole).seed(SEED);
    let mut pipeline = pipeline.optimizer(AdamWConfig::new()).start().unwrap();
    let fine = traced.plan_streamed(FINE).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let start = |limit: u64| {
        Streamed::builder(&model, &traced, &fine)
            .seed(SEED)
            .optimizer(AdamWConfig::new())
            .memory_limit(MemoryBudget::Values(limit))
            .host_memory(1 << 20)
            .store(working_dir(&model, dir.path()))
            .start()
    };
    let mut streamed = start(least(start(0))).unwrap();
    for number in 0..4 {
        let expected = pipeline.evaluate(batch(number)).unwrap();
        let found = streamed.evaluate(batch(number)).unwrap();
        assert_eq!(found.micro_batch_losses, expected.micro_batch_losses);
        let expected = pipeline.step(0.1, batch(number)).unwrap();
        let found = streamed.step(0.1, batch(number)).unwrap();
        assert_eq!(
            found.loss.to_bits(),
            expected.loss.to_bits(),
            "step {number}"
        );
    }
    assert!(streamed.predict(DiskRate::new(1 << 30)).unwrap().read_bytes > 0);
}
