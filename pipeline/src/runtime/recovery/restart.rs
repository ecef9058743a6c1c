//! Continues after a loss: regroups, plans again, moves the state, starts the ranks again, and repeats calls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use tinderbox_deferred::ParameterPath;
use tinderbox_world::{Failure, How, World, WorldError, machine, with_causes};

use super::backups::{self, Backups};
use super::driver::Driver;
use super::keepers::keepers;
use super::ledger::{Holdings, INITIAL, Ledger, RecoveryState, newest_version};
use super::moving::{Moved, MovedState, Needs, Value, move_state};
use super::replan::replan;
use super::report::Recovered;
use super::settings::Recovery;
use super::snapshot::Snapshot;
use crate::batch::Batch;
use crate::lists::ScheduleChoice;
use crate::runtime::builder::PipelineBuilder;
use crate::runtime::carry::Carries;
use crate::runtime::memory::device_of;
use crate::runtime::pieces::Piece;
use crate::runtime::pipeline::{Condition, Pipeline};
use crate::runtime::remote::To;
use crate::schedule::RankIndex;
use crate::{PipelineError, Plan, RestoreError};

/// What a process reports to the others after a loss.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Standing {
    /// The number of calls of all processes that it has made.
    calls: u64,
    /// Whether it has lost its state and waits for a restore.
    awaits_restore: bool,
    /// What it has, under each numbering of the processes that it knows.
    holdings: Vec<Holdings>,
}

impl Standing {
    /// What it has under the numbering of a generation.
    fn under(&self, generation: u32) -> Option<&Holdings> {
        let mut holdings = self.holdings.iter();
        holdings.find(|one| one.generation == generation)
    }
}

