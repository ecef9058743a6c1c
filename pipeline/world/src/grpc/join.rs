//! The meeting at the first rank.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tinderbox_ids::RankIndex;
use tokio::sync::watch;

use crate::environment::{Local, Meeting};
use crate::error::{WorldError, ranks};

/// The version of the protocol between ranks. Ranks of other versions are refused.
pub(super) const VERSION: &str = concat!("tinderbox ", env!("CARGO_PKG_VERSION"), ", protocol 1");

/// The message with which a rank joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// First in every version, so that other versions can be named.
    pub(super) version: String,
    pub(super) rank: RankIndex,
    pub(super) size: usize,
    /// The port that it listens on.
    pub(super) port: u16,
    /// The name of its machine.
    pub(super) machine: String,
}

/// The message to a rank when all have joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Table {
    /// The number of the run: ranks of another one are refused.
    pub(super) run: u64,
    /// The address of each rank.
    pub(super) addresses: Vec<String>,
    /// The machine of each rank.
    machines: Vec<String>,
}

impl Table {
    /// Returns the position of a rank on its machine.
    pub(super) fn local(&self, rank: RankIndex) -> Option<Local> {
        let own = self.machines.get(rank.index())?;
        let here = self.machines.iter().enumerate();
        let here = here.filter(|(_, machine)| *machine == own);
        let size = here.clone().count();
        let rank = here.take_while(|(other, _)| *other < rank.index()).count();
        Some(Local { rank, size })
    }
}

/// The answer of the meeting: the table, or the reason why there is none.
type Answer = Result<Arc<Table>, String>;

/// The ranks that have joined so far.
pub(super) struct Lobby {
    size: usize,
    meeting: Meeting,
    run: u64,
    /// The address and the machine of each.
    joined: Mutex<BTreeMap<RankIndex, (String, String)>>,
    answer: watch::Sender<Option<Answer>>,
}

impl Lobby {
    pub(super) fn new(size: usize, meeting: Meeting, run: u64) -> Self {
        Self {
            size,
            meeting,
            run,
            joined: Mutex::default(),
            answer: watch::Sender::new(None),
        }
    }

    /// Checks a rank, and waits for all others.
    ///
    /// # Errors
    ///
    /// The reason to refuse, as a sentence.
    pub(super) async fn join(
        &self,
        hello: &[u8],
        from: Option<SocketAddr>,
    ) -> Result<Arc<Table>, String> {
        let version = postcard::take_from_bytes::<String>(hello).map(|(version, _)| version);
        match version.as_deref() {
            Ok(VERSION) => {}
            Ok(other) if other.starts_with("tinderbox ") => {
                return Err(format!("this run is {VERSION}, and it is {other}"));
            }
            _ => return Err("it is not a rank of Tinderbox".to_owned()),
        }
        let hello: Hello =
            postcard::from_bytes(hello).map_err(|_| "its greeting is damaged".to_owned())?;
        let Hello { rank, size, .. } = hello;
        if size != self.size {
            return Err(format!(
                "this run has {} ranks, and it says that there are {size}",
                self.size
            ));
        }
        if rank.index() == 0 || rank.index() >= size {
            return Err(format!("rank {rank} is not one of 1 to {}", size - 1));
        }
        let mut beside = self.meeting.clone();
        beside.port = hello.port;
        let address = match from {
            // It is on the machine of rank 0, so the others reach it at the address of rank 0.
            Some(from) if from.ip().is_loopback() => beside.to_string(),
            Some(from) => SocketAddr::new(from.ip(), hello.port).to_string(),
            None => return Err("its address is unknown".to_owned()),
        };
        if let Some((other, _)) = self.joined.lock().get(&rank) {
            return Err(format!(
                "rank {rank} has already joined, from {other}: does another run use {}?",
                self.meeting
            ));
        }
        // It is removed again if its connection ends before all have joined.
        let waits = Waits { lobby: self, rank };
        let mut answer = self.answer.subscribe();
        self.enter(rank, address, hello.machine);
        let answer = answer.wait_for(Option::is_some).await;
        let answer = answer.map_err(|_| "rank 0 has ended".to_owned())?.clone();
        std::mem::forget(waits);
        answer.unwrap_or_else(|| Err("rank 0 has ended".to_owned()))
    }

    /// Adds a rank, and answers all if it is the last one.
    pub(super) fn enter(&self, rank: RankIndex, address: String, machine: String) {
        let mut joined = self.joined.lock();
        joined.insert(rank, (address, machine));
        let (rank, of) = (rank.index(), self.size);
        tracing::debug!(rank, joined = joined.len(), of, "a rank has joined");
        if joined.len() == of {
            let (addresses, machines) = joined.values().cloned().unzip();
            let table = Table {
                run: self.run,
                addresses,
                machines,
            };
            self.answer.send_replace(Some(Ok(Arc::new(table))));
        }
    }

    /// Waits for all ranks. If some do not join in time, the waiting ranks get the reason.
    pub(super) async fn all(&self, timeout: Duration) -> Result<Arc<Table>, WorldError> {
        let mut answer = self.answer.subscribe();
        let all = tokio::time::timeout(timeout, answer.wait_for(Option::is_some));
        if let Ok(Ok(answer)) = all.await
            && let Some(Ok(table)) = &*answer
        {
            return Ok(table.clone());
        }
        let joined = self.joined.lock();
        let missing = (0..self.size).map(RankIndex::new);
        let missing: Vec<RankIndex> = missing.filter(|rank| !joined.contains_key(rank)).collect();
        drop(joined);
        let reason = format!("{} did not join within {timeout:?}", ranks(&missing));
        self.answer.send_replace(Some(Err(reason)));
        Err(WorldError::NotAllJoined {
            missing,
            meeting: self.meeting.clone(),
            timeout,
        })
    }
}

/// A rank that waits for the others. Dropping it removes the rank.
struct Waits<'a> {
    lobby: &'a Lobby,
    rank: RankIndex,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.lobby.joined.lock().remove(&self.rank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_on_machines_are_counted() {
        let table = Table {
            run: 1,
            addresses: Vec::new(),
            machines: ["a", "b", "a", "a", "b"].map(str::to_owned).to_vec(),
        };
        let found: Vec<(usize, usize)> = (0..5)
            .filter_map(|rank| table.local(RankIndex::new(rank)))
            .map(|local| (local.rank, local.size))
            .collect();
        assert_eq!(found, [(0, 3), (0, 2), (1, 3), (2, 3), (1, 2)]);
    }
}
