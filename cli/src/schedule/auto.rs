//! `schedule auto`: finds a schedule.

use std::io::Write;

use anyhow::bail;
use clap::Args;
use tinderbox_schedule::{Auto, AutoOptions, Dependencies, Placement, auto, lower, simulate};

use super::{form::Form, shape::Shape};
use crate::{outcome::Outcome, terminal::Output};

/// Arguments of `auto`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    #[command(flatten)]
    shape: Shape,
    /// Micro-batches whose activations fit the memory of a rank: one number, or one for each rank
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
    memory: Vec<u64>,
    /// Actions that the search times; a million take about a tenth of a second
    #[arg(long, value_name = "ACTIONS", default_value_t = AutoOptions::default().effort_actions)]
    effort: u64,
    #[command(flatten)]
    form: Form,
}

/// Finds a schedule and prints it.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let [ranks, chunks, micro_batches] = flags.shape.size(None)?;
    // A micro-batch counts a byte on each stage.
    let bytes = |micro_batches: &u64| micro_batches.saturating_mul(chunks as u64);
    let limits: Option<Vec<u64>> = match &flags.memory[..] {
        [] => None,
        [one] => Some(vec![bytes(one); ranks]),
        all if all.len() == ranks => Some(all.iter().map(bytes).collect()),
        all => bail!(
            "--memory has {} limits for {ranks} ranks: use one, or one for each rank",
            all.len()
        ),
    };
    let options = AutoOptions {
        memory_limits: limits.as_deref(),
        effort_actions: flags.effort,
    };
    let dependencies = Dependencies::chain(ranks * chunks);
    let search = |placement: Placement| {
        let map = placement.stage_to_rank(ranks, chunks);
        let costs = flags.shape.costs(&map)?;
        let found = auto(&map, micro_batches, &dependencies, &costs, options)?;
        anyhow::Ok((found, costs))
    };
    let placements = match chunks {
        1 => &[Placement::Loop][..],
        _ => &[Placement::Loop, Placement::V],
    };
    let all = placements.iter().map(|placement| search(*placement));
    let all = all.collect::<anyhow::Result<Vec<_>>>()?;
    let best = all.into_iter().min_by_key(|(found, _)| found.makespan);
    let (found, costs) = best.expect("there is a placement");
    let predicted = simulate(&found.schedule, &dependencies, &costs)?;
    if flags.form.is_drawing(out) {
        writeln!(out, "{}", summary(&found))?;
    }
    let lower = |schedule: &_| Ok(lower(schedule, &dependencies));
    flags.form.print(found.schedule, &predicted, lower, out)?;
    Ok(Outcome::Done)
}

fn summary(found: &Auto) -> String {
    let named = match found.best_named {
        Some((kind, ticks)) => {
            format!("{kind}, the fastest named schedule that fits, takes {ticks}")
        }
        None => "no named schedule fits".to_owned(),
    };
    let Auto {
        schedule,
        makespan,
        lower_bound,
        ..
    } = found;
    format!(
        "{}: {makespan} ticks, at least {lower_bound} for these stages; {named}",
        schedule.name
    )
}
