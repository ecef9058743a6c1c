//! `schedule list`: the named schedules in a table.

use std::io::Write;

use anyhow::bail;
use clap::Args;
use serde::Serialize;
use tinderbox_schedule::{
    ChunkCounts, Costs, Dependencies, ScheduleKind, peak_activations, simulate,
};

use super::times::Times;
use crate::{outcome::Outcome, terminal::Columns};

/// Arguments of `list`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Pipeline stages in parallel, each on its own rank
    #[arg(long, value_name = "P", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    stages: u64,
    /// Micro-batches per step
    #[arg(long, value_name = "M", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=512))]
    micro_batches: u64,
    /// Stages on each rank, for schedules with a variable number
    #[arg(long, value_name = "V", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=16))]
    chunks: u64,
    /// Ticks of F, I and W for all stages of a rank together, divided by its number of chunks
    #[arg(long, value_name = "F,I,W", default_value = "12,12,12")]
    times: Times,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The costs of a schedule.
#[derive(Serialize)]
struct Row {
    name: ScheduleKind,
    chunks: usize,
    step_ticks: u64,
    bubble_ticks: u64,
    idle_percent: f64,
    peak_micro_batches: f64,
}

/// Prints the costs of each schedule.
pub(crate) fn run(flags: &Flags, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let rows = ScheduleKind::ALL.into_iter().map(|kind| row(flags, kind));
    let rows = rows.collect::<anyhow::Result<Vec<Row>>>()?;
    if flags.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        return Ok(Outcome::Fine);
    }
    let header = ["schedule", "chunks", "step", "bubble", "idle", "peak"];
    let mut table = Columns::new(&header, &[1, 2, 3, 4, 5]);
    for row in rows {
        table.push(vec![
            row.name.to_string(),
            row.chunks.to_string(),
            format!("{} ticks", row.step_ticks),
            format!("{} ticks", row.bubble_ticks),
            format!("{:.1} %", row.idle_percent),
            format!("{:.1} micro-batches", row.peak_micro_batches),
        ]);
    }
    writeln!(out, "{}", table.show())?;
    Ok(Outcome::Fine)
}

fn row(flags: &Flags, kind: ScheduleKind) -> anyhow::Result<Row> {
    let chunks = match kind.chunks() {
        ChunkCounts::One => 1,
        ChunkCounts::Two => 2,
        ChunkCounts::Any => usize::try_from(flags.chunks)?,
    };
    let ranks = usize::try_from(flags.stages)?;
    let schedule = kind.generate(ranks, chunks, usize::try_from(flags.micro_batches)?)?;
    let share = |ticks: u64| match ticks % chunks as u64 {
        0 => Ok(ticks / chunks as u64),
        _ => bail!(
            "--times: {ticks} ticks are not divisible by the {chunks} chunks of {kind}: use a multiple"
        ),
    };
    let mut times = flags.times.0;
    times.forward = share(times.forward)?;
    times.input_gradient = share(times.input_gradient)?;
    times.weight_gradient = share(times.weight_gradient)?;
    let costs = Costs::uniform(schedule.stages, times);
    let timeline = simulate(&schedule, &Dependencies::chain(schedule.stages), &costs)?;
    let peak = peak_activations(&schedule).into_iter().max().unwrap_or(0);
    Ok(Row {
        name: kind,
        chunks,
        step_ticks: timeline.makespan(),
        bubble_ticks: timeline.largest_bubble(),
        idle_percent: 100.0 * timeline.idle_share(),
        peak_micro_batches: peak as f64 / chunks as f64,
    })
}
