//! The state of the optimizer that each replica holds.

use burn::optim::AdamWConfig;
use burn::tensor::Device;
use tinderbox::{Machine, Outputs, Pipeline, Plan, Traceable};

use crate::cases::Case;
use crate::figure;

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
        let trace = model.trace(&batch, |net, batch| {
            Outputs::loss(crate::cases::loss(net, batch))
        });
        let trace = trace.expect("it is traced");
        let plan = Plan::auto(&trace, &Machine::local(1).expect("there is a rank"));
        let plan = plan.expect("it is not cut").replicas(replicas);
        let mut pipeline = Pipeline::new(&model, &trace, &plan)
            .optimizer(AdamWConfig::new())
            .micro_batches(2)
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
    figure("zero1_state_bytes", most as f64 / whole as f64, "ratio");
}
