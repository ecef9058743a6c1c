//! The faults of a simulated world, and their times.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tinderbox_engines::SimulatedNet;
use tinderbox_simulation::{Handle, Process, Random, current};
use tinderbox_world::RankIndex;

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Kill,
    Pause,
    Slow,
    Cut,
}

/// The phase of a process when a fault happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It computes, and calls nothing.
    Work,
    Call,
    Regroup,
    Leave,
    Over,
}

/// The time of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// At a time.
    At(Duration),
    /// A time after a process has entered a phase, to a process in that phase.
    In(Phase, Duration),
}

/// The number of faults of each kind in each phase.
#[derive(Debug, Default)]
pub struct Table(BTreeMap<(Kind, Phase), usize>);

impl Table {
    pub fn add(&mut self, other: &Self) {
        for (key, count) in &other.0 {
            *self.0.entry(*key).or_default() += count;
        }
    }

    /// Checks that every kind of fault happened in these phases.
    pub fn check(&self, kinds: &[Kind], phases: &[Phase]) {
        for key in kinds
            .iter()
            .flat_map(|kind| phases.iter().map(move |phase| (*kind, *phase)))
        {
            let count = self.0.get(&key).copied().unwrap_or_default();
            assert!(count >= 50, "{key:?} happened {count} times:\n{self}");
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phases = [Phase::Work, Phase::Call, Phase::Regroup, Phase::Leave];
        let names = phases.map(|phase| format!("{:>8}", format!("{phase:?}")));
        writeln!(f, "{:8}{}", "", names.concat())?;
        for kind in [Kind::Kill, Kind::Pause, Kind::Slow, Kind::Cut] {
            let count = |phase| self.0.get(&(kind, phase)).copied().unwrap_or(0);
            let counts = phases.map(|phase| format!("{:>8}", count(phase)));
            writeln!(f, "{:8}{}", format!("{kind:?}"), counts.concat())?;
        }
        Ok(())
    }
}

/// The faults of a process so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Harm {
    pub is_killed: bool,
    is_harmed: bool,
    /// Others may have given it up, although it continues.
    pub may_be_given_up: bool,
}

pub fn simulated() -> Handle {
    current().expect("this runs in a simulation")
}

/// The faults of one run.
#[derive(Debug)]
pub struct Faults {
    size: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    planned: Vec<(Kind, Trigger)>,
    phases: Vec<Phase>,
    harms: Vec<Harm>,
    /// The end of the last fault.
    calm_at: Duration,
    table: Table,
    history: Vec<String>,
}

/// The time of the last possible fault.
const LAST: Duration = Duration::from_secs(5);

/// A pause or a delay of frames up to this time is harmless.
const HARMLESS: Duration = Duration::from_millis(250);

/// The time for which a process is slow.
const SLOW_FOR: Duration = Duration::from_secs(3);

/// The time for which the remaining processes continue after the last fault.
const SETTLE: Duration = Duration::from_secs(8);

