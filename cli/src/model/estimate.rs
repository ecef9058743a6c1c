//! `model estimate`: the memory that a model needs, from the sizes of its parameters or from a plan.

use std::io::{self, Read, Write};
use std::iter;
use std::path::PathBuf;

use anyhow::bail;
use burn::tensor::DType;
use clap::{Args, ValueEnum};
use serde::Serialize;
use tinderbox_checkpoint::Role;
use tinderbox_deferred::{RecordedModel, human_bytes, human_bytes_distinct};
use tinderbox_ids::text::parse_bytes;
use tinderbox_planner::{
    DiskRate, Plan, RankMemory, StageBytes, Step, StreamPrediction, UPDATE_VALUES,
};
use tinderbox_schedule::ScheduleKind;

use super::save::float_types;
use crate::ckpt::open_weights;
use crate::outcome::{No, Outcome};
use crate::terminal::{Output, read_text, show_table, visible};

/// Arguments of `estimate`.
#[derive(Args, Debug)]
pub(crate) struct EstimateFlags {
    /// Files of weights, a step or run directory, the file of a recorded model, or a plan file
    #[arg(value_name = "DIR_OR_FILE")]
    from: PathBuf,
    /// The dtype of float parameters [default: their own]
    #[arg(long, value_parser = float_types())]
    dtype: Option<DType>,
    /// The optimizer: its state is a multiple of the trainable parameters [default: adam, or the optimizer of the plan]
    #[arg(long, value_enum)]
    optimizer: Option<Optimizer>,
    /// Another schedule for a plan, by name or alias (`tinderbox schedule list`)
    #[arg(long, value_name = "NAME")]
    schedule: Option<ScheduleKind>,
    /// Another number of micro-batches for a plan, of the same size
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    micro_batches: Option<u32>,
    /// Number of ranks that share the parameters, as whole tensors [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks: Option<u32>,
    /// Also predict a pass of a plan over the model, read from a disk, with this memory for parameters and activations
    /// (`MemoryBudget::Values`), such as 600MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory: Option<u64>,
}

/// The optimizers, by the number of values that they keep for each trainable value.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Optimizer {
    /// No state
    Sgd = 0,
    /// One value each
    Momentum = 1,
    /// Two values each: Adam and AdamW
    #[default]
    Adam = 2,
}

/// Prints the estimate.
pub(crate) fn estimate(flags: &EstimateFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    match Source::open(flags)? {
        Source::Plan(plan) => {
            if flags.dtype.is_some() || flags.ranks.is_some() {
                bail!("a plan has its own dtypes and ranks: leave out --dtype and --ranks");
            }
            let planned = Planned::of(&plan, flags)?;
            out.answer(&planned, |out| planned.show(out))
        }
        Source::Parameters(parameters) => {
            if flags.memory.is_some() || flags.schedule.is_some() || flags.micro_batches.is_some() {
                bail!(
                    "a step and a pass are predicted from a plan: leave out --memory, --schedule and --micro-batches, or use a \
                     plan file"
                );
            }
            let estimate = Estimate::of(&parameters, flags.ranks.unwrap_or(1));
            out.answer(&estimate, |out| estimate.show(out))
        }
    }
}

/// The source of an estimate.
enum Source {
    Plan(Box<Plan>),
    Parameters(Vec<Parameter>),
}

/// A parameter, and the bytes that training holds for it.
struct Parameter {
    name: String,
    elements: u64,
    bytes: StageBytes,
}

impl Source {
    fn open(flags: &EstimateFlags) -> anyhow::Result<Self> {
        let from = &*flags.from;
        let name = from.file_name().and_then(|name| name.to_str());
        let mut of_weights = [".safetensors", ".bpk", ".safetensors.index.json"].into_iter();
        if !from.is_file() || name.is_some_and(|name| of_weights.any(|end| name.ends_with(end))) {
            let weights = open_weights(from)?;
            let parameters = weights.as_ref().tensors(Role::Model).map(|tensor| {
                let (elements, dtype) = (tensor.shape.iter().product(), tensor.dtype.burn());
                // Files do not contain which parameters are trainable.
                flags.parameter(tensor.name.clone(), elements, dtype, dtype.is_float())
            });
            return Ok(Self::Parameters(parameters.collect()));
        }
        // With the byte order mark that some editors write.
        let mut first = Vec::new();
        std::fs::File::open(from)?.take(4).read_to_end(&mut first)?;
        let text = first.strip_prefix("\u{feff}".as_bytes());
        if text.unwrap_or(&first).starts_with(b"{") {
            let plan = Plan::from_json(&read_text(from)?)?;
            return Ok(Self::Plan(Box::new(plan)));
        }
        let model = RecordedModel::load(from)?;
        let parameters = model.parameters().distinct().map(|one| {
            let name = one.path.to_string();
            flags.parameter(name, one.elements(), one.dtype, one.trainable)
        });
        Ok(Self::Parameters(parameters.collect()))
    }
}

