//! The snapshots of a process, and the times at which it takes them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tinderbox_deferred::ParameterTable;
use tinderbox_world::link::{Instant, Thread};
use tinderbox_world::{Channel, Failure, How, World};

use super::ledger::{INITIAL, Ledger};
use super::settings::Replan;
use crate::error::Result;
use crate::runtime::digest::AnyError;
use crate::runtime::driver::{CallKind, Condition, Driver, Launch};
use crate::runtime::points::{Point, reach};
use crate::runtime::ranks::header_of;
use crate::runtime::snapshots::{Backups, Snapshot, SnapshotFrame};
use crate::runtime::wire::lend_row_major;
use crate::schedule::RankIndex;
use crate::{Plan, RankError, Recovered, RecoveryError, StartError};

/// After this number of changes without a snapshot, the next joint call takes one.
const CHANGES: u64 = 64;

/// Keeps snapshots of the state of a pipeline, and goes back to one of them without processes that are lost.
pub(crate) struct Rollback {
    /// The number of steps between two snapshots.
    every: u64,
    pub(super) replan: Arc<Replan>,
    pub(crate) world: World,
    /// Starts the ranks of any plan with initial parameters; the plan of the first start.
    pub(super) launch: (Launch, Plan),
    pub(super) ledger: Ledger,
    /// The ledgers before the last losses, the newest last. They are kept until all keepers have a version of the current one.
    pub(super) earlier: Vec<Ledger>,
    /// The number of calls so far that changed something.
    pub(crate) version: u64,
    /// The number of joint calls so far.
    pub(crate) calls: u64,
    /// Whether the state of lost ranks is lost, and no restore has completed since.
    pub(super) is_state_lost: bool,
    /// A report for each loss of processes.
    pub(crate) recovered: Vec<Recovered>,
    /// Sends the last snapshot.
    sending: Option<Thread>,
}

impl Rollback {
    /// Starts to keep snapshots.
    pub(crate) fn new(
        (every, replan): (u64, Arc<Replan>),
        world: World,
        launch: Launch,
        backups: Arc<Backups>,
        driver: &mut Driver,
    ) -> Result<Self> {
        let (timeout, lost_after) = (launch.options.timeout, world.lost_after());
        if timeout <= lost_after {
            return Err(RecoveryError::ShortTimeout {
                timeout,
                lost_after,
            }
            .into());
        }
        if !world.begin_recovery() {
            return Err(RecoveryError::TwoRecoveries.into());
        }
        let mut ledger = Ledger::begin(&world, backups, driver)?;
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

    /// The failure of the world, if the pipeline can continue after it.
    pub(crate) fn lost_process(&self) -> Option<Failure> {
        let failure = self.world.failure()?;
        matches!(failure.how, How::Lost(_)).then_some(failure)
    }

    /// Takes over the state of snapshots that the driver has learned in a round.
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

    /// Notes that all keepers have a version, if it is newer than the last such version.
    fn all_keep(&mut self, version: u64) {
        if version > self.ledger.kept.unwrap_or(INITIAL) {
            self.ledger.keep_from(version);
            self.earlier.clear();
        }
    }

    /// Counts a completed call, and takes a snapshot if one is due.
    pub(crate) fn after_call(&mut self, driver: &mut Driver, kind: CallKind) -> Result<()> {
        self.absorb(driver);
        if driver.condition == Condition::Sound {
            self.is_state_lost = false;
        }
        if kind.changes() {
            self.version += 1;
        }
        let since = self.version - self.ledger.newest_own().min(self.version);
        // Immediately after a loss.
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

    /// Counts a joint call. Every process has made the calls before it, and has this ledger.
    pub(crate) fn count_call(&mut self) {
        self.calls += 1;
        if self.ledger.kept.is_some() {
            self.earlier.clear();
        }
    }

    /// Takes a snapshot of this version when all keepers have the one before, and starts to send it.
    fn take_snapshot(&mut self, driver: &mut Driver) -> Result<()> {
        if !self.has_others() || self.ledger.snapshots.contains_key(&self.version) {
            return Ok(());
        }
        reach(Point::Snapshot);
        self.wait_until_kept(driver)?;
        let taken = driver.take_snapshot()?;
        // A process without a stage has none, and sends nothing.
        let snapshot = taken.unwrap_or_default();
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
    fn wait_until_kept(&mut self, driver: &mut Driver) -> Result<()> {
        const LOOK: Duration = Duration::from_millis(20);
        let ledger = &self.ledger;
        let newest = ledger.newest_own();
        let is_kept = ledger.kept.is_some_and(|kept| newest <= kept);
        if is_kept || ledger.snapshots.is_empty() {
            return Ok(());
        }
        let timeout = driver.options.timeout;
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

    /// Waits until the last snapshot was read. Then nothing uses the channel.
    pub(super) fn join_sending(&mut self) {
        if let Some(sending) = self.sending.take() {
            sending.join();
        }
    }
}

impl Drop for Rollback {
    fn drop(&mut self) {
        self.join_sending();
        self.world.end_recovery();
    }
}

/// The maximum bytes of a frame, so that the messages of a step do not wait for long.
const CHUNK_BYTES: usize = 1 << 20;

/// Sends a snapshot to its keeper while nothing else is sent to it.
pub(super) fn send(
    (channel, to): (&Channel, RankIndex),
    version: u64,
    snapshot: &Snapshot,
    earlier: Option<(u64, Snapshot)>,
    table: &ParameterTable,
) -> Result<(), AnyError> {
    let (contents, values) = snapshot.read(table, |_, _| true)?;
    let (earlier, is_same) = match earlier {
        Some((earlier, known)) => (earlier, snapshot.same_as(&known)),
        None => (0, Vec::new()),
    };
    let bytes = lend_row_major(values)?;
    let is_sent = |item: &usize| !is_same.get(*item).copied().unwrap_or(false);
    let items: Vec<usize> = (0..bytes.len()).filter(is_sent).collect();
    let begin = SnapshotFrame::Begin {
        version,
        contents,
        earlier,
        is_same,
    };
    put(channel, to, begin, Vec::new());
    for item in items {
        let mut left = bytes[item].clone();
        while !left.is_empty() {
            let chunk = left.split_to(left.len().min(CHUNK_BYTES));
            let frame = SnapshotFrame::Bytes { version, item };
            put(channel, to, frame, vec![chunk]);
        }
    }
    Ok(())
}

fn put(channel: &Channel, to: RankIndex, frame: SnapshotFrame, pieces: Vec<Bytes>) {
    reach(Point::Keep);
    let header = header_of(frame);
    channel.send_when_idle(to, &header, pieces);
}
