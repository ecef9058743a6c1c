//! The programs and lists of a pipeline: one set per mode and shapes of a batch, of which the most
//! recently used are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tinderbox_deferred::ParameterPath;
use tinderbox_fake::Mode;

use super::clip::table_order;
use super::indices::IndexPlaces;
use super::lists::{ScheduleChoice, StepLists};
use super::stage::CutProgram;
use super::step::MicroInput;
use super::weights::loss_weight;
use crate::batch::Batch;
use crate::certify::{CertifiedMicroBatch, Lists, certify_lists, certify_programs};
use crate::cut::{Cutting, Layout, StagePrograms};
use crate::partition::Chain;
use crate::recent::Recent;
use crate::schedule::{
    Costs, Dependencies, Edge, RankIndex, ScheduleKind, StageCosts, StageIndex, Tie,
    forward_only_on,
};
use crate::trace::{JointGraph, Roles, Trace};
use crate::work::cast_bytes_by_path;
use crate::{CertifyError, PipelineError, Plan};

/// The key of lists: mode, number of micro-batches, and the edges between stages.
type ListsKey = (Mode, usize, BTreeSet<Edge>);

/// Creates programs and lists on demand, and keeps the most recently used.
pub(super) struct Programs<B> {
    trace: Trace<B>,
    layout: Layout,
    /// The order in which squared norms are added.
    table_order: Vec<(StageIndex, usize)>,
    stage_to_rank: Vec<RankIndex>,
    /// Whether each stage recomputes its activations.
    recompute: Vec<bool>,
    choice: ScheduleChoice,
    /// Whether a step needs the norm of all gradients.
    global_norm: bool,
    /// Whether index errors name the module and the tensor.
    check_indices: bool,
    cuts: Recent<String, Arc<CutProgram>>,
    lists: Recent<ListsKey, Arc<StepLists>>,
    /// The cuts of the micro-batches, in order, with which the lists were certified.
    certified: Recent<(Mode, Vec<u64>), ()>,
    /// The number of programs created so far.
    made: u64,
    /// The number of programs dropped so far.
    dropped: u64,
}

impl<B> Programs<B> {
    pub(super) fn choice(&self) -> &ScheduleChoice {
        &self.choice
    }
}

impl<B: Batch> Programs<B> {
    pub(super) fn new(
        trace: Trace<B>,
        layout: Layout,
        plan: &Plan,
        choice: ScheduleChoice,
        global_norm: bool,
        check_indices: bool,
        kept: usize,
    ) -> Self {
        let recompute = plan.stages().iter().map(|stage| stage.recompute);
        Self {
            table_order: table_order(trace.parameters(), &layout),
            trace: trace.keeping(kept),
            layout,
            stage_to_rank: plan.stage_to_rank(),
            recompute: recompute.collect(),
            choice,
            global_norm,
            check_indices,
            cuts: Recent::new(kept),
            lists: Recent::new(kept),
            certified: Recent::new(kept),
            made: 0,
            dropped: 0,
        }
    }

    /// Stage and index of every parameter, in the order in which squared norms are added.
    pub(super) fn table_order(&self) -> &[(StageIndex, usize)] {
        &self.table_order
    }

    /// Returns the programs for batches of this shape. They are kept until
    /// [`drop_unused`](Self::drop_unused).
    pub(super) fn cut(
        &mut self,
        mode: Mode,
        example: &B,
    ) -> Result<Arc<CutProgram>, PipelineError> {
        let name = Trace::key(mode, example).to_string();
        if let Some(cut) = self.cuts.get(&name) {
            return Ok(cut.clone());
        }
        self.trace.check_batch(example)?;
        let joint = self.trace.program(mode, example)?;
        self.cut_of(&joint)
    }

    fn cut_of(&mut self, joint: &JointGraph) -> Result<Arc<CutProgram>, PipelineError> {
        let name = joint.key().to_string();
        if let Some(cut) = self.cuts.get(&name) {
            return Ok(cut.clone());
        }
        let table = self.trace.parameters();
        let roles = Roles::of(joint);
        let chain = Chain::new(joint, &roles, table);
        let cutting = Cutting::new(joint, &roles, &chain, table, &self.layout)?;
        cutting.check_held(&self.layout)?;
        let recompute = self.recompute.iter().copied();
        let stages = StagePrograms::of_stages(joint, &roles, &cutting, recompute)?;
        let cut = Arc::new(CutProgram {
            number: self.made,
            certificate: certify_programs(joint, table, &stages, &self.stage_to_rank)?,
            stages,
            loss_weight: loss_weight(joint, self.check_indices)?,
            indices: match self.check_indices {
                true => IndexPlaces::of(joint, &chain, table),
                false => IndexPlaces::default(),
            },
        });
        self.made += 1;
        tracing::debug!(program = %name, made = self.made, "program created");
        self.cuts.insert(name, cut.clone());
        Ok(cut)
    }

