//! The schedule that the command line asks for: a name, or a file.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;
use tinderbox_schedule::{ChunkCounts, Schedule, ScheduleKind};

/// Which schedule, and for how many stages and micro-batches.
#[derive(Args, Debug)]
pub(crate) struct Given {
    /// Name of a schedule (see `schedule list`), or a file: rows of actions, torch's CSV, or JSON
    #[arg(value_name = "NAME|FILE")]
    schedule: String,
    /// Pipeline stages side by side, each on a rank of its own; a file says it itself
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u64).range(1..=4096))]
    stages: Option<u64>,
    /// Micro-batches of a step; a file says it itself
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    micro_batches: Option<u64>,
    /// Stages on each rank, for schedules that take several [default: 2]
    #[arg(long, value_name = "V", value_parser = clap::value_parser!(u64).range(1..=4096))]
    chunks: Option<u64>,
}

impl Given {
    /// The schedule.
    pub(crate) fn schedule(&self) -> anyhow::Result<Schedule> {
        let known = self.schedule.parse::<ScheduleKind>();
        let path = Path::new(&self.schedule);
        match known {
            Ok(kind) => self.generate(kind),
            Err(_) if path.exists() => self.read(path),
            Err(unknown) => bail!("{unknown}, and there is no such file"),
        }
    }

    fn generate(&self, kind: ScheduleKind) -> anyhow::Result<Schedule> {
        let (Some(stages), Some(micro_batches)) = (self.stages, self.micro_batches) else {
            bail!("a named schedule needs --stages and --micro-batches");
        };
        let chunks = self.chunks.unwrap_or(match kind.chunks() {
            ChunkCounts::One => 1,
            ChunkCounts::Two | ChunkCounts::Any => 2,
        });
        const MOST: u64 = 1 << 20;
        let programs = stages.saturating_mul(chunks).saturating_mul(micro_batches);
        if programs > MOST {
            bail!(
                "{programs} stages times micro-batches are more than a picture shows: {MOST} at most"
            );
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
                "a file says itself how many stages and micro-batches there are: leave \
                   --stages, --micro-batches and --chunks out"
            );
        }
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let name = path
            .file_stem()
            .map_or_else(String::new, |stem| stem.to_string_lossy().into());
        Schedule::parse_any(&name, &text).with_context(|| path.display().to_string())
    }
}
