//! The same work on Burn's capture device alone: what no recording can go below.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};

/// Gives every lazy parameter its value, as its first use would.
struct Light;

impl ModuleVisitor for Light {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        drop(param.val());
    }
}

/// Number of operations that Burn's capture device records while `run` makes and uses a model.
pub fn capture<M: Module>(
    device: &Device,
    init: impl FnOnce(&Device) -> M,
    run: impl FnOnce(&Device, &M),
) -> usize {
    let captured = device.capture_scope(|scope| {
        let model = init(device);
        model.visit(&mut Light);
        run(device, &model);
        drop(model);
        scope.complete([], [])
    });
    captured.expect("it is captured").graph.operations.len()
}
