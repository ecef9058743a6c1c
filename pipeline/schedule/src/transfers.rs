//! Orders the sends and receives of a step for links on which sends wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::action::{Action, Message};
use crate::dependencies::{Dependencies, Edge};
use crate::error::VerifyError;
use crate::link_model::LinkModel;
use crate::lists::Schedule;
use crate::lower::lower;
use crate::task::{Compute, Task};
use crate::verify::{verify, verify_over};

/// Adds the same actions as [`lower`](crate::lower()), with sends and receives in an order that links of a model can run.
///
/// The order of `lower` is kept if the model allows it. Otherwise every message is entered in the lists of both its ranks
/// at one moment of a common order, when both ranks are between two programs. Then two ranks never wait for each other, on
/// links of any model. The common order is the order of a step in which a forward, an `I` and a `W` take equal times and
/// messages take no time; a rank with a program to run does not wait for a receiver.
///
/// So every schedule that [`verify`](crate::verify) accepts can run on links of every model, and its programs keep their
/// order. Waiting sends cost time where stages differ; no order avoids the latencies.
///
/// Linear in actions, times the logarithm of the number of ranks and the number of links of a rank.
///
/// # Errors
///
/// The errors of [`verify`](crate::verify), for the compute actions.
pub fn lower_over(
    schedule: &Schedule,
    dependencies: &Dependencies,
    link: LinkModel,
    message_bytes: &BTreeMap<Edge, u64>,
) -> Result<Schedule, VerifyError> {
    let mut lowered = lower(schedule, dependencies);
    match verify_over(&lowered, dependencies, link, message_bytes) {
        Ok(()) => return Ok(lowered),
        Err(VerifyError::Deadlock { .. }) => verify(&schedule.compute_only(), dependencies)?,
        Err(error) => return Err(error),
    }
    lowered.ranks = Ordering::new(&lowered).run();
    verify_over(&lowered, dependencies, link, message_bytes)?;
    Ok(lowered)
}

/// A message, and its possible positions in the lists of both ranks. A position counts the actions other than messages.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    message: Message,
    to: usize,
    /// The sender sends it before this action.
    freed: usize,
    /// The receiver receives it after this many actions.
    earliest: usize,
    /// The receiver receives it before this action.
    needed: usize,
}

/// The actions of a rank without its messages, and its progress.
#[derive(Default)]
struct Rank {
    actions: Vec<Action>,
    /// Per action, the number of messages that have to be sent or received before it; the last entry is for the end.
    open: Vec<usize>,
    /// The messages, by the number of actions after which they can be sent.
    made: BTreeMap<usize, Vec<Transfer>>,
    /// The number of actions that were started.
    next: usize,
    is_busy: bool,
    /// Messages that can be sent, by receiver.
    outgoing: BTreeMap<usize, VecDeque<Transfer>>,
    /// The ranks with messages for this rank.
    incoming: BTreeSet<usize>,
    list: Vec<Action>,
}

/// A simulated step in which a message is transferred when both its ranks are between two actions.
struct Ordering {
    ranks: Vec<Rank>,
    /// The ranks that run an action, by its end.
    ends: BTreeSet<(u64, usize)>,
}

impl Ordering {
    /// Reads the possible positions of each message from the lists of `lower`.
    fn new(lowered: &Schedule) -> Self {
        let mut ranks: Vec<Rank> = Vec::new();
        // The rank of each send and receive, and the number of actions before it in the list of that rank.
        let (mut sent, mut received) = (Vec::new(), BTreeMap::new());
        // Per rank, the action that frees what the forward of each stage and micro-batch keeps.
        let mut ends = vec![BTreeMap::new(); lowered.ranks.len()];
        let mut has_sums = false;
        for (rank, list) in lowered.ranks.iter().enumerate() {
            let mut actions = Vec::new();
            for action in list {
                match action {
                    Action::Send(message) => sent.push((*message, rank, actions.len())),
                    Action::Receive(message) => {
                        received.insert(*message, (rank, actions.len()));
                    }
                    _ => {
                        has_sums |= matches!(action, Action::Sum { .. });
                        let tasks = action.tasks().iter();
                        let last = tasks.filter(|task| task.compute.ends_backward());
                        ends[rank].extend(last.map(|t| ((t.stage, t.micro_batch), actions.len())));
                        actions.push(*action);
                    }
                }
            }
            ranks.push(Rank {
                open: vec![0; actions.len() + 1],
                actions,
                list: Vec::with_capacity(list.len()),
                ..Rank::default()
            });
        }
        for (message, from, actions) in sent {
            // `lower` writes both halves of every message.
            let Some(&(to, needed)) = received.get(&message) else {
                continue;
            };
            let last = ranks[from].actions.len();
            let (freed, earliest) = match message {
                Message::Values { edge, micro_batch } => {
                    let is_kept = edge.from.compute == Compute::Forward;
                    let end = ends[from].get(&(edge.from.stage, micro_batch));
                    (end.copied().filter(|_| is_kept).unwrap_or(last), 0)
                }
                // The next update of the rank consumes the gradients. With replicas, a rank that waits for norms has
                // summed all of its own gradients.
                Message::Norm { .. } => (actions, if has_sums { needed } else { 0 }),
                // The receiver's own update uses the old values.
                Message::Tie(_) => (last, needed),
            };
            ranks[from].open[freed] += 1;
            ranks[to].open[needed] += 1;
            let made = ranks[from].made.entry(actions).or_default();
            made.push(Transfer {
                message,
                to,
                freed,
                earliest,
                needed,
            });
        }
        let ends = BTreeSet::new();
        Self { ranks, ends }
    }

