//! The schedule on the command line: a name or a file.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;
use tinderbox_schedule::{ChunkCounts, Schedule, ScheduleKind};

/// A schedule, and the numbers of stages and micro-batches.
#[derive(Args, Debug)]
pub(crate) struct Given {
    /// Name of a schedule (see `schedule list`), or a file: rows of actions, torch's CSV, or JSON
    #[arg(value_name = "NAME|FILE")]
    schedule: String,
    /// Pipeline stages in parallel, each on its own rank; only for named schedules
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u64).range(1..=4096))]
    stages: Option<u64>,
    /// Micro-batches per step; only for named schedules
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    micro_batches: Option<u64>,
    /// Stages on each rank, for schedules with several [default: 2]
    #[arg(long, value_name = "V", value_parser = clap::value_parser!(u64).range(1..=4096))]
    chunks: Option<u64>,
}

impl Given {
    /// Returns the schedule.
    pub(crate) fn schedule(&self) -> anyhow::Result<Schedule> {
        let known = self.schedule.parse::<ScheduleKind>();
        let path = Path::new(&self.schedule);
        match known {
            Ok(kind) => self.generate(kind),
            Err(_) if path.exists() => self.read(path),
            Err(unknown) => bail!("{unknown}, and no file has this name"),
        }
    }

    fn generate(&self, kind: ScheduleKind) -> anyhow::Result<Schedule> {
        let (Some(stages), Some(micro_batches)) = (self.stages, self.micro_batches) else {
            bail!("a named schedule requires --stages and --micro-batches");
        };
        let chunks = self.chunks.unwrap_or(match kind.chunks() {
            ChunkCounts::One => 1,
            ChunkCounts::Two | ChunkCounts::Any => 2,
        });
        const MOST: u64 = 1 << 20;
        let programs = stages.saturating_mul(chunks).saturating_mul(micro_batches);
        if programs > MOST {
            bail!("stages times micro-batches is {programs}, the maximum for drawing is {MOST}");
        }
        Ok(kind.generate(
            usize::try_from(stages)?,
            usize::try_from(chunks)?,
            usize::try_from(micro_batches)?,
        )?)
    }

    fn read(&self, path: &Path) -> anyhow::Result<Schedule> {
        if self.stages.is_some() || self.micro_batches.is_some() || self.chunks.is_some() {
            bail!(
                "a schedule file specifies its stages and micro-batches: remove \
                   --stages, --micro-batches and --chunks"
            );
        }
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let name = path
            .file_stem()
            .map_or_else(String::new, |stem| stem.to_string_lossy().into());
        Schedule::parse_any(&name, &text).with_context(|| path.display().to_string())
    }
}