/// The version to go back to.
struct Choice {
    /// The generation whose numbering of the processes it has.
    generation: u32,
    /// Or the ranks of which no snapshot is left.
    version: Result<u64, Vec<RankIndex>>,
    /// The ranks that are gone.
    absent: Vec<RankIndex>,
}

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Returns what happened each time that processes were lost, and the pipeline went on.
    pub fn recovered(&self) -> &[Recovered] {
        let recovery = self.recovery.as_ref();
        recovery.map_or(&[], |recovery| &recovery.recovered)
    }

    /// Returns whether the state of lost ranks is lost as well ([`PipelineError::StateLost`]), or a restore has failed partway:
    /// steps and evaluations are refused until a [restore](Self::restore).
    pub fn awaits_restore(&self) -> bool {
        matches!(
            self.condition,
            Condition::PartlyRestored | Condition::StateLost
        )
    }

    /// Continues without processes that were lost, if the last error was one of a call of the
    /// [world](crate::PipelineBuilder::world) itself, and returns whether it did: repeat that call then. Calls of the pipeline do this
    /// by themselves.
    ///
    /// # Errors
    ///
    /// [`PipelineError::StateLost`]; when the others have gone on without this process, or the processes that are left can't
    /// run the model.
    pub fn recover(&mut self) -> Result<bool, PipelineError> {
        match self.lost_process() {
            None => Ok(false),
            Some(failure) => self.go_on(failure).map(|()| true),
        }
    }

    /// Begins to keep snapshots.
    pub(in crate::runtime) fn keep_snapshots(
        &mut self,
        settings: Recovery,
        world: World,
        builder: PipelineBuilder<M, B>,
        backups: Arc<Backups>,
    ) -> Result<(), PipelineError> {
        let (timeout, lost_after) = (self.crew.timeout(), world.lost_after());
        if timeout <= lost_after {
            return Err(PipelineError::ShortTimeout {
                timeout,
                lost_after,
            });
        }
        if !world.begin_recovery() {
            return Err(PipelineError::TwoRecoveries);
        }
        let mut ledger = self.ledger(&world, backups)?;
        ledger.kept = Some(INITIAL);
        ledger.drivers.insert(INITIAL, self.driver());
        let recovery = RecoveryState::new(settings, world, builder, ledger);
        self.recovery = Some(Box::new(recovery));
        Ok(())
    }

    fn ledger(&self, world: &World, backups: Arc<Backups>) -> Result<Ledger, PipelineError> {
        let machines = world.all_gather(machine())?;
        let keepers = match machines.len() {
            1 => Vec::new(),
            _ => keepers(&machines, self.plan.world_size()),
        };
        Ok(Ledger::new(world, keepers, backups))
    }

    /// The newest version that this process keeps of all ranks of which it keeps snapshots.
    pub(in crate::runtime) fn newest_backup(&self) -> u64 {
        let recovery = self.recovery.as_ref();
        recovery.map_or(INITIAL, |recovery| recovery.ledger.newest())
    }

    /// Notes the newest versions that the processes keep of others.
    pub(in crate::runtime) fn note_backups(&mut self, newest: impl Iterator<Item = u64>) {
        if let Some(recovery) = &mut self.recovery {
            let own = recovery.ledger.newest_own();
            recovery.all_keep(newest.min().unwrap_or(INITIAL).min(own));
        }
    }

    /// Takes a snapshot of this version, when all keepers have the one before.
    pub(super) fn take_snapshot(&mut self) -> Result<(), PipelineError> {
        let recovery = self.recovery.as_ref();
        let is_taken = recovery.is_none_or(|recovery| {
            let ledger = &recovery.ledger;
            ledger.processes == 1 || ledger.snapshots.contains_key(&recovery.version)
        });
        if is_taken {
            return Ok(());
        }
        self.wait_until_kept()?;
        self.send_snapshot()
    }

    /// Takes the snapshot of this version anew, if it was taken: its values were wrong.
    pub(in crate::runtime) fn renew_snapshot(&mut self) -> Result<(), PipelineError> {
        let Some(recovery) = &mut self.recovery else {
            return Ok(());
        };
        if let Some(kept) = recovery.ledger.snapshots.get_mut(&recovery.version) {
            let taken = self
                .crew
                .call("take a snapshot", |_, stages| Snapshot::of(stages))?;
            *kept = taken.into_iter().next().unwrap_or_default();
        }
        Ok(())
    }

    /// Takes a snapshot of this version, and begins to send it.
    fn send_snapshot(&mut self) -> Result<(), PipelineError> {
        let driver = self.driver();
        let taken = self
            .crew
            .call("take a snapshot", |_, stages| Snapshot::of(stages))?;
        // A process without a stage has none, and sends nothing.
        let snapshot = taken.into_iter().next().unwrap_or_default();
        let Some(recovery) = &mut self.recovery else {
            return Ok(());
        };
        recovery.join_sending();
        let (version, ledger) = (recovery.version, &mut recovery.ledger);
        let earlier = ledger.snapshots.iter().next_back();
        let earlier = earlier.map(|(version, snapshot)| (*version, snapshot.clone()));
        ledger.snapshots.insert(version, snapshot.clone());
        ledger.drivers.insert(version, driver);
        let channel = self.crew.channel().and_then(|channel| channel.upgrade());
        let (Some(keeper), Some(channel)) = (ledger.keeper(), channel) else {
            return Ok(());
        };
        let table = self.model.parameters().clone();
        let rank = ledger.rank;
        let send = move || {
            let sent = backups::send((&channel, keeper), version, &snapshot, earlier, &table);
            if let Err(error) = sent {
                channel.fail(&format!("rank {rank} can't read its state: {error}"));
            }
        };
        let thread = std::thread::Builder::new().name("snapshot".to_owned());
        let thread = thread.spawn(send);
        recovery.sending = Some(thread.map_err(|source| PipelineError::Spawn { rank, source })?);
        Ok(())
    }

    /// Waits until all keepers have the newest version.
    fn wait_until_kept(&mut self) -> Result<(), PipelineError> {
        const LOOK: Duration = Duration::from_millis(20);
        let Some(recovery) = &self.recovery else {
            return Ok(());
        };
        let ledger = &recovery.ledger;
        let newest = ledger.newest_own();
        let is_kept = ledger.kept.is_some_and(|kept| newest <= kept);
        if is_kept || ledger.snapshots.is_empty() {
            return Ok(());
        }
        let of_others: Vec<RankIndex> = ledger.of_others().collect();
        let (backups, timeout) = (ledger.backups.clone(), self.crew.timeout());
        let began = Instant::now();
        for rank in of_others {
            while !self.crew.is_aborted() && !backups.wait_for(rank, newest, LOOK) {
                if began.elapsed() > timeout {
                    let request = "send its state";
                    return Err(self.crew.notified(PipelineError::Timeout {
                        rank,
                        request,
                        timeout,
                    }));
                }
            }
        }
        // Returns the reason if it was aborted.
        self.crew.exchange(To::All, (), Vec::new())?;
        if let Some(recovery) = &mut self.recovery {
            recovery.all_keep(newest);
        }
        Ok(())
    }

    /// The failure of the world, if it is one that the pipeline can continue after.
    pub(super) fn lost_process(&self) -> Option<Failure> {
        let failure = self.recovery.as_ref()?.world.failure()?;
        matches!(failure.how, How::Lost(_)).then_some(failure)
    }

    /// Continues, again and again if more processes are lost meanwhile.
    pub(super) fn go_on(&mut self, failure: Failure) -> Result<(), PipelineError> {
        let began = Instant::now();
        let Some(recovery) = &mut self.recovery else {
            return Ok(());
        };
        let was_running = std::mem::replace(&mut recovery.is_running, true);
        let world = recovery.world.clone();
        let result = loop {
            let result = self.restart(&failure, began);
            let is_final = matches!(
                &result,
                Ok(())
                    | Err(PipelineError::StateLost { .. }
                        | PipelineError::World(
                            WorldError::GivenUp { .. } | WorldError::TooFewLeft { .. }
                        ))
            );
            if is_final || self.lost_process().is_none() {
                break result;
            }
        };
        if let Some(recovery) = &mut self.recovery {
            recovery.is_running = was_running;
        }
        if let Err(error) = &result {
            tracing::error!(%error, "the pipeline can't continue by itself");
            if !matches!(error, PipelineError::StateLost { .. }) {
                // The others wait for this process.
                world.fail(&with_causes(error));
                self.crew.end();
                self.condition = Condition::Stopped;
            }
        }
        result
    }

    /// Regroups the processes that are left, and brings all of them to the same state.
    fn restart(&mut self, failure: &Failure, began: Instant) -> Result<(), PipelineError> {
        self.crew.end();
        let Some(recovery) = &mut self.recovery else {
            return Ok(());
        };
        recovery.join_sending();
        let world = recovery.world.clone();
        world.regroup()?;
        let left = world.all_gather(Standing {
            calls: recovery.calls,
            awaits_restore: recovery.is_state_lost,
            holdings: recovery.holdings(),
        })?;
        let agreed = began.elapsed();
        let Choice {
            version,
            absent: lost,
            ..
        } = self.choose_version(&left);
        let plan = self.plan_again(&world)?;
        let backups = Arc::new(Backups::default());
        let (moved, received_bytes) = match version {
            Ok(version) if version != INITIAL => {
                let moved = self.moved(&world, &plan, version, &lost)?;
                let bytes = moved.received_bytes;
                (Some(moved), bytes)
            }
            _ => (None, 0),
        };
        let state = self.start_again(&world, &plan, &backups, moved)?;
        let version = match version {
            Ok(version) => version,
            Err(ranks) => {
                self.begin_anew(backups)?;
                return Err(PipelineError::StateLost { ranks });
            }
        };
        self.restore_version(version, state)?;
        self.keep_again(backups)?;
        let restored = began.elapsed().saturating_sub(agreed);
        let least = left.iter().map(|one| one.calls).min().unwrap_or(0);
        let repeated = self.repeat(least)?;
        let ranks = self.plan.world_size();
        let recovered = Recovered {
            lost,
            failure: failure.clone(),
            step: self.step,
            repeated,
            rank: world.rank(),
            ranks,
            spares: world.size() - ranks,
            received_bytes,
            agreed,
            restored,
            took: began.elapsed(),
        };
        tracing::warn!(%recovered, "went on without lost processes");
        if let Some(recovery) = &mut self.recovery {
            recovery.recovered.push(recovered);
        }
        Ok(())
    }

    /// Chooses the version to go back to, under the newest numbering of which every rank is left: the snapshots of one that has
    /// begun after the last loss may not have arrived.
    fn choose_version(&mut self, left: &[Standing]) -> Choice {
        let recovery = self.recovery.as_mut().expect("it recovers");
        let choices = recovery.ledgers().map(|ledger| {
            let held: Vec<&Holdings> = left
                .iter()
                .filter_map(|one| one.under(ledger.generation))
                .collect();
            let processes = (0..ledger.processes).map(RankIndex::new);
            let is_absent = |rank: &RankIndex| held.iter().all(|one| one.rank != *rank);
            let absent: Vec<RankIndex> = processes.filter(is_absent).collect();
            // Some may have been lost before they began it, or have begun anew.
            let is_known = held.len() == left.len() && !left.iter().any(|one| one.awaits_restore);
            Choice {
                generation: ledger.generation,
                version: match is_known {
                    true => newest_version(ledger.keepers.len(), &held),
                    false => Err(absent.clone()),
                },
                absent,
            }
        });
        let mut choices: Vec<Choice> = choices.collect();
        let found = choices.iter().position(|choice| choice.version.is_ok());
        let chosen = choices.swap_remove(found.unwrap_or(0));
        recovery.use_ledger(chosen.generation);
        chosen
    }

    /// Moves the snapshots of a version to where a plan needs them: this process has its own, and those that it keeps of absent
    /// ranks.
    fn moved(
        &self,
        world: &World,
        plan: &Plan,
        version: u64,
        absent: &[RankIndex],
    ) -> Result<Moved, PipelineError> {
        let table = self.model.parameters();
        let layout = plan.layout(table)?;
        let needs = Needs::of(&layout, plan.world_size());
        let ledger = &self.recovery.as_ref().expect("it recovers").ledger;
        let snapshot = &ledger.snapshots[&version];
        // The state of an optimizer has no parts that could be sent without a copy.
        let stays = |path: &ParameterPath, piece: &Piece| {
            let position = table.position(path);
            piece.is_whole() && position.is_some_and(|at| needs.owns_alone(world.rank(), at))
        };
        let read = snapshot.read(table, |path, piece| !stays(path, piece));
        let (mut contents, values) = read.map_err(|source| PipelineError::Unreadable {
            what: "a snapshot",
            source,
        })?;
        let mut values: Vec<Value> = values.into_iter().map(Value::Tensor).collect();
        for rank in ledger.of_others().filter(|rank| absent.contains(rank)) {
            let kept = ledger.backups.snapshot(rank, version);
            let (of_rank, chunks) = kept.ok_or(PipelineError::Frame { rank })?;
            contents.items.extend(of_rank.items);
            contents.scalars.extend(of_rank.scalars);
            values.extend(chunks.into_iter().map(Value::Chunks));
        }
        let held = (contents, values);
        let mut moved = move_state(world, held, &needs, table, self.crew.timeout())?;
        let states = snapshot.states();
        let states = states.filter(|(path, piece, _)| stays(path, piece));
        let states = states.map(|(path, _, state)| (path.clone(), state.clone()));
        moved.state.own = states.collect();
        Ok(moved)
    }

    /// Plans on the first process, for all.
    fn plan_again(&self, world: &World) -> Result<Plan, PipelineError> {
        let recovery = self.recovery.as_ref().expect("it recovers");
        let builder = &recovery.builder;
        let processes = world.size();
        let mut failed = None;
        let planned = world.from_first(|| {
            let planned = match &recovery.settings.plan {
                Some(plan) => match plan(processes) {
                    Ok(plan) if plan.world_size() > processes => Err(PipelineError::WorldSize {
                        ranks: plan.world_size(),
                        processes,
                    }),
                    Ok(plan) => Ok(plan),
                    Err(source) => Err(PipelineError::NoPlan {
                        processes,
                        source: Some(source),
                    }),
                },
                None => {
                    let kind = match &builder.schedule {
                        Some(ScheduleChoice::Named(kind)) => *kind,
                        _ => builder.plan.file().step.schedule,
                    };
                    let (trace, old) = (&builder.trace, &builder.plan);
                    replan(trace, old, kind, processes, self.micro_batches)
                }
            };
            planned.map(|plan| plan.to_json()).map_err(|error| {
                let text = with_causes(&error);
                failed = Some(error);
                text
            })
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(Plan::from_json(&planned?)?),
        }
    }

    /// Starts the ranks of a plan, with the parameters that were moved or with initial ones, and returns the state of the
    /// optimizer that was moved.
    fn start_again(
        &mut self,
        world: &World,
        plan: &Plan,
        backups: &Arc<Backups>,
        moved: Option<Moved>,
    ) -> Result<Option<MovedState>, PipelineError> {
        let first = &self.recovery.as_ref().expect("it recovers").builder;
        let mut builder = first.for_plan(plan);
        builder.micro_batches = Some(self.micro_batches);
        builder.sum = Some(self.settings.sum);
        if *plan != first.plan {
            builder.schedule = None;
        }
        builder.devices = vec![device_of_process(world, &first.devices)];
        builder.world = (world.size() > 1).then(|| world.clone());
        builder.backups = Some(backups.clone());
        let state = moved.map(|moved| {
            builder.source = Some(Arc::new(moved.values));
            moved.state
        });
        let Self {
            plan,
            programs,
            crew,
            settings,
            ..
        } = builder.launch()?;
        self.plan = plan;
        self.programs = programs;
        self.crew = crew;
        self.settings = settings;
        self.condition = Condition::Sound;
        // Their values were on the ranks.
        self.carries = Carries::default();
        self.calls = 0;
        self.round = 0;
        Ok(state)
    }

    /// Gives the ranks the state of the optimizer, and the driver its own.
    fn restore_version(
        &mut self,
        version: u64,
        state: Option<MovedState>,
    ) -> Result<(), PipelineError> {
        if let Some(state) = state {
            let restored = self.crew.call("restore a snapshot", move |_, stages| {
                let mut stages = stages.iter_mut();
                stages.try_for_each(|stage| stage.restore_optimizer(&state))
            })?;
            let restored = restored.into_iter().collect::<Result<(), RestoreError>>();
            restored.map_err(|source| {
                let rank = self.crew.own().unwrap_or(RankIndex::new(0));
                self.crew
                    .notified(PipelineError::PartlyRestored { rank, source })
            })?;
        }
        let recovery = self.recovery.as_mut().expect("it recovers");
        recovery.version = version;
        let driver = recovery.ledger.drivers[&version].clone();
        self.set_driver(driver)
    }

    /// Begins a new ledger. It gets a snapshot after the next call of all processes; until that is kept, the one before holds.
    fn keep_again(&mut self, backups: Arc<Backups>) -> Result<(), PipelineError> {
        let world = self.recovery.as_ref().expect("it recovers").world.clone();
        let mut ledger = self.ledger(&world, backups)?;
        let driver = self.driver();
        let recovery = self.recovery.as_mut().expect("it recovers");
        let version = recovery.version;
        if version == INITIAL || ledger.processes == 1 {
            ledger.drivers.insert(version, driver);
            ledger.kept = Some(version);
        }
        let before = std::mem::replace(&mut recovery.ledger, ledger);
        recovery.earlier.push(before);
        Ok(())
    }

    /// Begins without any state: values are initial until a checkpoint is restored.
    fn begin_anew(&mut self, backups: Arc<Backups>) -> Result<(), PipelineError> {
        self.condition = Condition::StateLost;
        let world = self.recovery.as_ref().expect("it recovers").world.clone();
        // Some processes may have changed more than others.
        let shared = || {
            let frozen: Vec<usize> = self.frozen.iter().copied().collect();
            Ok::<_, WorldError>((self.changes, frozen))
        };
        let (changes, frozen) = world.from_first(shared)?;
        let ledger = self.ledger(&world, backups)?;
        let recovery = self.recovery.as_mut().expect("it recovers");
        let driver = Driver {
            step: 0,
            loss_scale: recovery.builder.loss_scale,
            is_averaged: false,
            frozen: frozen.into_iter().collect(),
            last_rates: None,
            changes,
        };
        recovery.is_state_lost = true;
        recovery.ledger = ledger;
        recovery.ledger.kept = Some(INITIAL);
        recovery.ledger.drivers.insert(INITIAL, driver.clone());
        recovery.earlier.clear();
        recovery.version = INITIAL;
        recovery.log.clear();
        recovery.calls = 0;
        self.set_driver(driver)
    }
}

/// The device that this process has used so far.
fn device_of_process(world: &World, devices: &[Device]) -> Device {
    let local = RankIndex::new(world.local().rank);
    device_of(local, devices).clone()
}
