//! What a process needs to continue without others, and when it takes snapshots.

use std::sync::Arc;
use std::time::Duration;

use tinderbox_world::clock::{Instant, Thread};
use tinderbox_world::{Failure, How, World, machine};

use super::keepers::keepers;
use super::ledger::{INITIAL, Ledger};
use super::sending::send;
use crate::plan::Plan;
use crate::runtime::driver::{CallKind, Condition, Driver, Launch};
use crate::runtime::points::{Point, reach};
use crate::runtime::recovered::Recovered;
use crate::runtime::snapshots::{Backups, Snapshot};
use crate::schedule::RankIndex;
use crate::{PipelineError, RankError, RecoveryError, StartError};

/// After so many changes without a snapshot, the next call of all processes takes one.
const CHANGES: u64 = 64;

/// Plans for a number of processes.
pub(crate) type Planned = dyn Fn(usize) -> Result<Plan, PipelineError> + Send + Sync;

/// What a process needs to continue without others.
pub(crate) struct Recovering {
    /// After how many steps a snapshot is taken.
    every: u64,
    pub(super) replan: Arc<Planned>,
    pub(super) world: World,
    /// Starts the ranks of any plan, with initial parameters, and the plan with which they were started first.
    pub(super) launch: (Launch, Plan),
    pub(super) ledger: Ledger,
    /// The ledgers before the last losses, the newest last, until the present one has a version that all keepers have.
    pub(super) earlier: Vec<Ledger>,
    /// The number of calls so far that changed something.
    pub(super) version: u64,
    /// The number of calls so far in which all processes took part.
    pub(super) calls: u64,
    /// Whether the state of lost ranks is lost, and no restore is complete since.
    pub(super) is_state_lost: bool,
    pub(super) recovered: Vec<Recovered>,
    /// Sends the last snapshot.
    sending: Option<Thread>,
}

impl Recovering {
    /// Begins to keep snapshots.
    pub(crate) fn new(
        (every, replan): (u64, Arc<Planned>),
        world: World,
        launch: Launch,
        driver: &mut Driver,
    ) -> Result<Self, PipelineError> {
        let (timeout, lost_after) = (driver.ranks.timeout(), world.lost_after());
        if timeout <= lost_after {
            let short = RecoveryError::ShortTimeout {
                timeout,
                lost_after,
            };
            return Err(short.into());
        }
        if !world.begin_recovery() {
            return Err(RecoveryError::TwoRecoveries.into());
        }
        let backups = launch.ranks.backups.clone().unwrap_or_default();
        let mut ledger = new_ledger(&world, backups, driver)?;
        ledger.kept = Some(INITIAL);
        ledger.drivers.insert(INITIAL, driver.state.clone());
        Ok(Self {
            every,
            replan,
            world,
            launch: (launch, driver.plan.clone()),
            ledger,
            earlier: Vec::new(),
            version: INITIAL,
            calls: 0,
            is_state_lost: false,
            recovered: Vec::new(),
            sending: None,
        })
    }

    pub(crate) const fn world(&self) -> &World {
        &self.world
    }

    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    /// What happened each time that processes were lost.
    pub(crate) fn recovered(&self) -> &[Recovered] {
        &self.recovered
    }

    /// The oldest version that this process may go back to.
    pub(crate) fn oldest(&self) -> u64 {
        let oldest = self.ledgers().filter_map(|ledger| ledger.kept).min();
        oldest.unwrap_or(INITIAL)
    }

    /// Whether there are other processes.
    pub(crate) fn has_others(&self) -> bool {
        self.ledger.processes > 1
    }

    /// The ledgers of each numbering of the processes, the newest first.
    pub(super) fn ledgers(&self) -> impl Iterator<Item = &Ledger> {
        std::iter::once(&self.ledger).chain(self.earlier.iter().rev())
    }

    /// Goes back to the numbering of a generation.
    pub(super) fn use_ledger(&mut self, generation: u32) {
        while self.ledger.generation > generation
            && let Some(earlier) = self.earlier.pop()
        {
            self.ledger = earlier;
        }
    }

    /// The failure of the world, if it is one that the pipeline can continue after.
    pub(crate) fn lost_process(&self) -> Option<Failure> {
        let failure = self.world.failure()?;
        matches!(failure.how, How::Lost(_)).then_some(failure)
    }

    /// Notes what the driver has learned of snapshots in a round.
    pub(crate) fn absorb(&mut self, driver: &mut Driver) {
        let Some(kept) = &mut driver.kept else {
            return;
        };
        if let Some(renewed) = kept.renewed.take()
            && let Some(known) = self.ledger.snapshots.get_mut(&self.version)
        {
            *known = renewed;
        }
        if let Some(newest) = kept.of_all.take() {
            self.all_keep(newest.min(self.ledger.newest_own()));
        }
    }

    /// All keepers have a version, if it is newer than the one that they had.
    fn all_keep(&mut self, version: u64) {
        if version > self.ledger.kept.unwrap_or(INITIAL) {
            self.ledger.keep_from(version);
            self.earlier.clear();
        }
    }

