//! The memory of the rounds of a streamed model, in addition to its parameters.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use burn::tensor::DType;
use tinderbox_fake::ValueId;

use crate::ActionResult;
use crate::cut::Binding;
use crate::kept::Location;
use crate::lists::StepLists;
use crate::runtime::interpreter::{ActionHost, ActionInterpreter, Job, Step};
use crate::runtime::program::CutProgram;
use crate::runtime::streamed::{Activation, Item};
use crate::schedule::{Action, MicroBatchIndex, RankIndex, StageIndex};

/// A part of a round in which one stage runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Visit {
    pub(super) stage: StageIndex,
    /// The parameters that programs read, with the dtype in which they read them.
    pub(super) parameters: BTreeMap<usize, DType>,
    /// The parameters of which programs read few rows, with the dtype in which they read them and the maximum number of rows.
    pub(super) rows: BTreeMap<usize, (DType, u64)>,
    /// The other values of the visit, with their bytes: the optimizer's states that its update changes, and the activations
    /// that it computes or reads and that are needed after other visits, if they may be written meanwhile.
    pub(super) values: BTreeMap<Item, u64>,
    /// Whether the visit updates the parameters of the stage.
    pub(super) is_update: bool,
    /// The maximum bytes of everything else meanwhile.
    pub(super) other_bytes: u64,
}

impl Visit {
    /// The bytes of each activation.
    pub(super) fn activations(&self) -> impl Iterator<Item = u64> {
        let values = self.values.iter();
        let activations = values.filter(|(item, _)| matches!(item, Item::Activation(_)));
        activations.map(|(_, bytes)| *bytes)
    }
}

/// The visits of a round: the longest runs of actions of one stage, in the list of the only rank. Activations that idle
/// are written if `may_write`; otherwise they stay.
///
/// Values that share memory are counted separately, unless stages share them, so the bytes are an upper bound, as far as the
/// memory of operations is known. The activations of a visit count for the whole of it. A view counts its own elements,
/// though it may hold more memory until its stage has run.
pub(super) fn visits(lists: &StepLists, cuts: &[&CutProgram], may_write: bool) -> Vec<Visit> {
    let (visits, idle) = run(lists, Sizes::new(cuts, BTreeSet::new()));
    match may_write && !idle.is_empty() {
        true => run(lists, Sizes::new(cuts, idle)).0,
        false => visits,
    }
}

/// Runs the list of the only rank on sizes; returns its visits, and the activations that idle in some of them.
fn run(lists: &StepLists, sizes: Sizes<'_>) -> (Vec<Visit>, BTreeSet<Activation>) {
    let step = Step {
        programs: sizes.cuts.iter().map(|cut| &*cut.programs.stages).collect(),
        lists: Some(lists),
        is_local: vec![true; lists.schedule.stages],
    };
    let mut interpreter = ActionInterpreter::new(step, sizes);
    for action in lists.schedule.actions(RankIndex::new(0)) {
        interpreter.host.begin(action.stage());
        let ran = interpreter.act(action);
        ran.expect("sizes are added without errors");
    }
    let sizes = interpreter.host;
    let idle = sizes.idle();
    (sizes.visits, idle)
}

/// The bytes that are in memory while the actions of a round run.
#[derive(Default)]
struct Sizes<'a> {
    cuts: &'a [&'a CutProgram],
    /// The bytes of the constants of the stage that runs.
    constants: u64,
    /// The bytes of the values that stay until the end.
    stays: u64,
    /// The number of stages that keep a value of a micro-batch: they share its memory.
    holders: HashMap<Activation, usize>,
    /// The bytes of the values that stages keep.
    kept: u64,
    /// The bytes of the values that the present action has used for the last time: they are in memory until its program ends.
    just_used: u64,
    /// The visits that need each activation.
    needed: BTreeMap<Activation, BTreeSet<usize>>,
    /// The activations that may be written, and that are values of their visits.
    written: BTreeSet<Activation>,
    /// The bytes of gradients and of new running states, by stage, until its update.
    changes: BTreeMap<StageIndex, (u64, u64)>,
    visits: Vec<Visit>,
}

