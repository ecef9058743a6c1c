//! Goes on without ranks that were lost, from the last completed step, with the same bits.
//!
//! Values do not change, so a rank keeps its state by keeping handles to it. While the next step runs, it sends this state to
//! one other rank, which keeps the bytes. A pipeline also keeps the calls since the oldest state that it may go back to. When
//! a rank is lost, those that are left form a world, agree on the newest state of which every part is left, plan anew, move
//! what is missing, and repeat the calls since then: they are deterministic, so they return what they have returned before.

pub(super) mod call;
mod moving;
mod replan;
mod state;
mod wards;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use tinderbox_fake::DynTensor;
use tinderbox_world::{Failure, How, World, WorldError, machine};

use super::builder::PipelineBuilder;
use super::carry::Carries;
use super::loss_scale::LossScale;
use super::memory::device_of;
use super::pipeline::{Condition, Pipeline};
use super::remote::To;
use super::stage::Stage;
use crate::batch::Batch;
use crate::lists::ScheduleChoice;
use crate::schedule::RankIndex;
use crate::{PipelineError, Plan, RestoreError};

use call::Call;
use moving::{Moved, move_state, together};
use replan::replan;
use state::Contents;
pub(super) use state::State;
pub(super) use wards::{Part, Wards};

/// Plans for another number of ranks.
type Replan = dyn Fn(usize) -> Result<Plan, Box<dyn std::error::Error + Send + Sync>> + Send + Sync;

/// How a pipeline goes on when a process of its [world](PipelineBuilder::world) is lost.
///
/// After every step, each rank sends its new values to one other rank while the next step runs, on another machine if there
/// is one. When a process is killed, ends, or is silent for longer than the world's heartbeats allow, the others form a world
/// of those that are left, plan for them, move what is missing, and go on: the call that was interrupted returns what it
/// would have returned, bit for bit. An error or a panic of the program itself is not repeated; it ends all processes.
///
/// A world may have more processes than the plan has ranks: those at the end make all calls, without a stage, and take the
/// place of ranks that are lost. Without such spares, the next plan is for fewer ranks.
///
/// Memory: the state of a rank (parameters and optimizer state) twice on the rank that keeps it, and once more on its own,
/// because values that are kept can't be updated in place.
///
/// What is lost with two ranks of which one keeps the state of the other is gone: the call returns
/// [`PipelineError::StateLost`], and the pipeline waits for a [restore](Pipeline::restore) of the last checkpoint.
#[derive(Clone)]
pub struct Recovery {
    every: u64,
    plan: Option<Arc<Replan>>,
}

impl Default for Recovery {
    fn default() -> Self {
        Self::every(1)
    }
}

impl Recovery {
    /// Keeps the state after each of so many steps, at least 1; at most so many are repeated after a loss. Default: 1.
    ///
    /// If a step is shorter than it takes to send the state, the next one waits: use a larger number.
    #[must_use]
    pub fn every(steps: u64) -> Self {
        Self {
            every: steps.max(1),
            plan: None,
        }
    }

    /// Sets what plans for the processes that are left, by their number; a plan may have fewer ranks. Default: the first plan
    /// while there are enough processes for it; for fewer, the best contiguous stages, with the schedule of the first plan if
    /// it fits, else 1F1B, and as many replicas as divide the ranks.
    ///
    /// The first process that is left plans for all.
    #[must_use]
    pub fn plan<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        mut self,
        plan: impl Fn(usize) -> Result<Plan, E> + Send + Sync + 'static,
    ) -> Self {
        self.plan = Some(Arc::new(move |ranks| plan(ranks).map_err(Into::into)));
        self
    }
}

impl fmt::Debug for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recovery")
            .field("every", &self.every)
            .field("plan", &self.plan.as_ref().map(|_| "..."))
            .finish()
    }
}

