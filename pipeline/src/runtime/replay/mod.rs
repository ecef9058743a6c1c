//! Runs the programs of one micro-batch of a training step again, alone.
//!
//! The programs are those that ranks run, on the same operands, so they compute the same bits; schedules and messages, which
//! change none, are left out.

mod digest;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::TensorData;
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{RunContext, Source};
use tinderbox_fake::{DynTensor, Mode, ValueId};

pub use digest::{ProgramDigest, ReplayDifference, ReplayedOperation, first_replay_difference};
use digest::{described, digest_of, place};

use super::builder::PipelineBuilder;
use super::memory::device_of;
use super::prepared::Prepared;
use super::programs::Programs;
use super::rank::{RankSetup, action_error, caught};
use super::round::MicroInput;
use super::stage::Stage;
use super::weights::weights;
use crate::batch::{Batch, samples_of, split_samples};
use crate::cut::{Binding, Layout};
use crate::schedule::{Compute, MicroBatchIndex, RankIndex, StageIndex, Task};
use crate::trace::{Given, JointGraph};
use crate::{ActionError, PipelineError};

/// A training step, and a micro-batch of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ReplayedStep {
    /// The number of training steps done before it, which random values depend on.
    pub step: u64,
    /// The micro-batch, among those of all replicas.
    pub micro_batch: usize,
}

/// The programs of one micro-batch of a training step, each run when it is asked for: the forwards from the first stage to the
/// last, then the backwards from the last to the first. [`PipelineBuilder::replay`](crate::PipelineBuilder::replay) begins it.
///
/// A stage is materialized for each of its programs, and dropped after it. So memory is that of the parameters of one stage, and
/// of the values that programs exchange. To stop after a program is to stop asking.
pub struct StepReplay {
    at: ReplayedStep,
    joint: Arc<JointGraph>,
    /// The micro-batches up to the one that is replayed; that one alone, if forwards do not depend on those before them.
    micro_batches: Vec<(usize, Arc<MicroInput>)>,
    layout: Arc<Layout>,
    setups: Vec<Arc<RankSetup>>,
    source: Arc<dyn Source>,
    /// The programs that are left, the next one last.
    left: Vec<(StageIndex, Compute)>,
    /// The values that programs have given to others, by micro-batch.
    values: HashMap<(usize, ValueId), DynTensor>,
    /// The stage of the last program.
    stage: Option<Stage>,
    look: Option<Box<Look>>,
}

type Look = dyn FnMut(&ReplayedOperation, &DynTensor);

/// A program that was run again.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReplayedProgram {
    /// What it did, as digests.
    pub digest: ProgramDigest,
    /// What it read, with a name for each: parameters by their paths, tensors of the batch, and what other programs computed.
    pub inputs: Vec<(String, DynTensor)>,
    /// What it computed for other programs and for the update.
    pub outputs: Vec<(String, DynTensor)>,
}

