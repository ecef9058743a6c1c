//! Runs the programs of a step again, one after the other.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use burn::tensor::Device;
use tinderbox::Checkpoints;
use tinderbox::checkpoint::replay_step;
use tinderbox::pipeline::PipelineBuilder;
use tinderbox_models::language_model::Gpt;
use tinderbox_models::text::{Text, TokenBatch};

use crate::flags::{Flags, usage};
use crate::report::{programs_bar, say};
use crate::settings::{LENGTH, SAMPLES};

/// Writes the digests of all operations of the step after a checkpoint, or of the first step.
pub fn write(
    path: &Path,
    builder: PipelineBuilder<Gpt, TokenBatch>,
    text: &Text,
    flags: &Flags,
    device: &Device,
) -> Result<()> {
    let batch = |position| text.batch(flags.seed, position, SAMPLES, LENGTH, device);
    let replay = match &flags.resume {
        None => builder.replay(0, batch(0))?,
        Some(dir) => {
            let saves = Checkpoints::open(dir)?;
            let checkpoint = match flags.replay_after {
                Some(step) => saves.run().open(step)?,
                None => saves.latest()?.unwrap_or_else(|| {
                    usage(&format!(
                        "--resume {}: the directory contains no checkpoint",
                        dir.display()
                    ))
                }),
            };
            let position = checkpoint.manifest().data_position;
            replay_step(checkpoint, builder, batch(position))?
        }
    };
    let file = || format!("--replay {}", path.display());
    let mut lines = BufWriter::new(File::create(path).with_context(file)?);
    let (mut operations, mut step) = (0, 0);
    let bar = programs_bar(replay.programs_left() as u64);
    for program in replay {
        let digest = program?.digest;
        (operations, step) = (operations + digest.operations.len(), digest.step);
        bar.set_message(format!("stage {}", digest.stage));
        bar.inc(1);
        writeln!(lines, "{}", serde_json::to_string(&digest)?).with_context(file)?;
    }
    lines.flush().with_context(file)?;
    bar.finish_and_clear();
    say!(
        "the digests of {operations} operations of step {step} are in {}",
        path.display()
    );
    Ok(())
}
