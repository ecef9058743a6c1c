//! Small checkpoints, and stores that fail on demand, for the test programs of this package.

#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::should_implement_trait,
    reason = "only tests use it"
)]

pub mod faulty;
pub mod volatile;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use burn::tensor::{DType, TensorData};
use tinderbox_checkpoint::{
    BlockSize, Checkpoint, CheckpointMeta, LoadError, Role, Run, SaveTensor, Scalar, StoredDType,
};
use tinderbox_fake::Region;

pub const TIMEOUT: Duration = Duration::from_secs(20);

/// A generator of test values: SplitMix64, so that a seed reproduces a failure.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Returns random bits of a dtype, including NaN; booleans are 0 or 1.
    pub fn data(&mut self, shape: &[usize], dtype: DType) -> TensorData {
        let elements: usize = shape.iter().product();
        let mut bytes = self.bytes(elements * dtype.size());
        if StoredDType::of(dtype) == Some(StoredDType::Bool) {
            bytes.iter_mut().for_each(|b| *b &= 1);
        }
        TensorData::from_bytes_vec(bytes, shape.to_vec(), dtype)
    }
}

pub fn meta(step: u64, world_size: u32) -> CheckpointMeta {
    CheckpointMeta {
        seed: u64::MAX,
        data_position: 7,
        metadata: serde_json::json!({"plan": "abc", "nested": [1, null]}),
        block_size: Some(BlockSize::new(64).unwrap()),
        ..CheckpointMeta::new(step, world_size)
    }
}

/// Every tensor and scalar of a checkpoint, as bytes: equal after a load.
pub type Contents = (
    BTreeMap<(Role, String), TensorData>,
    BTreeMap<String, Scalar>,
);

/// Saves contents from one rank.
pub fn save(run_dir: &Path, meta: CheckpointMeta, contents: &Contents) -> PathBuf {
    let attempt = Run::local(run_dir).begin(meta).unwrap();
    let tensors: Vec<_> = contents
        .0
        .iter()
        .map(|((role, name), data)| SaveTensor::whole(name.clone(), *role, data.clone()))
        .collect();
    attempt
        .handle()
        .write_rank(0, &tensors, &contents.1, &())
        .unwrap();
    attempt.publish(TIMEOUT).unwrap()
}

/// Loads the whole contents of a checkpoint.
pub fn load(checkpoint: &Checkpoint) -> Result<Contents, LoadError> {
    let mut tensors = BTreeMap::new();
    for role in [Role::Model, Role::State] {
        for tensor in checkpoint.tensors(role) {
            let whole = Region::whole(&tensor.shape).unwrap();
            let data = checkpoint.read(tensor, &whole)?;
            tensors.insert((role, tensor.name.clone()), data);
        }
    }
    Ok((tensors, checkpoint.scalars().clone()))
}

/// Returns a few tensors of both roles with several blocks.
pub fn small_contents(seed: u64) -> Contents {
    let mut random = Random(seed);
    let mut tensors = BTreeMap::new();
    for (role, name, shape, dtype) in [
        (Role::Model, "embed.weight", &[5, 7][..], DType::F32),
        (Role::Model, "norm.gamma", &[3], DType::BF16),
        (Role::Model, "mask", &[9], StoredDType::Bool.burn()),
        (Role::State, "embed.weight.moment_1", &[5, 7], DType::F32),
        (Role::State, "time", &[], DType::I64),
    ] {
        tensors.insert((role, name.to_owned()), random.data(shape, dtype));
    }
    let scalars = BTreeMap::from([
        (
            "beta_power".to_owned(),
            Scalar::Float(f64::from_bits(random.next())),
        ),
        ("steps".to_owned(), Scalar::Uint(seed)),
    ]);
    (tensors, scalars)
}

/// Returns the message of an error and its sources, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

/// Returns the names in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
