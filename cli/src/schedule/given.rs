//! The schedule on the command line: a name or a file.

use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;
use tinderbox_schedule::{ChunkCounts, Dependencies, Schedule, ScheduleKind, Timeline, simulate};

use super::shape::Shape;
use crate::terminal::{name_of, read_text};

/// A schedule, and the size of its step.
#[derive(Args, Debug)]
pub(super) struct Given {
    /// Name of a schedule (see `schedule list`), or a file: rows of actions, torch's CSV, or JSON; `-` is
    /// standard input
    #[arg(value_name = "NAME|FILE")]
    schedule: String,
    #[command(flatten)]
    shape: Shape,
}

impl Given {
    /// Returns the schedule.
    pub(super) fn schedule(&self) -> anyhow::Result<Schedule> {
        let path = Path::new(&self.schedule);
        match self.schedule.parse::<ScheduleKind>() {
            Ok(kind) => {
                let one = self.shape.chunks.is_none() && kind.chunks() == ChunkCounts::One;
                self.shape.generate(kind, one.then_some(1))
            }
            Err(_) if self.schedule == "-" || path.exists() => self.read(path),
            Err(unknown) => bail!("{unknown}, and no file has this name"),
        }
    }

    fn read(&self, path: &Path) -> anyhow::Result<Schedule> {
        if self.shape.has_size() {
            bail!(
                "a schedule file specifies its stages and micro-batches: remove \
                   --stages, --micro-batches and --chunks"
            );
        }
        let (text, whole) = (read_text(path)?, name_of(path));
        let name = Path::new(&*whole).file_stem().unwrap_or_default();
        let schedule = Schedule::parse_any(&name.to_string_lossy(), &text);
        schedule.with_context(|| whole.into_owned())
    }

    /// Computes the times of a schedule that can run.
    pub(super) fn simulate(&self, schedule: &Schedule) -> anyhow::Result<Timeline> {
        let costs = self.shape.costs(&schedule.stage_to_rank)?;
        Ok(simulate(schedule, &chain(schedule), &costs)?)
    }
}

/// Returns the dependencies of the stages that a schedule has; its claims are verified.
pub(super) fn chain(schedule: &Schedule) -> Dependencies {
    Dependencies::chain(schedule.stage_to_rank.len())
}
