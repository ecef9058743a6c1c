//! Planning with the settings of the flags.

use anyhow::{Context, Result};
use burn::tensor::Device;
use indicatif::{ProgressBar, ProgressStyle};
use tinderbox::error::PlanError;
use tinderbox::pipeline::{OperationTimes, Profiler};
use tinderbox::planner::{MachineError, PlannerError};
use tinderbox::{Batch, Machine, Plan, Planner, Trace};

use crate::flags::{AUTO, Flags, usage};
use crate::report::say;

/// Directory of measured block times, by graph and device.
const PROFILES: &str = "target/profiles";

/// Plans with the traced number of micro-batches, or with the best number for the traced batch.
pub fn plan<B: Batch>(trace: &Trace<B>, flags: &Flags, device: &Device) -> Result<Plan> {
    let mut planner = Planner::new(trace, &machine(flags)?)
        .schedule(flags.schedule)
        .replicas(flags.replicas)
        .partitioner(flags.partitioner);
    if flags.micro_batches == AUTO {
        planner = planner.choose_micro_batches();
    }
    if flags.profile {
        planner = planner.times(measure(trace, flags, device)?);
    }
    match planner.plan() {
        Err(PlanError::Planner(error @ PlannerError::TooManyStages { .. })) => {
            usage(&format!("--stages: {error}"))
        }
        Err(PlanError::Machine(error @ MachineError::Replicas { .. })) => {
            usage(&format!("--replicas: {error}"))
        }
        Err(PlanError::Planner(error @ PlannerError::NotBuiltIn { .. })) => {
            usage(&format!("--partitioner: {error}"))
        }
        plan => Ok(plan?),
    }
}

/// Returns the machine of the machine file, or this machine with default figures.
fn machine(flags: &Flags) -> Result<Machine> {
    let machine = match &flags.machine {
        Some(path) => {
            Machine::load(path).with_context(|| format!("--machine {}", path.display()))?
        }
        None => Machine::local(flags.ranks())?,
    };
    if machine.ranks() != flags.ranks() {
        let (ranks, stages) = (machine.ranks(), flags.stages);
        let replicas = match flags.replicas {
            1 => String::new(),
            replicas => format!(" of {replicas} replicas"),
        };
        let advice = match ranks.checked_rem(flags.replicas) {
            Some(0) => format!("use --stages {}", ranks / flags.replicas),
            _ => format!("use a number of replicas that divides {ranks}"),
        };
        usage(&format!(
            "--machine has {ranks} ranks and --stages is {stages}{replicas}: {advice}"
        ));
    }
    let (chunks, placement) = flags.chunks();
    Ok(machine.with_chunks(chunks, placement)?)
}

/// Measures the time of each block of the model on a device, with all ranks running.
fn measure<B: Batch>(trace: &Trace<B>, flags: &Flags, device: &Device) -> Result<OperationTimes> {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} blocks measured, now {msg}")?;
    let bar = ProgressBar::new(0).with_style(style);
    let profile = Profiler::new(trace)
        .device(device)
        .depth(3)
        .beside(flags.ranks())
        .cache(PROFILES)
        .progress(|done, all, name| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            bar.set_message(name.to_owned());
        })
        .measure()?;
    bar.finish_and_clear();
    say!("\n{profile}");
    Ok(profile.times(trace)?)
}
