//! The simulator: duration, idle time and memory of a step, without running it.

mod costs;
mod measured;
mod memory;
mod timeline;

pub use costs::{ComputeTimes, Costs, LinkCosts, Network, StageCosts};
pub(crate) use memory::most_waiting;
pub use memory::{peak_activations, peak_bytes};
pub use timeline::{RankTimeline, Span, TimeUnit, Timeline};

use std::collections::BTreeMap;

use tinderbox_ids::{RankIndex, StageIndex};

use crate::action::{Action, Message};
use crate::dependencies::Dependencies;
use crate::error::VerifyError;
use crate::link_model::LinkModel;
use crate::lists::{Form, Schedule};
use crate::lower::lower;
use crate::transfers::lower_over;
use crate::verify::{Links, Need, verify, visit};

/// Simulates a schedule in ticks: each rank runs its actions in order, each as soon as possible.
///
/// A compute-only schedule is lowered first, for links of the costs' [model](LinkCosts::model). A send waits as the model
/// requires, then passes its message to the link. A link transfers the messages from one rank to another one after the
/// other; a [queue](crate::LinkModel::Queue) transfers the messages of both directions so. In a rendezvous the sender waits
/// until the message is transferred. A receive waits for its message.
///
/// With several [replicas](Costs::replicas), one is simulated, over the slowest of their links. A sum waits for the
/// gradients of the other replicas, which end their backwards at the same time, and a gather for their parameters. The
/// gradients and parameters that replicas exchange are transferred in parallel with the other messages.
///
/// Linear in actions, times the logarithm of the number of messages, and with a [network](Costs::network) in messages times
/// replicas.
///
/// # Errors
///
/// The errors of [`verify`](crate::verify), and [`VerifyError::Costs`] when there are
/// costs for another number of stages.
pub fn simulate(
    schedule: &Schedule,
    dependencies: &Dependencies,
    costs: &Costs,
) -> Result<Timeline, VerifyError> {
    let (expected, found) = (schedule.stages, costs.stages.len());
    if expected != found {
        return Err(VerifyError::Costs { expected, found });
    }
    let links = Links {
        model: costs.link.model,
        message_bytes: &costs.message_bytes,
    };
    let lowered;
    let schedule = match schedule.form {
        Form::Lowered => schedule,
        Form::ComputeOnly => {
            // Errors in the compute actions are reported before lowering, for the actions that the user wrote.
            verify(schedule, dependencies)?;
            lowered = match links.model {
                LinkModel::Unbounded => lower(schedule, dependencies),
                model => lower_over(schedule, dependencies, model, links.message_bytes)?,
            };
            &lowered
        }
    };
    let timeline = |actions: &Vec<Action>| RankTimeline {
        spans: Vec::with_capacity(actions.len()),
        ..RankTimeline::default()
    };
    let mut run = Run {
        schedule,
        costs,
        ranks: schedule.ranks.iter().map(timeline).collect(),
        link_free: BTreeMap::new(),
        sent: BTreeMap::new(),
        exchange_free: vec![0; schedule.world_size()],
        exchanged: BTreeMap::new(),
    };
    let act = |rank, position, need| run.act(rank, position, need);
    visit(schedule, dependencies, &links, act)?;
    Ok(run.finish())
}

/// The times of the actions so far, which come in an order in which the lists can run.
struct Run<'a> {
    schedule: &'a Schedule,
    costs: &'a Costs,
    ranks: Vec<RankTimeline>,
    link_free: BTreeMap<(RankIndex, RankIndex), u64>,
    /// The arrival of each message; in a queue, the time at which it was queued.
    sent: BTreeMap<Message, u64>,
    /// The time at which each rank has sent its gradients and parameters to the other replicas.
    exchange_free: Vec<u64>,
    /// The time at which the gradients or parameters of each stage have arrived at the other replicas.
    exchanged: BTreeMap<StageIndex, u64>,
}

