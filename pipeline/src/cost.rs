//! How much work an operation is, from its shapes alone.

use burn_ir::{FloatOperationIr, ModuleOperationIr, OperationIr};
use tinderbox_fake::{Graph, NodeId, ValueId};

fn elements(graph: &Graph, value: ValueId) -> u64 {
    graph.value(value).shape.num_elements() as u64
}

/// Floating point operations of a node, by the usual counts: `2 m n k` for a product of matrices,
/// two per weight and output position for a convolution, one per element for the rest. Operations
/// that only move or describe data count none.
pub fn flops(graph: &Graph, id: NodeId) -> u64 {
    let node = graph.node(id);
    let out = || {
        node.outputs()
            .iter()
            .map(|v| elements(graph, *v))
            .sum::<u64>()
    };
    let read = || {
        node.inputs()
            .iter()
            .map(|v| elements(graph, *v))
            .max()
            .unwrap_or(0)
    };
    let last = |position: usize| {
        let dims = node.inputs().get(position).map(|v| &graph.value(*v).shape);
        dims.and_then(|shape| shape.last().copied()).unwrap_or(1) as u64
    };
    match &node.operation {
        OperationIr::Float(_, FloatOperationIr::Matmul(_)) => 2 * out() * last(0),
        OperationIr::Module(module) => match module {
            ModuleOperationIr::Linear(_) => 2 * out() * last(0),
            ModuleOperationIr::LinearXBackward(_) | ModuleOperationIr::LinearWeightBackward(_) => {
                // Three matrices of `m k`, `k n` and `m n` elements take `m k n` products.
                let inputs = node.inputs().iter().map(|v| elements(graph, *v) as f64);
                2 * (inputs.product::<f64>() * out() as f64).sqrt() as u64
            }
            ModuleOperationIr::Embedding(_) | ModuleOperationIr::Unfold4d(_) => 0,
            ModuleOperationIr::EmbeddingBackward(_) => read(),
            _ if is_convolution(module) => {
                let weight = node.inputs().get(1).map_or(0, |v| elements(graph, *v));
                let channels = node
                    .inputs()
                    .get(1)
                    .and_then(|v| graph.value(*v).shape.first().copied())
                    .unwrap_or(1) as u64;
                2 * out().max(read()) * weight / channels.max(1)
            }
            ModuleOperationIr::Attention(_) => {
                // Scores and the weighted sum of values: two products over the key positions.
                let keys = node.inputs().get(1).map_or(1, |v| {
                    let shape = &graph.value(*v).shape;
                    shape.iter().rev().nth(1).copied().unwrap_or(1) as u64
                });
                4 * out() * keys
            }
            _ => out().max(read()),
        },
        OperationIr::BaseFloat(_) | OperationIr::BaseInt(_) | OperationIr::BaseBool(_) => 0,
        OperationIr::Init(_) | OperationIr::Drop(_) => 0,
        _ => out().max(read()),
    }
}

fn is_convolution(module: &ModuleOperationIr) -> bool {
    use ModuleOperationIr as M;
    matches!(
        module,
        M::Conv1d(_)
            | M::Conv1dXBackward(_)
            | M::Conv1dWeightBackward(_)
            | M::Conv2d(_)
            | M::Conv2dXBackward(_)
            | M::Conv2dWeightBackward(_)
            | M::Conv3d(_)
            | M::Conv3dXBackward(_)
            | M::Conv3dWeightBackward(_)
            | M::DeformableConv2d(_)
            | M::ConvTranspose1d(_)
            | M::ConvTranspose2d(_)
            | M::ConvTranspose3d(_)
    )
}

/// Whether an operation is too much work to be done again on every stage that reads its result:
/// more than a few operations per element that it makes or reads.
pub fn is_heavy(graph: &Graph, id: NodeId) -> bool {
    const CHEAP_FLOPS_PER_ELEMENT: u64 = 4;
    let node = graph.node(id);
    let touched: u64 = node
        .inputs()
        .iter()
        .chain(node.outputs())
        .map(|v| elements(graph, *v))
        .sum();
    flops(graph, id) > CHEAP_FLOPS_PER_ELEMENT * touched
}
