//! Notices of the next call of a process, which the others compare with their own calls.

use std::collections::BTreeMap;
use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use tinderbox_fake::{DynTensor, FakeError};
use twox_hash::XxHash3_64;

use crate::runtime::digest::with_bytes;
use crate::runtime::round::MicroInput;
use crate::runtime::wire::TensorType;
use crate::schedule::RankIndex;

/// A digest of the shapes of micro-batches and, with `values`, of their values.
pub(crate) fn digest_of(micro_batches: &[MicroInput], values: bool) -> Result<u64, FakeError> {
    let mut hasher = XxHash3_64::with_seed(0);
    for micro in micro_batches {
        hasher.write_usize(micro.samples);
        for input in &micro.inputs {
            let written = postcard::to_stdvec(&TensorType::of(input));
            // Numbers and names are always written.
            hasher.write(&written.unwrap_or_default());
            if values {
                with_bytes(input, |bytes| hasher.write(bytes))?;
            }
        }
    }
    Ok(hasher.finish())
}

/// One call of a pipeline by a process. All processes have to make the same call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Notice {
    /// The number of this call, from 1; calls that were refused count.
    pub(crate) call: u64,
    /// The number of earlier training steps.
    step: u64,
    is_training: bool,
    /// The shapes of the batch, in words.
    shapes: String,
    /// A digest of the shapes of all micro-batches and, if values are compared, of their values.
    digest: u64,
    /// A digest of learning rates, loss scale, and the parameters that were frozen or set.
    settings: u64,
}

impl Notice {
    /// Describes a round. With `values`, costs a pass over the batch. For a share, only `of_share` is compared, which is the
    /// number of samples of all shares.
    pub(crate) fn new(
        (call, step): (u64, u64),
        is_training: bool,
        (micro_batches, of_share): (&[MicroInput], Option<usize>),
        settings: u64,
        values: bool,
    ) -> Result<Self, FakeError> {
        let (shapes, digest) = if let Some(samples) = of_share {
            (format!("{samples} samples in shares"), 0)
        } else {
            let text = |of: &DynTensor| format!("{:?} {:?}", of.shape().to_vec(), of.dtype());
            let first = micro_batches.iter().take(1).flat_map(|micro| &micro.inputs);
            let first = first.map(text).collect::<Vec<_>>().join(", ");
            let count = micro_batches.len();
            let shapes = format!("{count} micro-batches, the first of {first}");
            (shapes, digest_of(micro_batches, values)?)
        };
        Ok(Self {
            call,
            step,
            is_training,
            shapes,
            digest,
            settings,
        })
    }

    /// The difference between two calls with the same number, in words.
    fn difference(&self, other: &Self, of: RankIndex) -> Option<String> {
        let doing = |notice: &Self| match notice.is_training {
            true => format!("trains step {}", notice.step),
            false => format!("evaluates after step {}", notice.step),
        };
        Some(
            if (self.is_training, self.step) != (other.is_training, other.step) {
                format!("rank {of} {} while this one {}", doing(other), doing(self))
            } else if self.shapes != other.shapes {
                let (found, own) = (&other.shapes, &self.shapes);
                format!("rank {of} has a batch of {found}, and this one of {own}")
            } else if self.settings != other.settings {
                format!(
                    "rank {of} has other learning rates or another loss scale than this one, or has frozen or set other parameters"
                )
            } else if self.digest != other.digest {
                format!("rank {of} has another batch of the same shapes than this one")
            } else {
                return None;
            },
        )
    }
}

/// The calls of all processes.
#[derive(Debug, Default)]
pub(super) struct Notices {
    own: Option<Notice>,
    /// The calls of others that this process has not made yet, and the last of each.
    others: BTreeMap<(u64, RankIndex), Notice>,
    last: BTreeMap<RankIndex, u64>,
    /// The payload that this process waits for.
    pub(super) awaited: Option<u64>,
    /// The last call and the number of payloads of processes that have ended.
    pub(super) ended: BTreeMap<RankIndex, (u64, u64)>,
}

impl Notices {
    /// Compares this process' call with the calls of the others.
    pub(super) fn check(&self) -> Option<(RankIndex, String)> {
        let own = self.own.as_ref()?;
        self.last.iter().find_map(|(rank, last)| {
            let text = match self.others.get(&(own.call, *rank)) {
                Some(other) => own.difference(other, *rank)?,
                None if *last > own.call => format!(
                    "rank {rank} has skipped call {} of the pipeline, perhaps because its batch was refused",
                    own.call
                ),
                None => return None,
            };
            Some((*rank, text))
        })
    }

    /// Returns a rank that has ended before the current call of this process.
    pub(super) fn left(&self) -> Option<RankIndex> {
        let call = self.call();
        let is_before = |(last, payloads): &(u64, u64)| {
            *last < call || self.awaited.is_some_and(|awaited| *payloads <= awaited)
        };
        let mut ended = self.ended.iter().filter(|(_, last)| is_before(last));
        ended.next().map(|(rank, _)| *rank)
    }

    /// The number of this process' call.
    pub(super) fn call(&self) -> u64 {
        self.own.as_ref().map_or(0, |own| own.call)
    }

    /// Adds a call of another process.
    pub(super) fn add(&mut self, from: RankIndex, notice: Notice) {
        self.last.insert(from, notice.call);
        self.others.insert((notice.call, from), notice);
    }

    pub(super) fn begin(&mut self, notice: Notice) {
        // The calls before it are over on every rank.
        self.others = self.others.split_off(&(notice.call, RankIndex::new(0)));
        self.own = Some(notice);
    }
}
