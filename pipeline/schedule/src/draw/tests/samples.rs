//! Timelines for the tests of all pictures.

use crate::{
    ComputeTimes, Costs, Dependencies, Schedule, TimeUnit, Timeline, one_f_one_b, simulate,
};

/// One tick for each of forward, input gradient and weight gradient.
pub(in crate::draw) const TIMES: ComputeTimes = ComputeTimes::new(1, 1, 1);

/// A step of a valid schedule on a chain of stages.
pub(in crate::draw) fn simulated(schedule: &Schedule, costs: &Costs) -> Timeline {
    simulate(schedule, &Dependencies::chain(schedule.stages), costs).expect("the samples are valid")
}

/// 1F1B with one tick per program.
pub(in crate::draw) fn one_f_one_b_sample(ranks: usize, micro_batches: usize) -> Timeline {
    let schedule = one_f_one_b(ranks, micro_batches);
    simulated(&schedule, &Costs::uniform(ranks, TIMES))
}

/// A split backward.
pub(in crate::draw) fn split_sample() -> Timeline {
    let rows = "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1";
    let schedule = Schedule::parse("split", rows).expect("the samples are valid");
    simulated(&schedule, &Costs::uniform(2, TIMES))
}

/// Two stages per rank in the form of a V, with overlapped pairs.
pub(in crate::draw) fn pairs_sample() -> Timeline {
    let rows = "0F0 0F1 3F0 3I0 0F2&3W0 0I0 0W0 3F1 3B1 0F3 3F2&0B1 3B2 3F3&0B2 3B3 0B3\n\
                1F0 2F0 1F1 2I0 2W0 1I0 1W0 2F1 1F2 2B1 1F3 2F2&1B1 2B2 2F3&1B2 2B3 1B3";
    let schedule = Schedule::parse("pairs", rows).expect("the samples are valid");
    simulated(&schedule, &Costs::uniform(4, TIMES))
}

/// Measured times, bytes, updates, and sends that take time.
pub(in crate::draw) fn measured_sample() -> Timeline {
    let mut costs = Costs::uniform(3, TIMES);
    for stage in &mut costs.stages {
        (stage.forward, stage.backward, stage.update) = (3_000_000, 6_200_000, 900_000);
        (stage.activation_bytes, stage.resident_bytes) = (300 << 20, 1 << 30);
    }
    (costs.overhead, costs.link.latency) = (20_000, 150_000);
    let mut timeline = simulated(&one_f_one_b(3, 4), &costs);
    timeline.unit = TimeUnit::Nanoseconds;
    timeline.name = "measured".to_owned();
    timeline
}
