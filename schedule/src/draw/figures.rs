//! The figures beside each row, and the line above all rows.

use super::units::{percent_text, time_text};
use crate::action::Compute;
use crate::simulate::{RankTimeline, Timeline};

/// What is said of a rank beside its row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Figures {
    /// The rank's bubble as a share of the whole step, from 0 to 1.
    pub(super) bubble: f64,
    /// The most micro-batches that waited for the end of their backward at a time, once per stage.
    pub(super) held: usize,
    /// The most bytes that the rank held at a time.
    pub(super) peak_bytes: u64,
}

impl Figures {
    /// The figures of every rank. Linear in the number of actions.
    pub(super) fn of(timeline: &Timeline) -> Vec<Self> {
        let makespan = timeline.makespan();
        let backward = timeline.ranks.iter().any(has_backward);
        let ranks = timeline.ranks.iter().map(|rank| Self {
            bubble: share(rank.bubble(), makespan),
            held: if backward {
                held(rank)
            } else {
                held(rank).min(1)
            },
            peak_bytes: rank.peak_bytes(),
        });
        ranks.collect()
    }

    /// Whether the bytes say more than `held`: uniform costs count one byte per micro-batch.
    pub(super) fn say_bytes(all: &[Self]) -> bool {
        let count = |figures: &Self| u64::try_from(figures.held).unwrap_or(u64::MAX);
        all.iter()
            .any(|one| one.peak_bytes > 0 && one.peak_bytes != count(one))
    }
}

fn has_backward(rank: &RankTimeline) -> bool {
    let mut tasks = rank.spans.iter().flat_map(|span| span.action.tasks());
    tasks.any(|task| task.compute != Compute::Forward)
}

/// Forwards without the end of their backward, at the worst moment.
fn held(rank: &RankTimeline) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for span in &rank.spans {
        // All forwards of a pair first: its backward frees nothing before the pair has ended.
        let tasks = span.action.tasks();
        now += tasks
            .iter()
            .filter(|task| task.compute == Compute::Forward)
            .count();
        most = most.max(now);
        let ended = tasks
            .iter()
            .filter(|task| task.compute.ends_backward())
            .count();
        now = now.saturating_sub(ended);
    }
    most
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// The end of the last action, also where the lists are in no order.
pub(super) fn length(timeline: &Timeline) -> u64 {
    let spans = timeline.ranks.iter().flat_map(|rank| &rank.spans);
    spans.map(|span| span.end).max().unwrap_or(0)
}

/// The step in a few words each: ranks, time, bubble, idle time.
pub(super) fn summary(timeline: &Timeline) -> Vec<String> {
    let unit = timeline.unit;
    let bubble = timeline.largest_bubble();
    let plural = if timeline.ranks.len() == 1 { "" } else { "s" };
    vec![
        format!("{} rank{plural}", timeline.ranks.len()),
        time_text(timeline.makespan() as f64, unit),
        format!(
            "largest bubble {} ({})",
            time_text(bubble as f64, unit),
            percent_text(share(bubble, timeline.makespan()))
        ),
        // Times that overlap, as no rank has them, would give less than nothing.
        format!(
            "idle {}",
            percent_text(timeline.idle_share().clamp(0.0, 1.0))
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ComputeTimes, Costs, Dependencies, Schedule, forward_only, gpipe, one_f_one_b,
        peak_activations, simulate,
    };

    fn timeline(schedule: &Schedule, times: ComputeTimes) -> Timeline {
        let chain = Dependencies::chain(schedule.stages);
        simulate(schedule, &chain, &Costs::uniform(schedule.stages, times)).unwrap()
    }

    const TIMES: ComputeTimes = ComputeTimes {
        forward: 1,
        input_gradient: 1,
        weight_gradient: 1,
    };

    #[test]
    fn held_micro_batches_are_those_of_the_lists() {
        let split = Schedule::parse("zb", "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1");
        let schedules = [
            gpipe(4, 7),
            one_f_one_b(4, 7),
            forward_only(3, 5),
            split.unwrap(),
        ];
        for schedule in schedules {
            let figures = Figures::of(&timeline(&schedule, TIMES));
            let held: Vec<usize> = figures.iter().map(|one| one.held).collect();
            assert_eq!(held, peak_activations(&schedule), "{}", schedule.name);
            assert!(!Figures::say_bytes(&figures), "{}", schedule.name);
        }
    }

    #[test]
    fn bytes_are_said_where_they_are_bytes() {
        let schedule = gpipe(2, 2);
        let mut costs = Costs::uniform(2, TIMES);
        costs.stages[1].resident_bytes = 100;
        let found = simulate(&schedule, &Dependencies::chain(2), &costs).unwrap();
        assert!(Figures::say_bytes(&Figures::of(&found)));
    }

    #[test]
    fn a_step_is_summed_up_in_a_line() {
        let found = summary(&timeline(&one_f_one_b(4, 8), TIMES)).join(", ");
        insta::assert_snapshot!(found, @"4 ranks, 33 ticks, largest bubble 9 ticks (27.3%), idle 27.3%");
    }
}