impl EstimateFlags {
    /// Returns a parameter with its bytes in the requested dtype.
    fn parameter(&self, name: String, elements: u64, dtype: DType, trainable: bool) -> Parameter {
        let cast = self.dtype.filter(|_| dtype.is_float());
        let bytes = elements.saturating_mul(cast.unwrap_or(dtype).size() as u64);
        let trained = if trainable { bytes } else { 0 };
        let states = self.optimizer.unwrap_or_default() as u64;
        let bytes = StageBytes {
            parameters: bytes,
            gradients: trained,
            optimizer: trained.saturating_mul(states),
        };
        Parameter {
            name,
            elements,
            bytes,
        }
    }
}

/// The estimate from sizes.
#[derive(Serialize)]
struct Estimate {
    tensors: usize,
    parameters: u64,
    ranks: u32,
    /// The bytes of the whole model.
    all: StageBytes,
    /// The bytes of the rank with the most bytes.
    largest_rank: StageBytes,
    inference_bytes: u64,
    /// The bytes of the rank with the most parameters.
    largest_rank_inference_bytes: u64,
    /// The temporary bytes of an optimizer, for the largest parameter that it updates.
    update_bytes: u64,
    training_bytes: u64,
    largest_parameter: String,
    /// The bytes of the largest parameter, which are the least memory for values of a streamed model.
    streamed_bytes: u64,
}

impl Estimate {
    fn of(parameters: &[Parameter], ranks: u32) -> Self {
        let mut sizes: Vec<StageBytes> = parameters.iter().map(|one| one.bytes).collect();
        let all = (sizes.iter().copied()).fold(StageBytes::default(), StageBytes::plus);
        let updated = sizes.iter().map(|bytes| bytes.gradients).max();
        let update_bytes = updated.unwrap_or(0).saturating_mul(UPDATE_VALUES);
        // The largest first, each to the rank with the fewest bytes.
        sizes.sort_by_key(|bytes| std::cmp::Reverse(bytes.resident()));
        let mut loads = vec![StageBytes::default(); ranks as usize];
        for bytes in sizes {
            let least = loads.iter_mut().min_by_key(|load| load.resident());
            let least = least.expect("there is a rank");
            *least = least.plus(bytes);
        }
        let most = loads.iter().map(|load| load.parameters).max();
        let largest_rank = loads.iter().max_by_key(|load| load.resident()).copied();
        let largest = parameters.iter().max_by_key(|one| one.bytes.parameters);
        Self {
            tensors: parameters.len(),
            parameters: parameters.iter().map(|parameter| parameter.elements).sum(),
            ranks,
            inference_bytes: all.parameters,
            largest_rank_inference_bytes: most.unwrap_or(0),
            update_bytes,
            training_bytes: all.resident().saturating_add(update_bytes),
            all,
            largest_rank: largest_rank.unwrap_or_default(),
            largest_parameter: largest.map(|one| one.name.clone()).unwrap_or_default(),
            streamed_bytes: largest.map_or(0, |one| one.bytes.parameters),
        }
    }

    fn show(&self, out: &mut Output) -> io::Result<()> {
        let (parameters, tensors, ranks) = (self.parameters, self.tensors, self.ranks);
        write!(out, "{parameters} parameters in {tensors} tensors, ")?;
        writeln!(out, "{ranks} rank(s)")?;
        let header = match ranks {
            1 => vec!["", "bytes"],
            _ => vec!["", "all ranks", "largest rank"],
        };
        let (all, largest, update) = (self.all, self.largest_rank, self.update_bytes);
        let most = self.largest_rank_inference_bytes;
        let trained = largest.resident().saturating_add(update);
        let rows = [
            ("parameters", all.parameters, largest.parameters),
            ("gradients", all.gradients, largest.gradients),
            ("optimizer", all.optimizer, largest.optimizer),
            ("update", update, update),
            ("inference", self.inference_bytes, most),
            ("training", self.training_bytes, trained),
        ];
        let rows = rows.map(|(name, of_all, of_largest)| {
            let bytes = [of_all, of_largest].map(human_bytes);
            [&[name.to_owned()][..], &bytes[..header.len() - 1]].concat()
        });
        show_table(&header, &[1, 2][..header.len() - 1], rows, out)?;
        let largest = visible(&self.largest_parameter);
        let what = format!("the bytes of {largest} in this dtype");
        show_streamed(self.streamed_bytes, &what, out)?;
        writeln!(
            out,
            "gradients and the optimizer's state have the dtype of the parameters\n\
             activations are not counted: a plan has them (model estimate plan.json)"
        )
    }
}

