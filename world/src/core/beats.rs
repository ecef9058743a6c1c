//! Heartbeats, and processes that are lost.

use std::time::Duration;

use tinderbox_link::Instant;
use tinderbox_schedule::RankIndex;

use super::{Core, LEAVE_FAILED};
use crate::message::Kind;

impl Core {
    /// A process of the engine can't be heard of any more.
    pub(super) fn lose(&self, process: RankIndex, reason: String) {
        let mut state = self.state.lock();
        let patience = self.patience();
        state.note_pause(patience);
        let reason = match state.paused {
            Some((at, paused)) if at.elapsed() < patience.saturating_mul(2) => {
                let paused = Duration::from_millis(paused.as_millis() as u64);
                format!(
                    "{reason}; this process was paused for {paused:?}, and the others may have gone on without it"
                )
            }
            _ => reason,
        };
        drop(state);
        let mut votes = Vec::new();
        self.change(|state| {
            // Together: whoever sees the failure does not continue with this process.
            votes = state.members.lose(process);
            let doing = state.heard[process.index()].doing.clone();
            match state.members.roster().rank_of(process) {
                Some(rank) => state.peers.lose(rank, reason, doing),
                None => Vec::new(),
            }
        });
        self.vote(|_| votes);
    }

    /// How long a pause may be before others give this process up.
    fn patience(&self) -> Duration {
        // The last that they heard of may be a heartbeat old; one late heartbeat is no pause.
        let beats = self.options.heartbeats_until_lost.saturating_sub(1).max(2);
        self.options.heartbeat.saturating_mul(beats)
    }

    /// How long another process may show no sign of life before it is lost.
    pub(crate) fn lost_after(&self) -> Duration {
        let beats = self.options.heartbeats_until_lost.saturating_add(1);
        self.options.heartbeat.saturating_mul(beats)
    }

    /// One heartbeat: shows the others that this process is alive, and counts for whom none arrived.
    pub(super) fn beat(&self, reported: &mut Option<String>) {
        let mut state = self.state.lock();
        state.note_pause(self.patience());
        state.beat_at = Some(Instant::now());
        let status = state.status.clone();
        let mut silent = Vec::new();
        let mut alive = Vec::new();
        let roster = state.members.roster().clone();
        // Also after a failure: those that are left may continue.
        let has_failed = state.peers.failure().is_some();
        for (rank, process) in roster.members.iter().enumerate() {
            if *process == self.own || state.members.is_lost(*process) {
                continue;
            }
            // Also those that have left: they wait until what they sent has arrived.
            alive.push(*process);
            if !has_failed && !state.peers.is_awaited(RankIndex::new(rank)) {
                continue;
            }
            let heard = &mut state.heard[process.index()];
            heard.beats += 1;
            if heard.beats > self.options.heartbeats_until_lost {
                silent.push((*process, heard.at.elapsed()));
            }
        }
        drop(state);
        let doing = status.and_then(|status| status());
        let new = doing.clone().filter(|_| doing != *reported);
        *reported = doing;
        let beat = Kind::Beat(new);
        for to in alive {
            self.queue(to, beat.frame(roster.generation, &[], Vec::new()));
        }
        for (process, since) in silent {
            let since = Duration::from_millis(since.as_millis() as u64);
            self.lose(
                process,
                format!("it has shown no sign of life for {since:?}"),
            );
        }
    }

    /// Waits until what this process said was received; after a failure, at most for some time. Ranks that show no sign of
    /// life are not waited for.
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
