//! Runs the programs of one block repeatedly and measures their times.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use burn::tensor::{Device, Distribution, TensorData};
use tinderbox_deferred::random::{Domain, Seed, Stream, generate};
use tinderbox_deferred::{Executable, Executor, RunContext};
use tinderbox_fake::{DynTensor, FakeError, TensorKind, ValueId};

use super::together::Repeated;
use super::{Profile, Spread};
use crate::ProfileError;
use crate::cut::{Binding, Phase, StagePrograms};
use crate::schedule::Compute;
use crate::trace::{Given, JointGraph};

/// The bytes of the copies of parameters: more than the caches of the cores.
const COLD_BYTES: u64 = 128 << 20;
/// The maximum number of copies. With it, the copies of small parameters have fewer bytes.
const MAX_COPIES: u64 = 64;

/// Times of one run: forward, whole backward, and the two halves of a split backward.
type RunTimes = [Duration; 4];

/// Runs a block with the settings of a profile, on all ranks at once. Returns the spreads of its programs over all ranks, in
/// the order of [`RunTimes`].
pub(super) fn measure(
    joint: &JointGraph,
    device: &Device,
    profile: &Profile,
    programs: &StagePrograms,
) -> Result<[Spread; 4], ProfileError> {
    let repeated = Repeated {
        ranks: profile.beside,
        threads: profile.threads,
        warm_up: profile.warm_up,
        repetitions: profile.repetitions,
    };
    let load = || LoadedBlock::new(joint, device, profile.streamed, programs);
    let runs = repeated.run(load, LoadedBlock::run)?;
    Ok([0, 1, 2, 3].map(|of| Spread::of(runs.iter().map(|run| run[of]))))
}

