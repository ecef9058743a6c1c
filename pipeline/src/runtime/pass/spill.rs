//! Activations in a file, from the forward to the backward.

use std::collections::HashMap;
use std::fs::{File, create_dir_all};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use burn::tensor::Device;
use parking_lot::Mutex;
use tinderbox_deferred::SourceError;
use tinderbox_fake::DynTensor;
use tinderbox_world::Buffer;

use crate::ActionError;
use crate::kept::Holders;
use crate::runtime::caught::device_failed;
use crate::runtime::streamed::Activation;
use crate::runtime::wire::{TensorType, lend_compact};

/// The activations of a step that do not stay in memory, in a file without a name, which ends with the process.
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

/// Where an activation is, and which stages need it how often.
#[derive(Debug)]
struct Place {
    start: u64,
    kind: TensorType,
    holders: Holders,
}

impl Spill {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            written: Mutex::default(),
        }
    }

    /// Forgets what a step has written. The file and its blocks are gone then.
    pub(crate) fn clear(&self) {
        *self.written.lock() = Written::default();
    }

    /// Writes an activation, if it is not there already, and drops it.
    pub(crate) fn put(
        &self,
        activation: Activation,
        value: DynTensor,
        holders: Holders,
    ) -> Result<(), ActionError> {
        // A write that panics ends the step.
        let mut written = self.written.lock();
        if let Some(place) = written.values.get_mut(&activation) {
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
        written.values.insert(activation, place);
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
pub(super) fn moved(value: DynTensor, device: &Device) -> Result<DynTensor, SourceError> {
    let moved = value.to_device(device);
    moved.map_err(|source| SourceError::Failed {
        described: "the memory of the host".to_owned(),
        source: Box::new(source),
    })
}

/// Returns the most bytes that writing or reading an activation takes beside it.
pub(crate) fn working_bytes(bytes: u64) -> u64 {
    // A view is copied twice to be written; what was read may be copied to be aligned.
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
