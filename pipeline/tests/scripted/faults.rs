//! Which fault happens where, and what has happened.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tinderbox_engines::SimulatedNet;
use tinderbox_pipeline::testing::Point;
use tinderbox_schedule::{Action, Compute};
use tinderbox_simulation::{Handle, Process, Random, current};
use tinderbox_world::RankIndex;

use crate::model::SHAPES;

/// What happens to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It is killed.
    Kill,
    /// It shows no heartbeat for longer than the others wait.
    Silence,
    /// Its messages are late, but not too late.
    Late,
    /// It loses its connection to another one.
    Cut,
    /// Its action panics: all end.
    Panic,
}

/// What a process is about to do when something happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Forward,
    Backward,
    BackwardInput,
    BackwardWeight,
    Overlap,
    Send,
    Receive,
    Reduce,
    Sum,
    Update,
    Gather,
    /// It gives its losses and norms to the others.
    Report,
    /// It waits for keepers, and takes a snapshot.
    Snapshot,
    /// It sends a part of a snapshot.
    Keep,
    /// It agrees with the others on who is left.
    Regroup,
    /// It moves snapshots to where the next plan needs them.
    Move,
    /// It starts its rank again.
    Restart,
}

/// How far the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// In the first step: nothing is kept yet.
    First,
    /// In a later one.
    Later,
    /// In the recovery from a loss, in the repeated step, or in the step after it.
    Again,
}

pub const KINDS: [Kind; 5] = [
    Kind::Kill,
    Kind::Silence,
    Kind::Late,
    Kind::Cut,
    Kind::Panic,
];

impl Kind {
    /// Whether the others go on without a process.
    const fn is_loss(self) -> bool {
        matches!(self, Self::Kill | Self::Silence | Self::Cut)
    }
}

pub const PHASES: [Phase; 3] = [Phase::First, Phase::Later, Phase::Again];

pub const PLACES: [Place; 17] = [
    Place::Forward,
    Place::Backward,
    Place::BackwardInput,
    Place::BackwardWeight,
    Place::Overlap,
    Place::Send,
    Place::Receive,
    Place::Reduce,
    Place::Sum,
    Place::Update,
    Place::Gather,
    Place::Report,
    Place::Snapshot,
    Place::Keep,
    Place::Regroup,
    Place::Move,
    Place::Restart,
];

impl Place {
    fn of(point: Point) -> Self {
        match point {
            Point::Action(Action::Compute(task)) => match task.compute {
                Compute::Forward => Self::Forward,
                Compute::InputGradient => Self::BackwardInput,
                Compute::WeightGradient => Self::BackwardWeight,
                _ => Self::Backward,
            },
            Point::Action(Action::Overlap(_)) => Self::Overlap,
            Point::Action(Action::Send(_)) => Self::Send,
            Point::Action(Action::Receive(_)) => Self::Receive,
            Point::Action(Action::Reduce { .. }) => Self::Reduce,
            Point::Action(Action::Sum { .. }) => Self::Sum,
            Point::Action(Action::Update { .. }) => Self::Update,
            Point::Action(_) => Self::Gather,
            Point::Report => Self::Report,
            Point::Snapshot => Self::Snapshot,
            Point::Keep => Self::Keep,
            Point::Regroup => Self::Regroup,
            Point::Move => Self::Move,
            Point::Restart => Self::Restart,
        }
    }

    const fn is_action(self) -> bool {
        !matches!(
            self,
            Self::Report | Self::Snapshot | Self::Keep | Self::Regroup | Self::Move | Self::Restart
        )
    }

    /// Whether a fault can happen here, in any run.
    pub const fn can_have(self, kind: Kind, phase: Phase) -> bool {
        let is_recovery = matches!(self, Self::Regroup | Self::Move | Self::Restart);
        // The first snapshot is sent beside the second step.
        let is_possible = match phase {
            Phase::First => !matches!(self, Self::Keep),
            _ => true,
        };
        is_possible
            && (matches!(phase, Phase::Again) || !is_recovery)
            && (self.is_action() || !matches!(kind, Kind::Panic))
    }
}

/// A fault that is planned.
#[derive(Clone, Copy, Debug)]
struct Fault {
    kind: Kind,
    place: Place,
    phase: Phase,
    /// How many times the place is passed before.
    skip: u64,
}

/// What has happened to a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Harm {
    pub is_killed: bool,
    /// The others may have given it up, although it continues.
    pub may_be_given_up: bool,
}

/// The faults of one run.
pub struct Faults(Mutex<State>);

struct State {
    planned: Vec<Fault>,
    /// How often places were passed.
    passed: Counts,
    phases: Vec<Option<Phase>>,
    harms: Vec<Harm>,
    has_panicked: bool,
    happened: Vec<(Kind, Place, Phase)>,
    history: Vec<String>,
}

/// The message of a panic.
pub const SCRIPTED: &str = "scripted";

/// Shorter than what the heartbeats allow.
const HARMLESS: Duration = Duration::from_millis(250);

/// Longer.
const TOO_LONG: Duration = Duration::from_secs(3);

/// How often the processes of each shape pass each place, in an undisturbed run and after a loss.
pub struct Passed(Vec<Counts>);

type Counts = BTreeMap<(Place, Phase), u64>;

