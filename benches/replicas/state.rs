//! The state of the optimizer that each replica holds.

use burn::optim::AdamWConfig;
use burn::tensor::Device;
use tinderbox::{Machine, Outputs, Pipeline, Planner, Traceable};
use tinderbox_benches::cases::Case;

use crate::BENCH;

/// Prints the largest share of the state of Adam that one of two replicas holds, after a step.
pub fn figures() {
    let case = Case {
        samples: 8,
        micro_batches: 2,
        ..Case::PEERS
    };
    let bytes = |replicas: usize| {
        let model = case.model();
        let batch = case.batch(&Device::flex());
        let trace = model.trace(&batch, case.micro_batches, |net, batch| {
            Outputs::loss(tinderbox_benches::cases::loss(net, batch))
        });
        let trace = trace.expect("it is traced");
        let machine = Machine::local(replicas).expect("there are ranks");
        let plan = Planner::new(&trace, &machine).replicas(replicas).plan();
        let plan = plan.expect("it is not cut");
        let mut pipeline = Pipeline::builder(&model, &trace, &plan)
            .optimizer(AdamWConfig::new())
            .start()
            .expect("it starts");
        pipeline.step(1e-3, batch).expect("it trains");
        let states = pipeline.on_ranks(|_, stages| {
            let states = stages
                .iter()
                .map(|stage| stage.optimizer_snapshot().to_host());
            let tensors = states.flat_map(|state| state.expect("it is on the host").tensors);
            tensors
                .map(|(_, data)| data.as_bytes().len())
                .sum::<usize>()
        });
        states.expect("no rank fails")
    };
    let whole: usize = bytes(1).iter().sum();
    let of_each = bytes(2);
    assert_eq!(
        of_each.iter().sum::<usize>(),
        whole,
        "nothing is kept twice"
    );
    let most = of_each.into_iter().max().unwrap_or(0);
    BENCH.figure("zero1_state_bytes", most as f64 / whole as f64, "ratio");
}
