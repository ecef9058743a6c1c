//! `schedule verify`: reports whether a schedule can run.

use std::io::Write;

use clap::Args;
use serde::Serialize;
use tinderbox_schedule::LinkModel;

use super::given::Given;
use crate::{
    outcome::Outcome,
    terminal::{Output, one_line},
};

/// Arguments of `verify`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    #[command(flatten)]
    given: Given,
}

/// The answer: whether it can run, and how long a step takes, or why not.
#[derive(Serialize)]
struct Answer {
    name: String,
    link: LinkModel,
    runs: bool,
    step_ticks: Option<u64>,
    reason: Option<String>,
}

/// Verifies the schedule.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let schedule = flags.given.schedule(out)?;
    let name = one_line(&schedule.name);
    let (ticks, fault) = match flags.given.verify(&schedule) {
        Ok(()) => (Some(flags.given.simulate(&schedule)?.makespan()), None),
        Err(fault) => (None, Some(one_line(&fault.to_string()))),
    };
    let runs = fault.is_none();
    let link = flags.given.link;
    let answer = Answer {
        name,
        link,
        runs,
        step_ticks: ticks,
        reason: fault,
    };
    let links = match link {
        LinkModel::Unbounded => String::new(),
        _ => format!(" with --link {link}"),
    };
    let Answer { name, reason, .. } = &answer;
    out.answer(&answer, |out| match (reason, ticks) {
        (None, Some(ticks)) => writeln!(out, "{name} can run{links}: a step takes {ticks} ticks"),
        (reason, _) => writeln!(
            out,
            "{name} can't run{links}: {}",
            reason.as_deref().unwrap_or_default()
        ),
    })?;
    Ok(match runs {
        true => Outcome::Done,
        false => Outcome::No,
    })
}
