//! The handle that drives a pipeline.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;
use tinderbox_deferred::{Deferred, Observed, Values, random::Seed};
use tinderbox_fake::{DynTensor, Mode};

use super::builder::{PipelineBuilder, ScheduleKind};
use super::crew::Crew;
use super::rank::RankSetup;
use super::stage::{CutProgram, Stage};
use super::step::{MicroInput, Round, RoundReport};
use crate::batch::{Batch, MicroBatch, batch_tensors, split};
use crate::cut::{Cutting, Layout, StagePrograms};
use crate::partition::Chain;
use crate::schedule::{
    Dependencies, Edge, RankIndex, Schedule, StageIndex, Tie, forward_only, lower, verify,
};
use crate::trace::{Roles, Trace};
use crate::{ActionError, PipelineError, Plan};

/// What a step or an evaluation gives back.
#[derive(Clone, Debug)]
pub struct StepOutput {
    /// The mean loss over the samples; `None` when the forward makes none.
    pub loss: Option<f64>,
    /// The loss of each micro-batch, in order.
    pub micro_batch_losses: Vec<f64>,
    /// Every named output of each micro-batch, in order of name.
    outputs: Vec<(String, Vec<DynTensor>)>,
}

impl StepOutput {
    /// The named outputs, one tensor per micro-batch.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, &[DynTensor])> {
        self.outputs
            .iter()
            .map(|(name, values)| (name.as_str(), values.as_slice()))
    }

    /// A named output, one tensor per micro-batch.
    pub fn output(&self, name: &str) -> Option<&[DynTensor]> {
        self.outputs()
            .find(|(known, _)| *known == name)
            .map(|(_, values)| values)
    }
}

