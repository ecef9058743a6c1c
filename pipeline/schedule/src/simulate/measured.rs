//! Costs from measured steps.

use std::collections::BTreeMap;

use tinderbox_ids::{MicroBatchIndex, StageIndex};

use crate::action::Action;
use crate::task::Compute;

use super::costs::{Costs, StageCosts};
use super::timeline::Timeline;

impl Costs {
    /// Returns the same bytes with the times of measured steps, in nanoseconds. The times are medians over their
    /// micro-batches.
    ///
    /// The time of a program that did not run is derived: `B` is as long as `I` and `W` together, `I`
    /// and `W` are half of `B` each. A link's latency is the median time from the end of a send to the end of
    /// its receive, over the receives that waited. The sum over replicas is
    /// the shortest of several steps. A stage that did not run keeps its times. Programs
    /// of overlapped pairs are ignored, because they slow each other down.
    pub fn with_times<'t>(mut self, steps: impl IntoIterator<Item = &'t Timeline>) -> Self {
        let mut samples = Samples::default();
        for step in steps {
            samples.add(step);
        }
        // The time of a send is the overhead of an action, which is part of each sample.
        let overhead = median(&mut samples.sends).unwrap_or(self.overhead);
        self.overhead = overhead;
        for (index, stage) in self.stages.iter_mut().enumerate() {
            samples.set_times(StageIndex::new(index), stage, overhead);
        }
        if let Some(latency) = median(&mut samples.latencies) {
            self.link.latency = latency.saturating_sub(overhead);
            // The latency includes the transfer of the bytes: one step does not show how it changes with their number.
            self.link.ticks_per_mib = 0;
        }
        self
    }
}

#[derive(Default)]
struct Samples {
    /// The durations of programs, of all micro-batches, and of the actions of stages that run once per step.
    durations: BTreeMap<Action, Vec<u64>>,
    latencies: Vec<u64>,
    sends: Vec<u64>,
}

/// Returns the key of the durations of a program.
const fn program(stage: StageIndex, compute: Compute) -> Action {
    Action::compute(stage, compute, MicroBatchIndex::new(0))
}

impl Samples {
    fn add(&mut self, step: &Timeline) {
        for span in step.ranks.iter().flat_map(|rank| &rank.spans) {
            let key = match span.action {
                Action::Send(_) => {
                    self.sends.push(span.duration());
                    continue;
                }
                Action::Compute(task) => program(task.stage, task.compute),
                Action::Reduce { .. } | Action::Sum { .. } | Action::Update { .. } => span.action,
                _ => continue,
            };
            let durations = self.durations.entry(key).or_default();
            durations.push(span.duration());
        }
        self.latencies.extend(step.latencies());
    }

    fn set_times(&mut self, index: StageIndex, stage: &mut StageCosts, overhead: u64) {
        // The shortest of several waits least for the other replicas. A single one may have waited for its whole time.
        let sums = self.durations.get(&Action::Sum { stage: index });
        let sums = sums.filter(|sums| sums.len() > 1);
        if let Some(sum) = sums.into_iter().flatten().min() {
            stage.sum = sum.saturating_sub(overhead);
        }
        let mut of = |action: Action| {
            let median = median(self.durations.get_mut(&action)?)?;
            Some(median.saturating_sub(overhead))
        };
        let programs = Compute::ALL.map(|compute| of(program(index, compute)));
        let [forward, whole, input, weight] = programs;
        let half = whole.map(|whole| whole / 2);
        let both = input.zip(weight);
        let both = both.map(|(input, weight)| input.saturating_add(weight));
        stage.forward = forward.unwrap_or(stage.forward);
        stage.backward = whole.or(both).unwrap_or(stage.backward);
        stage.input_gradient = input.or(half).unwrap_or(stage.input_gradient);
        stage.weight_gradient = weight.or(half).unwrap_or(stage.weight_gradient);
        stage.reduce = of(Action::Reduce { stage: index }).unwrap_or(stage.reduce);
        stage.update = of(Action::Update { stage: index }).unwrap_or(stage.update);
    }
}

/// Returns the lower of the two middle samples, or the middle one.
fn median(samples: &mut [u64]) -> Option<u64> {
    samples.sort_unstable();
    let middle = samples.len().checked_sub(1)? / 2;
    samples.get(middle).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ComputeTimes, Dependencies, Schedule, gpipe, simulate};

    const TIMES: ComputeTimes = ComputeTimes::new(500, 400, 200);

    /// Reads back the times of a simulation.
    #[test]
    fn times_of_a_step_are_found_again() {
        let text = "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1";
        let split = Schedule::parse("split", text).unwrap();
        let mut costs = Costs::uniform(2, TIMES);
        costs.stages[1].forward = 700;
        (costs.stages[0].reduce, costs.stages[0].sum) = (70, 60);
        costs.stages[1].update = 90;
        costs.link.latency = 30;
        costs.overhead = 20;
        let chain = Dependencies::chain(2).with_replicas();
        let step = simulate(&split, &chain, &costs).unwrap();
        let unknown = Costs::of_stages(vec![StageCosts::default(); 2]);
        let found = unknown.clone().with_times([&step, &step]);
        for (found, expected) in found.stages.iter().zip(&costs.stages) {
            let times = |costs: &StageCosts| {
                let programs = Compute::ALL.map(|compute| costs.time(compute));
                (programs, costs.reduce, costs.sum, costs.update)
            };
            assert_eq!(times(found), times(expected));
        }
        assert_eq!((found.link.latency, found.overhead), (30, 20));
        let again = simulate(&split, &chain, &found).unwrap();
        assert_eq!(again.makespan(), step.makespan());

        // Of one step, it may be a wait.
        let once = unknown.clone().with_times([&step]);
        assert_eq!(once.stages[0].sum, 0);

        let whole = simulate(&gpipe(2, 3), &chain, &costs).unwrap();
        let found = unknown.with_times([&whole]);
        assert_eq!(found.stages[0].backward, 600);
        assert_eq!(found.stages[0].input_gradient, 300);
    }
}
