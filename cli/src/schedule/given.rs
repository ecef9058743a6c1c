//! The schedule on the command line: a name or a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use tinderbox_schedule::{
    Action, ChunkCounts, Compute, Dependencies, Edge, LinkModel, Schedule, ScheduleKind, Timeline,
    VerifyError, lower_over, simulate, verify_over,
};

use super::shape::Shape;
use crate::terminal::{Output, name_of, read_text};

/// A schedule, and the size of its step.
#[derive(Args, Debug)]
pub(super) struct Given {
    /// Name of a schedule (see `schedule list`), or a file: rows of actions, CSV of PyTorch's `_dump_csv`, or JSON; `-`
    /// is standard input
    #[arg(value_name = "NAME|FILE")]
    schedule: PathBuf,
    #[command(flatten)]
    shape: Shape,
    /// When a send waits: unbounded (never), messages:K, bytes:N (when the link stores as many), rendezvous (for the
    /// receiver), or queue (never, but sends and receives of two ranks are transferred in one order)
    #[arg(long, value_name = "MODEL", default_value_t)]
    pub(super) link: LinkModel,
    /// Bytes of each message, for --link bytes:N
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    message_bytes: u64,
}

impl Given {
    /// Returns the schedule. Prints a note if a file's numbers of micro-batches may be others than here.
    pub(super) fn schedule(&self, out: &Output) -> anyhow::Result<Schedule> {
        let path = &*self.schedule;
        match path.to_string_lossy().parse::<ScheduleKind>() {
            Ok(kind) => {
                let one = self.shape.chunks.is_none() && kind.chunks() == ChunkCounts::One;
                self.shape.generate(kind, one.then_some(1))
            }
            Err(_) if path == Path::new("-") || path.exists() => {
                let schedule = self.read(path)?;
                if !runs_forwards_in_order(&schedule) {
                    out.note(&format!(
                        "{} runs forwards and backwards in different orders of micro-batches: they are numbered in the \
                         order of the backwards, in which gradients are added",
                        schedule.name
                    ));
                }
                Ok(schedule)
            }
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
        let mut costs = self.shape.costs(&schedule.stage_to_rank)?;
        costs.message_bytes = self.message_bytes(schedule);
        costs.link.model = self.link;
        Ok(simulate(schedule, &chain(schedule), &costs)?)
    }

    /// Verifies a schedule.
    pub(super) fn verify(&self, schedule: &Schedule) -> Result<(), VerifyError> {
        let bytes = self.message_bytes(schedule);
        verify_over(schedule, &chain(schedule), self.link, &bytes)
    }

    /// Lowers a schedule.
    pub(super) fn lower(&self, schedule: &Schedule) -> anyhow::Result<Schedule> {
        let bytes = self.message_bytes(schedule);
        Ok(lower_over(schedule, &chain(schedule), self.link, &bytes)?)
    }

    fn message_bytes(&self, schedule: &Schedule) -> BTreeMap<Edge, u64> {
        let chain = chain(schedule);
        let edges = chain.edges().iter();
        edges.map(|edge| (*edge, self.message_bytes)).collect()
    }
}

/// Returns whether every stage runs its forwards in the order of the numbers of micro-batches.
fn runs_forwards_in_order(schedule: &Schedule) -> bool {
    let mut last = BTreeMap::new();
    let mut tasks = schedule.ranks.iter().flatten().flat_map(Action::tasks);
    tasks.all(|task| {
        task.compute != Compute::Forward
            || last
                .insert(task.stage, task.micro_batch)
                .is_none_or(|before| before <= task.micro_batch)
    })
}

/// Returns the dependencies of the stages that a schedule has; its claims are verified.
pub(super) fn chain(schedule: &Schedule) -> Dependencies {
    Dependencies::chain(schedule.stage_to_rank.len())
}
