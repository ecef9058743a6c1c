//! The rate at which a disk is read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use burn::tensor::{DType, Device, TensorData};
use tinderbox_fake::DynTensor;

use super::ToolError;
use crate::{CheckpointMeta, Role, Run, SaveError, SaveTensor};

/// Bytes of a tensor.
const TENSOR_BYTES: usize = 32 << 20;
/// Enough for the rate of a long read.
const TENSORS: usize = 16;

/// Measures the bytes per second at which values of a checkpoint in a directory are read around the cache of the system, and
/// checked: what the prediction of a pass over a streamed model needs. Writes 512 MiB to a temporary directory in it, reads them
/// three times, and removes them.
///
/// # Errors
///
/// Returns an error if the directory can't be written to or read.
pub fn read_rate(dir: &Path) -> Result<u64, ToolError> {
    // Also in a directory that other machines share.
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let (id, now) = (std::process::id(), now.unwrap_or_default().as_nanos());
    let place = Removed(dir.join(format!(".tinderbox-rate-{id}-{now}")));
    // The directory exists, and is not created.
    fs::create_dir(&place.0).map_err(|source| SaveError::Io {
        action: "create",
        path: place.0.clone(),
        source,
    })?;
    let run = Run::local(&place.0);
    // No zeros, which some file systems do not store.
    let words = (1..=TENSOR_BYTES as u64 / 8).map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let bytes = words.flat_map(u64::to_le_bytes).collect();
    let data = TensorData::from_bytes_vec(bytes, [TENSOR_BYTES], DType::U8);
    let value = DynTensor::from_data(data, &Device::flex());
    let tensors =
        (0..TENSORS).map(|at| SaveTensor::whole(at.to_string(), Role::Model, value.clone()));
    let attempt = run.begin(CheckpointMeta::new(0, 1))?;
    let handle = attempt.handle();
    handle.write_rank(0, &tensors.collect::<Vec<_>>(), &BTreeMap::new())?;
    attempt.publish(Duration::from_secs(60))?;
    let checkpoint = run.open(0)?;
    let read = || {
        let started = Instant::now();
        checkpoint.read_uncached(Role::Model)?;
        Ok(started.elapsed().as_secs_f64())
    };
    let mut seconds = (0..3)
        .map(|_| read())
        .collect::<Result<Vec<f64>, ToolError>>()?;
    seconds.sort_by(f64::total_cmp);
    Ok(((TENSOR_BYTES * TENSORS) as f64 / seconds[1]) as u64)
}

/// A directory that is removed when it is dropped.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // What is left is named as temporary.
        let _ = fs::remove_dir_all(&self.0);
    }
}
