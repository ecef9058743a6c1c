//! The programs and lists of a pipeline: one set per mode and shapes of a batch. The most recently used are kept.

use std::collections::BTreeSet;
use std::sync::Arc;

use tinderbox_deferred::random::Seed;
use tinderbox_fake::Mode;

use super::batches::{MicroBatch, Work, counts};
use crate::certify::{CertifiedStep, certify_lists, certify_programs};
use crate::cut::{Cutting, Layout, StagePrograms, step_bytes};
use crate::error::Result;
use crate::lists::{ScheduleChoice, StepLists};
use crate::recent::Recent;
use crate::runtime::program::{CarriedTensors, CutBytes, CutProgram, IndexPlaces, count_of};
use crate::runtime::round::{MicroBatches, MicroInput, ReplicaPart};
use crate::runtime::settings::{Options, Settings};
use crate::schedule::{
    Compute, Costs, Dependencies, Edge, MicroBatchIndex, StageIndex, forward_only_on, verify,
};
use crate::sum::{GradientSum, Groups};
use crate::trace::{JointGraph, ProgramKey};
use crate::{BatchError, ListsError, StepError};

/// The key of lists: mode, number of micro-batches, the edges between stages, and the stages that update running
/// states.
type ListsKey = (Mode, usize, Exchanged);

/// The edges on which micro-batches exchange values, and the stages that update running states.
type Exchanged = (BTreeSet<Edge>, BTreeSet<StageIndex>);

/// Creates programs and lists on demand, and keeps the most recently used.
pub(crate) struct Programs {
    /// The graph of the example that was traced.
    pub(super) example: Arc<JointGraph>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) choice: ScheduleChoice,
    /// The order in which gradients are added.
    sum: GradientSum,
    check_indices: bool,
    /// Whether a step needs the norm of all gradients.
    global_norm: bool,
    cuts: Recent<ProgramKey, Arc<CutProgram>>,
    lists: Recent<ListsKey, Arc<StepLists>>,
    /// The cuts of the micro-batches, in order, with which the lists were certified.
    certified: Recent<(Mode, Vec<u64>), ()>,
    /// The number of programs created so far.
    made: u64,
    /// The number of programs dropped so far.
    dropped: u64,
}

impl Programs {
    pub(crate) fn new(
        example: Arc<JointGraph>,
        layout: Arc<Layout>,
        choice: ScheduleChoice,
        settings: &Settings,
        options: &Options,
    ) -> Self {
        let factor = options.loss_scale.map(|scale| scale.factor());
        let kept = options.kept_programs;
        Self {
            example,
            layout,
            choice,
            sum: settings.sum,
            check_indices: settings.check_indices,
            global_norm: settings.needs_norms(factor),
            cuts: Recent::new(kept),
            lists: Recent::new(kept),
            certified: Recent::new(kept),
            made: 0,
            dropped: 0,
        }
    }

    /// Refuses a schedule that does not fit before parameters are materialized. The dependencies of its ranks are only known
    /// when a batch is traced.
    pub(super) fn check_schedule(&self, micro_batches: usize) -> Result<(), ListsError> {
        let (groups, replicas) = (self.groups(micro_batches), self.layout.replicas);
        let shares = (0..replicas).map(|replica| groups.of_replica(replica, replicas).len());
        let counts: BTreeSet<usize> = match &self.choice {
            ScheduleChoice::Written(written) => {
                // The schedule of a replica, for one batch or for several that are accumulated.
                let expected = written.micro_batches.saturating_mul(replicas);
                if expected == 0 || !expected.is_multiple_of(micro_batches) {
                    return Err(ListsError::PlannedMicroBatches {
                        schedule: written.name.clone(),
                        expected,
                        found: micro_batches,
                    });
                }
                [written.micro_batches].into()
            }
            _ => shares.collect(),
        };
        let alone = Dependencies::new(self.layout.ranks.len(), [], []);
        for count in counts {
            let lists = self.choice.compute(&self.layout.ranks, count, &alone)?;
            verify(&lists, &alone).map_err(ListsError::Schedule)?;
        }
        Ok(())
    }

    /// Returns the programs for a micro-batch. They are kept until [`drop_unused`](Self::drop_unused).
    fn cut(&mut self, part: &MicroBatch<'_>) -> Result<Arc<CutProgram>> {
        match self.cuts.get(&part.key) {
            Some(cut) => Ok(cut.clone()),
            None => self.cut_of(&(part.record)()?),
        }
    }