impl Faults {
    /// Plans up to four faults: the first at a time before `end`, each other one also before `end`, or in a phase.
    pub fn plan(size: usize, end: Duration, phase: Phase, random: &mut Random) -> Self {
        let count = 1 + random.below(4);
        let fault = |number| {
            let kind = match random.below(8) {
                0..3 => Kind::Kill,
                3..5 => Kind::Pause,
                5..7 => Kind::Slow,
                _ => Kind::Cut,
            };
            // A phase takes some delays of frames, or longer if it waits for a process that does not join.
            let after = match random.below(2) {
                0 => random.below(20_000),
                _ => random.below(1_000_000),
            };
            let trigger = match random.below(2) {
                choice if choice == 0 || number == 0 => {
                    Trigger::At(Duration::from_micros(random.below(end.as_micros() as u64)))
                }
                _ => Trigger::In(phase, Duration::from_micros(after)),
            };
            (kind, trigger)
        };
        Self {
            size,
            state: Mutex::new(State {
                planned: (0..count).map(fault).collect(),
                phases: vec![Phase::Work; size],
                harms: vec![Harm::default(); size],
                calm_at: LAST,
                table: Table::default(),
                history: Vec::new(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Schedules the faults that happen at a time.
    pub fn begin(self: &Arc<Self>, net: &SimulatedNet) {
        let simulation = simulated();
        let planned = self.state().planned.clone();
        for (kind, trigger) in planned {
            if let Trigger::At(at) = trigger {
                let (faults, net) = (self.clone(), net.clone());
                let happen = move || faults.happen(kind, None, &net);
                simulation.at(self.outside(), at, happen);
            }
        }
    }

    /// Notes the next phase of a process, which may trigger a fault.
    pub fn enter(self: &Arc<Self>, rank: RankIndex, phase: Phase, net: &SimulatedNet) {
        let simulation = simulated();
        let mut state = self.state();
        state.phases[rank.index()] = phase;
        let triggered = state.planned.iter().position(|(_, trigger)| match trigger {
            Trigger::In(wanted, _) => *wanted == phase,
            Trigger::At(_) => false,
        });
        let triggered = triggered.map(|next| state.planned.remove(next));
        if let Some((kind, Trigger::In(_, after))) = triggered {
            let (faults, net) = (self.clone(), net.clone());
            let happen = move || faults.happen(kind, Some(phase), &net);
            simulation.at(self.outside(), simulation.now() + after, happen);
        }
    }

    /// Returns a process that is never paused.
    fn outside(&self) -> Process {
        Process::new(self.size)
    }

    /// Injects a fault into a process, if possible into one in a phase.
    fn happen(&self, kind: Kind, phase: Option<Phase>, net: &SimulatedNet) {
        let simulation = simulated();
        let mut state = self.state();
        let is_there =
            |one: &usize| !state.harms[*one].is_killed && state.phases[*one] != Phase::Over;
        let all: Vec<usize> = (0..self.size).filter(is_there).collect();
        let fits = |one: &usize| phase.is_none_or(|phase| state.phases[*one] == phase);
        let fitting: Vec<usize> = all.iter().copied().filter(fits).collect();
        let any = |those: &[usize]| {
            let chosen = simulation.random(those.len() as u64) as usize;
            those.get(chosen).copied()
        };
        let Some(victim) = any(&fitting).or_else(|| any(&all)) else {
            return;
        };
        let (now, rank) = (simulation.now(), RankIndex::new(victim));
        if now > LAST {
            return;
        }
        let time = simulation.random_time(match (simulation.random(2), kind) {
            (0, _) => HARMLESS,
            (_, Kind::Slow) => 4 * HARMLESS,
            _ => 12 * HARMLESS,
        });
        let phase = state.phases[victim];
        *state.table.0.entry((kind, phase)).or_default() += 1;
        state.history.push(format!(
            "{kind:?} of {victim} in {phase:?} at {now:?}, {time:?}"
        ));
        state.calm_at = state.calm_at.max(now + SETTLE);
        let harm = &mut state.harms[victim];
        harm.may_be_given_up |= harm.is_harmed || time > HARMLESS || kind == Kind::Cut;
        harm.is_harmed = true;
        match kind {
            Kind::Kill => {
                harm.is_killed = true;
                net.kill(rank);
            }
            Kind::Pause => net.pause(rank, time),
            Kind::Slow => {
                net.slow(rank, time);
                let net = net.clone();
                let end = move || net.slow(rank, Duration::ZERO);
                simulation.at(self.outside(), now + SLOW_FOR, end);
            }
            Kind::Cut => {
                let other = any(&all).unwrap_or(victim);
                state.harms[other].may_be_given_up = true;
                if other != victim {
                    net.cut(rank, RankIndex::new(other));
                }
            }
        }
    }

    /// Returns whether all faults are over.
    pub fn are_over(&self, now: Duration) -> bool {
        now > self.state().calm_at
    }

    pub fn harms(&self) -> Vec<Harm> {
        self.state().harms.clone()
    }

    /// Returns the faults so far as texts.
    pub fn history(&self) -> Vec<String> {
        self.state().history.clone()
    }

    pub fn count(&self, table: &mut Table) {
        table.add(&self.state().table);
    }
}
