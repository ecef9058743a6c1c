//! The waits of sends and receives. A receive always waits for its send. A send waits only if the link model requires it.

use std::collections::BTreeMap;

use tinderbox_ids::RankIndex;

use crate::action::Action;
use crate::arithmetic::add;
use crate::dependencies::Edge;
use crate::error::{VerifyError, Wait};
use crate::link_model::LinkModel;
use crate::lists::{Form, Schedule};

use super::table::Table;

/// The links of a step: the rule for when a send waits, and the bytes of each edge's message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Links<'a> {
    pub(crate) model: LinkModel,
    pub(crate) message_bytes: &'a BTreeMap<Edge, u64>,
}

/// The wait of an action: another rank must have reached an action of its list, or must have run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    /// The rank that is awaited.
    pub(crate) rank: usize,
    /// The position of the awaited action in the list of that rank.
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

    /// Returns the lowest position that the awaited rank must have reached.
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
    /// Empty where only receives wait.
    needs: Needs,
}

impl<'a> Waits<'a> {
    /// Finds the wait of every action. Cost: linear in actions, times the logarithm of the number of messages.
    ///
    /// # Errors
    ///
    /// [`VerifyError::Deadlock`] if the queues of two ranks are in different orders.
    pub(super) fn new(table: &'a Table<'a>, links: &Links<'_>) -> Result<Self, VerifyError> {
        let (schedule, link) = (table.schedule, links.model);
        if schedule.form != Form::Lowered || link == LinkModel::Unbounded {
            let needs = Needs::new();
            return Ok(Self { table, link, needs });
        }
        let lists = schedule.ranks.iter();
        let needs = lists.map(|list| list.iter().map(|action| send_of(table, *action)).collect());
        let mut needs: Needs = needs.collect();
        let mut transfers = Transfers::new();
        for at in schedule.places() {
            // The receive is always found: earlier checks have found both actions of every message.
            if let Action::Send(message) = at.action
                && let Some(receive) = table.position(&Action::Receive(message))
            {
                let ranks = (at.rank.index(), table.rank(message.receiver()).index());
                transfers.entry(ranks).or_default().push(Transfer {
                    bytes: message.bytes(links.message_bytes),
                    send: at.position,
                    receive,
                });
            }
        }
        if link == LinkModel::Queue {
            check_queues(&transfers, schedule)?;
        }
        for (ranks, sent) in &transfers {
            add_waits(*ranks, sent, link, &mut needs);
        }
        Ok(Self { table, link, needs })
    }

    /// Returns the wait of an action.
    pub(super) fn need(&self, rank: usize, position: usize) -> Option<Need> {
        match self.needs.get(rank) {
            Some(needs) => needs[position],
            None => send_of(self.table, self.table.schedule.ranks[rank][position]),
        }
    }

    /// Returns the wait of a send; `None` if it does not wait.
    pub(super) fn of_send(&self, rank: usize, position: usize) -> Option<Need> {
        self.needs.get(rank)?[position]
    }
}

/// Returns the wait of a receive for its send; `None` for other actions.
fn send_of(table: &Table<'_>, action: Action) -> Option<Need> {
    let Action::Receive(message) = action else {
        return None;
    };
    let position = table.position(&Action::Send(message))?;
    let rank = table.rank(message.sender()).index();
    Some(Need::new(rank, position, true))
}

/// A message, with the positions of its send in the list of the sender and of its receive in the list of the receiver.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    bytes: u64,
    send: usize,
    receive: usize,
}

/// The messages by sending and receiving rank, each in the order of the sends.
type Transfers = BTreeMap<(usize, usize), Vec<Transfer>>;

/// Checks that the two queues of every pair of ranks have the same messages in the same order.
fn check_queues(transfers: &Transfers, schedule: &Schedule) -> Result<(), VerifyError> {
    for (&(from, to), sent) in transfers {
        let back = transfers.get(&(to, from));
        // A pair with messages in both directions is checked once, from its lower rank.
        if from > to && back.is_some() {
            continue;
        }
        // The position of each message in the list of `from`, and in the list of `to`.
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

/// Adds the waits of the sends from one rank to another. It is enough that a send waits for one receive: when that receive has
/// run, all receives before it in its list have run too, and so have their sends.
fn add_waits(ranks: (usize, usize), sent: &[Transfer], link: LinkModel, needs: &mut Needs) {
    let (from, to) = ranks;
    let mut received = sent.to_vec();
    received.sort_unstable_by_key(|transfer| transfer.receive);
    // The bytes that are received before each receive.
    let mut before = BTreeMap::new();
    let mut sum = 0;
    for transfer in &received {
        before.insert(transfer.receive, sum);
        add(&mut sum, transfer.bytes);
    }
    let mut sent_bytes = 0;
    // The number of receives that must have run before the sends so far, and their bytes.
    let mut freed = (0, 0_u64);
    // The position of the last receive of the messages that were sent so far.
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
                // The link must be empty, and the receiver must be at the receive. If an earlier message is received later
                // than this one, that never happens: the wait for the latest receive makes the deadlock visible.
                match before[&transfer.receive] >= sent_bytes {
                    true => Some(to_reach(transfer.receive)),
                    false => Some(to_run(latest)),
                }
            }
            LinkModel::Bytes(capacity) => {
                // The bytes of other messages that the link can store beside this one.
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
