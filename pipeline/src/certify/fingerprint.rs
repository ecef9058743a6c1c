//! Hashes of computations: 128 bits of an operation's kind, attributes and the hashes of its operands.

use std::collections::HashMap;

use burn::tensor::{DType, Shape, TensorData};
use burn_ir::OperationIr;
use serde::Serialize;
use tinderbox_deferred::RandomValues;
use twox_hash::XxHash3_128;

use super::attributes::Attributes;

/// Stands for a computation: two are equal when the same operations make both from the same leaves.
///
/// The hash is not cryptographic: it guards against defects, not against an adversary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint(u128);

/// What random values depend on beside their key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Draws {
    /// The seed alone.
    Once,
    /// The step and the micro-batch too.
    PerMicroBatch,
}

/// The kinds of what is hashed; each begins with its own byte.
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

/// Makes fingerprints in one buffer.
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
        let written = value.serialize(Attributes(&mut self.bytes));
        written.expect("every sequence of Burn's operations knows its length");
    }

    fn finish(&self) -> Fingerprint {
        Fingerprint(XxHash3_128::oneshot(&self.bytes))
    }

    fn leaf(&mut self, kind: Kind, position: usize, shape: &Shape, dtype: DType) -> Fingerprint {
        self.begin(kind);
        self.number(position);
        self.write(shape);
        self.write(&dtype);
        self.finish()
    }

    /// The parameter at a position of the table, in the type that programs read it in.
    pub(super) fn parameter(
        &mut self,
        position: usize,
        shape: &Shape,
        dtype: DType,
    ) -> Fingerprint {
        self.leaf(Kind::Parameter, position, shape, dtype)
    }

    /// The tensor at a position of the batch.
    pub(super) fn input(&mut self, position: usize, shape: &Shape, dtype: DType) -> Fingerprint {
        self.leaf(Kind::Input, position, shape, dtype)
    }

    /// The weight of the micro-batch.
    pub(super) fn weight(&mut self, shape: &Shape, dtype: DType) -> Fingerprint {
        self.leaf(Kind::Weight, 0, shape, dtype)
    }

    /// Data. The data must live as long as this hasher is used: they are known by their address.
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

    /// Random values of our generator.
    pub(super) fn random(&mut self, random: RandomValues<'_>, draws: Draws) -> Fingerprint {
        self.begin(Kind::Random);
        self.bytes.push(u8::from(draws == Draws::PerMicroBatch));
        self.write(random.key);
        self.write(&random.distribution);
        self.write(random.whole);
        self.write(random.region);
        self.write(random.out);
        self.finish()
    }

    /// An operation that no program can run: it is equal to nothing else.
    pub(super) fn unkeyed(&mut self, position: usize) -> Fingerprint {
        self.begin(Kind::Unkeyed);
        self.number(position);
        self.finish()
    }

    /// Pushes the fingerprints of an operation's outputs.
    pub(super) fn operation(
        &mut self,
        operation: &OperationIr,
        operands: impl ExactSizeIterator<Item = Fingerprint>,
        outputs: &mut Vec<Fingerprint>,
    ) {
        self.begin(Kind::Operation);
        self.write(operation);
        self.number(operands.len());
        for operand in operands {
            self.bytes.extend_from_slice(&operand.0.to_le_bytes());
        }
        let whole = self.finish();
        for (index, _) in operation.outputs().enumerate() {
            self.begin(Kind::Output);
            self.number(index);
            self.bytes.extend_from_slice(&whole.0.to_le_bytes());
            outputs.push(self.finish());
        }
    }
}
