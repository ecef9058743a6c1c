//! Sizes of each part: large enough for measurements on a GPU, minimal on a CPU.

use crate::flags::Runtime;

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
            // Kernels with barriers take several milliseconds each there, because their threads wait for each
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
