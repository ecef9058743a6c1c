//! The arguments that specify a schedule: a name or a file, and the size and the times of a step.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Error, bail};
use clap::builder::{PathBufValueParser, PossibleValue, TypedValueParser};
use clap::{Arg, Args, Command};
use tinderbox_ids::text::count_text;
use tinderbox_schedule::{
    Action, ChunkCounts, Compute, ComputeTimes, Costs, Dependencies, Edge, LinkModel, RankIndex,
    Schedule, ScheduleKind, StageCosts, VerifyError, verify_over,
};

use crate::terminal::{Output, name_of, read_text, unexpected};

/// The maximum number of programs of a step: stages times micro-batches.
const MOST_PROGRAMS: u64 = 1 << 20;

/// The size and the times of a step.
#[derive(Args, Debug)]
pub(crate) struct Shape {
    /// Ranks of the pipeline [default: 4]
    #[arg(long, alias = "stages", value_name = "P", value_parser = clap::value_parser!(u64).range(1..=4096))]
    ranks: Option<u64>,
    /// Micro-batches per step [default: 8]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    micro_batches: Option<u64>,
    /// Stages on each rank, for schedules with a variable number [default: 2]
    #[arg(long, value_name = "V", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub(super) chunks: Option<u64>,
    /// Ticks of F, I and W of one micro-batch on a rank, divided among its stages; B takes as long as I and W
    #[arg(long, value_name = "F,I,W", default_value = "12,12,12", allow_hyphen_values = true, value_parser = parse_times)]
    times: ComputeTimes,
    /// Ticks from the end of a send to its arrival
    #[arg(long, value_name = "TICKS", default_value_t = 0)]
    latency: u64,
}

impl Shape {
    /// Returns the numbers of ranks, stages on each rank and micro-batches.
    pub(super) fn size(&self, chunks: u64) -> anyhow::Result<[usize; 3]> {
        let (ranks, micro_batches) = (self.ranks.unwrap_or(4), self.micro_batches.unwrap_or(8));
        let programs = ranks.saturating_mul(chunks).saturating_mul(micro_batches);
        if programs > MOST_PROGRAMS {
            bail!("stages times micro-batches is {programs}, the maximum is {MOST_PROGRAMS}");
        }
        // Each number is at most the maximum, so it fits.
        Ok([ranks, chunks, micro_batches].map(|number| number as usize))
    }

    /// Generates a named schedule, with a number of stages on each rank or the default of the schedule.
    pub(super) fn generate(
        &self,
        kind: ScheduleKind,
        chunks: Option<u64>,
    ) -> anyhow::Result<Schedule> {
        let default = match kind.chunks() {
            ChunkCounts::One => 1,
            ChunkCounts::Two | ChunkCounts::Any => 2,
        };
        let [ranks, chunks, micro_batches] = self.size(chunks.unwrap_or(default))?;
        Ok(kind.generate(ranks, chunks, micro_batches)?)
    }

    /// Returns the costs of stages: each has an equal fraction of the times of its rank.
    pub(super) fn costs(&self, stage_to_rank: &[RankIndex]) -> anyhow::Result<Costs> {
        let mut counts: BTreeMap<RankIndex, u64> = BTreeMap::new();
        for rank in stage_to_rank {
            *counts.entry(*rank).or_default() += 1;
        }
        let stages = stage_to_rank.iter().map(|rank| counts[rank]);
        let stages = stages.map(|count| divided(self.times, count));
        let mut costs = Costs::of_stages(stages.collect::<anyhow::Result<_>>()?);
        costs.link.latency = self.latency;
        Ok(costs)
    }
}

/// Returns the costs of one of the stages of a rank with these times.
fn divided(times: ComputeTimes, stages: u64) -> anyhow::Result<StageCosts> {
    let divided = |ticks: u64| match ticks % stages {
        0 => Ok(ticks / stages),
        _ => bail!(
            "{} of --times can't be divided among the {stages} stages of a rank: use multiples of {stages}",
            count_text(ticks as usize, "tick")
        ),
    };
    Ok(StageCosts::of(ComputeTimes {
        forward: divided(times.forward)?,
        input_gradient: divided(times.input_gradient)?,
        weight_gradient: divided(times.weight_gradient)?,
    }))
}

/// Parses `F,I,W` in ticks.
fn parse_times(text: &str) -> Result<ComputeTimes, String> {
    let numbers = text.split(',').map(|part| part.trim().parse());
    match numbers.collect::<Result<Vec<u64>, _>>().as_deref() {
        Ok(&[forward, input_gradient, weight_gradient]) => Ok(ComputeTimes {
            forward,
            input_gradient,
            weight_gradient,
        }),
        _ => Err("expected three whole numbers: ticks of F, I and W, such as 24,24,12".into()),
    }
}

