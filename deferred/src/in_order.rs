//! Values from the backend's own generator, in recorded order.

use std::collections::HashMap;

use tinderbox_fake::{DynTensor, Graph, NodeId, ValueId};

use crate::program::{Executor, Program, RunContext, is_random};
use crate::random::Seed;
use crate::{Observer, ProgramError, Request};

/// The operations that one request needs.
struct Needed {
    /// The index of the request.
    at: usize,
    nodes: Vec<NodeId>,
    /// The random operations among them.
    draws: Vec<NodeId>,
}

/// Returns the requested parts of `values`, each cast before the next is computed. Draws in the order of plain Burn, one
/// at a time, and discards draws that no request needs: all draws together may need more memory than the requests.
///
/// The caller holds the lock of the backend's generator.
pub(crate) fn values_in_order(
    graph: &Graph,
    seed: Seed,
    requests: &[Request],
    values: &[ValueId],
    observer: &dyn Observer,
) -> Result<Vec<DynTensor>, ProgramError> {
    let Some(first) = requests.first() else {
        return Ok(Vec::new());
    };
    first.device.seed(seed.value());
    let executor = Executor::new(&first.device)?;
    let run = |nodes: Vec<NodeId>, given: Vec<(ValueId, DynTensor)>, wanted| {
        let (inputs, given): (Vec<ValueId>, Vec<DynTensor>) = given.into_iter().unzip();
        let program = Program::with_draws(graph, nodes, &inputs, &[wanted], None)?;
        let context = RunContext::initialization(seed);
        let mut outputs = executor.load(program).run(given, &context)?;
        Ok::<_, ProgramError>(outputs.pop().expect("the program has one output"))
    };
    let value_of = |draw: NodeId| graph.node(draw).outputs()[0];
    let is_draw = |id: &NodeId| is_random(graph.node(*id));

    let needed = values.iter().enumerate().map(|(at, value)| {
        let nodes = graph.backward_slice([*value], |_| false).nodes;
        let draws = nodes.iter().copied().filter(is_draw).collect();
        Needed { at, nodes, draws }
    });
    let mut needed: Vec<Needed> = needed.collect();
    needed.sort_by_key(|needed| needed.draws.last().copied());
    // The last request that needs the value of a draw.
    let mut last_of = HashMap::new();
    for Needed { at, draws, .. } in &needed {
        last_of.extend(draws.iter().map(|draw| (*draw, *at)));
    }

    let mut left = graph.node_ids().filter(is_draw).peekable();
    let mut drawn: HashMap<NodeId, DynTensor> = HashMap::new();
    let mut made: Vec<(usize, DynTensor)> = Vec::with_capacity(requests.len());
    for Needed { at, nodes, draws } in needed {
        while let Some(draw) = left.next_if(|draw| Some(draw) <= draws.last()) {
            let value = run(vec![draw], Vec::new(), value_of(draw))?;
            match last_of.contains_key(&draw) {
                true => drop(drawn.insert(draw, value)),
                false => observer.advanced(0),
            }
        }
        // A value is moved to its last request, so that the operations of the request work in place.
        let given = draws.into_iter().map(|draw| {
            let value = match last_of[&draw] == at {
                true => drawn.remove(&draw),
                false => drawn.get(&draw).cloned(),
            };
            (value_of(draw), value.expect("it was drawn before"))
        });
        let value = run(nodes, given.collect(), values[at])?;
        let part = requests[at].part_of(value)?;
        observer.completed(&requests[at].path, part.bytes());
        made.push((at, part));
    }
    made.sort_unstable_by_key(|(at, _)| *at);
    Ok(made.into_iter().map(|(_, part)| part).collect())
}