    /// Drops the least recently used programs beyond the number that is kept, but none of `used`, which
    /// were used last.
    pub(super) fn drop_unused<'a>(&mut self, used: impl Iterator<Item = &'a CutProgram>) {
        let used: BTreeSet<u64> = used.map(|cut| cut.number).collect();
        for name in self.cuts.trim(used.len()) {
            if self.dropped == 0 {
                tracing::warn!(
                    "batches have more shapes than programs are kept: a shape that recurs after others is recorded, \
                     cut and loaded again; keep more (`keep_programs`), or pad batches to fewer shapes"
                );
            }
            self.dropped += 1;
            tracing::debug!(program = %name, dropped = self.dropped, "program dropped");
        }
    }

    /// The numbers of the programs that are kept.
    pub(super) fn kept(&self) -> BTreeSet<u64> {
        self.cuts.values().map(|cut| cut.number).collect()
    }

    /// The bytes of each parameter in the dtype of the forward, if that is not its own.
    pub(super) fn cast_bytes(&self) -> Result<BTreeMap<ParameterPath, u64>, PipelineError> {
        let joint = self.trace.example_program()?;
        Ok(cast_bytes_by_path(&joint, self.trace.parameters()))
    }

    /// The verified lists for these micro-batches.
    pub(super) fn lists(
        &mut self,
        mode: Mode,
        micro_batches: &[MicroInput],
    ) -> Result<Arc<StepLists>, PipelineError> {
        let cuts: Vec<&CutProgram> = micro_batches.iter().map(|micro| &*micro.cut).collect();
        let lists = self.lists_of(mode, &cuts)?;
        let order = (mode, cuts.iter().map(|cut| cut.number).collect());
        if self.certified.get(&order).is_none() {
            self.certify(mode, &lists, &cuts)?;
            self.certified.insert(order, ());
            self.certified.trim(1);
        }
        Ok(lists)
    }

    fn lists_of(
        &mut self,
        mode: Mode,
        cuts: &[&CutProgram],
    ) -> Result<Arc<StepLists>, PipelineError> {
        // Micro-batches of other shapes may exchange other values.
        let key = (mode, cuts.len(), edges(cuts.iter().copied()));
        if let Some(lists) = self.lists.get(&key) {
            return Ok(lists.clone());
        }
        let dependencies = self.dependencies(mode, cuts.iter().copied());
        let (ranks, count) = (&self.stage_to_rank, cuts.len());
        let compute = match mode {
            Mode::Training => self.choice.compute(ranks, count, &dependencies)?,
            Mode::Inference => forward_only_on(ranks, count),
        };
        let lists = Arc::new(StepLists::new(&compute, &dependencies)?);
        self.lists.insert(key, lists.clone());
        self.lists.trim(1);
        Ok(lists)
    }

    /// Proves that lists and the programs of their micro-batches compute what was recorded.
    fn certify(
        &self,
        mode: Mode,
        lists: &StepLists,
        cuts: &[&CutProgram],
    ) -> Result<(), CertifyError> {
        let certified = cuts.iter().map(|cut| CertifiedMicroBatch {
            stages: &cut.stages,
            certificate: &cut.certificate,
        });
        certify_lists(&Lists {
            schedule: &lists.schedule,
            is_split: &|stage, micro_batch| lists.is_split(stage, micro_batch),
            micro_batches: certified.collect(),
            table: self.trace.parameters(),
            layout: &self.layout,
            global_norm: self.global_norm && mode == Mode::Training,
        })
    }

    /// The dependencies of a step with these programs.
    pub(super) fn dependencies<'a>(
        &self,
        mode: Mode,
        cuts: impl Iterator<Item = &'a CutProgram>,
    ) -> Dependencies {
        let ties = match mode {
            Mode::Training => self.ties(),
            Mode::Inference => Vec::new(),
        };
        let dependencies = Dependencies::new(self.layout.stages(), edges(cuts), ties);
        match mode == Mode::Training && self.global_norm {
            true => dependencies.with_global_norm(),
            false => dependencies,
        }
    }

    /// The bytes of a step with these programs; its times are unknown, and zero.
    pub(super) fn bytes(&self, cut: &CutProgram, resident: &[u64]) -> Costs {
        let stages = cut.stages.iter().enumerate().map(|(index, programs)| {
            let backward = programs.backward.as_ref();
            StageCosts {
                activation_bytes: backward.map_or(0, |b| b.activation_bytes),
                weight_gradient_bytes: backward.map_or(0, |b| b.weight_gradient_bytes),
                resident_bytes: resident.get(index).copied().unwrap_or(0),
                ..StageCosts::default()
            }
        });
        let mut costs = Costs::of_stages(stages.collect());
        let sent = cut.stages.iter().flat_map(|programs| &programs.sent_bytes);
        costs.message_bytes = sent
            .map(|(edge, bytes)| (*edge, *bytes))
            .collect::<BTreeMap<_, _>>();
        costs
    }

    /// The stages that hold copies of another's parameters.
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

/// Measures the time to certify a training step over micro-batches like a trace's example: the programs
/// of a plan, and the lists of a schedule, without creating them. For benchmarks.
#[doc(hidden)]
pub fn certification_time<B: Batch>(
    trace: &Trace<B>,
    plan: &Plan,
    schedule: ScheduleKind,
    micro_batches: usize,
) -> Result<Duration, PipelineError> {
    let layout = plan.layout(trace.parameters())?;
    let (trace, schedule) = (trace.clone(), schedule.into());
    let mut programs = Programs::new(trace, layout, plan, schedule, true, false, 1);
    let joint = programs.trace.example_program()?;
    let cut = programs.cut_of(&joint)?;
    let cuts = vec![&*cut; micro_batches];
    let lists = programs.lists_of(Mode::Training, &cuts)?;
    let started = Instant::now();
    let (table, ranks) = (programs.trace.parameters(), &programs.stage_to_rank);
    certify_programs(&joint, table, &cut.stages, ranks)?;
    programs.certify(Mode::Training, &lists, &cuts)?;
    Ok(started.elapsed())
}

/// The edges between the stages of programs.
fn edges<'a>(cuts: impl Iterator<Item = &'a CutProgram>) -> BTreeSet<Edge> {
    let stages = cuts.flat_map(|cut| &cut.stages);
    let edges = stages.flat_map(|programs| programs.sends.keys().copied());
    edges.collect()
}