/// A model in training, its stages on ranks that run as threads.
///
/// Dropping it ends and joins the ranks.
pub struct Pipeline<M, B> {
    model: Deferred<M>,
    trace: Trace<B>,
    plan: Arc<Plan>,
    layout: Layout,
    crew: Crew,
    seed: Seed,
    schedule: ScheduleKind,
    micro_batches: usize,
    trains: bool,
    step: u64,
    round: u64,
    cuts: HashMap<String, Arc<CutProgram>>,
    schedules: HashMap<String, Arc<Schedule>>,
}

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// A pipeline of a model by a plan, to be set up and started.
    #[expect(clippy::new_ret_no_self, reason = "it is made by its builder")]
    pub fn new(model: &Deferred<M>, trace: &Trace<B>, plan: &Plan) -> PipelineBuilder<M, B> {
        PipelineBuilder::new(model, trace, plan)
    }

    pub(super) fn start(builder: PipelineBuilder<M, B>) -> Result<Self, PipelineError> {
        let table = builder.model.parameters().clone();
        let clone = table
            .iter()
            .find_map(|p| Some((p.clone_of.clone()?, p.path.clone())));
        if let (Some((first, second)), true) = (clone, builder.optimizer.is_some()) {
            return Err(PipelineError::Clones { first, second });
        }
        let layout = builder.plan.layout(&table)?;
        // The trace may be of another model.
        builder.plan.layout(builder.trace.parameters())?;
        let plan = Arc::new(builder.plan);
        let source = builder
            .source
            .unwrap_or_else(|| Arc::new(builder.model.replay(builder.seed)));
        let source = match builder.observer {
            Some(observer) => Arc::new(Observed::new(source, observer)),
            None => source,
        };
        let ranks = plan.stages().len();
        let setups = (0..ranks).map(|rank| RankSetup {
            rank: RankIndex::new(rank),
            plan: plan.clone(),
            table: table.clone(),
            device: builder.device.clone(),
            seed: builder.seed,
            optimizer: builder.optimizer.clone(),
            keep_gradients: builder.keep_gradients,
        });
        let machine = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = builder.threads_per_rank.unwrap_or((machine / ranks).max(1));
        let mut crew = Crew::start(
            setups.collect(),
            &source,
            threads,
            builder.timeout,
            builder.links.as_deref(),
        )?;
        crew.call("make its parameters", |_, _| ())?;
        Ok(Self {
            model: builder.model,
            trace: builder.trace,
            layout,
            crew,
            seed: builder.seed,
            schedule: builder.schedule,
            micro_batches: builder.micro_batches.max(1),
            trains: builder.optimizer.is_some(),
            step: 0,
            round: 0,
            cuts: HashMap::new(),
            schedules: HashMap::new(),
            plan,
        })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The model, without its parameters.
    pub fn model(&self) -> &Deferred<M> {
        &self.model
    }

    /// The seed.
    pub fn seed(&self) -> Seed {
        self.seed
    }

    /// Training steps done so far, those before a resume included.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Says how many training steps the parameters have behind them, after they were restored.
    pub fn resume_at(&mut self, step: u64) {
        self.step = step;
    }

    /// One training step: the batch is split into micro-batches, their gradients, weighted by their
    /// share of the samples, are summed in order, and every rank's optimizer steps.
    ///
    /// # Errors
    ///
    /// When no optimizer was given, the batch can't be split or traced, or an action fails; in the
    /// last case the pipeline has stopped.
    pub fn step(&mut self, lr: f64, batch: B) -> Result<StepOutput, PipelineError> {
        if !self.trains {
            return Err(PipelineError::NoOptimizer);
        }
        let step = self.step;
        let parts = split(&batch, self.micro_batches)?;
        let output = self.run(Mode::Training, lr, parts)?;
        self.step = step + 1;
        Ok(output)
    }

    /// Runs the forward alone, without dropout, and gives the loss and the named outputs. Nothing of
    /// the model changes.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::step`]; a batch of fewer samples than micro-batches is split into fewer.
    pub fn evaluate(&mut self, batch: B) -> Result<StepOutput, PipelineError> {
        let samples = split(&batch, 1)?.first().map_or(0, |part| part.samples);
        let parts = split(&batch, self.micro_batches.min(samples).max(1))?;
        self.run(Mode::Inference, 0.0, parts)
    }

    /// Runs code on every rank's thread, with its stages. Results come in the order of the ranks.
    ///
    /// # Errors
    ///
    /// When the code panics on a rank: the pipeline has then stopped.
    pub fn on_ranks<R: Send + 'static>(
        &mut self,
        call: impl Fn(RankIndex, &mut [Stage]) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>, PipelineError> {
        self.crew.call("run a call", call)
    }

    /// The trained model on one device, as an ordinary Burn module.
    ///
    /// # Errors
    ///
    /// When a rank has failed, or the closure makes another model than before.
    pub fn gather(&mut self, device: &Device) -> Result<M, PipelineError> {
        let values: Values = self
            .on_ranks(|_, stages| {
                let values = stages.iter().flat_map(|stage| stage.parameters().values());
                values
                    .map(|(path, value)| (path.clone(), value))
                    .collect::<Vec<_>>()
            })?
            .into_iter()
            .flatten()
            .collect();
        self.model
            .materialize(device, &values)
            .map_err(|source| PipelineError::Gather { source })
    }

    fn run(
        &mut self,
        mode: Mode,
        lr: f64,
        parts: Vec<MicroBatch<B>>,
    ) -> Result<StepOutput, PipelineError> {
        let step = u32::try_from(self.step)
            .map_err(|_| PipelineError::StepOverflow { step: self.step })?;
        let samples: usize = parts.iter().map(|part| part.samples).sum();
        let mut micro_batches = Vec::with_capacity(parts.len());
        let mut weights = Vec::with_capacity(parts.len());
        for part in &parts {
            let cut = self.cut(mode, &part.batch)?;
            weights.push(part.samples as f64 / samples as f64);
            micro_batches.push(MicroInput {
                cut,
                inputs: batch_tensors(&part.batch),
                weight: part.samples as f32 / samples as f32,
            });
        }
        let schedule = self.schedule(mode, &micro_batches)?;
        let round = Round {
            round: self.round,
            step,
            lr,
            schedule,
            micro_batches,
        };
        self.round += 1;
        let request = match mode {
            Mode::Training => "run a training step",
            Mode::Inference => "run an evaluation",
        };
        let reports = self.crew.round(round, request)?;
        collect(reports, &weights)
    }

    /// The programs for batches of this shape; made when they are asked for first.
    fn cut(&mut self, mode: Mode, example: &B) -> Result<Arc<CutProgram>, PipelineError> {
        let joint = self.trace.program(mode, example)?;
        let name = joint.key().to_string();
        if let Some(cut) = self.cuts.get(&name) {
            return Ok(cut.clone());
        }
        let table = self.trace.parameters();
        let roles = Roles::of(&joint);
        let chain = Chain::new(&joint, &roles, table);
        let cutting = Cutting::new(&joint, &roles, &chain, table, &self.layout)?;
        cutting.check_held(&self.layout)?;
        let stages = (0..self.layout.stages())
            .map(|stage| StagePrograms::new(&joint, &cutting, StageIndex::new(stage)))
            .collect::<Result<Vec<_>, _>>()?;
        let cut = Arc::new(CutProgram {
            name: name.clone(),
            stages,
        });
        self.cuts.insert(name, cut.clone());
        Ok(cut)
    }

    /// The verified lists for these micro-batches.
    fn schedule(
        &mut self,
        mode: Mode,
        micro_batches: &[MicroInput],
    ) -> Result<Arc<Schedule>, PipelineError> {
        let names: BTreeSet<&str> = micro_batches.iter().map(|m| m.cut.name.as_str()).collect();
        let key = format!("{} {names:?}", micro_batches.len());
        if let Some(schedule) = self.schedules.get(&key) {
            return Ok(schedule.clone());
        }
        let stages = self.layout.stages();
        let (schedule, ties) = match mode {
            Mode::Training => (
                self.schedule.generate(stages, micro_batches.len()),
                self.ties(),
            ),
            Mode::Inference => (forward_only(stages, micro_batches.len()), Vec::new()),
        };
        let programs = micro_batches.iter().flat_map(|micro| &micro.cut.stages);
        let edges: BTreeSet<Edge> = programs
            .flat_map(|programs| programs.sends.keys().copied())
            .collect();
        let dependencies = Dependencies::new(stages, edges, ties);
        let lowered = lower(&schedule, &dependencies);
        verify(&lowered, &dependencies).map_err(|source| PipelineError::Schedule { source })?;
        let lowered = Arc::new(lowered);
        self.schedules.insert(key, lowered.clone());
        Ok(lowered)
    }

    /// Stages that hold copies of another's parameters.
    fn ties(&self) -> Vec<Tie> {
        let table = self.trace.parameters();
        let mut ties = Vec::new();
        for replica in (0..self.layout.stages()).map(StageIndex::new) {
            for path in self.layout.replicas(replica) {
                if let Some(position) = table.iter().position(|p| p.path == *path) {
                    ties.push(Tie {
                        owner: self.layout.owner(position),
                        replica,
                    });
                }
            }
        }
        ties
    }
}

