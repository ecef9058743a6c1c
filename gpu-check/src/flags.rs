//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Checks Tinderbox on one GPU: bits, memory, speed, checkpoint, parity, streamed, training. Prints a report.
///
/// Exit codes: 0 if every check has passed, 1 if one has failed, 2 for invalid arguments, 3 if the device is
/// not available.
#[derive(Parser, Debug, Clone)]
#[command(name = "gpu-check", version)]
pub struct Flags {
    /// Where to run: cuda, cpu (the GPU kernels, compiled for the CPU) or flex (the CPU, to test this
    /// program)
    #[arg(long, value_name = "RUNTIME", default_value = "cuda")]
    pub runtime: Runtime,
    /// Index of the GPU, from 0; only with --runtime cuda
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    pub index: usize,
    /// Run only these parts, such as bits,speed
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub only: Vec<PartName>,
    /// File for the report as Markdown, which is also printed
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// File for the report as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Directory for temporary checkpoints; by default the system's directory for temporary files
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    /// Commit that the program was built from, for the report
    #[arg(long, value_name = "HASH")]
    pub commit: Option<String>,
}

/// The runtime of the checks.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    Cuda,
    Cpu,
    Flex,
}

/// The parts of the check.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartName {
    Bits,
    Memory,
    Speed,
    Checkpoint,
    Parity,
    Streamed,
    Training,
}

impl Flags {
    /// Returns the device's name in the library's syntax.
    pub fn device(&self) -> String {
        match self.runtime {
            Runtime::Cuda => format!("cuda:{}", self.index),
            Runtime::Cpu => "cpu".into(),
            Runtime::Flex => "flex".into(),
        }
    }

    /// Returns whether the runtime supports bf16: kernels in bf16 can't be linked for the CPU, although the device reports support
    /// for the type.
    pub fn computes_bf16(&self) -> bool {
        self.runtime != Runtime::Cpu
    }

    /// Returns whether a part is to be run.
    pub fn wants(&self, part: PartName) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}