impl Passed {
    /// Collects what a run of each shape passes, with or without a loss.
    pub fn new(run: impl Fn(usize, Faults) -> Faults) -> Self {
        let of_shape = |shape: usize| {
            let size = SHAPES[shape].size();
            let lost = Fault {
                kind: Kind::Kill,
                place: Place::Update,
                phase: Phase::Later,
                skip: 1,
            };
            let mut counts = Counts::new();
            for planned in [Vec::new(), vec![lost]] {
                let faults = run(shape, Faults::new(planned, size));
                let passed = std::mem::take(&mut faults.state().passed);
                counts.extend(passed);
            }
            counts
        };
        Self((0..SHAPES.len()).map(of_shape).collect())
    }

    /// Plans one or two faults, and chooses a shape in which they can happen.
    pub fn plan(&self, random: &mut Random) -> (usize, Faults) {
        let mut pick = |limit: usize| random.below(limit as u64) as usize;
        // Each as often as the others, however many shapes have it.
        let (place, phase, kind) = loop {
            let place = PLACES[pick(PLACES.len())];
            let (phase, kind) = (PHASES[pick(PHASES.len())], KINDS[pick(KINDS.len())]);
            let is_there = self.0.iter().any(|one| one.contains_key(&(place, phase)));
            if is_there && place.can_have(kind, phase) {
                break (place, phase, kind);
            }
        };
        let shapes = (0..SHAPES.len()).filter(|one| self.0[*one].contains_key(&(place, phase)));
        let shapes: Vec<usize> = shapes.collect();
        let shape = shapes[pick(shapes.len())];
        let counts = &self.0[shape];
        let mut planned = vec![(place, phase, kind)];
        // One in a recovery needs a loss before, and a loss may have one after it.
        let is_again = phase == Phase::Again;
        if is_again || (kind.is_loss() && pick(2) == 0) {
            let other = loop {
                let (place, phase) = *counts.keys().nth(pick(counts.len())).unwrap();
                let kind = KINDS[pick(KINDS.len())];
                let fits = is_again != (phase == Phase::Again) && (!is_again || kind.is_loss());
                if fits && place.can_have(kind, phase) {
                    break (place, phase, kind);
                }
            };
            planned.insert(usize::from(!is_again), other);
        }
        let planned = planned.into_iter().map(|(place, phase, kind)| {
            let most = counts[&(place, phase)].min(16);
            Fault {
                kind,
                place,
                phase,
                skip: pick(most as usize) as u64,
            }
        });
        (shape, Faults::new(planned.collect(), SHAPES[shape].size()))
    }
}

impl Faults {
    fn new(planned: Vec<Fault>, size: usize) -> Self {
        Self(Mutex::new(State {
            planned,
            passed: Counts::new(),
            phases: vec![None; size],
            harms: vec![Harm::default(); size],
            has_panicked: false,
            happened: Vec::new(),
            history: Vec::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A process is in a phase from now on; none is disturbed at the start and at the end.
    pub fn enter(&self, rank: usize, phase: Option<Phase>) {
        self.state().phases[rank] = phase;
    }

    /// A process is about to do something.
    pub fn reach(&self, point: Point, net: &SimulatedNet) {
        let simulation = simulated();
        let Some(own) = simulation.process().map(Process::index) else {
            return;
        };
        let place = Place::of(point);
        let mut state = self.state();
        let Some(phase) = &mut state.phases[own] else {
            return;
        };
        if place == Place::Regroup {
            *phase = Phase::Again;
        }
        let phase = *phase;
        *state.passed.entry((place, phase)).or_default() += 1;
        if state.harms[own].is_killed {
            return;
        }
        // The second one waits for the first.
        let Some(fault) = state.planned.first_mut() else {
            return;
        };
        if (fault.place, fault.phase) != (place, phase) {
            return;
        }
        if fault.skip > 0 {
            fault.skip -= 1;
            return;
        }
        let fault = state.planned.remove(0);
        state.happen(fault, own, &simulation, net);
        let panics = fault.kind == Kind::Panic;
        drop(state);
        if panics {
            std::panic::panic_any(SCRIPTED);
        }
    }

    pub fn harms(&self) -> Vec<Harm> {
        self.state().harms.clone()
    }

    pub fn has_panicked(&self) -> bool {
        self.state().has_panicked
    }

    pub fn happened(&self) -> Vec<(Kind, Place, Phase)> {
        self.state().happened.clone()
    }
}

impl State {
    fn happen(&mut self, fault: Fault, own: usize, simulation: &Handle, net: &SimulatedNet) {
        let rank = RankIndex::new(own);
        self.happened.push((fault.kind, fault.place, fault.phase));
        self.history.push(format!(
            "{:?} of {own} at {:?}, {:?}, at {:?}",
            fault.kind,
            fault.place,
            fault.phase,
            simulation.now()
        ));
        let harm = &mut self.harms[own];
        match fault.kind {
            Kind::Kill => {
                harm.is_killed = true;
                net.kill(rank);
            }
            Kind::Silence => {
                harm.may_be_given_up = true;
                net.pause(rank, TOO_LONG);
            }
            Kind::Late => match simulation.random(2) {
                0 => net.pause(rank, simulation.random_time(HARMLESS)),
                _ => net.slow(rank, simulation.random_time(HARMLESS / 2)),
            },
            Kind::Cut => {
                let others = (0..self.harms.len()).filter(|other| *other != own);
                let others: Vec<usize> = others.collect();
                let other = others[simulation.random(others.len() as u64) as usize];
                self.harms[own].may_be_given_up = true;
                self.harms[other].may_be_given_up = true;
                net.cut(rank, RankIndex::new(other));
            }
            Kind::Panic => self.has_panicked = true,
        }
    }
}

pub fn simulated() -> Handle {
    current().expect("this runs in a simulation")
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Faults")
            .field("history", &state.history)
            .field("not reached", &state.planned)
            .finish()
    }
}
