//! The size and the times of a step: the same arguments for all schedules.

use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::bail;
use clap::Args;
use tinderbox_schedule::{
    ComputeTimes, Costs, LinkCosts, RankIndex, Schedule, ScheduleKind, StageCosts,
};

/// The maximum number of programs of a step: stages times micro-batches.
const MOST_PROGRAMS: u64 = 1 << 20;

/// The size and the times of a step.
#[derive(Args, Debug)]
pub(super) struct Shape {
    /// Pipeline stages in parallel, each on its own rank [default: 4]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u64).range(1..=4096))]
    stages: Option<u64>,
    /// Micro-batches per step [default: 8]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    micro_batches: Option<u64>,
    /// Stages on each rank, for schedules with a variable number [default: 2]
    #[arg(long, value_name = "V", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub(super) chunks: Option<u64>,
    /// Ticks of F, I and W of one micro-batch on a rank, divided among its stages; B takes as long as I and W
    #[arg(long, value_name = "F,I,W", default_value = "12,12,12")]
    times: Times,
    /// Ticks from the end of a send to its arrival
    #[arg(long, value_name = "TICKS", default_value_t = 0)]
    latency: u64,
}

impl Shape {
    /// Returns whether a size is specified.
    pub(super) fn has_size(&self) -> bool {
        self.stages.is_some() || self.micro_batches.is_some() || self.chunks.is_some()
    }

    /// Returns the numbers of ranks, stages on each rank and micro-batches.
    pub(super) fn size(&self, fixed_chunks: Option<u64>) -> anyhow::Result<[usize; 3]> {
        let (stages, micro_batches) = (self.stages.unwrap_or(4), self.micro_batches.unwrap_or(8));
        let chunks = fixed_chunks.or(self.chunks).unwrap_or(2);
        let programs = stages.saturating_mul(chunks).saturating_mul(micro_batches);
        if programs > MOST_PROGRAMS {
            bail!("stages times micro-batches is {programs}, the maximum is {MOST_PROGRAMS}");
        }
        // At most the maximum.
        Ok([stages, chunks, micro_batches].map(|number| number as usize))
    }

    /// Generates a named schedule.
    pub(super) fn generate(
        &self,
        kind: ScheduleKind,
        fixed_chunks: Option<u64>,
    ) -> anyhow::Result<Schedule> {
        let [ranks, chunks, micro_batches] = self.size(fixed_chunks)?;
        Ok(kind.generate(ranks, chunks, micro_batches)?)
    }

    /// Returns the costs of stages: each has an equal fraction of the times of its rank.
    pub(super) fn costs(&self, stage_to_rank: &[RankIndex]) -> anyhow::Result<Costs> {
        let mut counts: BTreeMap<RankIndex, u64> = BTreeMap::new();
        for rank in stage_to_rank {
            *counts.entry(*rank).or_default() += 1;
        }
        let stages = stage_to_rank.iter().map(|rank| counts[rank]);
        let stages = stages.map(|count| self.times.divided(count));
        let mut costs = Costs::of_stages(stages.collect::<anyhow::Result<_>>()?);
        costs.link = LinkCosts {
            latency: self.latency,
            ticks_per_mib: 0,
            ..LinkCosts::default()
        };
        Ok(costs)
    }
}

/// `F,I,W` in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times(ComputeTimes);

impl Times {
    /// Returns the times of one of the stages of a rank.
    fn divided(&self, stages: u64) -> anyhow::Result<StageCosts> {
        let divided = |ticks: u64| match ticks % stages {
            0 => Ok(ticks / stages),
            _ => bail!(
                "{ticks} ticks of --times are not divisible by the {stages} stages of a rank: use multiples of {stages}"
            ),
        };
        Ok(StageCosts::of(ComputeTimes {
            forward: divided(self.0.forward)?,
            input_gradient: divided(self.0.input_gradient)?,
            weight_gradient: divided(self.0.weight_gradient)?,
        }))
    }
}

impl FromStr for Times {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split(',').map(|part| part.trim().parse());
        match numbers.collect::<Result<Vec<u64>, _>>().as_deref() {
            Ok(&[forward, input_gradient, weight_gradient]) => Ok(Self(ComputeTimes {
                forward,
                input_gradient,
                weight_gradient,
            })),
            _ => Err("expected three whole numbers: ticks of F, I and W, such as 24,24,12".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_numbers() {
        let Times(times) = " 3, 2,1".parse().unwrap();
        let found = (times.forward, times.input_gradient, times.weight_gradient);
        assert_eq!(found, (3, 2, 1));
        for wrong in ["", "1", "1,2", "1,2,3,4", "1,2,x", "1,2,-3"] {
            assert!(wrong.parse::<Times>().is_err(), "{wrong}");
        }
    }
}
