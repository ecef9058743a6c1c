//! The commands on schedules.

use std::io::{self, Write};

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use tinderbox_schedule::{
    AutoOptions, ChunkCounts, Costs, Dependencies, LinkModel, Placement, Schedule, ScheduleKind,
    draw, lower_over, peak_activations, simulate,
};

use super::given::{Given, Shape, chain};
use crate::outcome::Outcome;
use crate::terminal::{Output, one_line, show_table};

/// The meaning of the figures, for the help of the commands that print them.
pub(crate) fn meanings() -> String {
    let lines = draw::meanings(false).map(|meaning| format!("\n  {meaning}"));
    let lines: String = lines.collect();
    format!(
        "Figures:{lines}\n  Idle time before the first action of a rank or after its last is no bubble:\n  the steps before and \
         after can use it."
    )
}

/// The costs of the schedules.
#[derive(Default, Serialize)]
struct Listed {
    schedules: Vec<Row>,
    /// The schedules that can't run with these arguments.
    omitted: Vec<Omitted>,
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

#[derive(Serialize)]
struct Omitted {
    name: ScheduleKind,
    reason: String,
}

/// Prints the costs of each schedule.
pub(crate) fn list(shape: &Shape, out: &mut Output) -> anyhow::Result<Outcome> {
    let mut listed = Listed::default();
    for kind in ScheduleKind::ALL {
        match row(shape, kind) {
            Ok(row) => listed.schedules.push(row),
            Err(error) => listed.omitted.push(Omitted {
                name: kind,
                reason: format!("{error:#}"),
            }),
        }
    }
    match &listed.omitted[..] {
        [first, ..] if listed.schedules.is_empty() => bail!("{}", first.reason),
        _ => out.answer(&listed, |out| listed.show(out)),
    }
}

impl Listed {
    fn show(&self, out: &mut Output) -> io::Result<()> {
        let header = ["schedule", "chunks", "step", "bubble", "idle", "peak"];
        let rows = self.schedules.iter().map(|row| {
            vec![
                row.name.to_string(),
                row.chunks.to_string(),
                format!("{} ticks", row.step_ticks),
                format!("{} ticks", row.bubble_ticks),
                format!("{:.1} %", row.idle_percent),
                format!("{:.1}", row.peak_micro_batches),
            ]
        });
        show_table(&header, &[1, 2, 3, 4, 5], rows, out)?;
        for meaning in draw::meanings(false) {
            writeln!(out, "{meaning}")?;
        }
        for same in self.omitted.chunk_by(|a, b| a.reason == b.reason) {
            let names: Vec<&str> = same.iter().map(|one| one.name.name()).collect();
            out.sentence(&format!("not listed: {}", same[0].reason))?;
            writeln!(out, "  {}", names.join(", "))?;
        }
        Ok(())
    }
}

fn row(shape: &Shape, kind: ScheduleKind) -> anyhow::Result<Row> {
    let chunks = shape.chunks.filter(|_| kind.chunks() == ChunkCounts::Any);
    let schedule = shape.generate(kind, chunks)?;
    let chunks = schedule.stages / schedule.world_size();
    let costs = shape.costs(&schedule.stage_to_rank)?;
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

/// Arguments of `show`.
#[derive(Args, Debug)]
pub(crate) struct ShowFlags {
    #[command(flatten)]
    given: Given,
    #[command(flatten)]
    form: Form,
}

/// Prints the schedule; an invalid one is an error.
pub(crate) fn show(flags: &ShowFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    let schedule = flags.given.schedule(out)?;
    let verified = flags.given.verify(&schedule);
    verified.with_context(|| format!("{} can't run", schedule.name))?;
    let costs = flags.given.costs(&schedule)?;
    flags.form.print(schedule, &costs, out)
}

/// Reports whether the schedule can run, and how long a step takes, or why not.
pub(crate) fn verify(given: &Given, out: &mut Output) -> anyhow::Result<Outcome> {
    #[derive(Serialize)]
    struct Answer {
        name: String,
        link: LinkModel,
        runs: bool,
        step_ticks: Option<u64>,
        reason: Option<String>,
    }
    let schedule = given.schedule(out)?;
    let (name, link) = (one_line(&schedule.name), given.link);
    let links = match link {
        LinkModel::Unbounded => String::new(),
        _ => format!(" with --link {link}"),
    };
    let ticks = match given.verify(&schedule) {
        Ok(()) => {
            let costs = given.costs(&schedule)?;
            Ok(simulate(&schedule, &chain(&schedule), &costs)?.makespan())
        }
        Err(fault) => Err(one_line(&fault.to_string())),
    };
    let text = match &ticks {
        Ok(ticks) => format!("{name} can run{links}: a step takes {ticks} ticks"),
        Err(reason) => format!("{name} can't run{links}: {reason}"),
    };
    let runs = ticks.is_ok();
    let answer = Answer {
        name,
        link,
        runs,
        step_ticks: ticks.as_ref().ok().copied(),
        reason: ticks.err(),
    };
    out.answer(&answer, |out| out.sentence(&text))?;
    Ok(Outcome::of_answer(runs))
}

/// Arguments of `auto`.
#[derive(Args, Debug)]
pub(crate) struct AutoFlags {
    #[command(flatten)]
    shape: Shape,
    /// The largest peak of a rank, in micro-batches: one number, or one for each rank
    #[arg(long, alias = "memory", value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
    peak: Vec<u64>,
    /// Actions that the search times; a million take about a tenth of a second
    #[arg(long, value_name = "ACTIONS", default_value_t = AutoOptions::default().effort_actions)]
    effort: u64,
    #[command(flatten)]
    form: Form,
}

/// Finds a schedule and prints it.
pub(crate) fn auto(flags: &AutoFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    let [ranks, chunks, micro_batches] = flags.shape.size(flags.shape.chunks.unwrap_or(2))?;
    // A micro-batch counts as one byte on each stage.
    let bytes = |micro_batches: &u64| micro_batches.saturating_mul(chunks as u64);
    let limits: Option<Vec<u64>> = match &flags.peak[..] {
        [] => None,
        [one] => Some(vec![bytes(one); ranks]),
        all if all.len() == ranks => Some(all.iter().map(bytes).collect()),
        all => bail!(
            "--peak has {} limits for {ranks} ranks: use one, or one for each rank",
            all.len()
        ),
    };
    let options = AutoOptions {
        memory_limits: limits.as_deref(),
        effort_actions: flags.effort,
    };
    let dependencies = Dependencies::chain(ranks * chunks);
    let search = |placement: &Placement| {
        let map = placement.stage_to_rank(ranks, chunks);
        let costs = flags.shape.costs(&map)?;
        let found = tinderbox_schedule::auto(&map, micro_batches, &dependencies, &costs, options)?;
        anyhow::Ok((found, costs))
    };
    let placements = match chunks {
        1 => &[Placement::Loop][..],
        _ => &[Placement::Loop, Placement::V],
    };
    let all = placements.iter().map(search);
    let all = all.collect::<anyhow::Result<Vec<_>>>()?;
    let best = all.into_iter().min_by_key(|(found, _)| found.makespan);
    let (found, costs) = best.expect("there is a placement");
    if flags.form.is_drawing(out) {
        let (name, ticks, least) = (&found.schedule.name, found.makespan, found.lower_bound);
        writeln!(
            out,
            "{name}: {ticks} ticks, at least {least} for these stages"
        )?;
        match found.best_named {
            Some((kind, ticks)) => writeln!(
                out,
                "{kind}, the fastest named schedule that fits, takes {ticks} ticks"
            )?,
            None => writeln!(out, "no named schedule fits")?,
        }
    }
    flags.form.print(found.schedule, &costs, out)
}

/// Default width without a terminal.
const WIDTH: usize = 100;

/// The form of the output: drawn for the terminal, unless specified.
#[derive(Args, Debug)]
struct Form {
    /// Print the picture as SVG
    #[arg(long, group = "form", conflicts_with = "json")]
    svg: bool,
    /// Print a trace for Perfetto or chrome://tracing
    #[arg(long, group = "form", conflicts_with = "json")]
    trace: bool,
    /// Print the action lists, one row per rank
    #[arg(long, group = "form", conflicts_with = "json")]
    actions: bool,
    /// Print the lists, or with --json the schedule, with sends, receives, reduces and updates
    #[arg(long, conflicts_with_all = ["svg", "trace"])]
    lowered: bool,
    /// Width of the drawing in columns, at least 40 [default: the terminal width, or 100]
    #[arg(long, value_name = "COLUMNS", value_parser = clap::value_parser!(u16).range(40..))]
    width: Option<u16>,
}

impl Form {
    /// Returns whether the output is the drawing for the terminal.
    fn is_drawing(&self, out: &Output) -> bool {
        !(self.svg || self.trace || self.actions || self.lowered || out.json)
    }

    /// Prints a schedule, or its predicted times.
    fn print(
        &self,
        mut schedule: Schedule,
        costs: &Costs,
        out: &mut Output,
    ) -> anyhow::Result<Outcome> {
        let dependencies = chain(&schedule);
        let predicted = simulate(&schedule, &dependencies, costs)?;
        let text = match () {
            () if self.is_drawing(out) => {
                let width = self.width.map(usize::from).or(out.width());
                draw::terminal(&predicted, width.unwrap_or(WIDTH), out.has_color())
            }
            () if self.svg => draw::svg(&[&predicted]),
            () if self.trace => draw::trace(&[&predicted]),
            () => {
                if self.lowered {
                    let (link, bytes) = (costs.link.model, &costs.message_bytes);
                    schedule = lower_over(&schedule, &dependencies, link, bytes)?;
                }
                return out.answer(&schedule, |out| writeln!(out, "{schedule}"));
            }
        };
        out.write_all(text.as_bytes())?;
        Ok(Outcome::DONE)
    }
}