/// The programs of a block on a device, with their inputs.
struct LoadedBlock<'a> {
    joint: &'a JointGraph,
    device: &'a Device,
    /// `F`, `B`, `I` and `W`.
    phases: [Option<(Executable, &'a Phase)>; Compute::ALL.len()],
    constants: Vec<DynTensor>,
    /// Copies of the parameters. Each run uses the first copy, and rotates them.
    parameters: Vec<BTreeMap<usize, DynTensor>>,
    /// The sums of the gradients so far.
    gradients: BTreeMap<usize, DynTensor>,
    context: RunContext,
}

impl<'a> LoadedBlock<'a> {
    fn new(
        joint: &'a JointGraph,
        device: &'a Device,
        is_streamed: bool,
        programs: &'a StagePrograms,
    ) -> Result<Self, ProfileError> {
        let executor = Executor::new(device)?;
        let context = RunContext::initialization(Seed::new(0));
        let constants = executor.load(programs.constants.clone());
        let constants = constants.run(Vec::new(), &context)?;
        let load = |phase: &'a Phase| (executor.load(phase.program.clone()), phase);
        let phases = programs.phases.each_ref();
        let mut block = Self {
            joint,
            device,
            phases: phases.map(|phase| phase.as_ref().map(load)),
            constants,
            parameters: Vec::new(),
            gradients: BTreeMap::new(),
            context,
        };
        let positions = programs.parameters().into_iter();
        let parameters = positions.map(|at| (at, block.parameter(block.joint.parameters()[at])));
        let parameters: BTreeMap<usize, DynTensor> = parameters.collect();
        let bytes: u64 = parameters.values().map(DynTensor::bytes).sum();
        let copies = match is_streamed && bytes > 0 {
            true => COLD_BYTES.div_ceil(bytes).min(MAX_COPIES),
            false => 1,
        };
        for _ in 1..copies {
            let copied = parameters
                .iter()
                .map(|(at, tensor)| Ok((*at, DynTensor::from_data(tensor.to_data()?, device))));
            let copied = copied.collect::<Result<_, FakeError>>()?;
            block.parameters.push(copied);
        }
        block.parameters.push(parameters);
        Ok(block)
    }

    /// Runs one forward with a whole backward, and one with a split backward.
    fn run(&mut self) -> Result<RunTimes, ProfileError> {
        self.parameters.rotate_left(1);
        let mut times: [Option<Duration>; 4] = [None; 4];
        let mut sums = std::mem::take(&mut self.gradients);
        let [forward, backward, input, weight] = Compute::ALL;
        let steps = [&[forward, backward][..], &[forward, input, weight]];
        let has_backward = self.phases[backward.slot()].is_some();
        for computes in steps.iter().take(1 + usize::from(has_backward)) {
            let mut kept = BTreeMap::new();
            for compute in *computes {
                if let Some((executable, phase)) = &self.phases[compute.slot()] {
                    let time = self.time(executable, phase, &mut kept, &mut sums)?;
                    // The time of the first forward.
                    times[compute.slot()].get_or_insert(time);
                }
            }
        }
        self.gradients = sums;
        Ok(times.map(Option::unwrap_or_default))
    }

    /// Runs a program on the values kept for it, keeps its outputs, and adds its gradients to `sums`,
    /// as a pipeline does. Only parameters and the batch are held elsewhere meanwhile, so the program
    /// works in place where it would in a pipeline.
    fn time(
        &self,
        executable: &Executable,
        phase: &Phase,
        kept: &mut BTreeMap<ValueId, DynTensor>,
        sums: &mut BTreeMap<usize, DynTensor>,
    ) -> Result<Duration, ProfileError> {
        let inputs = phase.program.inputs().iter().zip(&phase.inputs);
        let inputs = inputs.map(|(value, binding)| match binding {
            Binding::Given(Given::Parameter(position)) => self.parameters[0][position].clone(),
            Binding::Given(_) => self.generated(*value),
            Binding::Constant(position) => self.constants[*position].clone(),
            Binding::Value(id) => kept.remove(id).unwrap_or_else(|| self.generated(*id)),
        });
        let inputs: Vec<DynTensor> = inputs.collect();
        self.device.sync()?;
        let start = Instant::now();
        let mut outputs = executable.run(inputs, &self.context)?.into_iter();
        let made = phase.outputs.iter().map(|(value, _)| *value);
        kept.extend(made.zip(&mut outputs));
        for (position, gradient) in phase.gradients.iter().zip(outputs) {
            let sum = match sums.remove(position) {
                Some(sum) => sum + gradient,
                None => gradient,
            };
            sums.insert(*position, sum);
        }
        // Devices other than the CPU only queue operations.
        self.device.sync()?;
        Ok(start.elapsed())
    }

    /// Generates values of the magnitude of activations and gradients, uniformly distributed and without a
    /// pattern that sums could amplify: denormal numbers, which vanishing exponentials produce, are
    /// many times slower. Integers are zeros, a valid index of every tensor.
    fn generated(&self, value: ValueId) -> DynTensor {
        self.spread(value, -1.0, 1.0)
    }

    /// Generates values of the magnitude of parameters: weights that preserve the magnitude of their
    /// inputs, and positive vectors, like scales and running variances. Zeros that were never written
    /// would have no physical memory.
    fn parameter(&self, value: ValueId) -> DynTensor {
        match *self.joint.graph().value(value).shape {
            [] | [_] => self.spread(value, 0.5, 1.5),
            [fan_in, ..] => {
                let most = 1.0 / (fan_in.max(1) as f64).sqrt();
                self.spread(value, -most, most)
            }
        }
    }

    fn spread(&self, value: ValueId, low: f64, high: f64) -> DynTensor {
        let known = self.joint.graph().value(value);
        let (shape, dtype) = (known.shape.clone(), known.dtype);
        let data = match TensorKind::of(dtype) {
            TensorKind::Float => {
                let draw = value.index() as u64;
                let stream = Stream::new(self.context.seed, Domain::Forward, "", draw);
                let data = generate(&stream, Distribution::Uniform(low, high), shape, dtype);
                data.expect("every float dtype has random values")
            }
            TensorKind::Int | TensorKind::Bool => TensorData::full_dtype(shape, 0, dtype),
        };
        DynTensor::from_data(data, self.device)
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Tensor;
    use tinderbox_deferred::Deferred;
    use tinderbox_planner::Rates;

    use super::super::blocks;
    use super::*;
    use crate::plan::Planning;
    use crate::trace::Traceable;
    use crate::{Outputs, Trace};

    /// Unwritten zeros are read from a single cached page, whatever their size.
    #[test]
    fn parameters_have_values() {
        let model = Deferred::new(|device| LinearConfig::new(5, 5).init(device)).unwrap();
        let example = Tensor::<2>::ones([2, 5], &Device::flex());
        let forward = |net: &Linear, x| Outputs::loss(net.forward(x).mean());
        let trace: Trace<Tensor<2>> = model.trace(&example, 1, forward).unwrap();
        let planning = Planning::new(&trace, None, &Rates::default(), None).unwrap();
        let profile = Profile {
            depth: 1,
            ..Profile::unmeasured()
        };
        let (_, programs) = blocks::divide(&planning, &profile).unwrap();
        let device = Device::flex();
        let mut parameters = 0;
        for programs in &programs {
            let block = LoadedBlock::new(&planning.joint, &device, false, programs).unwrap();
            for value in block.parameters[0].values() {
                let data = value.to_data().unwrap();
                assert!(data.iter::<f32>().all(|number| number != 0.0), "{data}");
                parameters += 1;
            }
        }
        assert_eq!(parameters, 2);
    }
}
