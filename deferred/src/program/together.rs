//! Brings independent matrix products together, so that the threads of a pool compute them at the same time.
//!
//! Burn divides a large product among threads, and computes a small one, or one of a matrix and a vector, with one thread.
//! Models have several of these that do not depend on each other: queries, keys and values of an attention, or the two
//! gradients of a product.
//!
//! A product runs earlier than it was recorded, with the views that it needs. What they read last is freed where they
//! were recorded, so every other operation works in place exactly if it did in the recorded order.

use std::collections::HashSet;
use std::mem;
use std::ops::Range;

use burn::tensor::Shape;
use burn_ir::{FloatOperationIr, ModuleOperationIr, OperationIr, TensorIr};
use tinderbox_fake::{Node, ValueId};

use super::liveness::free;
use super::operation::is_view;
use super::{Program, Step};

/// Multiplications that are worth the time to start other threads.
pub(super) const WORTHWHILE: Worthwhile = Worthwhile {
    product: 1 << 16,
    others: 1 << 18,
};
/// Multiplications from which `flex` divides one product, and the products of a batch.
const DIVIDED_PRODUCT: usize = 192 * 192 * 192;
const DIVIDED_BATCH: usize = 128 * 128 * 128;
/// The most products at the same time.
const MOST_TOGETHER: usize = 4;
/// The number of steps after a product among which others are looked for.
const STEPS_AHEAD: usize = 128;
/// The most bytes of results that exist earlier than in the recorded order.
const MOST_BYTES_EARLIER: usize = 1 << 20;

/// The fewest multiplications for which products are brought together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Worthwhile {
    /// Those of each product.
    pub(super) product: usize,
    /// Those of all products but the largest.
    pub(super) others: usize,
}

/// Reorders the steps of a program so that independent products follow each other after a [`Step::Together`].
pub(super) fn bring_together(program: &mut Program, worthwhile: Worthwhile) {
    let steps = mem::take(&mut program.steps);
    let nodes = program.nodes.clone();
    let mut remaining = Remaining {
        nodes: steps.iter().map(|step| node_of(&nodes, step)).collect(),
        worthwhile,
    };
    let mut ordered = Vec::with_capacity(steps.len());
    for (first, step) in steps.iter().enumerate() {
        let is_moved = remaining.nodes[first].take().is_none();
        let Step::Operation { node, last_uses } = step else {
            ordered.push(step.clone());
            continue;
        };
        let node = &nodes[node.index()];
        if is_moved {
            let last_uses = last_uses.start as usize..last_uses.end as usize;
            let last_uses = &program.last_uses[last_uses];
            let inputs = node.operation.inputs();
            let last = inputs.filter(|input| last_uses.contains(&input.id));
            ordered.extend(last.cloned().map(free));
            continue;
        }
        let (views, products) = remaining.independent_of(node, first);
        let mut early = |at: &usize| {
            remaining.nodes[*at] = None;
            match &steps[*at] {
                Step::Operation { node, .. } => Step::Operation {
                    node: *node,
                    last_uses: 0..0,
                },
                step => unreachable!("only operations move, not {step:?}"),
            }
        };
        ordered.extend(views.iter().map(&mut early));
        if !products.is_empty() {
            ordered.push(Step::Together(products.len() as u32 + 1));
        }
        ordered.push(step.clone());
        ordered.extend(products.iter().map(&mut early));
    }
    program.steps = ordered;
}

fn node_of<'a>(nodes: &'a [Node], step: &Step) -> Option<&'a Node> {
    match step {
        Step::Operation { node, .. } => Some(&nodes[node.index()]),
        Step::Together(_) | Step::Free(_) | Step::Random(_) => None,
    }
}

/// The operations of steps that have not been ordered.
struct Remaining<'a> {
    nodes: Vec<Option<&'a Node>>,
    worthwhile: Worthwhile,
}

