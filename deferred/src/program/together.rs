//! Brings independent matrix products together, so that the threads of a pool compute them at the same time.
//!
//! Burn divides a large product among threads, and computes a small product, or a product of a matrix and a vector, with
//! one thread. Models have several such products that do not depend on each other: queries, keys and values of an
//! attention, or the two gradients of a product.
//!
//! A product runs earlier than it was recorded, with the views that it needs. The values that they read last are freed
//! where they were recorded, so every other operation works in place exactly if it did in the recorded order.

use std::collections::HashSet;
use std::ops::Range;

use burn::tensor::DType;
use burn_ir::{OperationIr, TensorId, TensorIr};
use tinderbox_fake::Node;

use super::liveness::free;
use super::operation::{is_reshape, is_view, matrix_product, tensor_id};
use super::{Program, Step, Together};

/// The multiplications from which products are faster on several threads.
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
/// The most bytes of results that exist at a time because they were computed earlier than recorded. A reshape of an input
/// of the program has no bytes here, though it copies an input that is not in row-major order. On a GPU the order is the
/// same and nothing is gained.
const MOST_BYTES_EARLY: usize = 1 << 20;

/// The fewest multiplications for which products run together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Worthwhile {
    /// The fewest multiplications of each product.
    pub(super) product: usize,
    /// The fewest multiplications of all products but the largest.
    pub(super) others: usize,
}

/// Reorders the steps of a program so that independent products are one step.
pub(super) fn bring_together(program: &mut Program, worthwhile: Worthwhile) {
    let steps = &program.steps;
    let given = program.inputs.iter();
    let given = given.chain(program.constants.iter().map(|(value, _)| value));
    let mut order = Order {
        nodes: &program.nodes,
        is_moved: vec![false; steps.len()],
        given: given.map(|value| tensor_id(*value)).collect(),
        bytes_left: MOST_BYTES_EARLY,
        worthwhile,
        steps,
    };
    let is_product = |at: &usize| order.product(*at).is_some();
    if (0..steps.len()).filter(is_product).nth(1).is_none() {
        return;
    }
    let node_of = |at: usize| match &steps[at] {
        Step::Operation { node, .. } => *node,
        step => unreachable!("only operations move, not {step:?}"),
    };
    let mut ordered = Vec::with_capacity(steps.len());
    for (at, step) in steps.iter().enumerate() {
        let Step::Operation { node, last_uses } = step else {
            ordered.push(step.clone());
            continue;
        };
        if order.is_moved[at] {
            order.bytes_left += order.bytes(at);
            let last_uses = program.last_uses(last_uses);
            let inputs = program.nodes[node.index()].operation.inputs();
            let last = inputs.filter(|input| last_uses.contains(&input.id));
            ordered.extend(last.cloned().map(free));
            continue;
        }
        let Some(Early { views, products }) = order.independent_of(at) else {
            ordered.push(step.clone());
            continue;
        };
        ordered.extend(views.iter().map(|view| Step::Operation {
            node: node_of(*view),
            last_uses: 0..0,
        }));
        let others = products.iter().map(|product| (node_of(*product), 0..0));
        let first = (*node, last_uses.clone());
        let operations = [first].into_iter().chain(others).collect();
        ordered.push(Step::Together(Box::new(Together { operations })));
        for moved in views.into_iter().chain(products) {
            order.is_moved[moved] = true;
            order.bytes_left -= order.bytes(moved);
        }
    }
    ordered.shrink_to_fit();
    program.steps = ordered;
}

/// Steps that run earlier than recorded.
#[derive(Default)]
struct Early {
    /// The views, which run before the products.
    views: Vec<usize>,
    products: Vec<usize>,
}

/// The recorded order, and the steps that have been moved.
struct Order<'a> {
    nodes: &'a [Node],
    steps: &'a [Step],
    is_moved: Vec<bool>,
    /// The values that no step computes.
    given: HashSet<TensorId>,
    /// The bytes that can still be in memory earlier than recorded.
    bytes_left: usize,
    worthwhile: Worthwhile,
}

