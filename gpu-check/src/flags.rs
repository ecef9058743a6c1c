//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Checks Tinderbox on one GPU: bits, memory, speed, checkpoint, parity, training. Prints a report.
///
/// Exit codes: 0 when every check has passed, 1 when one has not, 2 for wrong arguments, 3 when the device is not there.
#[derive(Parser, Debug, Clone)]
#[command(name = "gpu-check", version)]
pub struct Flags {
    /// Where to run: cuda, cpu (the kernels of GPUs, compiled for the CPU) or flex (the CPU, to try this program)
    #[arg(long, value_name = "RUNTIME", default_value = "cuda")]
    pub runtime: Runtime,
    /// Which GPU, counted from 0; with --runtime cuda alone
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    pub index: usize,
    /// Run these parts only, such as bits,speed
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub only: Vec<PartName>,
    /// Where to write the report as Markdown; it is printed as well
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Where to write the report as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Directory for checkpoints that are written, measured and removed; the system's for temporary files by default
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    /// Commit that the program was built from, for the report
    #[arg(long, value_name = "HASH")]
    pub commit: Option<String>,
}

/// Where the checks run.
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
    Training,
}

impl Flags {
    /// The device's name, as the library takes it.
    pub fn device(&self) -> String {
        match self.runtime {
            Runtime::Cuda => format!("cuda:{}", self.index),
            Runtime::Cpu => "cpu".into(),
            Runtime::Flex => "flex".into(),
        }
    }

    /// Whether a part is to be run.
    pub fn wants(&self, part: PartName) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}
