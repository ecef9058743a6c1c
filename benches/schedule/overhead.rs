//! What an action costs beside the work of its program.

use tinderbox::ScheduleKind;
use tinderbox::schedule::Span;

use crate::cases::Case;
use crate::{figure, median, turns};

/// Prints what an action takes beside the time of its program: taking and keeping values, sending them,
/// adding gradients. The matrices have one element, so that nothing else is in it.
pub fn figures() {
    let case = Case {
        layers: 2,
        width: 1,
        samples: 256,
        micro_batches: 256,
    };
    // Nothing waits on one rank; on two, threads wake each other.
    for (ranks, name) in [
        (1, "action_overhead_us"),
        (2, "action_overhead_two_ranks_us"),
    ] {
        let mut run = case.pipeline(ranks, ScheduleKind::OneFOneB);
        let times = (0..turns()).map(|_| {
            let (_, timeline) = run.measured();
            let rank = &timeline.ranks[0];
            let waits = rank
                .spans
                .iter()
                .filter(|span| span.is_wait())
                .map(Span::duration);
            let beside = rank
                .end()
                .saturating_sub(rank.program_time + waits.sum::<u64>());
            beside as f64 / rank.spans.len() as f64 / 1e3
        });
        figure(name, median(times.collect()), "us");
    }
}
