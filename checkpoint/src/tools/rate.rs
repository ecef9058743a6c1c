//! The rate at which a disk is read.

use std::path::Path;
use std::thread;
use std::time::Instant;

use burn::tensor::{DType, Device, TensorData};
use tinderbox_fake::DynTensor;

use super::{SaveOptions, ToolError, save_tensors};
use crate::{CheckpointMeta, Role, Run, SaveTensor, StoreError};

/// Size of a tensor in bytes.
const TENSOR_BYTES: usize = 32 << 20;
/// Number of tensors: enough for the rate of a long read.
const TENSORS: usize = 16;

/// The rate at which values are read from a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRate {
    /// The bytes of values per second.
    pub bytes_per_s: u64,
    /// The fraction of the cores that are busy during the read, in thousandths. Known on Linux; elsewhere 0.
    pub busy_permille: u64,
}

/// Measures the bytes per second at which values of a checkpoint in a directory are read around the cache of the system, and
/// checked. The prediction of a pass over a streamed model needs this rate. Writes 512 MiB to a temporary directory in the
/// directory, reads them three times, and removes them.
///
/// # Errors
///
/// Returns an error if the directory can't be written to or read.
pub fn read_rate(dir: &Path) -> Result<ReadRate, ToolError> {
    let place = tempfile::Builder::new()
        .prefix(".tinderbox-rate-")
        .tempdir_in(dir);
    let place = place.map_err(|source| StoreError {
        action: "create a directory in",
        path: dir.to_owned(),
        source,
    })?;
    let run = Run::local(place.path());
    // Some file systems do not store zeros.
    let words = (1..=TENSOR_BYTES as u64 / 8).map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let bytes = words.flat_map(u64::to_le_bytes).collect();
    let data = TensorData::from_bytes_vec(bytes, [TENSOR_BYTES], DType::U8);
    let value = DynTensor::from_data(data, &Device::flex());
    let tensor = |at: usize| SaveTensor::whole(at.to_string(), Role::Model, value.clone());
    let tensors: Vec<SaveTensor> = (0..TENSORS).map(tensor).collect();
    let (meta, options) = (CheckpointMeta::new(0, 1), SaveOptions::default());
    save_tensors(&tensors, &run, meta, &options, &())?;
    let checkpoint = run.open(0)?;
    let read = || {
        let (started, processor) = (Instant::now(), processor_seconds());
        checkpoint.saved.read_uncached(Role::Model)?;
        let seconds = started.elapsed().as_secs_f64();
        Ok((seconds, processor_seconds() - processor))
    };
    let reads: Result<Vec<(f64, f64)>, ToolError> = (0..3).map(|_| read()).collect();
    let mut reads = reads?;
    reads.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (seconds, processor) = reads[1];
    let cores = thread::available_parallelism().map_or(1, usize::from);
    Ok(ReadRate {
        bytes_per_s: ((TENSOR_BYTES * TENSORS) as f64 / seconds) as u64,
        busy_permille: (1000.0 * processor / (seconds * cores as f64)).min(1000.0) as u64,
    })
}

/// Returns the seconds of processor time that this process has used.
fn processor_seconds() -> f64 {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
    }
    #[cfg(not(target_os = "linux"))]
    0.0
}
