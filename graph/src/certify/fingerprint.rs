//! Hashes of computations: 128 bits of an operation's kind, attributes and the hashes of its operands.

use std::collections::HashMap;

use burn::tensor::{DType, Shape, TensorData};
use serde::Serialize;
use tinderbox_deferred::RandomValues;
use tinderbox_fake::{Operation, encode};
use twox_hash::XxHash3_128;

use crate::trace::Given;

/// A hash of a computation: two are equal if the same operations compute both from the same leaves.
///
/// The hash is not cryptographic: it detects defects, not an adversary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint(u128);

/// The values on which random values depend besides their key.
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
    /// By address and length: copies of a graph's constants share its memory.
    constants: HashMap<(usize, usize), u128>,
}

impl Hasher {
    fn begin(&mut self, kind: Kind) {
        self.bytes.clear();
        self.bytes.push(kind as u8);
    }

    fn number(&mut self, number: usize) {
        self.bytes.extend_from_slice(&(number as u64).to_le_bytes());
    }

    fn write(&mut self, value: &impl Serialize) {
        encode(value, &mut self.bytes);
    }

    fn finish(&self) -> Fingerprint {
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
        self.begin(kind);
        self.number(position);
        self.write(shape);
        self.write(&dtype);
        self.finish()
    }

    /// Constant data. The data must live as long as this hasher is used: they are identified by their
    /// address.
    pub(super) fn constant(&mut self, data: &TensorData) -> Fingerprint {
        let bytes = data.as_bytes();
        let place = (bytes.as_ptr() as usize, bytes.len());
        let known = self.constants.entry(place);
        let digest = *known.or_insert_with(|| XxHash3_128::oneshot(bytes));
        self.begin(Kind::Constant);
        self.bytes.extend_from_slice(&digest.to_le_bytes());
        self.write(data.shape());
        self.write(&data.dtype());
        self.finish()
    }

    /// Random values of this project's generator.
    pub(super) fn random(&mut self, random: RandomValues<'_>, draws: Draws) -> Fingerprint {
        self.begin(Kind::Random);
        self.bytes.push(u8::from(draws == Draws::PerMicroBatch));
        self.write(random.key);
        self.write(&random.distribution);
        self.write(random.whole);
        self.write(random.region);
        self.write(&random.out.shape);
        self.write(&random.out.dtype);
        self.finish()
    }

    /// An operation that no program can run: its fingerprint differs from every other.
    pub(super) fn unkeyed(&mut self, position: usize) -> Fingerprint {
        self.begin(Kind::Unkeyed);
        self.number(position);
        self.finish()
    }

    /// Pushes the fingerprints of an operation's outputs.
    pub(super) fn operation(
        &mut self,
        operation: Operation<'_>,
        operands: impl ExactSizeIterator<Item = Fingerprint>,
        outputs: &mut Vec<Fingerprint>,
    ) {
        self.begin(Kind::Operation);
        // The hashes of the operands identify the tensors.
        operation.write_attributes(&mut self.bytes);
        self.number(operands.len());
        for operand in operands {
            self.bytes.extend_from_slice(&operand.0.to_le_bytes());
        }
        let whole = self.finish();
        for index in 0..operation.outputs().count() {
            self.begin(Kind::Output);
            self.number(index);
            self.bytes.extend_from_slice(&whole.0.to_le_bytes());
            outputs.push(self.finish());
        }
    }
}
