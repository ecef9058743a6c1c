//! The same work on Burn's capture device alone: the lower bound for recording.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};

/// Initializes every lazy parameter, as its first use does.
struct InitializeAll;

impl ModuleVisitor for InitializeAll {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        drop(param.val());
    }
}

/// Returns the number of operations that Burn's capture device records while `run` constructs and uses a
/// model.
pub fn capture<M: Module>(
    device: &Device,
    init: impl FnOnce(&Device) -> M,
    run: impl FnOnce(&Device, &M),
) -> usize {
    let captured = device.capture_scope(|scope| {
        let model = init(device);
        model.visit(&mut InitializeAll);
        run(device, &model);
        drop(model);
        scope.complete([], [])
    });
    captured.expect("it is captured").graph.operations.len()
}
