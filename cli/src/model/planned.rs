//! The memory of the ranks of a plan, and a pass over a model that is streamed from a disk.

use std::io::{self, Write};
use std::iter;

use anyhow::anyhow;
use serde::Serialize;
use tinderbox_deferred::{human_bytes, human_bytes_distinct};
use tinderbox_ids::text::{Scale, count_text, time_text};
use tinderbox_planner::{DiskRate, Plan, RankMemory, Step, StreamPrediction};

use super::flags::EstimateFlags;
use crate::terminal::{Output, show_table};

/// The memory of the ranks of a plan.
#[derive(Serialize)]
pub(super) struct Planned {
    schedule: String,
    micro_batches: usize,
    ranks: Vec<PlannedRank>,
    /// The bytes of the stage with the most parameters, which are the least memory for values of a streamed model.
    streamed_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<DiskRate>,
    /// The prediction of a pass within the memory limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    streamed: Option<StreamPrediction>,
}

#[derive(Serialize)]
struct PlannedRank {
    rank: usize,
    #[serde(flatten)]
    memory: RankMemory,
    inference_bytes: u64,
    training_bytes: u64,
}

impl Planned {
    pub(super) fn of(mut plan: Plan, flags: &EstimateFlags) -> anyhow::Result<Self> {
        let micro_batches = flags.micro_batches.map(|count| count as usize);
        let states = flags.optimizer.map(|optimizer| optimizer.form().1);
        let step = Step {
            schedule: flags.schedule.unwrap_or(plan.step.schedule),
            micro_batches: micro_batches.unwrap_or(plan.step.micro_batches),
            optimizer_states: states.unwrap_or(plan.step.optimizer_states),
            ..plan.step.clone()
        };
        let predicted = plan.prediction.ranks.iter().map(|rank| rank.memory);
        let memories = match step == plan.step {
            true => predicted.collect(),
            false => plan.memory_with(&step)?,
        };
        let ranks = memories.into_iter().enumerate().map(|(rank, memory)| {
            let held = memory.parameters.saturating_add(memory.transient);
            PlannedRank {
                rank,
                memory,
                inference_bytes: held.saturating_add(memory.buffers),
                training_bytes: memory.total(),
            }
        });
        let stages = plan.stages.iter();
        let stages = stages.map(|stage| stage.parameter_bytes + stage.copy_bytes);
        let streamed_bytes = stages.max().unwrap_or(0);
        plan.step = step;
        let streamed = flags.stream.map(|bytes| plan.predict_streamed(bytes));
        let streamed = streamed.transpose().map_err(|error| {
            let (visit, least, limit) = (error.visit, error.least_bytes, error.budget_bytes);
            let needs = human_bytes_distinct(least, limit);
            let limit = human_bytes_distinct(limit, least);
            anyhow!(
                "stage {visit} needs {needs} for values, and --stream is {limit}: raise it, or use a plan with smaller stages"
            )
        })?;
        Ok(Self {
            schedule: plan.step.schedule.to_string(),
            micro_batches: plan.step.micro_batches,
            ranks: ranks.collect(),
            streamed_bytes,
            disk: plan.machine.disk,
            streamed,
        })
    }

    pub(super) fn show(&self, out: &mut Output) -> io::Result<()> {
        let count = count_text(self.micro_batches, "micro-batch");
        writeln!(out, "schedule {}, {count}", self.schedule)?;
        let rows = self.ranks.iter().map(|rank| {
            let sums = [rank.training_bytes, rank.inference_bytes].map(human_bytes);
            iter::once(rank.rank.to_string()).chain(sums).collect()
        });
        show_table(&["rank", "training", "inference"], &[0, 1, 2], rows, out)?;
        self.show_parts(out)?;
        show_streamed(self.streamed_bytes, "the largest stage", out)?;
        self.streamed
            .map_or(Ok(()), |pass| self.show_pass(&pass, out))
    }

    /// Prints the parts of the memory of training, in one unit.
    fn show_parts(&self, out: &mut Output) -> io::Result<()> {
        let parts = |rank: &PlannedRank| RankMemory::PARTS.map(|(_, bytes)| bytes(&rank.memory));
        let scale = Scale::bytes(self.ranks.iter().flat_map(parts));
        writeln!(out, "the parts of training, in {}:", scale.unit)?;
        let header = [&["rank"][..], &RankMemory::PARTS.map(|(name, _)| name)].concat();
        let rows = self.ranks.iter().map(|rank| {
            let numbers = parts(rank).map(|bytes| scale.number(bytes));
            iter::once(rank.rank.to_string()).chain(numbers).collect()
        });
        show_table(&header, &[0, 1, 2, 3, 4, 5, 6], rows, out)
    }

    fn show_pass(&self, pass: &StreamPrediction, out: &mut Output) -> io::Result<()> {
        let sizes = [pass.read_bytes, pass.kept_bytes, pass.peak_bytes];
        let [read, kept, peak] = sizes.map(human_bytes);
        out.sentence(&format!(
            "a pass reads {read}; {kept} of parameters remain in memory from pass to pass"
        ))?;
        out.sentence(&format!(
            "at its peak, a pass needs {peak} for parameters and activations"
        ))?;
        let times = [pass.pass_ns, pass.compute_ns, pass.read_ns];
        let [whole, compute, read] = times.map(time_text);
        out.sentence(&match self.disk.map(|disk| disk.bytes_per_s as f64 / 1e9) {
            Some(rate) => format!(
                "a pass takes {whole}: {compute} of computing, {read} of reading at {rate:.2} GB/s"
            ),
            None => format!(
                "a pass takes at least {compute} of computing; the time of reading is not known: the disk of the plan's machine \
                 was not measured (calibrate --disk)"
            ),
        })
    }
}

/// Prints the least memory for values of a streamed model, which are the bytes of its largest part.
pub(super) fn show_streamed(bytes: u64, part: &str, out: &mut Output) -> io::Result<()> {
    let least = human_bytes(bytes);
    out.sentence(&format!(
        "streamed from a disk, an evaluation needs at least {least} for values: {part}"
    ))
}