    fn cut_of(&mut self, joint: &Arc<JointGraph>) -> Result<Arc<CutProgram>> {
        let key = joint.key();
        if let Some(cut) = self.cuts.get(key) {
            return Ok(cut.clone());
        }
        let layout = &*self.layout;
        let cutting = Cutting::new(joint, layout)?;
        cutting.check_held(joint, layout)?;
        let stages = StagePrograms::of_stages(joint, &cutting, layout).map_err(StepError::from)?;
        let cut = Arc::new(CutProgram {
            number: self.made,
            carried: CarriedTensors::of(joint, &stages),
            bytes: CutBytes::of(joint, &stages),
            programs: certify_programs(joint, stages, &layout.ranks).map_err(StepError::from)?,
            loss_over: count_of(joint, self.check_indices).map_err(StepError::from)?,
            indices: IndexPlaces::of(joint, self.check_indices),
        });
        self.made += 1;
        tracing::debug!(program = %key, made = self.made, "program created");
        self.cuts.insert(key.clone(), cut.clone());
        Ok(cut)
    }

    /// Loads the programs of micro-batches, checks their indices, and computes their counts. `first` is the index of the first
    /// one among the micro-batches of all replicas.
    pub(crate) fn prepare(
        &mut self,
        (seed, step): (Seed, u32),
        parts: Vec<MicroBatch<'_>>,
        first: usize,
    ) -> Result<Work> {
        let mut own = Vec::with_capacity(parts.len());
        for part in parts {
            own.push(MicroInput {
                cut: self.cut(&part)?,
                inputs: part.inputs,
                samples: part.samples,
                weight: 0.0,
            });
        }
        self.drop_unused(own.iter().map(|micro| &*micro.cut));
        for (micro, index) in own.iter().zip(first..) {
            let checked = micro.cut.indices.check(&micro.inputs);
            checked.map_err(|source| StepError::MicroBatch {
                micro_batch: MicroBatchIndex::new(index),
                source: Box::new(source),
            })?;
        }
        let micro_batches = MicroBatches { own, first };
        let counts = counts(&micro_batches, (seed, step))?;
        Ok((micro_batches, counts))
    }

