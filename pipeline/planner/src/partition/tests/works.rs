//! Generated work: lines, branches, skips, and random graphs.

use crate::{Block, Parameter, Value, Work};

/// Pseudorandom numbers of a linear congruential generator (Knuth's MMIX).
#[derive(Debug)]
pub(in crate::partition) struct Random(u64);

impl Random {
    pub(in crate::partition) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number below `end`.
    pub(in crate::partition) fn below(&mut self, end: u64) -> u64 {
        let product = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = product.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }
}

/// A block with a forward of `time` nanoseconds and a backward of twice that.
pub(in crate::partition) fn block(name: String, time: u64) -> Block {
    Block {
        name,
        forward: time,
        backward: 2 * time,
        input_gradient: time,
        weight_gradient: time,
        weight_gradient_bytes: time / 8,
        transient_bytes: time / 4,
    }
}

/// A value that its readers' backwards read too.
pub(in crate::partition) fn value(maker: usize, readers: &[usize], bytes: u64) -> Value {
    Value {
        bytes,
        maker,
        readers: readers.to_vec(),
        keepers: readers.to_vec(),
        gradient_bytes: bytes,
    }
}

fn with_parameters(mut work: Work, random: &mut Random) -> Work {
    for index in 0..work.blocks.len() {
        work.parameters.push(Parameter {
            bytes: random.below(100_000),
            cast_bytes: 0,
            is_trainable: random.below(8) > 0,
            readers: vec![index],
        });
    }
    work
}

/// Blocks one after the other.
pub(in crate::partition) fn line(blocks: usize, seed: u64) -> Work {
    let mut random = Random::new(seed);
    let times = (0..blocks).map(|index| {
        let time = 10_000 + random.below(90_000);
        block(format!("blocks.{index}"), time)
    });
    let values = (1..blocks).map(|index| value(index - 1, &[index], 4096));
    let work = Work {
        blocks: times.collect(),
        values: values.collect(),
        ..Work::default()
    };
    with_parameters(work, &mut random)
}

/// Blocks that read up to three earlier ones each, most of them near.
pub(in crate::partition) fn random_graph(blocks: usize, seed: u64) -> Work {
    let mut random = Random::new(seed);
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); blocks];
    for index in 1..blocks {
        for _ in 0..random.below(4) {
            let near = random.below(8.min(index as u64)) as usize + 1;
            let far = random.below(index as u64) as usize;
            let is_far = random.below(6) == 0;
            let maker = if is_far { far } else { index - near };
            if readers[maker].last() != Some(&index) {
                readers[maker].push(index);
            }
        }
    }
    let of = |(maker, readers): (usize, Vec<usize>), random: &mut Random| Value {
        bytes: random.below(200_000),
        gradient_bytes: random.below(2) * 10_000,
        keepers: readers.iter().copied().filter(|r| r % 2 == 0).collect(),
        maker,
        readers,
    };
    let all = readers.into_iter().enumerate();
    let values: Vec<Value> = all.map(|value| of(value, &mut random)).collect();
    let times = (0..blocks).map(|index| {
        let time = random.below(5) * random.below(40_000);
        block(format!("part.{}.{index}", index / 5), time)
    });
    let work = Work {
        blocks: times.collect(),
        values,
        ..Work::default()
    };
    let mut work = with_parameters(work, &mut random);
    if blocks > 2 {
        work.parameters.push(Parameter {
            bytes: 50_000,
            cast_bytes: 0,
            is_trainable: true,
            readers: vec![0, blocks - 1],
        });
    }
    work
}

/// Layers of a router, experts side by side, and a sum, with a skip around them.
pub(in crate::partition) fn experts(layers: usize, width: usize, seed: u64) -> Work {
    let mut random = Random::new(seed);
    let mut work = Work::default();
    let mut last = None;
    for layer in 0..layers {
        let router = work.blocks.len();
        let name = |part: &str| format!("layers.{layer}.{part}");
        work.blocks.push(block(name("router"), 2_000));
        if let Some(last) = last {
            let sum = router + width + 1;
            work.values.push(value(last, &[router, sum], 8192));
        }
        let experts: Vec<usize> = (router + 1..=router + width).collect();
        for expert in &experts {
            let time = 20_000 + random.below(30_000);
            let expert = format!("experts.{}", expert - router - 1);
            work.blocks.push(block(name(&expert), time));
        }
        let sum = work.blocks.len();
        work.blocks.push(block(name("sum"), 1_000));
        work.values.push(value(router, &experts, 8192));
        for expert in experts {
            work.values.push(value(expert, &[sum], 8192));
        }
        last = Some(sum);
    }
    with_parameters(work, &mut random)
}

/// A U-Net: every block on the way down is read by its counterpart on the way up.
pub(in crate::partition) fn u_net(depth: usize, seed: u64) -> Work {
    let mut random = Random::new(seed);
    let blocks = 2 * depth + 1;
    let times = (0..blocks).map(|index| {
        let side = if index < depth { "down" } else { "up" };
        block(format!("{side}.{index}"), 10_000 + random.below(20_000))
    });
    let mut work = Work {
        blocks: times.collect(),
        ..Work::default()
    };
    for index in 0..blocks - 1 {
        let twin = blocks - 1 - index;
        let level = index.min(twin) as u32;
        let bytes = (1 << 20 >> level.min(10)).max(64);
        let readers = match twin > index + 1 {
            true => vec![index + 1, twin],
            false => vec![index + 1],
        };
        work.values.push(value(index, &readers, bytes));
    }
    with_parameters(work, &mut random)
}
