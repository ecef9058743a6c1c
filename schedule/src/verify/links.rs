//! The waits that a link model adds to the waits of the messages themselves.

use std::collections::BTreeMap;

use crate::action::{Action, Message};
use crate::dependencies::Edge;
use crate::error::{VerifyError, Wait};
use crate::index::RankIndex;
use crate::link_model::LinkModel;
use crate::lists::{Form, Schedule};

use super::table::Table;

/// What an action waits for: that a rank reaches an action of its list, or that it has run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) rank: usize,
    /// The position of the awaited action.
    pub(crate) position: usize,
    /// Whether the action must have run; otherwise the rank must have come to it.
    pub(crate) has_run: bool,
}

impl Need {
    /// Returns whether a rank whose next action is at `head` satisfies this.
    pub(super) const fn is_met(self, head: usize) -> bool {
        match self.has_run {
            true => head > self.position,
            false => head >= self.position,
        }
    }
}

/// What the sends and receives of lowered lists wait for.
pub(super) struct Waits {
    /// Per rank and position; nothing for actions that wait for no other rank. `None` for links on which only receives wait.
    needs: Option<Vec<Vec<Option<Need>>>>,
}

impl Waits {
    /// Finds what every action waits for. Linear in actions, times the logarithm of the number of messages.
    ///
    /// # Errors
    ///
    /// [`VerifyError::Deadlock`] if the queues of two ranks are in different orders.
    pub(super) fn new(
        table: &Table<'_>,
        link: LinkModel,
        message_bytes: &BTreeMap<Edge, u64>,
    ) -> Result<Self, VerifyError> {
        let schedule = table.schedule;
        if schedule.form != Form::Lowered || link.is_unbounded() {
            return Ok(Self { needs: None });
        }
        let rows = schedule.ranks.iter().map(|list| vec![None; list.len()]);
        let mut needs: Vec<Vec<Option<Need>>> = rows.collect();
        for at in schedule.places() {
            needs[at.rank.index()][at.position] = sent(table, at.action);
        }
        let pairs = Pairs::new(table, message_bytes);
        if link == LinkModel::Queue {
            pairs.check_queues(schedule)?;
        }
        for transfers in pairs.directed.values() {
            transfers.add_waits(link, &mut needs);
        }
        Ok(Self { needs: Some(needs) })
    }

    /// Returns what an action waits for.
    pub(super) fn need(&self, table: &Table<'_>, rank: usize, position: usize) -> Option<Need> {
        match &self.needs {
            Some(needs) => needs[rank][position],
            None => sent(table, table.schedule.ranks[rank][position]),
        }
    }

    /// Returns what a send waits for.
    pub(super) fn of_send(&self, rank: usize, position: usize) -> Option<Need> {
        self.needs.as_ref()?[rank][position]
    }
}

/// Returns the send that a receive waits for.
fn sent(table: &Table<'_>, action: Action) -> Option<Need> {
    let Action::Receive(message) = action else {
        return None;
    };
    let position = table.position(&Action::Send(message))?;
    Some(Need {
        rank: table.rank(message.sender()).index(),
        position,
        has_run: true,
    })
}

/// A message with its place in both lists.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    bytes: u64,
    send: usize,
    receive: usize,
}

/// The messages from one rank to another.
struct Transfers {
    from: usize,
    to: usize,
    /// In the order of the sends.
    sent: Vec<Transfer>,
}

/// The messages between all pairs of ranks.
struct Pairs {
    directed: BTreeMap<(usize, usize), Transfers>,
}

impl Pairs {
    fn new(table: &Table<'_>, message_bytes: &BTreeMap<Edge, u64>) -> Self {
        let mut directed = BTreeMap::new();
        for at in table.schedule.places() {
            let Action::Send(message) = at.action else {
                continue;
            };
            // The table has both halves of every message: the checks before found each pair.
            let Some(receive) = table.position(&Action::Receive(message)) else {
                continue;
            };
            let (from, to) = (at.rank.index(), table.rank(message.receiver()).index());
            let transfers = directed.entry((from, to)).or_insert_with(|| Transfers {
                from,
                to,
                sent: Vec::new(),
            });
            transfers.sent.push(Transfer {
                bytes: bytes_of(message, message_bytes),
                send: at.position,
                receive,
            });
        }
        Self { directed }
    }

