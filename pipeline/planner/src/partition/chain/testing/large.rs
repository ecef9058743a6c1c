//! Pseudorandom numbers, and chains like the chains of large models.

use tinderbox_schedule::ComputeTimes;

use crate::{Block, Parameter, Value, Work};

/// Pseudorandom numbers from a seed (SplitMix64, Steele et al., OOPSLA 2014).
#[derive(Debug, Clone)]
pub struct Numbers(u64);

impl Numbers {
    /// Starts the sequence of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }
}

/// The distribution of times over the blocks of a large case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// All equal.
    Equal,
    /// From one to three times the minimum, all different.
    Distinct,
    /// A hundredth of the blocks take as long as all others together.
    Few,
}

/// Returns a chain of blocks like the chain of a large model: each has a parameter and a value that the next
/// block reads; every tenth has a value that a later block reads.
pub fn large_case(blocks: usize, times: Times, seed: u64) -> Work {
    let mut numbers = Numbers::new(seed);
    let mut work = Work::default();
    for at in 0..blocks {
        let forward = match times {
            Times::Equal => 100_000,
            Times::Distinct => 100_000 + numbers.below(200_000),
            Times::Few if at % 100 == 50 => 10_000_000,
            Times::Few => 100_000,
        };
        let compute = ComputeTimes::new(
            forward,
            forward + numbers.below(1 + forward / 8),
            forward - numbers.below(1 + forward / 8),
        );
        work.blocks.push(Block {
            weight_gradient_bytes: 1 << 18,
            transient_bytes: numbers.below(1 << 20),
            ..Block::of_times(format!("blocks.{at}"), compute)
        });
        work.parameters.push(Parameter {
            bytes: (1 << 20) + numbers.below(1 << 20),
            is_trainable: at % 7 != 3,
            readers: vec![at],
            ..Parameter::default()
        });
        let bytes = (1 << 18) * (1 + numbers.below(4));
        let far = at + 2 + numbers.below(20) as usize;
        let mut readers: Vec<usize> = vec![at + 1];
        if at % 10 == 4 {
            readers.push(far);
        }
        readers.retain(|reader| *reader < blocks);
        work.values.push(Value {
            bytes,
            maker: at,
            keepers: readers.clone(),
            readers,
            gradient_bytes: bytes,
        });
        work.values.push(Value {
            bytes: 4 * bytes,
            maker: at,
            keepers: vec![at],
            ..Value::default()
        });
    }
    work
}
