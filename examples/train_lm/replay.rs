//! Runs the programs of a step again, one after the other.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use burn::tensor::Device;
use tinderbox::{Checkpoint, Checkpoints, PipelineBuilder, ReplayedStep, replay};

use crate::data::{Text, TokenBatch};
use crate::flags::{Flags, usage};
use crate::model::Gpt;
use crate::report::say;
use crate::{LENGTH, SAMPLES};

/// Writes the digests of all operations of the step after the checkpoint that `--resume` names, or of the first step.
pub fn write(
    path: &Path,
    builder: impl Fn() -> PipelineBuilder<Gpt, TokenBatch>,
    text: &Text,
    flags: &Flags,
    device: &Device,
) -> Result<()> {
    let name = || format!("--replay {}", path.display());
    let mut file = BufWriter::new(File::create(path).with_context(name)?);
    let (mut operations, mut step) = (0, 0);
    for micro_batch in 0..flags.micro_batches {
        let checkpoint = flags.resume.as_deref().map(newest).transpose()?;
        let seed = checkpoint
            .as_ref()
            .map_or(flags.seed, |one| one.manifest().seed);
        if seed != flags.seed {
            usage(&format!("--seed: the checkpoint has the seed {seed}"));
        }
        let position = checkpoint
            .as_ref()
            .map_or(0, |checkpoint| checkpoint.manifest().data_position);
        let batch = text.batch(flags.seed, position, SAMPLES, LENGTH, device);
        let programs = match checkpoint {
            Some(checkpoint) => replay(checkpoint, builder(), batch, micro_batch)?,
            None => {
                let step = 0;
                builder().replay(ReplayedStep { step, micro_batch }, batch)?
            }
        };
        for program in programs {
            let digest = program?.digest;
            (operations, step) = (operations + digest.operations.len(), digest.step);
            let line = serde_json::to_string(&digest)? + "\n";
            file.write_all(line.as_bytes()).with_context(name)?;
        }
    }
    file.flush().with_context(name)?;
    say!(
        "the digests of {operations} operations of the step after {step} are in {}",
        path.display()
    );
    Ok(())
}

fn newest(dir: &Path) -> Result<Checkpoint> {
    let newest = Checkpoints::open(dir)?.latest()?;
    Ok(newest.unwrap_or_else(|| {
        usage(&format!(
            "--resume {}: the directory contains no checkpoint",
            dir.display()
        ))
    }))
}
