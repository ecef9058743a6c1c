//! Overhead of an action.

use tinderbox::ScheduleKind;
use tinderbox::schedule::Span;
use tinderbox_benches::cases::Case;
use tinderbox_benches::figures::median;

use crate::BENCH;

/// Prints the time of an action in addition to the time of its program: loading and storing values, sending them,
/// adding gradients. The matrices have one element, so that the program takes almost no time.
pub fn figures() {
    let case = Case {
        layers: 2,
        width: 1,
        samples: 256,
        micro_batches: 256,
    };
    // One rank never waits; two wake each other's threads.
    for (ranks, name) in [
        (1, "action_overhead_us"),
        (2, "action_overhead_two_ranks_us"),
    ] {
        let mut run = case.pipeline(ranks, ScheduleKind::OneFOneB);
        let times = (0..BENCH.turns()).map(|_| {
            let (_, timeline) = run.measured();
            let rank = &timeline.ranks[0];
            let waits = rank
                .spans
                .iter()
                .filter(|span| span.is_wait())
                .map(Span::duration);
            let overhead = rank
                .end()
                .saturating_sub(rank.program_time + waits.sum::<u64>());
            overhead as f64 / rank.spans.len() as f64 / 1e3
        });
        BENCH.figure(name, median(times.collect()), "us");
    }
}