/// What happened when ranks were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The ranks that were lost, as they were numbered before.
    pub lost: Vec<RankIndex>,
    /// The first failure.
    pub failure: Failure,
    /// The number of training steps that are done.
    pub step: u64,
    /// How many completed steps were repeated.
    pub repeated: u64,
    /// The rank of this process now.
    pub rank: RankIndex,
    /// The number of ranks now.
    pub ranks: usize,
    /// The number of processes that wait until another one is lost.
    pub spares: usize,
    /// The bytes that this process was sent.
    pub received_bytes: u64,
    /// From when this process noticed the loss until it went on.
    pub took: Duration,
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost: Vec<String> = self.lost.iter().map(ToString::to_string).collect();
        let noun = if lost.len() == 1 { "rank" } else { "ranks" };
        write!(
            f,
            "{noun} {} lost ({}): {} go on from step {}, {} repeated, {} moved to rank {}, after {:.3} s",
            lost.join(", "),
            self.failure,
            self.ranks,
            self.step,
            self.repeated,
            tinderbox_deferred::human_bytes(self.received_bytes),
            self.rank,
            self.took.as_secs_f64()
        )
    }
}

/// What the driver has at one point in time, the same on all processes.
#[derive(Clone, Debug)]
struct Driver {
    step: u64,
    loss_scale: Option<LossScale>,
    is_averaged: bool,
    frozen: BTreeSet<usize>,
    changes: u64,
}

/// What a process needs to go on without others.
pub(super) struct Guard<M, B> {
    settings: Recovery,
    world: World,
    /// Builds the pipeline again.
    builder: PipelineBuilder<M, B>,
    /// The rank of this process, the number of processes, and how many of them have a state, when the states below were
    /// kept.
    rank: RankIndex,
    ranks: usize,
    active: usize,
    /// How far the rank that keeps a state is from the rank that it is of.
    distance: usize,
    /// The states of the rank that this one keeps.
    wards: Arc<Wards>,
    /// The states of this rank, and of the driver, by version.
    states: BTreeMap<u64, State>,
    drivers: BTreeMap<u64, Driver>,
    /// The number of calls so far that changed something.
    version: u64,
    /// The newest version of which all ranks' states are kept elsewhere.
    kept: u64,
    /// The calls since the oldest version.
    log: Vec<Call<M, B>>,
    /// The number of calls so far in which all processes took part.
    calls: u64,
    /// Whether a call runs.
    is_running: bool,
    recovered: Vec<Recovered>,
}

/// What a process tells the others after a loss.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Standing {
    rank: RankIndex,
    calls: u64,
    /// The versions that it has of itself, and that it keeps of another rank.
    own: BTreeSet<u64>,
    ward: RankIndex,
    kept: BTreeSet<u64>,
}

/// The version whose state is kept nowhere, because every process can make it again.
const INITIAL: u64 = 0;