    /// Checks that the two queues of every pair of ranks have the same messages in the same order.
    fn check_queues(&self, schedule: &Schedule) -> Result<(), VerifyError> {
        for (&(from, to), transfers) in &self.directed {
            let back = self.directed.get(&(to, from));
            if from > to && back.is_some() {
                continue;
            }
            // Positions of each message in the list of the first and of the second rank.
            let there = transfers.sent.iter().map(|t| (t.send, t.receive));
            let back = back.into_iter().flat_map(|back| &back.sent);
            let mut first: Vec<(usize, usize)> = there
                .chain(back.map(|transfer| (transfer.receive, transfer.send)))
                .collect();
            first.sort_unstable();
            let mut second = first.clone();
            second.sort_unstable_by_key(|(_, at)| *at);
            let Some((a, b)) = first.iter().zip(&second).find(|(a, b)| a != b) else {
                continue;
            };
            let place = |rank, position| schedule.place(RankIndex::new(rank), position);
            return Err(VerifyError::Deadlock {
                cycle: vec![
                    Wait {
                        waiting: place(from, a.0),
                        awaited: place(to, a.1),
                    },
                    Wait {
                        waiting: place(to, b.1),
                        awaited: place(from, b.0),
                    },
                ],
                link: LinkModel::Queue,
            });
        }
        Ok(())
    }
}

/// Returns the bytes of a message; 0 if unknown.
pub(crate) fn bytes_of(message: Message, message_bytes: &BTreeMap<Edge, u64>) -> u64 {
    match message {
        Message::Values { edge, .. } => message_bytes.get(&edge).copied().unwrap_or(0),
        Message::Tie(_) | Message::Norm { .. } => 0,
    }
}

impl Transfers {
    /// Adds what the sends wait for. A receive waits for its send, which runs when its own wait is over.
    fn add_waits(&self, link: LinkModel, needs: &mut [Vec<Option<Need>>]) {
        let mut received = self.sent.clone();
        received.sort_unstable_by_key(|transfer| transfer.receive);
        // Bytes of the messages before each one, in the order of the receives.
        let mut before = BTreeMap::new();
        let mut sum = 0_u64;
        for transfer in &received {
            before.insert(transfer.receive, sum);
            sum = sum.saturating_add(transfer.bytes);
        }
        let mut sent_bytes = 0_u64;
        // The number of receives, and their bytes, that make room for the sends so far.
        let mut freed = (0, 0_u64);
        // The last receive of the messages that were sent so far.
        let mut latest = 0;
        for (index, transfer) in self.sent.iter().enumerate() {
            let to_run = |position| Need {
                rank: self.to,
                position,
                has_run: true,
            };
            let to_reach = |position| Need {
                has_run: false,
                ..to_run(position)
            };
            needs[self.from][transfer.send] = match link {
                LinkModel::Unbounded | LinkModel::Queue => None,
                LinkModel::Rendezvous => Some(to_reach(transfer.receive)),
                LinkModel::Messages(count) => {
                    let over = index.checked_sub(count.get());
                    over.map(|over| to_run(received[over].receive))
                }
                LinkModel::Bytes(capacity) if transfer.bytes > capacity.get() => {
                    // It is transferred when all before it were received and its receive waits.
                    match before[&transfer.receive] >= sent_bytes {
                        true => Some(to_reach(transfer.receive)),
                        false => Some(to_run(latest)),
                    }
                }
                LinkModel::Bytes(capacity) => {
                    let beside = capacity.get() - transfer.bytes;
                    while sent_bytes.saturating_sub(freed.1) > beside {
                        freed.1 = freed.1.saturating_add(received[freed.0].bytes);
                        freed.0 += 1;
                    }
                    let last = freed.0.checked_sub(1);
                    last.map(|last| to_run(received[last].receive))
                }
            };
            if transfer.bytes > 0 {
                latest = latest.max(transfer.receive);
            }
            sent_bytes = sent_bytes.saturating_add(transfer.bytes);
        }
    }
}
