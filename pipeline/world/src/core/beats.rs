//! Heartbeats, and processes that are lost.

use std::time::Duration;

use tinderbox_ids::RankIndex;

use super::{Core, LEAVE_FAILED};
use crate::engine::Priority;
use crate::link::Instant;
use crate::message::Kind;

/// Rounds a time down to milliseconds, for texts.
fn whole_ms(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64)
}

impl Core {
    /// Notes that a process of the engine is lost.
    pub(super) fn lose(&self, process: RankIndex, mut reason: String) {
        let mut state = self.state.lock();
        let patience = self.patience();
        state.note_pause(patience);
        if let Some((at, paused)) = state.paused
            && at.elapsed() < patience.saturating_mul(2)
        {
            reason += &format!("; this process was paused for {:?}", whole_ms(paused));
            reason += ", and the others may continue without it";
        }
        drop(state);
        let mut votes = Vec::new();
        self.change(|state| {
            // Under one lock, so that a thread that sees the failure does not continue with this process.
            votes = state.members.lose(process);
            let doing = state.activity[process.index()].doing.clone();
            match state.members.roster().rank_of(process) {
                Some(rank) => state.peers.lose(rank, reason, doing),
                None => Vec::new(),
            }
        });
        self.vote(|_| votes);
    }

    /// Returns the longest pause of this process before others give it up.
    fn patience(&self) -> Duration {
        // Its last heartbeat may be one heartbeat old, and one late heartbeat does not count as a pause.
        let beats = self.options.heartbeats_until_lost.saturating_sub(1).max(2);
        self.options.heartbeat.saturating_mul(beats)
    }

    /// Returns the time without a sign of life after which another process is lost.
    pub(crate) fn lost_after(&self) -> Duration {
        let beats = self.options.heartbeats_until_lost.saturating_add(1);
        self.options.heartbeat.saturating_mul(beats)
    }

    /// Sends heartbeats until this process has left.
    pub(super) fn beat_until_over(&self) {
        let (heartbeat, mut reported) = (self.options.heartbeat, None);
        let is_over = |is_over: &mut bool| is_over.then_some(());
        while self.is_over.wait_for(heartbeat, is_over).is_none() {
            self.beat(&mut reported);
        }
    }

    /// Sends one heartbeat to the others, and counts it for each process whose frames are awaited.
    fn beat(&self, reported: &mut Option<String>) {
        let mut state = self.state.lock();
        state.note_pause(self.patience());
        state.beat_at = Some(Instant::now());
        let status = state.status.clone();
        let (mut silent, mut alive) = (Vec::new(), Vec::new());
        let roster = state.members.roster().clone();
        // Also after a failure, because the remaining processes may continue.
        let has_failed = state.peers.failure().is_some();
        for (rank, process) in roster.members.iter().enumerate() {
            if *process == self.own || state.members.is_lost(*process) {
                continue;
            }
            // Also processes that have left: they wait until their messages are confirmed.
            alive.push(*process);
            if !has_failed && !state.peers.is_awaited(RankIndex::new(rank)) {
                continue;
            }
            let activity = &mut state.activity[process.index()];
            activity.beats += 1;
            if activity.beats > self.options.heartbeats_until_lost {
                silent.push((*process, activity.at.elapsed()));
            }
        }
        drop(state);
        let doing = status.and_then(|status| status());
        let new = doing.clone().filter(|_| doing != *reported);
        *reported = doing;
        let beat = Kind::Beat(new);
        for to in alive {
            let frame = beat.frame(roster.generation, &[], Vec::new());
            self.queue(to, frame, Priority::Normal);
        }
        for (process, since) in silent {
            let since = whole_ms(since);
            let reason = format!("it has shown no sign of life for {since:?}");
            self.lose(process, reason);
        }
    }

    /// Waits until the messages of this process are confirmed; after a failure, at most for [`LEAVE_FAILED`]. Does not wait for
    /// ranks that are lost.
    pub(super) fn wait_until_confirmed(&self) {
        let started = Instant::now();
        let mut state = self.state.lock();
        while !state.peers.is_confirmed() {
            let left = match state.peers.failure() {
                Some(_) => LEAVE_FAILED.saturating_sub(started.elapsed()),
                None => self.options.heartbeat,
            };
            if left.is_zero() {
                return;
            }
            self.state.wait(&mut state, left);
        }
    }
}
