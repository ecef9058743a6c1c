//! The places of the values of a pass while no stage has them: a file for activations, from the forward to the backward, and
//! the memory of the host for parameters, between the source and a device with its own memory.

use std::collections::hash_map::{Entry, HashMap};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, create_dir_all};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use burn::tensor::{DType, Device};
use parking_lot::Mutex;
use tinderbox_deferred::{Observer, Request, Source, SourceError, read_values};
use tinderbox_fake::DynTensor;
use tinderbox_world::Buffer;

use crate::kept::Holders;
use crate::runtime::caught::device_failed;
use crate::runtime::streamed::Activation;
use crate::runtime::wire::{TensorType, lend_compact};
use crate::{ActionError, ActionResult};

/// The activations of a step that do not stay in memory, in a file without a name, which ends with the process. They are
/// written through the system's cache while nothing else runs.
#[derive(Debug)]
pub(crate) struct Spill {
    dir: PathBuf,
    written: Mutex<Written>,
}

#[derive(Debug, Default)]
struct Written {
    file: Option<File>,
    values: HashMap<Activation, Place>,
}

/// The position of an activation in the file, and how often each stage needs it.
#[derive(Debug)]
struct Place {
    start: u64,
    kind: TensorType,
    holders: Holders,
}

impl Spill {
    pub(crate) fn new(dir: PathBuf) -> Self {
        let written = Mutex::default();
        Self { dir, written }
    }

    /// Deletes the activations of a step, with the file and its blocks.
    pub(crate) fn clear(&self) {
        *self.written.lock() = Written::default();
    }

    /// Writes an activation, if it is not there already, and drops it.
    pub(crate) fn put(&self, at: Activation, value: DynTensor, holders: Holders) -> ActionResult {
        // A write that panics ends the step.
        let mut written = self.written.lock();
        if let Some(place) = written.values.get_mut(&at) {
            place.holders = holders;
            return Ok(());
        }
        let device = value.device();
        let (kind, piece) = lend_compact(value).map_err(|error| device_failed(&device, error))?;
        let start = self.append(&mut written, &piece);
        let start = start.map_err(|source| ActionError::Spill {
            path: self.dir.clone(),
            source,
        })?;
        let place = Place {
            start,
            kind,
            holders,
        };
        written.values.insert(at, place);
        Ok(())
    }

    /// Writes bytes at the end of the file; returns where they are.
    fn append(&self, written: &mut Written, bytes: &[u8]) -> io::Result<u64> {
        let file = match &mut written.file {
            Some(file) => file,
            None => {
                create_dir_all(&self.dir)?;
                written.file.insert(tempfile::tempfile_in(&self.dir)?)
            }
        };
        let start = file.seek(SeekFrom::End(0))?;
        file.write_all(bytes)?;
        Ok(start)
    }

    /// Reads an activation, with the stages that need it.
    pub(crate) fn read(
        &self,
        activation: Activation,
        device: &Device,
    ) -> Result<(DynTensor, Holders), SourceError> {
        let mut written = self.written.lock();
        let Written { file, values, .. } = &mut *written;
        let failed = |source| SourceError::Failed {
            described: format!("the activations in {}", self.dir.display()),
            source: Box::new(source),
        };
        let place = values.get(&activation);
        let place = place.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let bytes = file.as_mut().map(|file| bytes(file, place));
        let bytes = bytes.transpose().map_err(failed)?.unwrap_or_default();
        let value = place.kind.tensor(bytes);
        let value = value.ok_or_else(|| failed(io::ErrorKind::UnexpectedEof.into()))?;
        Ok((moved(value, device)?, place.holders.clone()))
    }
}

/// Copies a value to a device, or from it.
fn moved(value: DynTensor, device: &Device) -> Result<DynTensor, SourceError> {
    let moved = value.to_device(device);
    moved.map_err(|source| SourceError::Failed {
        described: "the memory of the host".to_owned(),
        source: Box::new(source),
    })
}

/// Returns the maximum of the bytes that writing or reading an activation needs in addition to its own.
pub(crate) fn working_bytes(bytes: u64) -> u64 {
    // A view is copied twice to be written. Bytes that were read may be copied to be aligned.
    2 * bytes + bytes.min(BLOCK as u64)
}

/// Bytes that are read at a time.
const BLOCK: usize = 1 << 20;

/// Reads the bytes of an activation.
fn bytes(file: &mut File, place: &Place) -> io::Result<Buffer> {
    file.seek(SeekFrom::Start(place.start))?;
    let length = place.kind.bytes().unwrap_or(0);
    let mut bytes = Buffer::with_capacity(length);
    let mut reader = BufReader::with_capacity(BLOCK.min(length), file.take(length as u64));
    loop {
        let block = reader.fill_buf()?;
        if block.is_empty() {
            return Ok(bytes);
        }
        bytes.extend(block);
        let read = block.len();
        reader.consume(read);
    }
}

/// The parameters that stay in the memory of the host.
#[derive(Default)]
pub(crate) struct HostTier {
    held: Mutex<HostValues>,
}

#[derive(Default)]
struct HostValues {
    /// The parameters that stay, by position in the table.
    chosen: BTreeSet<usize>,
    values: HashMap<usize, DynTensor>,
}

impl HostTier {
    /// Keeps these parameters from now on, in their dtypes, and drops the others.
    pub(super) fn keep(&self, chosen: BTreeSet<usize>, dtypes: &BTreeMap<usize, DType>) {
        let held = &mut *self.held.lock();
        held.chosen = chosen;
        held.values
            .retain(|at, value| held.chosen.contains(at) && dtypes.get(at) == Some(&value.dtype()));
    }

    /// Reads parameters by their positions in the table, from the host if it holds them, or from the source.
    pub(crate) fn read(
        &self,
        requested: &[(usize, Request)],
        source: &dyn Source,
        observer: &dyn Observer,
    ) -> Result<HashMap<usize, DynTensor>, SourceError> {
        let mut held = self.held.lock();
        let missing = requested.iter();
        let missing = missing.filter(|(at, _)| !held.values.contains_key(at));
        let missing: Vec<&(usize, Request)> = missing.collect();
        // On the device, where a source may compute them.
        let requests = missing.iter().map(|(_, request)| request.clone());
        let found = read_values(&requests.collect::<Vec<_>>(), source, observer)?;
        let positions = missing.into_iter().map(|(at, _)| *at);
        let mut read: HashMap<usize, DynTensor> = positions.zip(found).collect();
        let HostValues { chosen, values } = &mut *held;
        for (at, value) in read.iter().filter(|(at, _)| chosen.contains(at)) {
            values.insert(*at, moved(value.clone(), &Device::flex())?);
        }
        for (at, request) in requested {
            if let Entry::Vacant(place) = read.entry(*at) {
                place.insert(moved(values[at].clone(), &request.device)?);
            }
        }
        Ok(read)
    }
}