fn collect(reports: Vec<RoundReport>, weights: &[f64]) -> Result<StepOutput, PipelineError> {
    let mut losses = vec![None; weights.len()];
    let mut outputs: std::collections::BTreeMap<String, Vec<(usize, DynTensor)>> =
        std::collections::BTreeMap::new();
    for (rank, report) in reports.into_iter().enumerate() {
        for (micro_batch, loss) in report.losses {
            let failed = |source| PipelineError::Action {
                rank: RankIndex::new(rank),
                stage: None,
                micro_batch: Some(crate::schedule::MicroBatchIndex::new(micro_batch)),
                action: "READ LOSS".into(),
                source: Box::new(ActionError::Tensor(source)),
            };
            let data = loss.to_data().map_err(failed)?;
            losses[micro_batch] = data.iter::<f64>().next();
        }
        for (micro_batch, name, value) in report.outputs {
            outputs.entry(name).or_default().push((micro_batch, value));
        }
    }
    let micro_batch_losses: Vec<f64> = losses.into_iter().flatten().collect();
    let weighted = micro_batch_losses
        .iter()
        .zip(weights)
        .map(|(loss, weight)| loss * weight);
    let loss = (micro_batch_losses.len() == weights.len()).then(|| weighted.sum());
    let in_order = |mut values: Vec<(usize, DynTensor)>| {
        values.sort_by_key(|(micro_batch, _)| *micro_batch);
        values.into_iter().map(|(_, value)| value).collect()
    };
    let outputs = outputs
        .into_iter()
        .map(|(name, values)| (name, in_order(values)))
        .collect();
    Ok(StepOutput {
        loss,
        micro_batch_losses,
        outputs,
    })
}

impl<M, B> fmt::Debug for Pipeline<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("stages", &self.layout.stages())
            .field("seed", &self.seed)
            .field("schedule", &self.schedule)
            .field("micro_batches", &self.micro_batches)
            .field("steps", &self.step)
            .finish_non_exhaustive()
    }
}
