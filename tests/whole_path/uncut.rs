//! The joint graph of a model, run whole on one device: the reference with dropout.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Tensor, TensorData};
use tinderbox::deferred::random::Seed;
use tinderbox::fake::Mode;
use tinderbox::{Deferred, DynTensor, PartialModule};
use tinderbox_deferred::{Executor, Program, RunContext};

use crate::models::{Case, trace};
use crate::plain::{LR, Run, SEED, data};

/// Trains by running the uncut graph, micro-batch by micro-batch.
pub fn train<C: Case>(
    case: &C,
    model: &Deferred<C::Model>,
    micro_batches: &[Vec<(C::Batch, usize)>],
) -> Run {
    let device = Device::flex();
    // It runs programs of other shapes as well.
    let trace = trace(case, model, 1);
    let table = trace.parameters().clone();
    let mut module = model
        .materialize_parameters(&device, &model.initializer(Seed::new(SEED)))
        .unwrap()
        .train();
    let mut optimizer = AdamWConfig::new().init();
    let mut run = Run::default();
    for (step, parts) in micro_batches.iter().enumerate() {
        let samples: usize = parts.iter().map(|part| part.1).sum();
        let mut sums: BTreeMap<String, DynTensor> = BTreeMap::new();
        let mut losses = Vec::new();
        for (micro_batch, (batch, count)) in parts.iter().enumerate() {
            let joint = trace.program(Mode::Training, batch).unwrap();
            let mut inputs = joint.parameters().to_vec();
            inputs.extend(joint.inputs().iter().map(|input| input.value));
            inputs.push(joint.weight());
            let gradients: Vec<_> = table
                .iter()
                .zip(joint.gradients())
                .filter_map(|(parameter, value)| Some((parameter.path.to_string(), (*value)?)))
                .collect();
            let mut outputs = vec![joint.loss().unwrap()];
            outputs.extend(gradients.iter().map(|(_, value)| *value));
            let given = |value| inputs.contains(&value);
            let nodes = joint
                .graph()
                .backward_slice(outputs.iter().copied(), given)
                .nodes;
            let program =
                Program::new(joint.graph(), nodes, &inputs, &outputs, joint.keys()).unwrap();

            let mut values: Vec<DynTensor> = module
                .values()
                .map(|(_, value)| value.without_autodiff())
                .collect();
            values.extend(tinderbox::pipeline::batch_tensors(batch));
            let weight = TensorData::new(vec![*count as f32 / samples as f32], [1]);
            values.push(Tensor::<1>::from_data(weight, &device).into());
            let context = RunContext {
                seed: Seed::new(SEED),
                step: step as u32,
                micro_batch: micro_batch as u32,
            };
            let executable = Executor::new(&device).unwrap().load(program);
            let mut found = executable.run(values, &context).unwrap().into_iter();
            losses.push(
                found
                    .next()
                    .unwrap()
                    .to_data()
                    .unwrap()
                    .iter::<f64>()
                    .next()
                    .unwrap(),
            );
            for ((path, _), gradient) in gradients.iter().zip(found) {
                let sum = match sums.remove(path) {
                    Some(sum) => sum + gradient,
                    None => gradient,
                };
                sums.insert(path.clone(), sum);
            }
        }
        if step == 0 {
            run.gradients = sums
                .iter()
                .map(|(p, g)| (p.clone(), data(g.clone())))
                .collect();
        }
        run.losses.push(losses);
        let gradients = by_id(&module, &sums);
        module = optimizer.step(LR, module, gradients);
    }
    run.parameters = module
        .values()
        .map(|(p, v)| (p.to_string(), data(v)))
        .collect();
    run
}

fn by_id(module: &PartialModule, gradients: &BTreeMap<String, DynTensor>) -> GradientsParams {
    struct Visitor<'a> {
        path: Vec<String>,
        gradients: &'a BTreeMap<String, DynTensor>,
        found: GradientsParams,
    }
    impl ModuleVisitor for Visitor<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.into());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.gradients.get(&self.path.join(".")) {
                self.found
                    .register::<D>(param.id, gradient.clone().typed().unwrap());
            }
        }
    }
    let mut visitor = Visitor {
        path: Vec::new(),
        gradients,
        found: GradientsParams::new(),
    };
    module.visit(&mut visitor);
    visitor.found
}