impl<'a> Sizes<'a> {
    fn new(cuts: &'a [&'a CutProgram], written: BTreeSet<Activation>) -> Self {
        let each = cuts.iter();
        let each = each.map(|cut| cut.bytes.inputs + cut.bytes.carried());
        Self {
            stays: each.sum(),
            cuts,
            written,
            ..Self::default()
        }
    }

    /// Starts an action of a stage.
    fn begin(&mut self, stage: StageIndex) {
        self.just_used = 0;
        if self.visits.last().is_none_or(|visit| visit.stage != stage) {
            self.visits.push(Visit {
                stage,
                parameters: BTreeMap::new(),
                rows: BTreeMap::new(),
                values: BTreeMap::new(),
                is_update: false,
                other_bytes: 0,
            });
            // For each kind of micro-batches.
            let kinds = self.cuts.iter().map(|cut| (cut.number, *cut));
            let kinds: BTreeMap<u64, &CutProgram> = kinds.collect();
            self.constants = kinds.values().map(|cut| cut.bytes.constants(stage)).sum();
        }
    }

    fn visit(&mut self) -> &mut Visit {
        self.visits.last_mut().expect("an action has begun")
    }

    /// The activations that are not needed in a visit between two visits that need them.
    fn idle(&self) -> BTreeSet<Activation> {
        let idle = self.needed.iter().filter(|(_, visits)| {
            let between = visits.iter().zip(visits.iter().skip(1));
            between.into_iter().any(|(visit, next)| next - visit > 1)
        });
        idle.map(|(activation, _)| *activation).collect()
    }

    fn held(&self) -> u64 {
        let changes = self.changes.values();
        let changes = changes.map(|(gradients, states)| gradients + states);
        self.constants + self.stays + self.kept + self.just_used + changes.sum::<u64>()
    }

    /// Records that the present visit has an activation.
    fn need(&mut self, activation: Activation, bytes: u64) {
        let visits = self.needed.entry(activation).or_default();
        visits.insert(self.visits.len() - 1);
        if self.written.contains(&activation) {
            let values = &mut self.visit().values;
            values.insert(Item::Activation(activation), bytes);
        }
    }

    /// Counts a program; returns the bytes of the values that other programs use.
    fn count(&mut self, job: &Job<'_, u64>) -> Vec<u64> {
        let (stage, k) = (job.task.stage, job.task.micro_batch);
        let program = self.cuts[k.index()].bytes.program(job.task);
        let program = program.expect("certified lists run programs that the stage has");
        let visit = self.visit();
        visit.parameters.extend(&program.parameters);
        for (position, (dtype, count)) in &program.rows {
            let (_, most) = visit.rows.entry(*position).or_insert((*dtype, 0));
            *most = (*most).max(*count);
        }
        let outputs = job.phase.outputs.iter().map(|(id, _)| (k, *id));
        let outputs: Vec<(Activation, u64)> = outputs.zip(program.made.iter().copied()).collect();
        let made = outputs.iter();
        let made = made.filter(|(activation, _)| !self.written.contains(activation));
        let made: u64 = made.map(|(_, bytes)| bytes).sum();
        // A carried value that is not written in place is copied.
        let leaving = made + program.gradients + program.states + program.carried;
        let during = self.held() + program.transient + leaving;
        let visit = self.visit();
        visit.other_bytes = visit.other_bytes.max(during);
        let read = job.phase.inputs.iter().filter_map(|input| match input {
            Binding::Value(id) => Some((k, *id)),
            Binding::Given(_) | Binding::Constant(_) => None,
        });
        for (activation, bytes) in read.zip(job.read.iter().copied()).chain(outputs) {
            self.need(activation, bytes);
        }
        let (gradients, states) = self.changes.entry(stage).or_default();
        // Sums are in the dtype of the parameters, which may be wider.
        *gradients = (*gradients).max(2 * program.gradients);
        // The forward of each micro-batch replaces them.
        *states = (*states).max(program.states);
        program.made.clone()
    }
}

impl ActionHost for Sizes<'_> {
    type Value = u64;

    fn run(&mut self, job: Job<'_, u64>) -> ActionResult<Vec<u64>> {
        let made = self.count(&job);
        self.just_used = 0;
        Ok(made)
    }

    fn run_pair(&mut self, jobs: [Job<'_, u64>; 2]) -> ActionResult<[Vec<u64>; 2]> {
        let made = jobs.map(|job| self.count(&job));
        self.just_used = 0;
        Ok(made)
    }

    /// The report keeps the value until the end.
    fn report(&mut self, _: MicroBatchIndex, _: Option<&str>, bytes: u64) {
        self.stays += bytes;
    }

    fn act(&mut self, action: Action) -> ActionResult {
        if let Action::Update { stage } = action {
            // Its parameters get new values, one after the other.
            let held = self.held();
            let visit = self.visit();
            visit.is_update = true;
            visit.other_bytes = visit.other_bytes.max(held);
            self.changes.remove(&stage);
        }
        Ok(())
    }

    fn kept(&mut self, (_, k): Location, id: ValueId, bytes: &u64) {
        self.need((k, id), *bytes);
        let holders = self.holders.entry((k, id)).or_default();
        *holders += 1;
        if *holders == 1 && !self.written.contains(&(k, id)) {
            self.kept += bytes;
        }
    }

    fn released(&mut self, (_, k): Location, id: ValueId, bytes: &u64) {
        let holders = self.holders.entry((k, id)).or_default();
        *holders -= 1;
        if *holders == 0 && !self.written.contains(&(k, id)) {
            self.kept -= bytes;
            self.just_used += bytes;
        }
    }
}