impl<M: Module + Sync + 'static, B: Batch> PipelineBuilder<M, B> {
    /// Runs the programs of one micro-batch of a training step again, alone, one after the other in this process, and gives what
    /// each reads and computes: the values have the bits of the run, if the [source](Self::source) has the parameters that it
    /// had before the step, and seed, precision, loss scale, number of micro-batches and batch are the same. Plan, number of
    /// replicas and schedule change no bit. The batch is that of all replicas; the update is not a part.
    ///
    /// A [loss scale](Self::loss_scale) is that of the step: for a dynamic one, use a fixed one of the factor that the step had.
    ///
    /// ```
    /// # extern crate tinderbox_pipeline as tinderbox;
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use burn::tensor::{Device, Tensor};
    /// # use tinderbox_deferred::Deferred;
    /// # use tinderbox::{Machine, Outputs, Plan};
    /// use tinderbox::{Pipeline, ReplayedStep, Traceable};
    ///
    /// # let model = Deferred::new(|device: &Device| -> Vec<Linear> {
    /// #     (0..4).map(|_| LinearConfig::new(8, 8).init(device)).collect()
    /// # })?;
    /// # let batch = Tensor::<2>::ones([8, 8], &Device::flex());
    /// # let trace = model.trace(&batch.clone().narrow(0, 0, 2), |layers: &Vec<Linear>, x| {
    /// #     Outputs::loss(layers.iter().fold(x, |x, layer| layer.forward(x)).mean())
    /// # })?;
    /// # let plan = Plan::auto(&trace, &Machine::local(2)?)?;
    /// let at = ReplayedStep { step: 0, micro_batch: 3 };
    /// let replay = Pipeline::new(&model, &trace, &plan).micro_batches(4).replay(at, batch)?;
    /// for program in replay {
    ///     let program = program?;
    ///     println!("{} of stage {}", program.digest.compute.letter(), program.digest.stage);
    ///     for (name, value) in &program.outputs {
    ///         println!("  {name}: {:?}", value.shape());
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start) and [`Pipeline::step`](crate::Pipeline::step) before anything runs; when there is no such
    /// micro-batch.
    pub fn replay(mut self, at: ReplayedStep, batch: B) -> Result<StepReplay, PipelineError> {
        // Nothing is updated.
        self.remove_optimizers();
        if self.trace.mode() == Mode::Inference {
            return Err(PipelineError::ForwardTrace);
        }
        let source = self.source_of_values();
        let Prepared {
            settings,
            layout,
            schedule,
            micro_batches,
            ..
        } = Prepared::of(&self)?;
        let mut programs = Programs::new(
            self.trace,
            layout.clone(),
            schedule,
            &settings,
            self.loss_scale,
            self.kept_programs,
        );
        let step =
            u32::try_from(at.step).map_err(|_| PipelineError::StepOverflow { step: at.step })?;
        let (joint, mut inputs) = split_and_prepare(
            &mut programs,
            (settings.seed, step),
            &batch,
            micro_batches,
            at.micro_batch,
        )?;
        let factor = self.loss_scale.map_or(1.0, |scale| scale.factor());
        for input in &mut inputs {
            input.weight *= factor;
        }
        // A forward that updates running states reads what those before it have computed.
        let first = match joint.updates().is_empty() {
            true => at.micro_batch,
            false => 0,
        };
        let numbered = inputs.into_iter().map(Arc::new).enumerate();
        let micro_batches = numbered.skip(first).take(at.micro_batch + 1 - first);
        let table = self.model.parameters();
        let setup = |rank: RankIndex| {
            Arc::new(RankSetup {
                rank,
                replica: 0,
                place: rank,
                layout: layout.clone(),
                table: table.clone(),
                device: device_of(rank, &self.devices).clone(),
                settings: settings.clone(),
                progress: Arc::default(),
            })
        };
        let forwards = layout.stages().map(|stage| (stage, Compute::Forward));
        let backwards = layout.stages().rev();
        let backwards = backwards.map(|stage| (stage, Compute::Backward));
        let mut left: Vec<_> = forwards.chain(backwards).collect();
        left.reverse();
        Ok(StepReplay {
            at,
            joint,
            micro_batches: micro_batches.collect(),
            setups: (0..layout.rank_count())
                .map(|rank| setup(RankIndex::new(rank)))
                .collect(),
            layout,
            source,
            left,
            values: HashMap::new(),
            stage: None,
            look: None,
        })
    }
}

/// Splits a batch as a training step does, into fewer micro-batches if the schedule can't be generated for as many, and
/// computes the weight of each. Returns the graph of one of them, and the inputs of all.
fn split_and_prepare<B: Batch>(
    programs: &mut Programs<B>,
    context: (Seed, u32),
    batch: &B,
    micro_batches: usize,
    micro_batch: usize,
) -> Result<(Arc<JointGraph>, Vec<MicroInput>), PipelineError> {
    let samples = samples_of(batch)?;
    let mut count = micro_batches.min(samples);
    loop {
        let parts = split_samples(batch, samples, count)?;
        let part = parts.get(micro_batch).map(|(part, _)| part.clone());
        let part = part.ok_or(PipelineError::NoMicroBatch { micro_batch, count })?;
        let (mut inputs, counts) = programs.prepare(Mode::Training, context, parts, 0)?;
        let cuts: Vec<_> = inputs.iter().map(|input| &*input.cut).collect();
        match programs.parts(Mode::Training, &cuts) {
            Err(PipelineError::Generate(_) | PipelineError::Lists(_))
                if samples < micro_batches && count > 1 =>
            {
                count -= 1;
            }
            Err(error) => return Err(error),
            Ok(_) => {
                for (input, weight) in inputs.iter_mut().zip(weights(counts)?) {
                    input.weight = weight;
                }
                return Ok((programs.joint(Mode::Training, &part)?, inputs));
            }
        }
    }
}

impl StepReplay {
    /// Sets a function that gets the result of every operation, in the order in which they run.
    #[must_use]
    pub fn look(mut self, look: impl FnMut(&ReplayedOperation, &DynTensor) + 'static) -> Self {
        self.look = Some(Box::new(look));
        self
    }

    /// The step and the micro-batch.
    pub fn at(&self) -> ReplayedStep {
        self.at
    }

    fn run(
        &mut self,
        index: StageIndex,
        compute: Compute,
    ) -> Result<ReplayedProgram, PipelineError> {
        let rank = self.layout.ranks[index.index()];
        let mut stage = match self.stage.take().filter(|stage| stage.index() == index) {
            Some(stage) => stage,
            None => Stage::new(index, &self.setups[rank.index()], &*self.source)
                .map_err(|source| PipelineError::Materialize { rank, source })?,
        };
        let mut program = None;
        for (number, input) in self.micro_batches.clone() {
            let is_own = number == self.at.micro_batch;
            if is_own || compute == Compute::Forward {
                let run = || self.run_program(&mut stage, compute, (number, &input));
                let micro_batch = MicroBatchIndex::new(number);
                let task = Task {
                    stage: index,
                    compute,
                    micro_batch,
                };
                let action = task.to_string();
                let place = (Some(index), Some(micro_batch));
                let ran = caught(run);
                program = Some(ran.map_err(|source| action_error(rank, place, &action, source))?);
            }
        }
        self.stage = Some(stage);
        Ok(program.expect("the micro-batch that is replayed is the last one"))
    }