impl Remaining<'_> {
    /// Returns the independent products after the one of a step that are computed at the same time, and the views that
    /// they need before.
    fn independent_of(&self, node: &Node, first: usize) -> (Vec<usize>, Vec<usize>) {
        let (mut views, mut products) = (Vec::new(), Vec::new());
        let multiplications = |node: &Node| {
            let multiplications = multiplications_of_one_thread(node);
            multiplications.filter(|count| *count >= self.worthwhile.product)
        };
        let Some(of_first) = multiplications(node) else {
            return (views, products);
        };
        let (mut sum, mut largest) = (of_first, of_first);
        let mut dependent: HashSet<ValueId> = node.outputs().iter().copied().collect();
        let mut bytes_left = MOST_BYTES_EARLIER;
        let end = self.nodes.len().min(first + STEPS_AHEAD);
        for next in first + 1..end {
            let Some(node) = self.nodes[next] else {
                continue;
            };
            if products.len() + 1 == MOST_TOGETHER {
                break;
            }
            if node.inputs().iter().all(|input| !dependent.contains(input)) {
                let Some(multiplications) = multiplications(node) else {
                    continue;
                };
                let needed = self.views_for(node, first + 1..next);
                let left = bytes_left.checked_sub(node.operation.outputs().map(bytes).sum());
                let (Some(needed), Some(left)) = (needed, left) else {
                    continue;
                };
                sum += multiplications;
                largest = largest.max(multiplications);
                bytes_left = left;
                views.extend(needed);
                products.push(next);
            }
            dependent.extend(node.outputs());
        }
        if sum - largest < self.worthwhile.others {
            return (Vec::new(), Vec::new());
        }
        views.sort_unstable();
        views.dedup();
        (views, products)
    }

    /// Returns the steps of a range that a node needs; `None` if it needs other operations than views.
    fn views_for(&self, node: &Node, range: Range<usize>) -> Option<Vec<usize>> {
        let mut inputs: HashSet<ValueId> = node.inputs().iter().copied().collect();
        let mut views = Vec::new();
        for at in range.rev() {
            let Some(node) = self.nodes[at] else {
                continue;
            };
            if node.outputs().iter().any(|output| inputs.contains(output)) {
                if !is_view(&node.operation) {
                    return None;
                }
                inputs.extend(node.inputs());
                views.push(at);
            }
        }
        Some(views)
    }
}

fn bytes(tensor: &TensorIr) -> usize {
    tensor.shape.num_elements() * tensor.dtype.size()
}

/// Returns the multiplications of a product that `flex` does not divide among threads; `None` for other operations.
fn multiplications_of_one_thread(node: &Node) -> Option<usize> {
    let from_end = |shape: &Shape, place: usize| {
        let place = shape.num_dims().checked_sub(place + 1);
        place.map_or(1, |place| shape[place])
    };
    let (out, terms) = match &node.operation {
        OperationIr::Float(_, FloatOperationIr::Matmul(op)) => {
            (&op.out, from_end(&op.lhs.shape, 0))
        }
        OperationIr::Module(ModuleOperationIr::Linear(op)) => (&op.out, from_end(&op.x.shape, 0)),
        OperationIr::Module(ModuleOperationIr::LinearXBackward(op)) => {
            (&op.out, from_end(&op.output_grad.shape, 0))
        }
        OperationIr::Module(ModuleOperationIr::LinearWeightBackward(op)) => {
            let x = &op.x.shape;
            (&op.out, x.num_elements() / from_end(x, 0).max(1))
        }
        _ => return None,
    };
    let (rows, columns) = (from_end(&out.shape, 1), from_end(&out.shape, 0));
    let elements = out.shape.num_elements();
    let multiplications = elements.saturating_mul(terms);
    let is_divided = match elements == rows * columns {
        true => rows > 1 && columns > 1 && multiplications >= DIVIDED_PRODUCT,
        false => multiplications >= DIVIDED_BATCH,
    };
    (!is_divided).then_some(multiplications)
}
