//! `schedule show`: prints a schedule.

use anyhow::Context;
use clap::Args;

use super::form::Form;
use super::given::Given;
use crate::{outcome::Outcome, terminal::Output};

/// Arguments of `show`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    #[command(flatten)]
    given: Given,
    #[command(flatten)]
    form: Form,
}

/// Prints the schedule; an invalid one is an error.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let schedule = flags.given.schedule(out)?;
    let given = &flags.given;
    given
        .verify(&schedule)
        .with_context(|| format!("{} can't run", schedule.name))?;
    let predicted = given.simulate(&schedule)?;
    let lower = |schedule: &_| given.lower(schedule);
    flags.form.print(schedule, &predicted, lower, out)?;
    Ok(Outcome::Done)
}