    /// Runs the program of a micro-batch; names and digests what it reads and computes if it is the one that is replayed.
    fn run_program(
        &mut self,
        stage: &mut Stage,
        compute: Compute,
        (number, input): (usize, &MicroInput),
    ) -> Result<ReplayedProgram, ActionError> {
        let programs = &input.cut.programs.stages[stage.index().index()];
        let phase = programs.phase(compute);
        let phase = phase.expect("a graph with a backward has one for every stage");
        let (executable, constants) = stage.load(&input.cut, compute)?;
        let types = executable.program().input_types().to_vec();
        let mut inputs = Vec::new();
        for (binding, (_, dtype)) in phase.inputs.iter().zip(&types) {
            inputs.push(match *binding {
                Binding::Given(Given::Parameter(position)) => stage.parameter(position, *dtype),
                Binding::Given(Given::Input(position)) => {
                    input.inputs[position].clone().to_device(stage.device())?
                }
                Binding::Given(Given::Weight) => {
                    let data = TensorData::new(vec![input.weight], [1]).convert_dtype(*dtype);
                    DynTensor::from_data(data, stage.device())
                }
                Binding::Constant(position) => constants[position].clone(),
                Binding::Value(value) => {
                    let value = self.values[&(number, value)].clone();
                    value.to_device(stage.device())?
                }
            });
        }
        let context = RunContext {
            seed: self.setups[0].settings.seed,
            step: self.at.step as u32,
            micro_batch: number as u32,
        };
        let mut program = ReplayedProgram {
            digest: ProgramDigest {
                step: self.at.step,
                micro_batch: number,
                stage: stage.index(),
                compute,
                inputs: Vec::new(),
                operations: Vec::new(),
            },
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        let made = match number == self.at.micro_batch {
            false => executable.run(inputs, &context),
            true => {
                let ids = executable.program().inputs().to_vec();
                for ((id, binding), value) in ids.iter().zip(&phase.inputs).zip(&inputs) {
                    let name = self.name(*id);
                    if let Binding::Given(_) = binding {
                        program
                            .digest
                            .inputs
                            .push((name.clone(), digest_of(value)?));
                    }
                    program.inputs.push((name, value.clone()));
                }
                let (joint, look) = (&self.joint, &mut self.look);
                let operations = &mut program.digest.operations;
                let mut unread = None;
                let made = executable.run_observed(inputs, &context, &mut |id, value| {
                    match ReplayedOperation::of(joint, id, &value) {
                        Ok(Some(operation)) => {
                            if let Some(look) = look {
                                look(&operation, &value);
                            }
                            operations.push(operation);
                        }
                        Ok(None) => {}
                        Err(error) => unread = Some(error),
                    }
                });
                match unread {
                    Some(error) => return Err(error.into()),
                    None => made,
                }
            }
        };
        let made = made.map_err(|source| input.cut.indices.locate(source))?;
        let mut made = made.into_iter();
        for ((id, _), value) in phase.outputs.iter().zip(&mut made) {
            program.outputs.push((self.name(*id), value.clone()));
            self.values.insert((number, *id), value);
        }
        let path = |position: &usize| &self.joint.parameter(*position).path;
        for (position, value) in phase.gradients.iter().zip(&mut made) {
            let name = format!("gradient of `{}`", path(position));
            program.outputs.push((name, value));
        }
        for (position, value) in phase.updates.iter().zip(&mut made) {
            let name = format!("new value of `{}`", path(position));
            program.outputs.push((name, value.clone()));
            stage.update_state(*position, value);
        }
        Ok(program)
    }

    /// The name of a value of the micro-batch that is replayed.
    fn name(&self, value: ValueId) -> String {
        let joint = &self.joint;
        match joint.given(value) {
            Some(Given::Parameter(position)) => return joint.parameter(position).path.to_string(),
            Some(Given::Input(position)) => return joint.inputs()[position].leaf.name.clone(),
            Some(Given::Weight) => return "weight of the loss".to_owned(),
            None => {}
        }
        if joint.loss() == Some(value) {
            return "loss".to_owned();
        }
        if let Some((name, _)) = joint.outputs().iter().find(|(_, of)| *of == value) {
            return name.clone();
        }
        match joint.graph().value(value).producer {
            Some(node) => {
                let name = joint.graph().node(node).name();
                described(&name, place(joint, node).as_deref(), node.index())
            }
            None => "constant".to_owned(),
        }
    }
}

impl Iterator for StepReplay {
    type Item = Result<ReplayedProgram, PipelineError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (stage, compute) = self.left.pop()?;
        let program = self.run(stage, compute);
        if program.is_err() {
            self.left.clear();
        }
        Some(program)
    }
}

impl fmt::Debug for StepReplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepReplay")
            .field("at", &self.at)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}
