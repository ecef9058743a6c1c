//! `schedule list`: the named schedules in a table.

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use tinderbox_schedule::{ChunkCounts, ScheduleKind, peak_activations, simulate};

use super::{given::chain, shape::Shape};
use crate::{
    outcome::Outcome,
    terminal::{Columns, Output},
};

/// Arguments of `list`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    #[command(flatten)]
    shape: Shape,
}

/// The answer.
#[derive(Serialize)]
struct Answer {
    schedules: Vec<Row>,
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
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let rows = ScheduleKind::ALL.into_iter();
    let rows = rows.map(|kind| row(&flags.shape, kind));
    let rows = rows.collect::<anyhow::Result<Vec<Row>>>()?;
    let answer = Answer { schedules: rows };
    out.answer(&answer, |out| table_of(&answer.schedules).show(out))?;
    Ok(Outcome::Done)
}

fn table_of(rows: &[Row]) -> Columns {
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
    table
}

fn row(shape: &Shape, kind: ScheduleKind) -> anyhow::Result<Row> {
    let schedule = shape.generate(
        kind,
        match kind.chunks() {
            ChunkCounts::One => Some(1),
            ChunkCounts::Two => Some(2),
            ChunkCounts::Any => None,
        },
    )?;
    let chunks = schedule.stages / schedule.world_size();
    let costs = shape
        .costs(&schedule.stage_to_rank)
        .with_context(|| kind.name())?;
    let timeline = simulate(&schedule, &chain(&schedule), &costs)?;
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