impl<M: Module + Sync + 'static, B: Batch> Guard<M, B> {
    fn new(
        settings: Recovery,
        world: World,
        builder: PipelineBuilder<M, B>,
        active: usize,
        wards: Arc<Wards>,
    ) -> Self {
        Self {
            settings,
            rank: world.rank(),
            ranks: world.size(),
            active,
            world,
            builder,
            distance: 1,
            wards,
            states: BTreeMap::new(),
            drivers: BTreeMap::new(),
            version: INITIAL,
            kept: INITIAL,
            log: Vec::new(),
            calls: 0,
            is_running: false,
            recovered: Vec::new(),
        }
    }

    /// Chooses which rank keeps which state: the same distance for all, so that each keeps one.
    fn choose_keepers(&mut self) -> Result<(), PipelineError> {
        let machines = self.world.all_gather(machine())?;
        let ranks = machines.len();
        let is_elsewhere = |distance: &usize| {
            (0..ranks).all(|rank| machines[rank] != machines[(rank + distance) % ranks])
        };
        self.distance = (1..ranks).find(is_elsewhere).unwrap_or(1);
        Ok(())
    }

    fn keeper(&self) -> RankIndex {
        RankIndex::new((self.rank.index() + self.distance) % self.ranks)
    }

    fn ward(&self) -> RankIndex {
        RankIndex::new((self.rank.index() + self.ranks - self.distance % self.ranks) % self.ranks)
    }

    /// All ranks have their states up to a version kept elsewhere.
    fn all_keep(&mut self, version: u64) {
        if version <= self.kept {
            return;
        }
        self.kept = version;
        self.states = self.states.split_off(&version);
        self.drivers = self.drivers.split_off(&version);
        self.wards.keep_from(version);
        self.log.retain(|call| call.is_after(version));
    }

    fn standing(&self) -> Standing {
        let initial = (self.kept == INITIAL).then_some(INITIAL);
        let own = self.states.keys().copied().chain(initial);
        let kept = self.wards.versions().into_iter().chain(initial);
        Standing {
            rank: self.rank,
            calls: self.calls,
            own: own.collect(),
            ward: self.ward(),
            kept: kept.collect(),
        }
    }

    /// The newest version of which every rank's state is left, or the ranks of which there is none.
    fn newest(&self, left: &[Standing]) -> Result<u64, Vec<RankIndex>> {
        let of_rank = |rank: RankIndex| {
            let own = left.iter().find(|one| one.rank == rank).map(|one| &one.own);
            let keeper = || left.iter().find(|one| one.ward == rank);
            own.or_else(|| keeper().map(|one| &one.kept))
        };
        let has_initial = left.iter().all(|one| one.own.contains(&INITIAL));
        let mut common: Option<BTreeSet<u64>> = None;
        let mut gone = Vec::new();
        for rank in (0..self.active).map(RankIndex::new) {
            match of_rank(rank).filter(|versions| !versions.is_empty()) {
                None => gone.push(rank),
                Some(versions) => {
                    common = Some(match common {
                        None => versions.clone(),
                        Some(common) => common.intersection(versions).copied().collect(),
                    });
                }
            }
        }
        let newest = common.and_then(|mut common| common.pop_last());
        match newest.filter(|_| gone.is_empty()) {
            Some(version) => Ok(version),
            // Every process makes the initial state again.
            None if has_initial => Ok(INITIAL),
            None => Err(gone),
        }
    }

    /// The schedule that a new plan should have.
    fn schedule(&self, plan: &Plan) -> crate::schedule::ScheduleKind {
        match &self.builder.schedule {
            Some(ScheduleChoice::Named(kind)) => *kind,
            _ => plan.file().step.schedule,
        }
    }
}

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Returns what happened each time that ranks were lost, and the pipeline went on.
    pub fn recovered(&self) -> &[Recovered] {
        let guard = self.guard.as_ref();
        guard.map_or(&[], |guard| &guard.recovered)
    }

    /// Returns whether the state of lost ranks was lost as well ([`PipelineError::StateLost`]), or a restore has failed partway:
    /// every call is refused until a [restore](Self::restore).
    pub fn awaits_restore(&self) -> bool {
        self.condition == Condition::PartlyRestored
    }

    /// Begins to keep states.
    pub(super) fn guard(
        &mut self,
        settings: Recovery,
        world: World,
        builder: PipelineBuilder<M, B>,
        wards: Arc<Wards>,
    ) -> Result<(), PipelineError> {
        let active = self.plan.world_size();
        let mut guard = Guard::new(settings, world, builder, active, wards);
        guard.choose_keepers()?;
        guard.drivers.insert(INITIAL, self.driver());
        self.guard = Some(Box::new(guard));
        Ok(())
    }

    fn driver(&self) -> Driver {
        Driver {
            step: self.step,
            loss_scale: self.loss_scale,
            is_averaged: self.is_averaged,
            frozen: self.frozen.clone(),
            changes: self.changes,
        }
    }

    /// The newest state that this process keeps of another rank.
    pub(super) fn newest_ward(&self) -> Option<u64> {
        self.guard.as_ref().and_then(|guard| guard.wards.newest())
    }

    /// Notes the newest states that the ranks keep of others.
    pub(super) fn note_wards(&mut self, newest: impl Iterator<Item = Option<u64>>) {
        if let Some(guard) = &mut self.guard {
            let all = newest.map(|version| version.unwrap_or(INITIAL)).min();
            guard.all_keep(all.unwrap_or(INITIAL));
        }
    }

    /// Keeps the state after a step, when all ranks have the one before.
    fn keep_state(&mut self) -> Result<(), PipelineError> {
        let Some(guard) = &self.guard else {
            return Ok(());
        };
        let is_due = self.step.is_multiple_of(guard.settings.every) && !self.is_averaged;
        if !is_due || guard.ranks == 1 || guard.states.contains_key(&guard.version) {
            return Ok(());
        }
        self.wait_until_kept()?;
        self.send_state()
    }

    /// Takes the state of this version, and begins to send it.
    fn send_state(&mut self) -> Result<(), PipelineError> {
        let driver = self.driver();
        let state = self
            .crew
            .call("keep its state", |_, stages| State::of(stages))?;
        let Some(guard) = &mut self.guard else {
            return Ok(());
        };
        // A process that waits has none, and sends that.
        let state = state.into_iter().next().unwrap_or_default();
        let (version, keeper, rank) = (guard.version, guard.keeper(), guard.rank);
        let earlier = guard.states.iter().next_back();
        let earlier = earlier.map(|(version, state)| (*version, state.clone()));
        guard.states.insert(version, state.clone());
        guard.drivers.insert(version, driver);
        let Some(channel) = self.crew.channel().and_then(|channel| channel.upgrade()) else {
            return Ok(());
        };
        let table = self.model.parameters().clone();
        let send = move || {
            let sent = wards::send((&channel, keeper), version, &state, earlier, &table);
            if let Err(error) = sent {
                channel.fail(&format!("rank {rank} can't read its state: {error}"));
            }
        };
        let thread = std::thread::Builder::new().name("keep-state".to_owned());
        let thread = thread.spawn(send);
        thread.map_err(|source| PipelineError::Spawn { rank, source })?;
        Ok(())
    }

    /// Waits until the newest state of every rank is kept elsewhere.
    fn wait_until_kept(&mut self) -> Result<(), PipelineError> {
        const LOOK: Duration = Duration::from_millis(20);
        let Some(guard) = &self.guard else {
            return Ok(());
        };
        let newest = guard.states.keys().next_back().copied();
        let Some(newest) = newest.filter(|newest| *newest > guard.kept) else {
            return Ok(());
        };
        let (wards, world, own) = (guard.wards.clone(), guard.world.clone(), guard.ward());
        let deadline = Instant::now() + self.crew.timeout();
        while !wards.wait_for(newest, LOOK) {
            if let Some(failure) = world.failure() {
                return Err(WorldError::Failed(failure).into());
            }
            if Instant::now() > deadline {
                return Err(self.crew.told(PipelineError::Timeout {
                    rank: own,
                    request: "send its state",
                    timeout: self.crew.timeout(),
                }));
            }
        }
        let all = self.crew.exchange(To::All, (), Vec::new())?;
        drop(all);
        if let Some(guard) = &mut self.guard {
            guard.all_keep(newest);
        }
        Ok(())
    }

    /// Whether this pipeline can go on after the first failure of its world.
    fn can_recover(&self) -> Option<Failure> {
        let guard = self.guard.as_ref()?;
        let failure = guard.world.failure()?;
        matches!(failure.how, How::Lost(_)).then_some(failure)
    }

    /// Goes on without ranks that were lost, if the last error was one of a call of the [world](PipelineBuilder::world)
    /// itself, and returns whether it did: make that call again then. Calls of the pipeline do this by themselves.
    ///
    /// # Errors
    ///
    /// [`PipelineError::StateLost`]; when the others have gone on without this process, or the ranks that are left can't
    /// run the model.
    pub fn recover(&mut self) -> Result<bool, PipelineError> {
        match self.can_recover() {
            None => Ok(false),
            Some(failure) => self.go_on(failure).map(|()| true),
        }
    }

    /// Goes on, again and again if more ranks are lost meanwhile.
    fn go_on(&mut self, failure: Failure) -> Result<(), PipelineError> {
        let began = Instant::now();
        let mut is_running = true;
        if let Some(guard) = &mut self.guard {
            std::mem::swap(&mut guard.is_running, &mut is_running);
        }
        let gone = loop {
            let gone = self.form_again(&failure, began);
            let is_final = matches!(
                &gone,
                Err(PipelineError::World(
                    WorldError::GivenUp { .. } | WorldError::TooFewLeft { .. }
                ))
            );
            match gone {
                Err(_) if !is_final && self.can_recover().is_some() => {}
                gone => break gone,
            }
        };
        if let Some(guard) = &mut self.guard {
            guard.is_running = is_running;
        }
        if let Err(error) = &gone {
            tracing::error!(%error, "the pipeline can't go on by itself");
            if !matches!(error, PipelineError::StateLost { .. }) {
                self.crew.end();
                self.condition = Condition::Stopped;
            }
        }
        gone
    }

    /// Forms a world of those that are left, and brings all of them to the same state.
    fn form_again(&mut self, failure: &Failure, began: Instant) -> Result<(), PipelineError> {
        self.crew.end();
        let Some(guard) = &self.guard else {
            return Ok(());
        };
        let world = guard.world.clone();
        world.regroup()?;
        let left: Vec<Standing> = world.all_gather(guard.standing())?;
        let lost = (0..guard.ranks).map(RankIndex::new);
        let lost = lost.filter(|rank| left.iter().all(|one| one.rank != *rank));
        let lost: Vec<RankIndex> = lost.collect();
        let newest = guard.newest(&left);
        let least = left.iter().map(|one| one.calls).min().unwrap_or(0);
        let plan = self.plan_again(&world)?;
        let table = self.model.parameters().clone();
        let layout = plan.layout(&table)?;
        let mut builder = guard.builder.again(&plan);
        builder.micro_batches = Some(self.micro_batches);
        builder.sum = Some(self.settings.sum);
        builder.schedule = None;
        builder.world = (world.size() > 1).then(|| world.clone());
        let wards = Arc::new(Wards::default());
        builder.wards = Some(wards.clone());
        let version = *newest.as_ref().unwrap_or(&INITIAL);
        builder.devices = vec![self.device_of_process(&world)];
        let moved = match version {
            INITIAL => None,
            version => {
                let timeout = self.crew.timeout();
                let held = self.held_at(version, &lost)?;
                Some(move_state(&world, held, &layout, &table, timeout)?)
            }
        };
        let mut received_bytes = 0;
        let mut state = None;
        if let Some(moved) = moved {
            let Moved {
                values, state: of, ..
            } = moved;
            received_bytes = moved.received_bytes;
            builder.source = Some(Arc::new(values));
            state = Some(Arc::new(of));
        }
        let fresh = builder.start_again()?;
        self.take(fresh);
        if let Err(ranks) = newest {
            self.forget(wards)?;
            return Err(PipelineError::StateLost { ranks });
        }
        self.restore_at(version, state)?;
        // The old states are dropped when the new ones are kept.
        self.keep_again(wards)?;
        let before = self.step;
        self.repeat(least)?;
        let recovered = Recovered {
            lost,
            failure: failure.clone(),
            step: self.step,
            repeated: self.step - before,
            rank: world.rank(),
            ranks: self.plan.world_size(),
            spares: world.size() - self.plan.world_size(),
            received_bytes,
            took: began.elapsed(),
        };
        tracing::warn!(%recovered, "went on without lost ranks");
        if let Some(guard) = &mut self.guard {
            guard.recovered.push(recovered);
        }
        Ok(())
    }

    /// What this process holds of a version: its own state, and that of a lost rank.
    fn held_at(
        &self,
        version: u64,
        lost: &[RankIndex],
    ) -> Result<(Contents, Vec<DynTensor>), PipelineError> {
        let unreadable = |source| PipelineError::Unreadable {
            what: "a state that is kept",
            source,
        };
        let guard = self.guard.as_ref().expect("it recovers");
        let own = &guard.states[&version];
        let mut parts = vec![own.read(self.model.parameters()).map_err(unreadable)?];
        if lost.contains(&guard.ward()) {
            let kept = guard.wards.state(version);
            let rank = guard.ward();
            parts.push(kept.ok_or(PipelineError::Frame { rank })?);
        }
        Ok(together(parts))
    }

    /// The device of this process.
    fn device_of_process(&self, world: &World) -> Device {
        let guard = self.guard.as_ref().expect("it recovers");
        let local = RankIndex::new(world.local().rank);
        device_of(local, &guard.builder.devices).clone()
    }

    /// Begins anew, without any state: values are initial until a checkpoint is restored.
    fn forget(&mut self, wards: Arc<Wards>) -> Result<(), PipelineError> {
        let driver = Driver {
            is_averaged: false,
            ..self.driver()
        };
        let Some(guard) = &mut self.guard else {
            return Ok(());
        };
        let (world, settings) = (guard.world.clone(), guard.settings.clone());
        let recovered = std::mem::take(&mut guard.recovered);
        let builder = guard.builder.again(&guard.builder.plan);
        let active = self.plan.world_size();
        let mut next = Guard::new(settings, world, builder, active, wards);
        next.recovered = recovered;
        next.is_running = true;
        next.drivers.insert(INITIAL, driver);
        if next.ranks > 1 {
            next.choose_keepers()?;
        }
        **guard = next;
        self.restore_at(INITIAL, None)?;
        self.condition = Condition::PartlyRestored;
        Ok(())
    }

    /// Plans on the first process.
    fn plan_again(&self, world: &World) -> Result<Plan, PipelineError> {
        let guard = self.guard.as_ref().expect("it recovers");
        let processes = world.size();
        let planned = world.from_first(|| {
            let plan = match &guard.settings.plan {
                Some(plan) => plan(processes)?,
                None => {
                    let builder = &guard.builder;
                    let kind = guard.schedule(&builder.plan);
                    let micro_batches = self.micro_batches;
                    replan(
                        &builder.trace,
                        &builder.plan,
                        kind,
                        processes,
                        micro_batches,
                    )?
                }
            };
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(plan.to_json())
        })?;
        Ok(Plan::from_json(&planned)?)
    }

    /// Takes the ranks of a pipeline that was started for the same model.
    fn take(&mut self, fresh: Self) {
        let Self {
            plan,
            programs,
            crew,
            settings,
            ..
        } = fresh;
        self.plan = plan;
        self.programs = programs;
        self.crew = crew;
        self.settings = settings;
        self.condition = Condition::Sound;
        // Their values were on the ranks.
        self.carries = Carries::default();
        self.calls = 0;
        self.round = 0;
    }

    /// Gives the ranks the state of the optimizer, and the driver its own.
    fn restore_at(
        &mut self,
        version: u64,
        state: Option<Arc<moving::MovedState>>,
    ) -> Result<(), PipelineError> {
        if let Some(state) = state {
            let restored = self.crew.call("restore its state", move |_, stages| {
                let mut stages = stages.iter_mut();
                stages.try_for_each(|stage| stage.restore_optimizer(&*state))
            })?;
            let restored = restored.into_iter().collect::<Result<(), RestoreError>>();
            restored.map_err(|source| {
                let rank = self.crew.own().unwrap_or(RankIndex::new(0));
                self.crew
                    .told(PipelineError::PartlyRestored { rank, source })
            })?;
        }
        let guard = self.guard.as_mut().expect("it recovers");
        guard.version = version;
        let driver = guard.drivers[&version].clone();
        self.step = driver.step;
        self.loss_scale = driver.loss_scale;
        self.is_averaged = driver.is_averaged;
        self.changes = driver.changes;
        self.frozen.clone_from(&driver.frozen);
        let frozen: Vec<usize> = driver.frozen.into_iter().collect();
        self.crew.call("freeze parameters", move |_, stages| {
            stages
                .iter_mut()
                .for_each(|stage: &mut Stage| stage.set_trains(&frozen, false));
        })?;
        Ok(())
    }

    /// Keeps the state elsewhere again, and then drops the states of the ranks before.
    fn keep_again(&mut self, wards: Arc<Wards>) -> Result<(), PipelineError> {
        let Some(guard) = &mut self.guard else {
            return Ok(());
        };
        let world = guard.world.clone();
        let version = guard.version;
        let mut next = Guard::new(
            guard.settings.clone(),
            world,
            guard.builder.again(&guard.builder.plan),
            self.plan.world_size(),
            wards,
        );
        next.version = version;
        next.calls = guard.calls;
        next.is_running = true;
        next.kept = INITIAL;
        if next.ranks > 1 {
            next.choose_keepers()?;
        }
        let old = std::mem::replace(guard, Box::new(next));
        let kept = match guard.ranks > 1 && version != INITIAL {
            true => self.send_state().and_then(|()| self.wait_until_kept()),
            false => Ok(()),
        };
        let driver = self.driver();
        let Some(guard) = &mut self.guard else {
            return Ok(());
        };
        if kept.is_err() {
            // The others may still need them.
            *guard = old;
            return kept;
        }
        let Guard { log, recovered, .. } = *old;
        guard.drivers.insert(version, driver);
        (guard.log, guard.recovered) = (log, recovered);
        if version != INITIAL {
            guard.kept = version;
        }
        Ok(())
    }
}
