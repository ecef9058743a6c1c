//! The programs and lists that a pipeline has made so far: one set per mode and shapes of a batch.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tinderbox_deferred::ParameterPath;
use tinderbox_fake::Mode;

use super::lists::{ScheduleChoice, StepLists};
use super::stage::CutProgram;
use super::step::MicroInput;
use crate::PipelineError;
use crate::Plan;
use crate::batch::Batch;
use crate::cut::{Activations, Cutting, Layout, StagePrograms};
use crate::partition::Chain;
use crate::schedule::{
    Costs, Dependencies, Edge, RankIndex, StageCosts, StageIndex, Tie, forward_only_on,
};
use crate::trace::{Roles, Trace};
use crate::work::cast_bytes_by_path;

/// Makes programs and lists when they are asked for first.
pub(super) struct Programs<B> {
    trace: Trace<B>,
    layout: Layout,
    stage_to_rank: Vec<RankIndex>,
    activations: Vec<Activations>,
    choice: ScheduleChoice,
    /// Whether a step needs the norm of all gradients.
    global_norm: bool,
    cuts: HashMap<String, Arc<CutProgram>>,
    lists: HashMap<(Mode, Vec<usize>), Arc<StepLists>>,
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
    ) -> Self {
        let activations = plan.stages().iter().map(|stage| match stage.recompute {
            true => Activations::Recomputed,
            false => Activations::Kept,
        });
        Self {
            trace,
            layout,
            stage_to_rank: plan.stage_to_rank(),
            activations: activations.collect(),
            choice,
            global_norm,
            cuts: HashMap::new(),
            lists: HashMap::new(),
        }
    }

    /// The programs for batches of this shape.
    pub(super) fn cut(
        &mut self,
        mode: Mode,
        example: &B,
    ) -> Result<Arc<CutProgram>, PipelineError> {
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
        let stages = self.activations.iter().enumerate().map(|(stage, kept)| {
            StagePrograms::new(&joint, &roles, &cutting, StageIndex::new(stage), *kept)
        });
        let cut = Arc::new(CutProgram {
            number: self.cuts.len(),
            stages: stages.collect::<Result<Vec<_>, _>>()?,
        });
        self.cuts.insert(name, cut.clone());
        Ok(cut)
    }

    /// Bytes of each parameter in the type of the forward, where that is not its own.
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
        // Micro-batches of other shapes may exchange other values.
        let shapes: BTreeSet<usize> = micro_batches.iter().map(|m| m.cut.number).collect();
        let mut key = vec![micro_batches.len()];
        key.extend(shapes);
        if let Some(lists) = self.lists.get(&(mode, key.clone())) {
            return Ok(lists.clone());
        }
        let cuts = micro_batches.iter().map(|micro| &*micro.cut);
        let dependencies = self.dependencies(mode, cuts);
        let (ranks, count) = (&self.stage_to_rank, micro_batches.len());
        let compute = match mode {
            Mode::Training => self.choice.compute(ranks, count, &dependencies)?,
            Mode::Inference => forward_only_on(ranks, count),
        };
        let lists = Arc::new(StepLists::new(&compute, &dependencies)?);
        self.lists.insert((mode, key), lists.clone());
        Ok(lists)
    }

    /// What a step with these programs depends on.
    pub(super) fn dependencies<'a>(
        &self,
        mode: Mode,
        cuts: impl Iterator<Item = &'a CutProgram>,
    ) -> Dependencies {
        let programs = cuts.flat_map(|cut| &cut.stages);
        let edges: BTreeSet<Edge> = programs
            .flat_map(|programs| programs.sends.keys().copied())
            .collect();
        let ties = match mode {
            Mode::Training => self.ties(),
            Mode::Inference => Vec::new(),
        };
        let dependencies = Dependencies::new(self.layout.stages(), edges, ties);
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
