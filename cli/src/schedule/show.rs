//! `schedule show`: prints a schedule.

use anyhow::Context;
use clap::Args;
use tinderbox_schedule::verify;

use super::form::Form;
use super::given::{Given, chain};
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
    let schedule = flags.given.schedule()?;
    verify(&schedule, &chain(&schedule)).with_context(|| format!("{} can't run", schedule.name))?;
    let predicted = flags.given.simulate(&schedule)?;
    flags.form.print(schedule, &predicted, out)?;
    Ok(Outcome::Done)
}