    /// Counts a call that was made, and takes a snapshot if one is due.
    pub(crate) fn after_call(
        &mut self,
        driver: &mut Driver,
        kind: CallKind,
    ) -> Result<(), PipelineError> {
        self.absorb(driver);
        if driver.condition == Condition::Sound {
            self.is_state_lost = false;
        }
        if kind.changes() {
            self.version += 1;
        }
        let since = self.version - self.ledger.newest_own().min(self.version);
        // After a loss, at once.
        let is_old = since >= CHANGES.max(self.every) || self.ledger.kept.is_none();
        let is_due = match kind {
            CallKind::Changes => driver.state.step.is_multiple_of(self.every) || is_old,
            CallKind::Reads => is_old,
            CallKind::ChangesHere | CallKind::ReadsHere => false,
        };
        match is_due && !driver.state.is_averaged {
            true => self.take_snapshot(driver),
            false => Ok(()),
        }
    }

    /// Counts a call of all processes: every process has made the calls before it, and has this ledger.
    pub(crate) fn count_call(&mut self) -> u64 {
        self.calls += 1;
        if self.ledger.kept.is_some() {
            self.earlier.clear();
        }
        self.calls
    }

    /// The number of calls so far in which all processes took part.
    pub(crate) const fn calls(&self) -> u64 {
        self.calls
    }

    /// Takes a snapshot of this version, when all keepers have the one before, and begins to send it.
    fn take_snapshot(&mut self, driver: &mut Driver) -> Result<(), PipelineError> {
        if !self.has_others() || self.ledger.snapshots.contains_key(&self.version) {
            return Ok(());
        }
        reach(Point::Snapshot);
        self.wait_until_kept(driver)?;
        let taken = driver
            .ranks
            .ask("take a snapshot", |_, stages| Snapshot::of(stages))?;
        // A process without a stage has none, and sends nothing.
        let snapshot = taken.into_iter().next().unwrap_or_default();
        self.join_sending();
        let (version, ledger) = (self.version, &mut self.ledger);
        let earlier = ledger.snapshots.iter().next_back();
        let earlier = earlier.map(|(version, snapshot)| (*version, snapshot.clone()));
        ledger.snapshots.insert(version, snapshot.clone());
        ledger.drivers.insert(version, driver.state.clone());
        let channel = driver.ranks.channel().and_then(|channel| channel.upgrade());
        let (Some(keeper), Some(channel)) = (ledger.keeper(), channel) else {
            return Ok(());
        };
        let (table, rank) = (driver.table.clone(), ledger.rank);
        let send = move || {
            let sent = send((&channel, keeper), version, &snapshot, earlier, &table);
            if let Err(error) = sent {
                channel.fail(&format!("rank {rank} can't read its state: {error}"));
            }
        };
        let thread = Thread::spawn("snapshot", send);
        self.sending = Some(thread.map_err(|source| StartError::Spawn { rank, source })?);
        Ok(())
    }

    /// Waits until all keepers have the newest version.
    fn wait_until_kept(&mut self, driver: &mut Driver) -> Result<(), PipelineError> {
        const LOOK: Duration = Duration::from_millis(20);
        let ledger = &self.ledger;
        let newest = ledger.newest_own();
        let is_kept = ledger.kept.is_some_and(|kept| newest <= kept);
        if is_kept || ledger.snapshots.is_empty() {
            return Ok(());
        }
        let timeout = driver.ranks.timeout();
        let began = Instant::now();
        for rank in ledger.of_others() {
            while !driver.ranks.is_aborted() && !ledger.backups.wait_for(rank, newest, LOOK) {
                if began.elapsed() > timeout {
                    let request = "send its state";
                    return Err(driver.ranks.notified(RankError::Timeout {
                        rank,
                        request,
                        timeout,
                    }));
                }
            }
        }
        // Returns the reason if it was aborted.
        driver.ranks.wait_for_all()?;
        self.all_keep(newest);
        Ok(())
    }

    /// Waits until the last snapshot was read, so that nothing uses the channel any more.
    pub(super) fn join_sending(&mut self) {
        if let Some(sending) = self.sending.take() {
            sending.join();
        }
    }
}

impl Drop for Recovering {
    fn drop(&mut self) {
        self.join_sending();
        self.world.end_recovery();
    }
}

/// Begins a ledger of a numbering of the processes. All processes call this.
pub(super) fn new_ledger(
    world: &World,
    backups: Arc<Backups>,
    driver: &mut Driver,
) -> Result<Ledger, PipelineError> {
    let machines = world.all_gather(machine())?;
    let keepers: Vec<RankIndex> = match machines.len() {
        1 => Vec::new(),
        _ => keepers(&machines, driver.plan.world_size()),
    };
    let ledger = Ledger::new(world, keepers, backups);
    driver.kept = Some(ledger.kept_snapshots());
    Ok(ledger)
}
