//! Changes the tensors of operations.

use burn_ir::{IrVisitorMut, OperationIr, TensorIr};

/// Changes all tensors of an operation, in the order in which Burn visits them.
pub fn change_tensors(operation: &mut OperationIr, change: impl FnMut(&mut TensorIr)) {
    operation.visit_mut(&mut ChangeTensors(change));
}

struct ChangeTensors<F>(F);

impl<F: FnMut(&mut TensorIr)> IrVisitorMut for ChangeTensors<F> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        (self.0)(tensor);
    }
}
