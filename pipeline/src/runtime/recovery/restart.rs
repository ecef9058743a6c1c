//! Continues after a loss: regroups, plans again, moves the state, and starts the ranks again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tinderbox_deferred::{ParameterPath, Values};
use tinderbox_world::link::Instant;
use tinderbox_world::{Failure, WorldError, with_causes};

use super::ledger::{Holdings, INITIAL, Ledger, newest_version};
use super::moving::{Moved, Value, move_state, owns};
use super::rollback::Rollback;
use crate::error::Result;
use crate::plan;
use crate::runtime::capacity::device_of;
use crate::runtime::driver::{Condition, Driver, DriverState, RankKind, Recovered};
use crate::runtime::optimizer::State;
use crate::runtime::pieces::Piece;
use crate::runtime::points::{Point, reach};
use crate::runtime::snapshots::Backups;
use crate::runtime::stage::set_trains;
use crate::schedule::RankIndex;
use crate::{
    PipelineError, Plan, PlanBroadcast, ProcessError, RankError, RecoveryError, RestoreError,
    ScheduleChoice, StartError, StateError,
};

/// The report of a process to the others after a loss.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Standing {
    /// The number of joint calls that it has made.
    calls: u64,
    /// Whether it has lost its state and waits for a restore.
    awaits_restore: bool,
    /// Its versions under each numbering of the processes that it knows.
    holdings: Vec<Holdings>,
}

/// The version to go back to.
struct Choice {
    /// The generation whose numbering of the processes it has.
    generation: u32,
    /// If there is no version, the ranks without a snapshot.
    version: Result<u64, Vec<RankIndex>>,
    /// The ranks that are lost.
    absent: Vec<RankIndex>,
}

impl Rollback {
    /// Regroups the remaining processes, and brings all of them to the same version. Returns a report so far, and the smallest
    /// number of joint calls that a remaining process has made.
    pub(crate) fn go_back(
        &mut self,
        driver: &mut Driver,
        failure: &Failure,
        began: Instant,
    ) -> Result<(Recovered, u64)> {
        driver.ranks.end();
        self.absorb(driver);
        self.join_sending();
        reach(Point::Regroup);
        self.world.regroup()?;
        let left = self.world.all_gather(Standing {
            calls: self.calls,
            awaits_restore: self.is_state_lost,
            holdings: self.ledgers().map(|ledger| ledger.holdings()).collect(),
        })?;
        let agreed = began.elapsed();
        let chosen = self.choose_version(&left);
        let (version, lost) = (chosen.version, chosen.absent);
        let plan = self.plan_again()?;
        let backups = Arc::new(Backups::default());
        let moved = match version {
            Ok(version) if version != INITIAL => self.moved(driver, &plan, version, &lost)?,
            _ => Moved::default(),
        };
        let received_bytes = moved.received_bytes;
        self.start_again(driver, plan, &backups, moved.values)?;
        match version {
            Ok(version) => self.restore_version(driver, version, moved.states)?,
            Err(ranks) => {
                self.lose_state(driver, backups)?;
                return Err(RecoveryError::StateLost { ranks }.into());
            }
        }
        self.keep_again(driver, backups)?;
        let ranks = driver.plan.world_size();
        let recovered = Recovered {
            lost,
            failure: failure.clone(),
            step: driver.state.step,
            repeated: 0,
            rank: self.world.rank(),
            ranks,
            spares: self.world.size() - ranks,
            received_bytes,
            agreed,
            restored: began.elapsed().saturating_sub(agreed),
            took: Duration::ZERO,
        };
        let least = left.iter().map(|one| one.calls).min();
        Ok((recovered, least.unwrap_or(0)))
    }

    /// Reports that the pipeline continues.
    pub(crate) fn report(&mut self, recovered: Recovered) {
        tracing::warn!(%recovered, "continues without lost processes");
        self.recovered.push(recovered);
    }

