//! Hashes of computations: 128 bits of an operation's kind, attributes and the hashes of its operands.

use std::collections::HashMap;

use burn::tensor::{DType, Shape, TensorData};
use burn_ir::{IrVisitorMut, OperationIr, TensorId, TensorIr, TensorStatus};
use serde::Serialize;
use tinderbox_deferred::RandomValues;
use tinderbox_fake::encode;
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

/// Sets all tensors of an operation to the same id and status.
struct WithoutIds;

impl IrVisitorMut for WithoutIds {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        tensor.id = TensorId::new(0);
        tensor.status = TensorStatus::ReadOnly;
    }
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
        operation: &OperationIr,
        operands: impl ExactSizeIterator<Item = Fingerprint>,
        outputs: &mut Vec<Fingerprint>,
    ) {
        self.begin(Kind::Operation);
        // The hashes of the operands identify the tensors.
        let mut attributes = operation.clone();
        attributes.visit_mut(&mut WithoutIds);
        self.write(&attributes);
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

#[cfg(test)]
mod tests {
    use burn_ir::{NumericOperationIr, ScalarIr, ScalarOpIr};

    use super::*;

    fn fingerprint(operation: &OperationIr) -> Fingerprint {
        let mut outputs = Vec::new();
        Hasher::default().operation(operation, [].into_iter(), &mut outputs);
        outputs[0]
    }

    fn tensor(id: u64, status: TensorStatus, dtype: DType) -> TensorIr {
        TensorIr {
            id: TensorId::new(id),
            shape: Shape::new([2, 3]),
            status,
            dtype,
        }
    }

    fn multiplied(lhs: TensorIr, rhs: f64) -> OperationIr {
        let out = tensor(9, TensorStatus::NotInit, DType::F32);
        let rhs = ScalarIr::Float(rhs);
        let scaled = NumericOperationIr::MulScalar(ScalarOpIr { lhs, rhs, out });
        OperationIr::NumericFloat(DType::F32, scaled)
    }

    #[test]
    fn ids_and_statuses_are_left_out_and_all_else_counts() {
        let read = || tensor(1, TensorStatus::ReadOnly, DType::F32);
        let one = fingerprint(&multiplied(read(), 0.0));
        let other = tensor(5, TensorStatus::ReadWrite, DType::F32);
        assert_eq!(one, fingerprint(&multiplied(other, 0.0)));
        let half = tensor(1, TensorStatus::ReadOnly, DType::F16);
        assert_ne!(one, fingerprint(&multiplied(half, 0.0)));
        assert_ne!(one, fingerprint(&multiplied(read(), -0.0)));
        assert_ne!(one, fingerprint(&multiplied(read(), 1.0)));
        // A NaN equals itself here, unlike in a comparison of floats.
        let nan = || fingerprint(&multiplied(read(), f64::NAN));
        assert_eq!(nan(), nan());
    }
}
