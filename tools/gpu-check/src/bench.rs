//! The environment of the parts: the command line, the sizes, and the measurement of times. Sizes are large enough for
//! measurements on a GPU, and minimal on a CPU.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::Device;
use clap::{Parser, ValueEnum};
use tinderbox::{Batch, Pipeline};

/// Checks Tinderbox on one GPU: bits, memory, speed, checkpoint, parity, streamed, training. Prints a report.
///
/// Exit codes: 0 if every check has passed, 1 if one has failed, 2 for invalid arguments, 3 if the device is
/// not available.
#[derive(Parser, Debug, Clone)]
#[command(name = "gpu-check", version)]
pub struct Flags {
    /// Device to check: cuda, cpu (the GPU kernels, compiled for the CPU) or flex (the CPU, to test this
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

    /// Returns whether the runtime supports bf16. Kernels in bf16 can't be linked for the CPU, although the device reports
    /// support for the type.
    pub fn computes_bf16(&self) -> bool {
        self.runtime != Runtime::Cpu
    }

    /// Returns whether a part is to be run.
    pub fn wants(&self, part: PartName) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

/// Sizes of all parts.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Elements of each random tensor that is compared.
    pub bits_elements: usize,
    /// Number of regions that are compared.
    pub bits_regions: usize,
    /// Width of the square layers of the model in the memory part.
    pub memory_width: usize,
    /// Layers of that model.
    pub memory_layers: usize,
    /// Number of elements per measurement.
    pub speed_elements: usize,
    /// Width of the square layers of the saved model, which has 16.
    pub checkpoint_width: usize,
    /// Width of the layers that are trained for parity.
    pub parity_width: usize,
    /// Number of training steps of the parity part.
    pub parity_steps: u64,
    /// The language model.
    pub training: Training,
}

/// Sizes of a language model and its batches.
#[derive(Debug, Clone, Copy)]
pub struct Training {
    /// Vocabulary size.
    pub vocabulary: usize,
    /// Tokens of a sample.
    pub length: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Samples of a batch.
    pub samples: usize,
    /// Micro-batches of a batch.
    pub micro_batches: usize,
    /// Number of measured steps, alternating with plain Burn; 0 skips the part.
    pub steps: usize,
}

impl Size {
    /// Returns the sizes for a runtime.
    pub fn of(runtime: Runtime) -> Self {
        match runtime {
            Runtime::Cuda => Self {
                bits_elements: 1 << 28,
                bits_regions: 400,
                memory_width: 8192,
                memory_layers: 80,
                speed_elements: 1 << 29,
                checkpoint_width: 4096,
                parity_width: 512,
                parity_steps: 4,
                training: Training {
                    vocabulary: 8192,
                    length: 512,
                    width: 1024,
                    layers: 8,
                    heads: 16,
                    samples: 32,
                    micro_batches: 8,
                    steps: 8,
                },
            },
            // On this runtime, a kernel with barriers takes several milliseconds, because its threads wait for each
            // other.
            Runtime::Cpu => Self {
                parity_width: 8,
                parity_steps: 1,
                training: Training {
                    steps: 0,
                    ..TINY.training
                },
                ..TINY
            },
            Runtime::Flex => TINY,
        }
    }
}

const TINY: Size = Size {
    bits_elements: 1 << 16,
    bits_regions: 60,
    memory_width: 256,
    memory_layers: 8,
    speed_elements: 1 << 20,
    checkpoint_width: 64,
    parity_width: 16,
    parity_steps: 2,
    training: Training {
        vocabulary: 32,
        length: 16,
        width: 16,
        layers: 2,
        heads: 2,
        samples: 4,
        micro_batches: 2,
        steps: 2,
    },
};

/// The environment of every part.
#[derive(Debug)]
pub struct Bench {
    /// The device to check.
    pub device: Device,
    /// The sizes.
    pub size: Size,
    /// The command line.
    pub flags: Flags,
}

/// Waits until the device has completed all work that the ranks have queued; each rank has its own stream.
pub fn settle<M: Module + Sync + 'static, B: Batch>(pipeline: &mut Pipeline<M, B>) -> Result<()> {
    let done = pipeline.on_ranks(|_, stages| match stages.first() {
        Some(stage) => stage.device().sync(),
        None => Ok(()),
    })?;
    Ok(done.into_iter().collect::<Result<(), _>>()?)
}

/// Returns the result of some work, and its time in seconds.
pub fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let begun = Instant::now();
    let made = work()?;
    Ok((made, begun.elapsed().as_secs_f64()))
}

/// Returns the median of some times, if there are any.
pub fn median(mut seconds: Vec<f64>) -> Option<f64> {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied()
}
