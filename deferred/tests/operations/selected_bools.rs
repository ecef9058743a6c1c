//! Bools selected by indices: on `flex` Burn gives them the dtype u8.

use std::collections::BTreeSet;

use burn::tensor::{Bool, DType, Device, Tensor};
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{Executor, Program, RandomKeys, RunContext};
use tinderbox_fake::{DynTensor, RecordOptions, record};

use crate::check::{bools, ints};
use crate::keys::key;

fn call(device: &Device) -> [Tensor<2, Bool>; 2] {
    let x = bools(device, [3, 4], 1);
    let selected = x.clone().select(0, ints(device, [4], &[2, 0, 2, 1]));
    [
        selected,
        x.gather(1, ints(device, [3, 2], &[0, 3, 1, 1, 2, 0])),
    ]
}

/// Returns the operations that ran; panics if a program returns other booleans than Burn, or
/// another dtype.
pub(crate) fn verify() -> BTreeSet<String> {
    let device = Device::flex();
    let (fakes, recording) = record(&RecordOptions::like(&device), |d| {
        call(d).map(DynTensor::from)
    })
    .unwrap();
    let outputs = fakes.map(|fake| recording.value_of(fake.captured_id().unwrap()).unwrap());
    let graph = recording.graph();
    let program = Program::new(graph, graph.node_ids(), &[], &outputs, &RandomKeys::new()).unwrap();
    let executable = Executor::new(&device).unwrap().load(program);
    let context = RunContext::initialization(Seed::new(0));
    let found = executable.run(Vec::new(), &context).unwrap();
    for (found, expected) in found.iter().zip(call(&device)) {
        let (found, expected) = (found.to_data().unwrap(), expected.into_data());
        // Once Burn returns bools here, a program need not correct them.
        assert_eq!(expected.dtype(), DType::U8);
        assert_eq!(found.dtype(), device.settings().bool_dtype.into());
        assert_eq!(found.as_bytes(), expected.as_bytes());
    }
    graph
        .nodes()
        .iter()
        .map(|node| key(&node.operation))
        .collect()
}
