//! Which program's values went to which program of another rank.

use std::collections::BTreeMap;

use crate::action::{Action, Message, Task};
use crate::dependencies::Endpoint;
use crate::index::MicroBatchIndex;
use crate::simulate::Timeline;

/// A span, by the rank and the position in its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct At {
    pub(super) rank: usize,
    pub(super) position: usize,
}

/// Values of one micro-batch, from the span that made them to the span that read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrow {
    pub(super) from: At,
    pub(super) to: At,
}

/// One arrow per send of values, in the order of the lists.
///
/// An arrow joins the two programs and not the send and the receive, which often take no time. A
/// message without both programs has none, and neither has one that would point back in time, as it
/// can where the clocks of two ranks differ.
pub(super) fn arrows(timeline: &Timeline) -> Vec<Arrow> {
    let mut programs: BTreeMap<Task, At> = BTreeMap::new();
    for (rank, list) in timeline.ranks.iter().enumerate() {
        for (position, span) in list.spans.iter().enumerate() {
            for task in span.action.tasks() {
                programs.entry(*task).or_insert(At { rank, position });
            }
        }
    }
    let end_of = |end: Endpoint, micro_batch: MicroBatchIndex| {
        let tasks = end.programs().iter().map(|compute| Task {
            stage: end.stage,
            compute: *compute,
            micro_batch,
        });
        tasks.filter_map(|task| programs.get(&task).copied()).next()
    };
    let span_at = |at: At| &timeline.ranks[at.rank].spans[at.position];
    let sends = timeline.ranks.iter().flat_map(|rank| &rank.spans);
    sends
        .filter_map(|span| match span.action {
            Action::Send(Message::Values { edge, micro_batch }) => Some(Arrow {
                from: end_of(edge.from, micro_batch)?,
                to: end_of(edge.to, micro_batch)?,
            }),
            _ => None,
        })
        .filter(|arrow| span_at(arrow.from).end <= span_at(arrow.to).start)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ComputeTimes, Costs, Dependencies, Schedule, simulate};

    fn sample() -> Timeline {
        let times = ComputeTimes {
            forward: 1,
            input_gradient: 1,
            weight_gradient: 1,
        };
        let rows = "0F0 0F1 0B0 0I1 0W1\n1F0 1I0 1F1 1W0 1B1";
        let schedule = Schedule::parse("mixed", rows).unwrap();
        let costs = Costs::uniform(2, times);
        simulate(&schedule, &Dependencies::chain(2), &costs).unwrap()
    }

    fn check(timeline: &Timeline, expected: &str) {
        let action = |at: At| timeline.ranks[at.rank].spans[at.position].action;
        let found = arrows(timeline).into_iter();
        let words = found.map(|arrow| format!("{}>{}", action(arrow.from), action(arrow.to)));
        assert_eq!(words.collect::<Vec<_>>().join(" "), expected);
    }

    #[test]
    fn arrows_join_programs_whether_the_backward_is_split_or_not() {
        check(&sample(), "0F0>1F0 0F1>1F1 1I0>0B0 1B1>0I1");
    }

    #[test]
    fn no_arrow_points_back_in_time_or_to_nothing() {
        let mut timeline = sample();
        let first = &mut timeline.ranks[0].spans[0];
        first.end += 100;
        check(&timeline, "0F1>1F1 1I0>0B0 1B1>0I1");
        timeline.ranks.truncate(1);
        check(&timeline, "");
    }
}
