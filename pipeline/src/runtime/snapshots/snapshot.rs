//! What a rank has at one point in time, in parts that can be sent.

use burn::optim::DynState;
use burn::tensor::Device;
use burn_pack::Scalar;
use serde::{Deserialize, Serialize};
use tinderbox_deferred::{ParameterPath, ParameterTable};
use tinderbox_fake::DynTensor;

use crate::runtime::digest::ReadError;
use crate::runtime::optimizer::OptimizerSnapshot;
use crate::runtime::pieces::Piece;
use crate::runtime::stage::Stage;
use crate::runtime::wire::TensorType;

/// What a part of a state is a part of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Name {
    /// The position of the parameter in the table.
    pub(crate) position: usize,
    /// The name of the tensor of the optimizer's state; `None` for the parameter itself.
    pub(crate) state: Option<String>,
}

/// A tensor, or some of its rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Item {
    pub(crate) name: Name,
    pub(crate) first_row: u64,
    pub(crate) kind: TensorType,
}

/// The parts of a state, without their values.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Contents {
    pub(crate) items: Vec<Item>,
    /// The numbers of the optimizer's state, with the position of their parameter.
    pub(crate) scalars: Vec<(usize, String, Scalar)>,
}

/// The state of a rank: handles to values that do not change.
///
/// With replicas, a rank has the pieces that it updates, so that all ranks together have every value once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    values: Vec<(ParameterPath, Piece, DynTensor)>,
    optimizers: Vec<OptimizerSnapshot>,
}

impl Snapshot {
    /// The current state of the stages of a rank. Copies nothing on the CPU.
    pub(crate) fn of(stages: &[Stage]) -> Self {
        let values = stages.iter().flat_map(|stage| {
            let owned = stage.parameters();
            stage.own_pieces().iter().map(|piece| {
                let path = owned.path(piece.place).clone();
                (path, piece.clone(), piece.of(owned.value(piece.place)))
            })
        });
        Self {
            values: values.collect(),
            optimizers: stages.iter().map(Stage::optimizer_snapshot).collect(),
        }
    }

    /// Reads the parts with their values. Copies the state of the optimizer, for the pieces that are selected.
    pub(crate) fn read(
        &self,
        table: &ParameterTable,
        is_selected: impl Fn(&ParameterPath, &Piece) -> bool,
    ) -> Result<(Contents, Vec<DynTensor>), ReadError> {
        let mut contents = Contents::default();
        let mut values = Vec::new();
        let position = |path: &ParameterPath| {
            let position = table.position(path);
            position.expect("a stage holds parameters of the table")
        };
        let mut add = |position, state, first_row, value: DynTensor| {
            contents.items.push(Item {
                name: Name { position, state },
                first_row,
                kind: TensorType::of(&value),
            });
            values.push(value);
        };
        for (path, piece, value) in &self.values {
            add(position(path), None, piece.rows.start, value.clone());
        }
        let mut scalars = Vec::new();
        for optimizer in &self.optimizers {
            for of_piece in optimizer.of_pieces(&is_selected)? {
                let position = position(of_piece.path);
                let first_row = of_piece.piece.rows.start;
                for (name, data) in of_piece.tensors {
                    let value = DynTensor::from_data(data, &Device::flex());
                    add(position, Some(name), first_row, value);
                }
                // The scalars of all pieces of a parameter are the same.
                let numbers = of_piece.scalars.into_iter().filter(|_| first_row == 0);
                scalars.extend(numbers.map(|(name, number)| (position, name, number)));
            }
        }
        contents.scalars = scalars;
        Ok((contents, values))
    }

    /// The state of the optimizer for each piece that has one, as it is.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&ParameterPath, &Piece, &DynState)> {
        self.optimizers.iter().flat_map(OptimizerSnapshot::states)
    }

    /// Whether each parameter has the same memory in an earlier state, and so the same value: that state holds it, so nothing
    /// has been written to it. In the order of the items; the items of the optimizer's state are not in the list.
    pub(crate) fn same_as(&self, earlier: &Self) -> Vec<bool> {
        let pairs = self.values.iter().zip(&earlier.values);
        let same = pairs.map(|((_, _, own), (_, _, other))| {
            match (own.host_bytes(), other.host_bytes()) {
                (Some(own), Some(other)) => own.as_ptr() == other.as_ptr(),
                _ => false,
            }
        });
        same.collect()
    }
}
