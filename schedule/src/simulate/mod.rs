//! The simulator: duration, idle time and memory of a step, without running it.

mod costs;
mod measured;
mod memory;
mod timeline;

pub use costs::{ComputeTimes, Costs, LinkCosts, StageCosts};
pub(crate) use memory::most_waiting;
pub use memory::{check_memory, peak_activations, peak_bytes};
pub use timeline::{RankTimeline, Span, TimeUnit, Timeline};

use std::collections::BTreeMap;

use crate::action::{Action, Message};
use crate::dependencies::Dependencies;
use crate::error::VerifyError;
use crate::index::RankIndex;
use crate::link_model::LinkModel;
use crate::lists::{Form, Schedule};
use crate::lower::lower;
use crate::transfers::lower_over;
use crate::verify::{Need, Verified, bytes_of, verified, verify};

/// Simulates a schedule in ticks: each rank runs its actions in order, each as soon as possible.
///
/// A compute-only schedule is lowered first, for links of the costs' [model](LinkCosts::model). A send waits as the model
/// says, then passes its message to the link; the link transfers the messages from one rank to another one after the other,
/// those of a [queue](crate::LinkModel::Queue) in both directions. In a rendezvous the sender waits until the message is
/// transferred. A receive waits for its message. Linear in actions, times the logarithm of the number of messages.
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
    if costs.stages.len() != schedule.stages {
        return Err(VerifyError::Costs {
            expected: schedule.stages,
            found: costs.stages.len(),
        });
    }
    let model = costs.link.model;
    let lowered;
    let schedule = match schedule.form {
        Form::Lowered => schedule,
        Form::ComputeOnly => {
            // Errors in the compute actions are reported before lowering, for the actions that the user wrote.
            verify(schedule, dependencies)?;
            lowered = match model {
                LinkModel::Unbounded => lower(schedule, dependencies),
                _ => lower_over(schedule, dependencies, model, &costs.message_bytes)?,
            };
            &lowered
        }
    };
    let verified = verified(schedule, dependencies, model, &costs.message_bytes)?;
    Ok(run(schedule, costs, &verified))
}

/// Computes the times of every action, in an order in which the lists can run.
fn run(schedule: &Schedule, costs: &Costs, verified: &Verified) -> Timeline {
    let mut ranks = vec![RankTimeline::default(); schedule.world_size()];
    let mut link_free: BTreeMap<(RankIndex, RankIndex), u64> = BTreeMap::new();
    // Of a queue, when the message was queued; of other links, when it arrives.
    let mut sent: BTreeMap<Message, u64> = BTreeMap::new();
    let link = costs.link;
    let is_queue = link.model == LinkModel::Queue;
    for &(rank, position) in &verified.order {
        let action = schedule.actions(rank)[position];
        let mut start = ranks[rank.index()].spans.last().map_or(0, |span| span.end);
        let transfer = |message| link.transfer(bytes_of(message, &costs.message_bytes));
        let end = match action {
            Action::Send(message) => {
                // A verified message has its receiver.
                let to = schedule.rank_of(message.receiver()).unwrap_or(rank);
                let need = verified.waits.need(rank.index(), position);
                if let Some(need) = need {
                    // The sender is notified by a message of the receiver.
                    let notified = time_of(need, &ranks).saturating_add(link.latency);
                    start = start.max(notified);
                }
                let mut end = start.saturating_add(costs.overhead);
                if is_queue {
                    sent.insert(message, end);
                } else {
                    let free = link_free.entry((rank, to)).or_default();
                    *free = (*free).max(end).saturating_add(transfer(message));
                    sent.insert(message, free.saturating_add(link.latency));
                    if need.is_some_and(|need| !need.has_run) {
                        end = *free;
                    }
                }
                end
            }
            Action::Receive(message) => {
                let mut arrival = sent.remove(&message).unwrap_or(0);
                if is_queue {
                    let from = schedule.rank_of(message.sender()).unwrap_or(rank);
                    let free = link_free
                        .entry((rank.min(from), rank.max(from)))
                        .or_default();
                    *free = (*free)
                        .max(arrival)
                        .max(start)
                        .saturating_add(transfer(message));
                    arrival = free.saturating_add(link.latency);
                }
                start.max(arrival).saturating_add(costs.overhead)
            }
            _ => start.saturating_add(costs.time(&action)),
        };
        ranks[rank.index()].spans.push(Span { action, start, end });
    }
    for (timeline, bytes) in ranks.iter_mut().zip(memory::bytes_of_all(schedule, costs)) {
        for (span, (during, after)) in timeline.spans.iter().zip(bytes) {
            for point in [(span.start, during), (span.end, after)] {
                if timeline.bytes.last().is_none_or(|last| last.1 != point.1) {
                    timeline.bytes.push(point);
                }
            }
        }
    }
    Timeline {
        name: schedule.name.clone(),
        unit: TimeUnit::Ticks,
        stage_to_rank: schedule.stage_to_rank.clone(),
        ranks,
    }
}

/// Returns when a rank has run the action that another waits for, or came to it.
fn time_of(need: Need, ranks: &[RankTimeline]) -> u64 {
    let position = match need.has_run {
        true => Some(need.position),
        false => need.position.checked_sub(1),
    };
    position.map_or(0, |position| ranks[need.rank].spans[position].end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RankIndex, forward_only, gpipe, lower, one_f_one_b};

    const TIMES: [ComputeTimes; 4] = [
        ComputeTimes {
            forward: 1,
            input_gradient: 1,
            weight_gradient: 1,
        },
        ComputeTimes {
            forward: 1,
            input_gradient: 1,
            weight_gradient: 0,
        },
        ComputeTimes {
            forward: 5,
            input_gradient: 1,
            weight_gradient: 1,
        },
        ComputeTimes {
            forward: 3,
            input_gradient: 4,
            weight_gradient: 7,
        },
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
