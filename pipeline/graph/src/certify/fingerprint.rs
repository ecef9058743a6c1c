//! Hashes of computations: 128 bits of an operation's kind, attributes and the hashes of its operands.

use std::collections::HashMap;

use burn::tensor::{DType, Shape, TensorData};
use serde::Serialize;
use tinderbox_deferred::RandomValues;
use tinderbox_fake::{Operation, encode};
use twox_hash::XxHash3_128;

use crate::trace::Given;

/// A hash of a computation. Two hashes are equal if the same operations compute both values from the same leaves.
///
/// The hash is not cryptographic: it detects defects, not an adversary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint(u128);

/// The values that random values depend on, in addition to their key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Draws {
    /// The seed only.
    Once,
    /// The seed, the step and the micro-batch.
    PerMicroBatch,
}

/// The kinds of hashed items; the bytes of each begin with its kind.
#[derive(Clone, Copy)]
enum Kind {
    Parameter = 0,
    Input = 1,
    Weight = 2,
    Constant = 3,
    Random = 4,
    Operation = 5,
    Output = 6,
    Unkeyed = 7,
}

/// Computes fingerprints in one buffer.
#[derive(Default)]
pub(super) struct Hasher {
    bytes: Vec<u8>,
    /// The digests of constants, by address and length: copies of a graph's constants share its memory.
    constants: HashMap<(usize, usize), u128>,
}

impl Hasher {
    /// Hashes the identity of an item among the items of its kind.
    fn hash(&mut self, kind: Kind, item: &impl Serialize) -> Fingerprint {
        self.bytes.clear();
        self.bytes.push(kind as u8);
        encode(item, &mut self.bytes);
        Fingerprint(XxHash3_128::oneshot(&self.bytes))
    }

    /// A parameter in the dtype in which programs read it, a tensor of the batch, or the weight of the
    /// micro-batch.
    pub(super) fn given(&mut self, given: Given, shape: &Shape, dtype: DType) -> Fingerprint {
        let (kind, position) = match given {
            Given::Parameter(position) => (Kind::Parameter, position),
            Given::Input(position) => (Kind::Input, position),
            Given::Weight => (Kind::Weight, 0),
        };
        self.hash(kind, &(position, shape, dtype))
    }

    /// Constant data. The data must live as long as this hasher is used: they are identified by their
    /// address.
    pub(super) fn constant(&mut self, data: &TensorData) -> Fingerprint {
        let bytes = data.as_bytes();
        let place = (bytes.as_ptr() as usize, bytes.len());
        let known = self.constants.entry(place);
        let digest = *known.or_insert_with(|| XxHash3_128::oneshot(bytes));
        self.hash(Kind::Constant, &(digest, data.shape(), data.dtype()))
    }

    /// Random values of this project's generator.
    pub(super) fn random(&mut self, random: RandomValues<'_>, draws: Draws) -> Fingerprint {
        let stream = (draws == Draws::PerMicroBatch, random.key);
        let values = (random.distribution, random.whole, random.region);
        let out = (&random.out.shape, random.out.dtype);
        self.hash(Kind::Random, &(stream, values, out))
    }

    /// An operation that no program can run: its fingerprint differs from every other.
    pub(super) fn unkeyed(&mut self, position: usize) -> Fingerprint {
        self.hash(Kind::Unkeyed, &position)
    }

    /// Pushes the fingerprints of an operation's outputs.
    pub(super) fn operation(
        &mut self,
        operation: Operation<'_>,
        operands: impl Iterator<Item = Fingerprint>,
        outputs: &mut Vec<Fingerprint>,
    ) {
        self.bytes.clear();
        self.bytes.push(Kind::Operation as u8);
        // The hashes of the operands identify the tensors.
        operation.write_attributes(&mut self.bytes);
        for operand in operands {
            self.bytes.extend_from_slice(&operand.0.to_le_bytes());
        }
        let whole = XxHash3_128::oneshot(&self.bytes);
        for index in 0..operation.outputs().count() {
            outputs.push(self.hash(Kind::Output, &(index, whole)));
        }
    }
}
