//! What is counted of an operation, and how counts are put together.

use std::collections::HashSet;
use std::iter::Sum;
use std::ops::Add;

use burn_ir::TensorIr;
use serde::{Deserialize, Serialize};

use super::size::{bytes, bytes_of, elements};

/// The work of an operation, or of several: arithmetic, and memory traffic.
///
/// Counts follow from shapes and dtypes alone, so they are the same on every device. They add up
/// with `+` and `sum`, and stop at [`u64::MAX`] instead of overflowing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OperationCost {
    /// Operations on single elements, whatever their dtype. A multiplication and an addition are
    /// two; a comparison, a cast, a bitwise operation or a function such as `exp` is one.
    pub flops: u64,
    /// Bytes that must be read: every distinct input once, and of a table only what is selected.
    pub bytes_read: u64,
    /// Bytes that must be written: the outputs, except those that are views.
    pub bytes_written: u64,
}

impl OperationCost {
    /// Arithmetic alone.
    pub(super) fn of_flops(flops: u64) -> Self {
        Self {
            flops,
            ..Self::default()
        }
    }

    /// With the whole of these tensors read, each once however often it stands there.
    pub(super) fn reads<'a>(mut self, tensors: impl IntoIterator<Item = &'a TensorIr>) -> Self {
        let mut seen = HashSet::new();
        for tensor in tensors {
            if seen.insert(tensor.id) {
                self.bytes_read = self.bytes_read.saturating_add(bytes(tensor));
            }
        }
        self
    }

    /// With the whole of some tensors read, and of a table no more than so many elements.
    ///
    /// An element that is selected twice is read once, as from a cache: never more than the table.
    pub(super) fn reads_selected(
        self,
        table: &TensorIr,
        selected: u64,
        whole: &[&TensorIr],
    ) -> Self {
        let mut cost = self.reads(whole.iter().copied());
        if whole.iter().all(|tensor| tensor.id != table.id) {
            let part = if selected >= elements(table) {
                bytes(table)
            } else {
                bytes_of(selected, table.dtype)
            };
            cost.bytes_read = cost.bytes_read.saturating_add(part);
        }
        cost
    }

    /// With these tensors written.
    pub(super) fn writes<'a>(mut self, tensors: impl IntoIterator<Item = &'a TensorIr>) -> Self {
        for tensor in tensors {
            self.bytes_written = self.bytes_written.saturating_add(bytes(tensor));
        }
        self
    }
}

impl Add for OperationCost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            flops: self.flops.saturating_add(other.flops),
            bytes_read: self.bytes_read.saturating_add(other.bytes_read),
            bytes_written: self.bytes_written.saturating_add(other.bytes_written),
        }
    }
}

impl Sum for OperationCost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), Add::add)
    }
}

impl<'a> Sum<&'a OperationCost> for OperationCost {
    fn sum<I: Iterator<Item = &'a Self>>(costs: I) -> Self {
        costs.copied().sum()
    }
}

/// An operation's description that says by itself what is computed.
///
/// Descriptions that several operations share, such as [`burn_ir::UnaryOpIr`], do not: the families
/// count those.
pub(super) trait Count {
    /// The work of the operation.
    fn count(&self) -> OperationCost;
}

/// A table of operations that differ in little: the FLOPs, the tensors that are read whole, one that
/// is read if it is there, and those that are written.
macro_rules! counts {
    ($($operation:ident: |$op:ident| $flops:expr,
        [$($read:ident),+] $(+ $optional:ident)? -> [$($written:ident),+];)+) => {$(
        impl Count for $operation {
            fn count(&self) -> OperationCost {
                let $op = self;
                OperationCost::of_flops($flops)
                    .reads([$(&$op.$read),+].into_iter()$(.chain(&$op.$optional))?)
                    .writes([$(&$op.$written),+])
            }
        }
    )+};
}

pub(super) use counts;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::fixture::tensor;

    const ONE: OperationCost = OperationCost {
        flops: 1,
        bytes_read: 2,
        bytes_written: 3,
    };

    #[test]
    fn costs_add_up_and_saturate() {
        let most = OperationCost {
            flops: u64::MAX,
            bytes_read: u64::MAX,
            bytes_written: u64::MAX,
        };
        assert_eq!(most + ONE, most);
        let three: OperationCost = [ONE; 3].iter().sum();
        assert_eq!(
            (three.flops, three.bytes_read, three.bytes_written),
            (3, 6, 9)
        );
        assert_eq!([ONE; 3].into_iter().sum::<OperationCost>(), three);
        let none: OperationCost = std::iter::empty::<OperationCost>().sum();
        assert_eq!(none, OperationCost::default());
    }

    #[test]
    fn a_tensor_that_stands_twice_is_read_once() {
        let (first, second) = (tensor(0, &[2, 3]), tensor(1, &[3]));
        let cost = OperationCost::default().reads([&first, &second, &first]);
        assert_eq!(cost.bytes_read, (6 + 3) * 4);
    }

    #[test]
    fn a_table_is_read_where_it_is_selected() {
        let (table, indices) = (tensor(0, &[10]), tensor(1, &[4]));
        for (selected, expected) in [(0, 0), (4, 16), (10, 40), (1000, 40)] {
            let cost = OperationCost::default().reads_selected(&table, selected, &[&indices]);
            assert_eq!(cost.bytes_read, 16 + expected);
        }
        let itself = OperationCost::default().reads_selected(&table, 4, &[&table]);
        assert_eq!(itself.bytes_read, 40);
    }
}