/// Prints the least memory for values of a streamed model, which are the bytes of its largest part.
fn show_streamed(bytes: u64, part: &str, out: &mut Output) -> io::Result<()> {
    let least = human_bytes(bytes);
    writeln!(
        out,
        "evaluation, streamed from a disk: at least {least} for values, {part}"
    )
}

/// The memory of the ranks of a plan.
#[derive(Serialize)]
struct Planned {
    schedule: String,
    micro_batches: usize,
    ranks: Vec<PlannedRank>,
    /// The bytes of the stage with the most parameters, which are the least memory for values of a streamed model.
    streamed_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<DiskRate>,
    /// The prediction of a pass within the memory limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    streamed: Option<StreamPrediction>,
}

#[derive(Serialize)]
struct PlannedRank {
    rank: usize,
    #[serde(flatten)]
    memory: RankMemory,
    inference_bytes: u64,
    training_bytes: u64,
}

impl Planned {
    fn of(plan: &Plan, flags: &EstimateFlags) -> anyhow::Result<Self> {
        let micro_batches = flags.micro_batches.map(|count| count as usize);
        let states = flags.optimizer.map(|optimizer| optimizer as u64);
        let step = Step {
            schedule: flags.schedule.unwrap_or(plan.step.schedule),
            micro_batches: micro_batches.unwrap_or(plan.step.micro_batches),
            optimizer_states: states.unwrap_or(plan.step.optimizer_states),
            ..plan.step.clone()
        };
        let predicted = plan.prediction.ranks.iter().map(|rank| rank.memory);
        let memories = match step == plan.step {
            true => predicted.collect(),
            false => plan.memory_with(&step)?,
        };
        let ranks = memories.into_iter().enumerate().map(|(rank, memory)| {
            let held = memory.parameters.saturating_add(memory.transient);
            PlannedRank {
                rank,
                memory,
                inference_bytes: held.saturating_add(memory.buffers),
                training_bytes: memory.total(),
            }
        });
        let stages = plan.stages.iter();
        let stages = stages.map(|stage| stage.parameter_bytes + stage.copy_bytes);
        let mut other = plan.clone();
        other.step = step.clone();
        let streamed = flags.memory.map(|bytes| other.predict_streamed(bytes));
        let streamed = streamed.transpose().map_err(|error| {
            let (visit, least, limit) = (error.visit, error.least_bytes, error.budget_bytes);
            let needs = human_bytes_distinct(least, limit);
            let limit = human_bytes_distinct(limit, least);
            No(format!(
                "stage {visit} needs {needs} for values, and --memory is {limit}: raise it, or plan smaller stages \
                 (`Trace::plan_streamed`)"
            ))
        })?;
        Ok(Self {
            schedule: step.schedule.to_string(),
            micro_batches: step.micro_batches,
            ranks: ranks.collect(),
            streamed_bytes: stages.max().unwrap_or(0),
            disk: plan.machine.disk,
            streamed,
        })
    }

    fn show(&self, out: &mut Output) -> io::Result<()> {
        let (schedule, count) = (&self.schedule, self.micro_batches);
        writeln!(out, "schedule {schedule}, {count} micro-batches")?;
        let parts = RankMemory::PARTS.map(|(name, _)| name);
        let header = [&["rank"][..], &parts, &["training", "inference"]].concat();
        let rows = self.ranks.iter().map(|rank| {
            let parts = RankMemory::PARTS.map(|(_, bytes)| bytes(&rank.memory));
            let sums = [rank.training_bytes, rank.inference_bytes];
            let bytes = parts.into_iter().chain(sums).map(human_bytes);
            iter::once(rank.rank.to_string()).chain(bytes).collect()
        });
        show_table(&header, &[1, 2, 3, 4, 5, 6, 7, 8], rows, out)?;
        show_streamed(self.streamed_bytes, "the largest stage", out)?;
        let Some(pass) = &self.streamed else {
            return Ok(());
        };
        let sizes = [pass.read_bytes, pass.kept_bytes, pass.peak_bytes];
        let [read, kept, peak] = sizes.map(human_bytes);
        write!(out, "a pass reads {read}, and {kept} stay; ")?;
        writeln!(out, "{peak} at its peak")?;
        let giga = |number: u64| number as f64 / 1e9;
        let [whole, compute, read] = [pass.pass_ns, pass.compute_ns, pass.read_ns].map(giga);
        match self.disk.map(|disk| giga(disk.bytes_per_s)) {
            Some(rate) => writeln!(
                out,
                "it takes {whole:.3} s: {compute:.3} s of computing, {read:.3} s of reading at {rate:.2} GB/s"
            ),
            None => writeln!(
                out,
                "it takes at least {compute:.3} s of computing: the disk of the plan's machine was not measured \
                 (calibrate --disk)"
            ),
        }
    }
}
