//! A picture of a measured step and its prediction.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use tinderbox::pipeline::ScheduleChoice;
use tinderbox::schedule::{Costs, Dependencies, TimeUnit, Timeline, draw, simulate};

/// Writes both to one file. The prediction uses the median times of the measured step.
pub fn write(
    path: &Path,
    choice: &ScheduleChoice,
    dependencies: &Dependencies,
    costs: Costs,
    measured: &Timeline,
) -> Result<()> {
    let micro_batches = measured.micro_batches();
    let compute = choice.compute(&measured.stage_to_rank, micro_batches, dependencies)?;
    let costs = costs.with_times([measured]);
    let mut predicted = simulate(&compute, dependencies, &costs)?;
    predicted.unit = TimeUnit::Nanoseconds;
    predicted.name = format!("{}, predicted", predicted.name);
    let mut measured = measured.clone();
    measured.name = format!("{}, measured", measured.name);
    let both = [&measured, &predicted];
    let text = match path.extension().is_some_and(|extension| extension == "svg") {
        true => draw::svg(&both),
        false => draw::trace(&both),
    };
    fs::write(path, text).with_context(|| format!("--trace {}", path.display()))
}
