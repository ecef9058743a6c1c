//! Plain Burn on one device: the reference.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Tensor, TensorData};
use tinderbox::deferred::parameter_values;
use tinderbox::deferred::random::Seed;
use tinderbox::{Deferred, DynTensor};
use tinderbox_models::plain::{gradients, number, weighted};

use crate::models::Case;

/// Learning rate of all tests.
pub const LR: f64 = 1e-2;
/// Seed of all tests.
pub const SEED: u64 = 42;

/// The results of a training run: a loss per step and micro-batch, the first step's gradients, and the
/// parameters after the last step.
#[derive(Default)]
pub struct Run {
    pub losses: Vec<Vec<f64>>,
    pub gradients: BTreeMap<String, TensorData>,
    pub parameters: BTreeMap<String, TensorData>,
}

/// Trains with Burn's autodiff and AdamW; the micro-batches' gradients are accumulated in order, each
/// weighted by its fraction of the samples.
pub fn train<C: Case>(
    case: &C,
    model: &Deferred<C::Model>,
    micro_batches: &[Vec<(C::Batch, usize)>],
) -> Run {
    let device = Device::flex().autodiff();
    let mut module = model
        .materialize(&device, &model.initializer(Seed::new(SEED)))
        .expect("the model materializes");
    let mut optimizer = AdamWConfig::new().init();
    let mut run = Run::default();
    for (step, parts) in micro_batches.iter().enumerate() {
        let samples: usize = parts.iter().map(|part| part.1).sum();
        let mut losses = Vec::new();
        let summed = gradients(&module, weighted(parts.iter().cloned(), samples), |batch| {
            let outputs = case.forward(&module, batch);
            let loss = outputs.into_loss().expect("the model has a loss");
            losses.push(number(&loss));
            loss
        });
        if step == 0 {
            run.gradients = by_path(&module, &summed);
        }
        run.losses.push(losses);
        module = optimizer.step(LR, module, summed);
    }
    run.parameters = parameter_values(&module)
        .into_iter()
        .map(|(path, value)| (path.to_string(), data(value)))
        .collect();
    run
}

/// Returns the data of a tensor of any device.
pub fn data(tensor: DynTensor) -> TensorData {
    tensor
        .without_autodiff()
        .to_data()
        .expect("the tensor is real")
}

fn by_path<M: Module>(module: &M, gradients: &GradientsParams) -> BTreeMap<String, TensorData> {
    struct Visitor<'a> {
        path: Vec<String>,
        gradients: &'a GradientsParams,
        found: BTreeMap<String, TensorData>,
    }
    impl ModuleVisitor for Visitor<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.into());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.gradients.get::<D>(param.id) {
                self.found.insert(self.path.join("."), gradient.into_data());
            }
        }
    }
    let mut visitor = Visitor {
        path: Vec::new(),
        gradients,
        found: BTreeMap::new(),
    };
    module.visit(&mut visitor);
    visitor.found
}
