//! Records two forwards of one module, to compare them.

use std::collections::BTreeSet;

use burn::tensor::DType;
use burn_ir::TensorId;
use tinderbox_deferred::is_random;
use tinderbox_fake::{RecordOptions, record};

use super::joint::fake_batch;
use super::{Calls, ForwardFn};
use crate::TraceError;
use crate::batch::Batch;

/// Two forwards of one module, one after the other.
pub(super) struct Twice {
    /// The number of random operations of both.
    pub(super) random: usize,
    /// The running states whose value from before the first forward the second one reads, by position.
    pub(super) read_late: BTreeSet<usize>,
    /// The paths of the parameters that no visitor sees.
    pub(super) skipped: Box<dyn Fn() -> Vec<String>>,
}

/// Records two forwards of one module.
pub(super) fn record_twice<B: Batch>(
    run: &ForwardFn<B>,
    options: &RecordOptions,
    compute: Option<DType>,
    example: &B,
    is_moving: bool,
) -> Result<Twice, TraceError> {
    let calls = Calls {
        is_twice: true,
        is_moving,
        without: None,
    };
    let result = record(options, |device| {
        let mut inputs = Vec::new();
        let forward = run(device, calls, &mut || {
            let mut made = |input| inputs.push(input);
            fake_batch(example, device, compute, is_moving, &mut made)
        });
        forward.map(|forward| (inputs, forward))
    });
    let (recorded, recording) = result.map_err(|source| TraceError::Record { source })?;
    let (inputs, forward) = recorded.map_err(|path| TraceError::Unstable { path })?;
    let graph = recording.graph();
    let value = |id: &Option<TensorId>| recording.value_of((*id)?);
    let start = |input: Option<&Option<TensorId>>| -> usize {
        let value = input.and_then(value);
        let producer = value.and_then(|value| graph.value(value).producer);
        producer.map_or(0, |node| node.index())
    };
    let forwards = graph.node_ids().skip(start(inputs.first()));
    let second = start(inputs.get(inputs.len() / 2));
    let is_late = |position: &usize| {
        let placeholder = value(&forward.parameters[*position].captured_id());
        let users = placeholder.map(|value| graph.users(value));
        users.is_some_and(|users| users.iter().any(|user| user.index() >= second))
    };
    Ok(Twice {
        random: forwards.filter(|id| is_random(graph.node(*id))).count(),
        read_late: forward.running.iter().copied().filter(is_late).collect(),
        skipped: Box::new(move || (forward.fields)().skipped),
    })
}
