//! The ids of operations and values.

use burn_ir::TensorIr;
use derive_more::Display;
use serde::{Deserialize, Serialize};

/// The id of a value of a graph: the output of a node, or a constant. Dense, in recorded order.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[display("%{_0}")]
pub struct ValueId(u32);

/// The id of an operation of a graph. Dense, in recorded order.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[display("#{_0}")]
pub struct NodeId(u32);

macro_rules! index {
    ($id:ident) => {
        impl $id {
            /// Returns the id at an index in recorded order.
            pub(crate) fn at(index: usize) -> Self {
                Self(u32::try_from(index).expect("a graph has fewer than 2^32 values and nodes"))
            }

            /// Returns the index in recorded order.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

index!(ValueId);
index!(NodeId);

impl ValueId {
    /// Returns the value that a tensor of a graph's operation refers to; `None` for an id that is out of range for all
    /// graphs.
    pub fn of_tensor(tensor: &TensorIr) -> Option<Self> {
        u32::try_from(tensor.id.value()).ok().map(Self)
    }
}
