//! Two forwards of one module, for what a program can't repeat.

use std::collections::BTreeSet;

use tinderbox_deferred::random::Domain;
use tinderbox_fake::{Graph, ValueId};

use super::JointGraph;
use super::call::{Calls, Recorder};
use crate::batch::Batch;
use crate::{StateFault, TraceError};

/// Two forwards of one module, one after the other.
struct Twice {
    /// The number of random operations of both.
    random: usize,
    /// The running states whose value from before the first forward the second one reads, by position.
    read_late: BTreeSet<usize>,
    /// The paths of the parameters that no visitor sees.
    skipped: Box<dyn Fn() -> Vec<String>>,
}

/// Records two forwards of one module, and refuses what a program can't repeat:
///
/// - a forward that initializes a parameter that no visitor of the module sees, as in a field with
///   `#[module(skip)]`: a module does so once, and each run of a program would draw another value;
/// - one that reads a running state of its own without the last update.
pub(super) fn check_twice<B: Batch>(
    joint: &JointGraph,
    recorder: &Recorder<'_, B>,
) -> Result<(), TraceError> {
    let keys = joint.keys().iter();
    let of_forward =
        keys.filter(|(node, key)| key.domain == Domain::Forward && !joint.is_backward(**node));
    let random = of_forward.count();
    let own_states = joint.own_updates();
    if random == 0 && own_states.is_empty() {
        return Ok(());
    }
    let twice = match (record_twice(recorder), own_states.first()) {
        // A first forward was recorded, so the second can't read the new value of a running state.
        (Err(TraceError::Record { source }), Some(state)) => {
            return Err(joint.refuse_state(*state, StateFault::Moved { source }));
        }
        (twice, _) => twice?,
    };
    if twice.random != 2 * random {
        let fields = (twice.skipped)();
        return Err(TraceError::SkippedParameter { fields });
    }
    let mut late = own_states.iter().filter(|at| twice.read_late.contains(at));
    match late.next() {
        Some(state) => Err(joint.refuse_state(*state, StateFault::ReadLate)),
        None => Ok(()),
    }
}

fn record_twice<B: Batch>(recorder: &Recorder<'_, B>) -> Result<Twice, TraceError> {
    recorder.record(
        Calls::Twice,
        |_, inputs, forward| Ok((inputs, forward)),
        |(inputs, forward), recording| {
            let graph = recording.graph();
            let first = inputs.first();
            let second = inputs.get(inputs.len() / 2);
            let [first, second] = [first, second]
                .map(|input| made_at(graph, input.and_then(|input| recording.value(input))));
            let is_late = |position: &usize| {
                let placeholder = recording.value(&forward.parameters[*position]);
                let users = placeholder.map(|value| graph.users(value));
                users.is_some_and(|users| users.iter().any(|user| user.index() >= second))
            };
            let forwards = graph.nodes()[first..].iter();
            let random = forwards.filter(|node| node.operation().random().is_some());
            Ok(Twice {
                random: random.count(),
                read_late: forward.running.iter().copied().filter(is_late).collect(),
                skipped: Box::new(move || (forward.fields)().skipped),
            })
        },
    )
}

/// The index of the operation that computes a value; 0 without any.
fn made_at(graph: &Graph, value: Option<ValueId>) -> usize {
    let producer = value.and_then(|value| graph.producer(value));
    producer.map_or(0, |node| node.index())
}
