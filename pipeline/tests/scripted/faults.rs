//! Which fault happens where, and what has happened.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tinderbox_pipeline::testing::Point;
use tinderbox_schedule::{Action, Compute};
use tinderbox_simulation::{Handle, Process, Random, current};
use tinderbox_world::RankIndex;
use tinderbox_world::testing::SimulatedNet;

use crate::model::Shape;

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
    /// In the recovery from a loss, or in the repeated step.
    Again,
}

pub const KINDS: [Kind; 5] = [
    Kind::Kill,
    Kind::Silence,
    Kind::Late,
    Kind::Cut,
    Kind::Panic,
];

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
                Compute::BackwardInput => Self::BackwardInput,
                Compute::BackwardWeight => Self::BackwardWeight,
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
            Self::Report
                | Self::Snapshot
                | Self::Keep
                | Self::Regroup
                | Self::Move
                | Self::Restart
        )
    }

    /// Whether a fault can happen here, in any run.
    pub const fn can_have(self, kind: Kind, phase: Phase) -> bool {
        let is_recovery = matches!(self, Self::Regroup | Self::Move | Self::Restart);
        (matches!(phase, Phase::Again) || !is_recovery)
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
    phases: Vec<Option<Phase>>,
    harms: Vec<Harm>,
    has_panicked: bool,
    happened: Vec<(Kind, Place, Phase)>,
    history: Vec<String>,
}

/// Shorter than what the heartbeats allow.
const HARMLESS: Duration = Duration::from_millis(250);

/// Longer.
const TOO_LONG: Duration = Duration::from_secs(3);

impl Faults {
    /// Plans one or two faults for a run of a shape.
    pub fn plan(shape: &Shape, random: &mut Random) -> Self {
        let mut pick = |limit: usize| random.below(limit as u64) as usize;
        let count = 1 + pick(2);
        let mut planned = Vec::new();
        while planned.len() < count {
            let fault = Fault {
                kind: KINDS[pick(KINDS.len())],
                place: PLACES[pick(PLACES.len())],
                phase: PHASES[pick(PHASES.len())],
                skip: [0, 0, 1, 2, 5, 11][pick(6)],
            };
            // The first one leads to a recovery if the second one waits for it.
            let begins = planned.is_empty() && count == 2;
            let leads = matches!(fault.kind, Kind::Kill | Kind::Silence | Kind::Cut);
            let is_again = fault.phase == Phase::Again;
            let fits = match planned.is_empty() {
                true => !is_again && (leads || !begins),
                false => true,
            };
            if fits && fault.place.can_have(fault.kind, fault.phase) {
                planned.push(fault);
            }
        }
        Self(Mutex::new(State {
            planned,
            phases: vec![None; shape.size()],
            harms: vec![Harm::default(); shape.size()],
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
        // The second one waits for the first.
        let Some(fault) = state.planned.first_mut() else {
            return;
        };
        if (fault.place, fault.phase) != (place, phase) || state.harms[own].is_killed {
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
        assert!(!panics, "scripted");
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

/// The faults that the points of a run reach.
pub type Shared = Arc<Faults>;