impl Order<'_> {
    /// Returns the operation of a step that has not been moved.
    fn operation(&self, at: usize) -> Option<&OperationIr> {
        match &self.steps[at] {
            Step::Operation { node, .. } if !self.is_moved[at] => {
                Some(&self.nodes[node.index()].operation)
            }
            _ => None,
        }
    }

    /// Returns the multiplications of a step that can be computed together with others.
    fn product(&self, at: usize) -> Option<usize> {
        let multiplications = multiplications_of_one_thread(self.operation(at)?)?;
        (multiplications >= self.worthwhile.product).then_some(multiplications)
    }

    /// Returns independent products that are computed at the same time as the one of a step; `None` if there are none.
    fn independent_of(&self, first: usize) -> Option<Early> {
        let mut sum = self.product(first)?;
        let mut largest = sum;
        // The values that can't be computed before the product.
        let results = self.operation(first)?.outputs();
        let mut later: HashSet<TensorId> = results.map(|out| out.id).collect();
        let mut early = Early::default();
        let mut bytes_left = self.bytes_left;
        let end = self.steps.len().min(first + STEPS_AHEAD);
        for next in first + 1..end {
            if let Step::Random(random) = &self.steps[next] {
                later.insert(random.out.id);
            }
            let Some(operation) = self.operation(next) else {
                continue;
            };
            if operation.inputs().all(|input| !later.contains(&input.id)) {
                let Some(multiplications) = self.product(next) else {
                    continue;
                };
                let left = bytes_left.checked_sub(self.bytes(next));
                let views = left.and_then(|_| self.views_for(operation, first + 1..next));
                let Some(mut views) = views else {
                    continue;
                };
                views.retain(|view| !early.views.contains(view));
                let of_views = views.iter().map(|view| self.bytes(*view)).sum();
                let Some(left) = left.and_then(|left| left.checked_sub(of_views)) else {
                    continue;
                };
                bytes_left = left;
                sum += multiplications;
                largest = largest.max(multiplications);
                early.views.extend(views);
                early.products.push(next);
                if early.products.len() + 1 == MOST_TOGETHER {
                    break;
                }
            }
            later.extend(operation.outputs().map(|out| out.id));
        }
        early.views.sort_unstable();
        (sum - largest >= self.worthwhile.others && !early.products.is_empty()).then_some(early)
    }

    /// Returns the steps of a range that an operation needs; `None` if it needs other operations than views.
    fn views_for(&self, operation: &OperationIr, range: Range<usize>) -> Option<Vec<usize>> {
        let mut inputs: HashSet<TensorId> = operation.inputs().map(|input| input.id).collect();
        let mut views = Vec::new();
        for at in range.rev() {
            let Some(operation) = self.operation(at) else {
                continue;
            };
            if operation.outputs().any(|out| inputs.contains(&out.id)) {
                if !is_view(operation) {
                    return None;
                }
                inputs.extend(operation.inputs().map(|input| input.id));
                views.push(at);
            }
        }
        Some(views)
    }

    /// Returns the bytes of the results of a step: none for a view, unless it is a reshape of a computed value, which
    /// may be a copy.
    fn bytes(&self, at: usize) -> usize {
        let Step::Operation { node, .. } = &self.steps[at] else {
            return 0;
        };
        let operation = &self.nodes[node.index()].operation;
        let is_given = |input: &TensorIr| self.given.contains(&input.id);
        let is_free = is_view(operation)
            && (!is_reshape(operation) || operation.inputs().next().is_some_and(is_given));
        let bytes_of = |out: &TensorIr| out.shape.num_elements() * out.dtype.size();
        match is_free {
            true => 0,
            false => operation.outputs().map(bytes_of).sum(),
        }
    }
}

/// Returns the multiplications of a product that `flex` does not divide among threads; `None` for other operations.
fn multiplications_of_one_thread(operation: &OperationIr) -> Option<usize> {
    let (dtype, terms, out) = matrix_product(operation)?;
    // It multiplies large copies of these in f32.
    if dtype == DType::BF16 {
        return None;
    }
    let from_end = |place: usize| out[out.num_dims() - 1 - place];
    let (rows, columns) = (from_end(1), from_end(0));
    let multiplications = out.num_elements().saturating_mul(terms);
    let is_divided = match out.num_elements() == rows * columns {
        true => rows > 1 && columns > 1 && multiplications >= DIVIDED_PRODUCT,
        false => multiplications >= DIVIDED_BATCH,
    };
    (!is_divided).then_some(multiplications)
}