    /// Drops the least recently used programs beyond the number that is kept. The programs of `used`, which were used last,
    /// remain.
    pub(crate) fn drop_unused<'a>(&mut self, used: impl Iterator<Item = &'a CutProgram>) {
        let used: BTreeSet<u64> = used.map(|cut| cut.number).collect();
        for key in self.cuts.trim(used.len()) {
            if self.dropped == 0 {
                tracing::warn!(
                    "batches have more shapes than programs are kept: a shape that recurs after others is recorded, \
                     cut and loaded again; keep more (`keep_programs`), or pad batches to fewer shapes"
                );
            }
            self.dropped += 1;
            tracing::debug!(program = %key, dropped = self.dropped, "program dropped");
        }
    }

    /// The numbers of the programs that are kept.
    pub(crate) fn kept(&self) -> BTreeSet<u64> {
        self.cuts.values().map(|cut| cut.number).collect()
    }

    /// The micro-batches of a step in groups.
    pub(crate) fn groups(&self, micro_batches: usize) -> Groups {
        Groups {
            micro_batches,
            groups: self.sum.groups(),
        }
    }

    /// The programs of the example that was traced.
    pub(crate) fn example(&mut self) -> Result<Arc<CutProgram>> {
        self.cut_of(&self.example.clone())
    }

    /// The verified lists of each replica for its share of micro-batches with these programs.
    pub(crate) fn parts(&mut self, mode: Mode, cuts: &[&CutProgram]) -> Result<Vec<ReplicaPart>> {
        let parts = self.shares(mode, cuts)?;
        let order = (mode, cuts.iter().map(|cut| cut.number).collect());
        if self.certified.get(&order).is_none() {
            self.certify(mode, &parts, cuts)?;
            self.certified.insert(order, ());
            self.certified.trim(1);
        }
        Ok(parts)
    }

    fn shares(&mut self, mode: Mode, cuts: &[&CutProgram]) -> Result<Vec<ReplicaPart>, ListsError> {
        let (groups, replicas) = (self.groups(cuts.len()), self.layout.replicas);
        // Micro-batches of other shapes may exchange other values.
        let exchanged = (edges(cuts), states(cuts));
        let parts = (0..replicas).map(|replica| {
            let share = groups.of_replica(replica, replicas);
            let key = (mode, share.len(), exchanged.clone());
            let lists = self.lists_of(key).map_err(|error| match error {
                // A written schedule is the schedule of a replica.
                ListsError::MicroBatches {
                    schedule, expected, ..
                } => ListsError::MicroBatches {
                    schedule,
                    expected: expected * replicas,
                    found: cuts.len(),
                },
                other => other,
            });
            let (lists, first) = (lists?, share.start);
            Ok(ReplicaPart { lists, first })
        });
        parts.collect()
    }

    /// The lists for a number of micro-batches, with the dependencies of all.
    fn lists_of(&mut self, key: ListsKey) -> Result<Arc<StepLists>, ListsError> {
        if let Some(lists) = self.lists.get(&key) {
            return Ok(lists.clone());
        }
        let (mode, count, exchanged) = key.clone();
        let dependencies = self.dependencies(mode, exchanged);
        let ranks = &self.layout.ranks;
        let lists = Arc::new(match (count, mode) {
            (0, _) => StepLists::without_micro_batches(mode, ranks, &dependencies)?,
            (_, Mode::Training) => {
                let compute = self.choice.compute(ranks, count, &dependencies)?;
                StepLists::new(&compute, &dependencies)?
            }
            (_, Mode::Inference) => StepLists::new(&forward_only_on(ranks, count), &dependencies)?,
        });
        self.lists.insert(key, lists.clone());
        // The lists of all replicas.
        self.lists.trim(self.layout.replicas);
        Ok(lists)
    }

    /// Proves that lists and the programs of their micro-batches compute what was recorded.
    fn certify(&self, mode: Mode, parts: &[ReplicaPart], cuts: &[&CutProgram]) -> Result<()> {
        let replicas = parts.iter().map(|part| (&*part.lists, part.first));
        let certified = certify_lists(&CertifiedStep {
            replicas: replicas.collect(),
            micro_batches: cuts.iter().map(|cut| &cut.programs).collect(),
            groups: self.groups(cuts.len()),
            table: self.example.table(),
            layout: &self.layout,
            global_norm: self.global_norm && mode == Mode::Training,
        });
        Ok(certified.map_err(StepError::from)?)
    }

    /// The dependencies of a step.
    fn dependencies(&self, mode: Mode, (edges, states): Exchanged) -> Dependencies {
        let trains = mode == Mode::Training;
        let ties = self.layout.ties().filter(|_| trains);
        let mut dependencies = Dependencies::new(self.layout.ranks.len(), edges, ties);
        if trains && self.layout.replicas > 1 {
            dependencies = dependencies.with_replicas();
        }
        if trains && self.global_norm {
            dependencies = dependencies.with_global_norm();
        }
        dependencies.with_states(states)
    }

    /// The dependencies of a training step over batches like `parts`, and its bytes if the stages hold gradients of all their
    /// parameters. Its times are unknown, and zero.
    pub(crate) fn costs(&mut self, parts: &[MicroBatch<'_>]) -> Result<(Dependencies, Costs)> {
        let cuts = parts.iter().map(|part| self.cut(part));
        let cuts = cuts.collect::<Result<Vec<_>, _>>()?;
        let cuts: Vec<&CutProgram> = cuts.iter().map(|cut| &**cut).collect();
        self.drop_unused(cuts.iter().copied());
        // The first micro-batches are the largest.
        let largest = &cuts.first().ok_or(BatchError::NoSamples)?.programs;
        let mut costs = step_bytes(&largest.joint, &largest.stages);
        for (stage, costs) in self.layout.stages().zip(&mut costs.stages) {
            let held = self.layout.held_bytes(&self.example, stage, 0);
            costs.resident_bytes = held.resident();
            if self.layout.replicas > 1 {
                costs.exchanged_bytes = held.gradients;
            }
        }
        costs.replicas = self.layout.replicas;
        let exchanged = (edges(&cuts), states(&cuts));
        Ok((self.dependencies(Mode::Training, exchanged), costs))
    }
}

/// The edges between the stages of programs.
fn edges(cuts: &[&CutProgram]) -> BTreeSet<Edge> {
    let stages = cuts.iter().flat_map(|cut| &cut.programs.stages);
    let edges = stages.flat_map(|programs| programs.sends.keys().copied());
    edges.collect()
}

/// The stages of programs that update running states.
pub(crate) fn states(cuts: &[&CutProgram]) -> BTreeSet<StageIndex> {
    let stages = cuts.iter();
    let stages = stages.flat_map(|cut| cut.programs.stages.iter().enumerate());
    let updating = stages.filter(|(_, programs)| {
        let forward = programs.phase(Compute::Forward);
        forward.is_some_and(|phase| !phase.updates.is_empty())
    });
    updating.map(|(index, _)| StageIndex::new(index)).collect()
}