/// A schedule, and its links.
#[derive(Args, Debug)]
pub(crate) struct Given {
    /// Name of a schedule (see `schedule list`), or a file: rows of actions, or CSV of PyTorch's `_dump_csv`; `-` is
    /// standard input
    #[arg(value_name = "NAME|FILE", value_parser = OfNames(PathBufValueParser::new()), hide_possible_values = true)]
    schedule: PathBuf,
    #[command(flatten)]
    shape: Shape,
    /// When a send waits: unbounded (never), messages:K or bytes:N (while the link stores K messages or N bytes), rendezvous
    /// (for the receiver), or queue (never, but sends and receives of two ranks are transferred in one order)
    #[arg(long, value_name = "MODEL", default_value_t)]
    pub(super) link: LinkModel,
    /// Bytes of each message, for --link bytes:N
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    message_bytes: u64,
}

impl Given {
    /// Returns the schedule. Prints a note if its numbers of micro-batches may differ from the numbers in the file.
    pub(super) fn schedule(&self, out: &Output) -> anyhow::Result<Schedule> {
        let path = &*self.schedule;
        match path.to_string_lossy().parse::<ScheduleKind>() {
            Ok(kind) => self.shape.generate(kind, self.shape.chunks),
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
        let shape = &self.shape;
        if shape.ranks.is_some() || shape.micro_batches.is_some() || shape.chunks.is_some() {
            bail!(
                "a schedule file specifies its ranks and micro-batches: remove --ranks, --micro-batches and --chunks"
            );
        }
        let (text, whole) = (read_text(path)?, name_of(path));
        let name = Path::new(&*whole).file_stem().unwrap_or_default();
        let schedule = Schedule::parse_any(&name.to_string_lossy(), &text);
        schedule.map_err(|error| {
            let other = unexpected(path, text.as_bytes(), "rows of actions", &[]);
            other.unwrap_or_else(|| Error::new(error).context(whole.into_owned()))
        })
    }

    /// Returns the costs of a schedule, with its links.
    pub(super) fn costs(&self, schedule: &Schedule) -> anyhow::Result<Costs> {
        let mut costs = self.shape.costs(&schedule.stage_to_rank)?;
        costs.message_bytes = self.message_bytes(schedule);
        costs.link.model = self.link;
        Ok(costs)
    }

    /// Verifies a schedule.
    pub(super) fn verify(&self, schedule: &Schedule) -> Result<(), VerifyError> {
        let bytes = self.message_bytes(schedule);
        verify_over(schedule, &chain(schedule), self.link, &bytes)
    }

    fn message_bytes(&self, schedule: &Schedule) -> BTreeMap<Edge, u64> {
        let chain = chain(schedule);
        let edges = chain.edges().iter();
        edges.map(|edge| (*edge, self.message_bytes)).collect()
    }
}

/// Another parser, for a value that can be the name of a schedule. The completions of a shell offer the names.
#[derive(Clone)]
pub(crate) struct OfNames<P>(pub(crate) P);

impl<P: TypedValueParser> TypedValueParser for OfNames<P> {
    type Value = P::Value;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<P::Value, clap::Error> {
        self.0.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = ScheduleKind::ALL.map(ScheduleKind::name);
        Some(Box::new(names.into_iter().map(PossibleValue::new)))
    }
}

/// Returns whether every stage runs its forwards in the order of the numbers of micro-batches.
fn runs_forwards_in_order(schedule: &Schedule) -> bool {
    let mut last = BTreeMap::new();
    let mut tasks = schedule.ranks.iter().flatten().flat_map(Action::tasks);
    tasks.all(|task| {
        let mut insert = || last.insert(task.stage, task.micro_batch);
        let is_next = |before| before <= task.micro_batch;
        task.compute != Compute::Forward || insert().is_none_or(is_next)
    })
}

/// Returns the dependencies of as many stages as the map of a schedule has, because its other numbers are not verified yet.
pub(super) fn chain(schedule: &Schedule) -> Dependencies {
    Dependencies::chain(schedule.stage_to_rank.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_numbers() {
        let times = parse_times(" 3, 2,1").unwrap();
        let found = (times.forward, times.input_gradient, times.weight_gradient);
        assert_eq!(found, (3, 2, 1));
        for wrong in ["", "1", "1,2", "1,2,3,4", "1,2,x", "1,2,-3"] {
            assert!(parse_times(wrong).is_err(), "{wrong}");
        }
    }
}
