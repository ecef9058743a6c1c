//! Two forwards of one module, for what a program can't repeat.

use tinderbox_deferred::random::Domain;

use super::JointGraph;
use super::call::{Calls, Recorder};
use crate::batch::Batch;
use crate::{StateFault, TraceError};

/// Records two forwards of one module, one after the other, and refuses what a program can't repeat:
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
    let checked = recorder.record(
        Calls::Twice,
        |_, inputs, forward| Ok((inputs, forward)),
        |(inputs, forward), recording| {
            let graph = recording.graph();
            let start = |input: usize| {
                let value = inputs.get(input).and_then(|input| recording.value(input));
                let producer = value.and_then(|value| graph.producer(value));
                producer.map_or(0, |node| node.index())
            };
            let (first, second) = (start(0), start(inputs.len() / 2));
            let nodes = graph.nodes()[first..].iter();
            let drawn = nodes.filter(|node| node.operation().random().is_some());
            if drawn.count() != 2 * random {
                let fields = (forward.fields)().skipped;
                return Err(TraceError::SkippedParameter { fields });
            }
            // States whose value from before the first forward the second one reads.
            let mut late = own_states.iter().filter(|state| {
                let placeholder = recording.value(&forward.parameters[**state]);
                let users = placeholder.map(|value| graph.users(value));
                forward.running.contains(state)
                    && users.is_some_and(|users| users.iter().any(|user| user.index() >= second))
            });
            match late.next() {
                Some(state) => Err(joint.refuse_state(*state, StateFault::ReadLate)),
                None => Ok(()),
            }
        },
    );
    match (checked, own_states.first()) {
        // A first forward was recorded, so the second can't read the new value of a running state.
        (Err(TraceError::Record { source }), Some(state)) => {
            Err(joint.refuse_state(*state, StateFault::Moved { source }))
        }
        (checked, _) => checked,
    }
}
