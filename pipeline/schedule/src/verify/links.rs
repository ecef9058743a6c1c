//! The waits that a link model adds to the waits of the messages themselves.

use std::collections::BTreeMap;

use tinderbox_ids::RankIndex;

use crate::action::Action;
use crate::arithmetic::add;
use crate::dependencies::Edge;
use crate::error::{VerifyError, Wait};
use crate::link_model::LinkModel;
use crate::lists::{Form, Schedule};

use super::table::Table;

/// The links of a step: when a send waits, and the bytes of the message of each edge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Links<'a> {
    pub(crate) model: LinkModel,
    pub(crate) message_bytes: &'a BTreeMap<Edge, u64>,
}

/// The wait of an action: another rank must reach an action of its list, or must have run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) rank: usize,
    /// The position of the awaited action.
    pub(crate) position: usize,
    /// Whether the rank must have run the action; otherwise it must have reached it.
    pub(crate) has_run: bool,
}

impl Need {
    pub(super) const fn new(rank: usize, position: usize, has_run: bool) -> Self {
        Self {
            rank,
            position,
            has_run,
        }
    }

    /// Returns the least position that the rank must have reached.
    pub(crate) const fn head(self) -> usize {
        self.position + self.has_run as usize
    }
}

/// The wait of each action, per rank and position; `None` for actions that wait for no other rank.
type Needs = Vec<Vec<Option<Need>>>;

/// The waits of the sends and receives of lowered lists.
pub(super) struct Waits<'a> {
    pub(super) table: &'a Table<'a>,
    pub(super) link: LinkModel,
    /// `None` for links on which only receives wait.
    needs: Option<Needs>,
}

impl<'a> Waits<'a> {
    /// Creates the waits over links on which only receives wait.
    pub(super) const fn unbounded(table: &'a Table<'a>) -> Self {
        Self {
            table,
            link: LinkModel::Unbounded,
            needs: None,
        }
    }

    /// Finds the wait of every action. Linear in actions, times the logarithm of the number of messages.
    ///
    /// # Errors
    ///
    /// [`VerifyError::Deadlock`] if the queues of two ranks are in different orders.
    pub(super) fn new(table: &'a Table<'a>, links: &Links<'_>) -> Result<Self, VerifyError> {
        let (schedule, link) = (table.schedule, links.model);
        let mut waits = Self {
            link,
            ..Self::unbounded(table)
        };
        if schedule.form != Form::Lowered || link == LinkModel::Unbounded {
            return Ok(waits);
        }
        let lists = schedule.ranks.iter();
        let mut needs: Needs = lists.map(|list| Vec::with_capacity(list.len())).collect();
        let mut directed = Transfers::new();
        for at in schedule.places() {
            let rank = at.rank.index();
            needs[rank].push(sent(table, at.action));
            // The table has both halves of every message, because the checks of the edges found each pair.
            if let Action::Send(message) = at.action
                && let Some(receive) = table.position(&Action::Receive(message))
            {
                let to = table.rank(message.receiver()).index();
                directed.entry((rank, to)).or_default().push(Transfer {
                    bytes: message.bytes(links.message_bytes),
                    send: at.position,
                    receive,
                });
            }
        }
        if link == LinkModel::Queue {
            check_queues(&directed, schedule)?;
        }
        for (ranks, sent) in &directed {
            add_waits(*ranks, sent, link, &mut needs);
        }
        waits.needs = Some(needs);
        Ok(waits)
    }

    /// Returns the wait of an action.
    pub(super) fn need(&self, rank: usize, position: usize) -> Option<Need> {
        match &self.needs {
            Some(needs) => needs[rank][position],
            None => sent(self.table, self.table.schedule.ranks[rank][position]),
        }
    }

    /// Returns the wait of a send.
    pub(super) fn of_send(&self, rank: usize, position: usize) -> Option<Need> {
        self.needs.as_ref()?[rank][position]
    }
}

/// Returns the wait of a receive for its send.
fn sent(table: &Table<'_>, action: Action) -> Option<Need> {
    let Action::Receive(message) = action else {
        return None;
    };
    let position = table.position(&Action::Send(message))?;
    let rank = table.rank(message.sender()).index();
    Some(Need::new(rank, position, true))
}

/// A message with its positions in both lists.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    bytes: u64,
    send: usize,
    receive: usize,
}

/// The messages from each rank to each other, in the order of the sends.
type Transfers = BTreeMap<(usize, usize), Vec<Transfer>>;

/// Checks that the two queues of every pair of ranks have the same messages in the same order.
fn check_queues(directed: &Transfers, schedule: &Schedule) -> Result<(), VerifyError> {
    for (&(from, to), sent) in directed {
        let back = directed.get(&(to, from));
        if from > to && back.is_some() {
            continue;
        }
        // Positions of each message in the list of the first and of the second rank.
        let there = sent.iter().map(|t| (t.send, t.receive));
        let back = back.into_iter().flatten().map(|t| (t.receive, t.send));
        let mut first: Vec<(usize, usize)> = there.chain(back).collect();
        first.sort_unstable();
        let mut second = first.clone();
        second.sort_unstable_by_key(|(_, at)| *at);
        if let Some((a, b)) = first.iter().zip(&second).find(|(a, b)| a != b) {
            let place = |rank, position| schedule.place(RankIndex::new(rank), position);
            let ends = [(from, a.0, to, a.1), (to, b.1, from, b.0)];
            let waits = ends.map(|(waits, at, of, position)| Wait {
                waiting: place(waits, at),
                awaited: place(of, position),
            });
            return Err(VerifyError::Deadlock {
                cycle: waits.to_vec(),
                link: LinkModel::Queue,
            });
        }
    }
    Ok(())
}

/// Adds the waits of the sends from one rank to another. A receive waits for its send, which runs when its own wait is over.
fn add_waits(ranks: (usize, usize), sent: &[Transfer], link: LinkModel, needs: &mut Needs) {
    let (from, to) = ranks;
    let mut received = sent.to_vec();
    received.sort_unstable_by_key(|transfer| transfer.receive);
    // Bytes of the messages before each one, in the order of the receives.
    let mut before = BTreeMap::new();
    let mut sum = 0;
    for transfer in &received {
        before.insert(transfer.receive, sum);
        add(&mut sum, transfer.bytes);
    }
    let mut sent_bytes = 0;
    // The number of receives, and their bytes, that free the link for the sends so far.
    let mut freed = (0, 0_u64);
    // The last receive of the messages that were sent so far.
    let mut latest = 0;
    for (index, transfer) in sent.iter().enumerate() {
        let to_run = |position| Need::new(to, position, true);
        let to_reach = |position| Need::new(to, position, false);
        needs[from][transfer.send] = match link {
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
                    add(&mut freed.1, received[freed.0].bytes);
                    freed.0 += 1;
                }
                let last = freed.0.checked_sub(1);
                last.map(|last| to_run(received[last].receive))
            }
        };
        if transfer.bytes > 0 {
            latest = latest.max(transfer.receive);
        }
        add(&mut sent_bytes, transfer.bytes);
    }
}