    /// Returns the lists.
    fn run(mut self) -> Vec<Vec<Action>> {
        let mut now = 0;
        let mut free: BTreeSet<usize> = (0..self.ranks.len()).collect();
        loop {
            let mut changed = BTreeSet::new();
            for rank in &free {
                self.transfer(*rank, &mut changed);
            }
            free.append(&mut changed);
            for rank in std::mem::take(&mut free) {
                self.start(rank, now);
            }
            let Some(&(time, _)) = self.ends.first() else {
                break;
            };
            now = time;
            while let Some(&(time, rank)) = self.ends.first()
                && time == now
            {
                self.ends.pop_first();
                self.end(rank);
                free.insert(rank);
            }
        }
        self.ranks.into_iter().map(|rank| rank.list).collect()
    }

    /// Starts the next action of a rank if no message is open before it.
    fn start(&mut self, rank: usize, now: u64) {
        let of = &mut self.ranks[rank];
        let Some(action) = of.actions.get(of.next).copied() else {
            return;
        };
        if of.is_busy || of.open[of.next] > 0 {
            return;
        }
        of.next += 1;
        of.is_busy = true;
        of.list.push(action);
        let ticks: u64 = action.tasks().iter().map(ticks).sum();
        self.ends.insert((now.saturating_add(ticks), rank));
    }

    /// Ends the action that a rank runs.
    fn end(&mut self, rank: usize) {
        let of = &mut self.ranks[rank];
        of.is_busy = false;
        for transfer in of.made.remove(&of.next).unwrap_or_default() {
            let to = transfer.to;
            let queue = self.ranks[rank].outgoing.entry(to).or_default();
            queue.push_back(transfer);
            self.ranks[to].incoming.insert(rank);
        }
    }

    /// Transfers all messages between a rank and other ranks, unless one of both runs an action.
    fn transfer(&mut self, rank: usize, changed: &mut BTreeSet<usize>) {
        let of = &self.ranks[rank];
        let to = of.outgoing.keys().map(|to| (rank, *to));
        let from = of.incoming.iter().map(|from| (*from, rank));
        let pairs: Vec<(usize, usize)> = to.chain(from).collect();
        for (from, to) in pairs {
            if self.ranks[from].is_busy || self.ranks[to].is_busy {
                continue;
            }
            let Some(mut queue) = self.ranks[from].outgoing.remove(&to) else {
                continue;
            };
            let next = self.ranks[to].next;
            while let Some(transfer) = queue.pop_front_if(|transfer| transfer.earliest <= next) {
                let sender = &mut self.ranks[from];
                sender.list.push(Action::Send(transfer.message));
                sender.open[transfer.freed] -= 1;
                let receiver = &mut self.ranks[to];
                receiver.list.push(Action::Receive(transfer.message));
                receiver.open[transfer.needed] -= 1;
                changed.extend([from, to]);
            }
            match queue.is_empty() {
                true => drop(self.ranks[to].incoming.remove(&from)),
                false => drop(self.ranks[from].outgoing.insert(to, queue)),
            }
        }
    }
}

/// Returns the time of a program.
const fn ticks(task: &Task) -> u64 {
    match task.compute {
        Compute::Backward => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_f_one_b;

    #[test]
    fn two_ranks_send_and_receive_at_the_same_moments() {
        let chain = Dependencies::chain(2);
        let rendezvous = LinkModel::Rendezvous;
        let lowered = lower_over(&one_f_one_b(2, 3), &chain, rendezvous, &BTreeMap::new()).unwrap();
        insta::assert_snapshot!(lowered, @r#"
        0F0 0F0>1F0 0F1 0F1>1F1 0B0<1B0 0B0 0F2 0F2>1F2 0B1<1B1 0B1 0B2<1B2 0B2 0R0 0U
        1F0<0F0 1F0 1F1<0F1 1B0 1B0>0B0 1F1 1B1 1F2<0F2 1B1>0B1 1F2 1B2 1B2>0B2 1R1 1U
        "#);
    }
}