impl Run<'_> {
    /// Computes the times of an action. `need` is the wait of a send.
    fn act(&mut self, rank: RankIndex, position: usize, need: Option<Need>) {
        let (schedule, costs) = (self.schedule, self.costs);
        let action = schedule.actions(rank)[position];
        let spans = &self.ranks[rank.index()].spans;
        let mut start = spans.last().map_or(0, |span| span.end);
        let link = |other| costs.link_between(rank, other, schedule.world_size());
        let end = match action {
            Action::Send(message) => {
                // A verified message has its receiver.
                let to = schedule.rank_of(message.receiver()).unwrap_or(rank);
                let link = link(to);
                if let Some(need) = need {
                    // The receiver must have run the awaited action, or only the action before it.
                    let last = need.head().checked_sub(1);
                    let reached = last.map_or(0, |last| self.ranks[need.rank].spans[last].end);
                    // The sender is notified by a message.
                    start = start.max(reached.saturating_add(link.latency));
                }
                let mut end = start.saturating_add(costs.overhead);
                if link.model == LinkModel::Queue {
                    self.sent.insert(message, end);
                } else {
                    let transfer = link.transfer(message.bytes(&costs.message_bytes));
                    let free = self.link_free.entry((rank, to)).or_default();
                    *free = (*free).max(end).saturating_add(transfer);
                    self.sent.insert(message, free.saturating_add(link.latency));
                    if need.is_some_and(|need| !need.has_run) {
                        end = *free;
                    }
                }
                end
            }
            Action::Receive(message) => {
                let mut arrival = self.sent.remove(&message).unwrap_or(0);
                if costs.link.model == LinkModel::Queue {
                    let from = schedule.rank_of(message.sender()).unwrap_or(rank);
                    let link = link(from);
                    let transfer = link.transfer(message.bytes(&costs.message_bytes));
                    let pair = (rank.min(from), rank.max(from));
                    let free = self.link_free.entry(pair).or_default();
                    *free = (*free).max(arrival).max(start).saturating_add(transfer);
                    arrival = free.saturating_add(link.latency);
                }
                start.max(arrival).saturating_add(costs.overhead)
            }
            Action::Sum { stage } | Action::Gather { stage } => {
                let arrival = self.exchanged.get(&stage).copied().unwrap_or(0);
                start.max(arrival).saturating_add(costs.time(&action))
            }
            _ => start.saturating_add(costs.time(&action)),
        };
        if let Action::Reduce { stage } | Action::Update { stage } = action {
            let (busy, latency) = costs.exchange(stage, rank, schedule.world_size());
            let free = &mut self.exchange_free[rank.index()];
            *free = end.max(*free).saturating_add(busy);
            self.exchanged.insert(stage, free.saturating_add(latency));
        }
        let spans = &mut self.ranks[rank.index()].spans;
        spans.push(Span { action, start, end });
    }

    /// Returns the step, with the bytes of each rank.
    fn finish(mut self) -> Timeline {
        let bytes = memory::bytes_of_all(self.schedule, self.costs);
        for (timeline, bytes) in self.ranks.iter_mut().zip(bytes) {
            timeline.bytes.reserve(timeline.spans.len() / 2);
            for (span, (during, after)) in timeline.spans.iter().zip(bytes) {
                for point in [(span.start, during), (span.end, after)] {
                    if timeline.bytes.last().is_none_or(|last| last.1 != point.1) {
                        timeline.bytes.push(point);
                    }
                }
            }
            timeline.bytes.shrink_to_fit();
        }
        Timeline {
            name: self.schedule.name.clone(),
            unit: TimeUnit::Ticks,
            stage_to_rank: self.schedule.stage_to_rank.clone(),
            ranks: self.ranks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RankIndex, forward_only, gpipe, lower, one_f_one_b};

    const TIMES: [ComputeTimes; 4] = [
        ComputeTimes::new(1, 1, 1),
        ComputeTimes::new(1, 1, 0),
        ComputeTimes::new(5, 1, 1),
        ComputeTimes::new(3, 4, 7),
    ];

    /// The exact rows of the literature's table: bubble (p-1)(F+B) for both, for m >= p.
    #[test]
    fn bubbles_match_their_formula() {
        for (p, extra) in (1..=8).flat_map(|p| [0, 1, 5].map(|extra| (p, extra))) {
            let m = p + extra;
            let chain = Dependencies::chain(p);
            for times in TIMES {
                let round = times.forward + times.backward();
                for schedule in [gpipe(p, m), one_f_one_b(p, m)] {
                    let found = simulate(&schedule, &chain, &Costs::uniform(p, times)).unwrap();
                    assert_eq!(
                        found.largest_bubble(),
                        (p as u64 - 1) * round,
                        "{p} {m} {times:?}"
                    );
                    assert_eq!(
                        found.makespan(),
                        (p + m - 1) as u64 * round,
                        "{p} {m} {times:?}"
                    );
                    let lowered = lower(&schedule, &chain);
                    let costs = Costs::uniform(p, times);
                    assert_eq!(simulate(&lowered, &chain, &costs).unwrap(), found);
                }
            }
        }
    }

    /// Checks the most micro-batches that each rank holds, counted and in bytes of one each.
    #[track_caller]
    fn check_peaks(schedule: &Schedule, expected: &[usize]) {
        assert_eq!(peak_activations(schedule), expected);
        let bytes = peak_bytes(schedule, &Costs::uniform(schedule.stages, TIMES[0]));
        let expected: Vec<u64> = expected.iter().map(|held| *held as u64).collect();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn peaks_match_their_formula() {
        for (p, m) in (1..=8).flat_map(|p| [1, 3, 8, 20].map(|m| (p, m))) {
            let chain = Dependencies::chain(p);
            check_peaks(&gpipe(p, m), &vec![m; p]);
            let expected: Vec<usize> = (0..p).map(|rank| m.min(p - rank)).collect();
            check_peaks(&one_f_one_b(p, m), &expected);
            check_peaks(&lower(&one_f_one_b(p, m), &chain), &expected);
            check_peaks(&forward_only(p, m), &vec![1; p]);
        }
    }

    /// Derived by hand, for two replicas whose ranks are on two machines: stage 1 has its gradients at 4 and exchanges half of
    /// 2 MiB in 10 ticks and 3 of latency, stage 0 at 6. Each adds the gradients of the other replica in 1.
    #[test]
    fn replicas_exchange_over_the_network() {
        let schedule = one_f_one_b(2, 1);
        let dependencies = Dependencies::chain(2).with_replicas();
        let mut costs = Costs::uniform(2, TIMES[0]);
        for stage in &mut costs.stages {
            (stage.exchanged_bytes, stage.sum, stage.update) = (2 << 20, 1, 2);
        }
        costs.replicas = 2;
        let makespan = |costs: &Costs| {
            simulate(&schedule, &dependencies, costs)
                .unwrap()
                .makespan()
        };
        // F, F, B, B, and the sum and the update of stage 0.
        assert_eq!(makespan(&costs), 9);
        let link = LinkCosts::new(3, 10);
        // The ranks of each replica are on one machine.
        costs.network = Some(Network {
            machine_of: vec![0, 0, 1, 1],
            link,
        });
        let found = simulate(&schedule, &dependencies, &costs).unwrap();
        let ends = |action: &str| {
            let action: Action = action.parse().unwrap();
            let mut spans = found.ranks.iter().flat_map(|rank| &rank.spans);
            spans.find(|span| span.action == action).unwrap().end
        };
        let words = ["1R1", "1S", "1U", "1G", "0R0", "0S", "0U", "0G"];
        assert_eq!(words.map(ends), [4, 18, 20, 33, 6, 20, 22, 35]);
        // Both replicas are divided between the machines: their messages cross, and the exchange does not.
        costs.network = Some(Network {
            machine_of: vec![0, 1, 0, 1],
            link,
        });
        assert_eq!(makespan(&costs), 9 + 2 * 3);
        assert_eq!(
            costs.link_between(RankIndex::new(0), RankIndex::new(1), 2),
            link
        );
    }

    /// Derived by hand: 5 B held all the time, 10 B from F to I, then 3 or 12 B until W.
    #[test]
    fn a_split_backward_holds_what_its_second_half_reads() {
        let text = "0F0 0I0 0F1 0I1 0W0 0W1\n1F0 1I0 1F1 1I1 1W0 1W1";
        let schedule = Schedule::parse("zb", text).unwrap();
        for (weight_gradient_bytes, expected) in [(3, 5 + 3 + 10), (12, 5 + 12 + 12)] {
            let mut costs = Costs::uniform(2, TIMES[0]);
            for stage in &mut costs.stages {
                stage.resident_bytes = 5;
                stage.activation_bytes = 10;
                stage.weight_gradient_bytes = weight_gradient_bytes;
            }
            assert_eq!(peak_bytes(&schedule, &costs), [expected; 2]);
        }
    }

    /// Two ranks, a split backward: the weight gradients of neither rank fill a gap;
    /// derived by hand from F = I = W = 1.
    #[test]
    fn a_split_backward_is_timed_by_its_parts() {
        let text = "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1";
        let schedule = Schedule::parse("zb", text).unwrap();
        let costs = Costs::uniform(2, TIMES[0]);
        let found = simulate(&schedule, &Dependencies::chain(2), &costs).unwrap();
        // Rank 0: F 0-2, waits for rank 1's I0 (2-3), I 3-4, W 4-5, I1 (computed 4-5) 5-6, W 6-7.
        let bubbles: Vec<u64> = found.ranks.iter().map(RankTimeline::bubble).collect();
        assert_eq!((found.makespan(), bubbles), (7, vec![1, 0]));
        check_peaks(&schedule, &[2, 2]);
    }

    #[test]
    fn an_impossible_list_has_no_times() {
        let schedule = Schedule::parse("short", "0F0 0B0\n1F0").unwrap();
        let costs = Costs::uniform(2, TIMES[0]);
        let found = simulate(&schedule, &Dependencies::chain(2), &costs);
        let action = "1B0".parse().unwrap();
        assert_eq!(
            found,
            Err(VerifyError::Missing {
                rank: RankIndex::new(1),
                action
            })
        );
    }
}