    /// Chooses the version to go back to, under the newest numbering in which the snapshot of every rank remains. The snapshots
    /// of a numbering that has begun after the last loss may not have arrived.
    fn choose_version(&mut self, left: &[Standing]) -> Choice {
        let choices = self.ledgers().map(|ledger| {
            let held = left.iter().flat_map(|one| &one.holdings);
            let held = held.filter(|one| one.generation == ledger.generation);
            let held: Vec<&Holdings> = held.collect();
            let processes = (0..ledger.processes).map(RankIndex::new);
            let is_absent = |rank: &RankIndex| held.iter().all(|one| one.rank != *rank);
            let absent: Vec<RankIndex> = processes.filter(is_absent).collect();
            // Some processes may have been lost before they began it, or have lost their state.
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
        while self.ledger.generation > chosen.generation
            && let Some(earlier) = self.earlier.pop()
        {
            self.ledger = earlier;
        }
        chosen
    }

    /// Moves the snapshots of a version to the ranks that need them in a plan. This process has its own snapshot, and the
    /// snapshots of lost ranks that it keeps.
    fn moved(&self, driver: &Driver, to: &Plan, version: u64, lost: &[RankIndex]) -> Result<Moved> {
        let (world, table) = (&self.world, &*driver.table);
        reach(Point::Move);
        let layout = plan::layout(to, table)?;
        let snapshot = &self.ledger.snapshots[&version];
        // The state of an optimizer can't be sent without a copy. It stays here if no other rank needs it.
        let stays = |path: &ParameterPath, piece: &Piece| {
            let is_own = |at| layout.replicas == 1 && owns(&layout, world.rank(), at);
            piece.is_whole() && table.position(path).is_some_and(is_own)
        };
        let read = snapshot.read(table, |path, piece| !stays(path, piece));
        let what = "a snapshot";
        let read = read.map_err(|source| RankError::Unreadable { what, source });
        let (mut contents, values) = read?;
        let mut values: Vec<Value> = values.into_iter().map(Value::Tensor).collect();
        for rank in self.ledger.of_others().filter(|rank| lost.contains(rank)) {
            let kept = self.ledger.backups.snapshot(rank, version);
            let (of_rank, chunks) = kept.ok_or(ProcessError::Frame { rank })?;
            contents.items.extend(of_rank.items);
            contents.scalars.extend(of_rank.scalars);
            values.extend(chunks.into_iter().map(|chunks| Value::Chunks(rank, chunks)));
        }
        let held = (contents, values);
        let mut moved = move_state(world, held, &layout, table, driver.options.timeout)?;
        let states = snapshot.states();
        let states = states.filter(|(path, piece, _)| stays(path, piece));
        let states = states.map(|(path, _, state)| (path.clone(), State::Kept(state.clone())));
        moved.states.extend(states);
        Ok(moved)
    }

    /// Plans on the first process, for all.
    fn plan_again(&self) -> Result<Plan> {
        let processes = self.world.size();
        let plan = || match (self.replan)(processes) {
            Ok(plan) if plan.world_size() > processes => {
                let ranks = plan.world_size();
                let error = StartError::WorldSize { ranks, processes };
                Err(PipelineError::from(error))
            }
            Ok(plan) => Ok(plan),
            Err(source) => Err(RecoveryError::NoPlan { processes, source }.into()),
        };
        let mut failed = None;
        let planned = Plan::broadcast(&self.world, || {
            plan().map_err(|error| {
                let text = with_causes(&error);
                failed = Some(error);
                text
            })
        });
        failed.map_or(planned, Err)
    }

    /// Starts the ranks of a plan, with the moved parameters or with initial ones.
    fn start_again(
        &self,
        driver: &mut Driver,
        plan: Plan,
        backups: &Arc<Backups>,
        moved: Option<Values>,
    ) -> Result<()> {
        reach(Point::Restart);
        let (world, (first, first_plan)) = (&self.world, &self.launch);
        let mut launch = first.clone();
        if plan != *first_plan {
            launch.schedule = ScheduleChoice::of(&plan);
        }
        // The device that this process has used so far.
        let local = RankIndex::new(world.local().rank);
        launch.options.devices = vec![device_of(local, &first.options.devices).clone()];
        if let Some(values) = moved {
            launch.source = Arc::new(values);
        }
        let kind = match world.size() {
            1 => RankKind::Threads(None),
            _ => RankKind::World(world, Some(backups.clone())),
        };
        let started = launch.start(&plan, kind);
        let started = started.inspect_err(|error| world.fail(&with_causes(error)))?;
        // The values of carries were on the old ranks.
        *driver = Driver {
            state: std::mem::take(&mut driver.state),
            repaired: std::mem::take(&mut driver.repaired),
            ..started
        };
        Ok(())
    }

    /// Restores the optimizer's state on the ranks, and the state of the driver.
    fn restore_version(
        &mut self,
        driver: &mut Driver,
        version: u64,
        states: HashMap<ParameterPath, State>,
    ) -> Result<()> {
        let states = Mutex::new(states);
        let restored = driver.ranks.ask("restore a snapshot", move |_, stages| {
            let mut stages = stages.iter_mut();
            stages.try_for_each(|stage| stage.set_states(|path| states.lock().remove(path)))
        })?;
        let restored = restored.into_iter().collect::<Result<(), RestoreError>>();
        restored.map_err(|source| {
            let rank = driver.ranks.first();
            let error = StateError::PartlyRestored { rank, source };
            driver.ranks.notified(error)
        })?;
        self.version = version;
        driver.set_state(self.ledger.drivers[&version].clone())
    }

    /// Begins a new ledger. It receives a snapshot after the next joint call. Until that is kept, the earlier ledger is valid.
    fn keep_again(&mut self, driver: &mut Driver, backups: Arc<Backups>) -> Result<()> {
        let mut ledger = Ledger::begin(&self.world, backups, driver)?;
        let version = self.version;
        if version == INITIAL || ledger.processes == 1 {
            ledger.drivers.insert(version, driver.state.clone());
            ledger.kept = Some(version);
        }
        let before = std::mem::replace(&mut self.ledger, ledger);
        self.earlier.push(before);
        Ok(())
    }

    /// Begins without any state. Values are initial until a checkpoint is restored.
    fn lose_state(&mut self, driver: &mut Driver, backups: Arc<Backups>) -> Result<()> {
        driver.condition = Condition::StateLost;
        // Some processes may have changed more than others.
        let shared = || Ok::<_, WorldError>((driver.state.changes, driver.state.frozen.clone()));
        let (changes, frozen) = self.world.from_first(shared)?;
        let mut ledger = Ledger::begin(&self.world, backups, driver)?;
        let state = DriverState {
            loss_scale: self.launch.0.options.loss_scale,
            frozen,
            changes,
            ..DriverState::default()
        };
        ledger.kept = Some(INITIAL);
        ledger.drivers.insert(INITIAL, state.clone());
        self.is_state_lost = true;
        self.ledger = ledger;
        self.earlier.clear();
        self.version = INITIAL;
        self.calls = 0;
        driver.set_state(state)
    }
}

impl Driver {
    /// Sets the state of the driver, and freezes its frozen parameters on the ranks.
    fn set_state(&mut self, state: DriverState) -> Result<()> {
        let frozen: Vec<usize> = state.frozen.iter().copied().collect();
        self.state = state;
        let frozen = self.ranks.ask("freeze parameters", move |_, stages| {
            set_trains(stages, &frozen, false);
        });
        frozen.map(drop)
    }
}
