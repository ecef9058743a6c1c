//! The commands on checkpoints.

use std::path::PathBuf;

use clap::Subcommand;

use super::{check, copy, inspect, remove};
use crate::{outcome::Outcome, terminal::Output};

/// The checkpoint commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// List the steps of a run: when they were saved, and whether manifest and file sizes are valid
    Ls {
        /// Directory of a run, or its URL in a bucket
        #[arg(value_name = "RUN_DIR")]
        dir: PathBuf,
    },
    /// Show the contents of a checkpoint
    Inspect {
        /// Step directory, or run directory for its newest step, or the URL of one in a bucket
        dir: PathBuf,
        /// Show this step of the run
        #[arg(long, value_name = "STEP")]
        step: Option<u64>,
    },
    /// Read and check all data and report all damage; exit code 1 if there is any
    Verify {
        /// Step directories, or run directories for all their steps, or URLs of either in buckets
        #[arg(required = true, value_name = "DIR")]
        dirs: Vec<PathBuf>,
    },
    /// Compare tensors and scalars of two checkpoints; exit code 1 if they differ
    Diff {
        /// Step directory, or run directory for its newest step, or the URL of one in a bucket
        first: PathBuf,
        /// Step directory, or run directory for its newest step, or the URL of one in a bucket
        second: PathBuf,
    },
    /// Copy a checkpoint to another run, in a directory or a bucket; the copy appears when it is complete
    Cp {
        /// Step directory, or run directory for its newest step, or the URL of one in a bucket
        dir: PathBuf,
        #[command(flatten)]
        saved: copy::Saved,
    },
    /// Save a checkpoint again for another number of ranks
    Reshard(copy::ReshardFlags),
    /// Copy the parameters to a plain Hugging Face directory, or to a file for Burn
    Export(copy::ExportFlags),
    /// Print the pipeline plan that was saved with a checkpoint; exit code 1 if it has none
    Plan {
        /// Step directory, or run directory for its newest step, or the URL of one in a bucket
        dir: PathBuf,
    },
    /// Show, and with --yes remove, old checkpoints and remains of killed saves
    Gc(remove::GcFlags),
    /// Show, and with --yes remove, one step directory, even without a valid manifest
    Rm(remove::RmFlags),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(&self, out: &mut Output) -> anyhow::Result<Outcome> {
        match self {
            Self::Ls { dir } => inspect::ls(dir, out),
            Self::Inspect { dir, step } => inspect::inspect(dir, *step, out),
            Self::Verify { dirs } => check::verify(dirs, out),
            Self::Diff { first, second } => check::diff(first, second, out),
            Self::Cp { dir, saved } => copy::cp(dir, saved, out),
            Self::Reshard(flags) => copy::reshard(flags, out),
            Self::Export(flags) => copy::export(flags, out),
            Self::Plan { dir } => inspect::plan(dir, out),
            Self::Gc(flags) => remove::gc(flags, out),
            Self::Rm(flags) => remove::rm(flags, out),
        }
    }
}
