//! Plans with replicas: how ranks are divided, what is predicted, and which number is chosen.

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use tinderbox_deferred::Deferred;
use tinderbox_pipeline::schedule::{LinkCosts, ScheduleKind};
use tinderbox_pipeline::{
    Machine, OperationTimes, Outputs, Pipeline, PipelineError, Plan, PlanError, Planner, Trace,
    TraceError, Traceable, Whole,
};
use tinderbox_pipeline_tests::full_text;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

/// Eight layers: with many samples, products take far longer than an exchange of their weights.
fn trace(samples: usize, micro_batches: usize) -> Trace<Tensor<2>> {
    traced(samples, micro_batches).unwrap()
}

fn traced(samples: usize, micro_batches: usize) -> Result<Trace<Tensor<2>>, TraceError> {
    let model = Deferred::new(|device: &Device| Net {
        layers: (0..8)
            .map(|_| LinearConfig::new(64, 64).init(device))
            .collect(),
    });
    let batch = Tensor::<2>::zeros([samples, 64], &Device::flex());
    let forward = |net: &Net, x: Tensor<2>| {
        let y = net.layers.iter().fold(x, |x, layer| layer.forward(x));
        Outputs::loss(y.mean())
    };
    model.unwrap().trace(&batch, micro_batches, forward)
}

/// Four ranks, the first two on one machine.
fn machine(ns_per_mib: u64, latency: u64) -> Machine {
    let link = LinkCosts {
        latency,
        ticks_per_mib: ns_per_mib,
        ..LinkCosts::default()
    };
    let machine = Machine::local(4).unwrap();
    machine.with_machines(&[2, 2], link).unwrap()
}

fn step_ns(plan: &Plan) -> u64 {
    plan.prediction.step_ns
}

#[test]
fn ranks_are_divided_among_replicas() {
    let trace = trace(8 * 64, 8);
    let plan = |replicas| {
        let planner = Planner::new(&trace, &machine(100_000, 10_000));
        planner.replicas(replicas).plan().unwrap()
    };
    for (replicas, stages) in [(1, 4), (2, 2), (4, 1)] {
        let plan = plan(replicas);
        assert_eq!((plan.replicas(), plan.stages.len()), (replicas, stages));
        assert_eq!((plan.ranks(), plan.world_size()), (stages, 4));
        assert_eq!(plan.step.micro_batches, 8);
        let schedule = plan.lists_of_step().unwrap();
        assert_eq!(schedule.micro_batches, 8 / replicas);
        let again = Plan::from_json(&plan.to_json()).unwrap();
        assert_eq!(again, plan);
    }
    // Half of the optimizer's state on each replica, and the gradients of a tree.
    let memory = |plan: &Plan| {
        let ranks = plan.prediction.ranks.iter();
        let all = ranks.map(|rank| (rank.memory.parameters, rank.memory.optimizer));
        all.fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1))
    };
    let (whole, half) = (memory(&plan(1)), memory(&plan(2)));
    assert_eq!((half.0, half.1 * 2), whole);
    let text = plan(2).to_string();
    assert!(text.contains("2 replicas of 2 ranks"), "{text}");
    assert!(
        text.contains("on 2 machines; between two, a message takes"),
        "{text}"
    );
}

/// What the exchange adds is in the prediction, and only where the replicas are on two machines.
#[test]
fn the_exchange_is_predicted() {
    let trace = trace(8 * 64, 8);
    let of = |machine: &Machine, replicas| {
        let planner = Planner::new(&trace, machine);
        step_ns(&planner.replicas(replicas).plan().unwrap())
    };
    let (fast, slow) = (machine(0, 5_000), machine(1_000_000_000, 5_000));
    assert!(of(&slow, 2) > of(&fast, 2) + 50_000_000);
    // One machine has no link between machines.
    let local = Machine::local(4).unwrap();
    assert_eq!(of(&local, 2), of(&fast, 2));
}

#[test]
fn the_fastest_number_of_replicas_is_chosen() {
    let chosen = |samples: usize, machine: &Machine| {
        let trace = trace(8 * samples, 8);
        let plan = Planner::new(&trace, machine).choose_replicas().plan();
        let plan = plan.unwrap();
        let times = [1, 2, 4].map(|replicas| {
            let planner = Planner::new(&trace, machine);
            planner.replicas(replicas).plan().map(|plan| step_ns(&plan))
        });
        let best = times.iter().filter_map(|time| time.as_ref().ok()).min();
        assert_eq!(Some(&step_ns(&plan)), best);
        let reasons = plan.choice.reasons.join("\n");
        assert!(reasons.contains("2 replicas of 2 ranks: "), "{reasons}");
        plan.replicas()
    };
    // Without messages replicas have no bubbles.
    assert_eq!(chosen(512, &machine(0, 5_000)), 4);
    // A slow network is crossed by fewer bytes of activations than of gradients.
    assert_eq!(chosen(1, &machine(1_000_000_000, 5_000)), 1);
    // The whole model does not fit a rank.
    let model: u64 = trace(8, 1).parameters().bytes();
    let small = Machine::local(4).unwrap().with_memory_limit(7 * model / 2);
    assert_eq!(chosen(8, &small), 2);
}

/// A user who traces each size of micro-batch and plans each number of replicas makes the same choice.
#[test]
fn the_fastest_number_of_micro_batches_is_chosen() {
    const SAMPLES: usize = 24;
    let chosen = |machine: &Machine, replicas: Option<usize>| {
        let traced = trace(SAMPLES, 5);
        let planner = Planner::new(&traced, machine).choose_micro_batches();
        let planner = match replicas {
            Some(replicas) => planner.replicas(replicas),
            None => planner.choose_replicas(),
        };
        let plan = planner.plan().unwrap();
        let mut fastest: Option<(u64, usize, usize)> = None;
        for count in [1, 2, 3, 4, 6, 8, 12, 24] {
            let part = trace(SAMPLES, count);
            for of in [1, 2, 4].into_iter().filter(|of| *of <= count) {
                let planner = Planner::new(&part, machine);
                let Ok(plan) = planner.replicas(of).plan() else {
                    continue;
                };
                let fits = plan.prediction.over_limit(&plan.machine).is_none();
                let time = step_ns(&plan);
                if replicas.is_none_or(|one| one == of)
                    && fits
                    && fastest.is_none_or(|(best, ..)| time < best)
                {
                    fastest = Some((time, of, count));
                }
            }
        }
        let count = plan.step.micro_batches;
        let found = (step_ns(&plan), plan.replicas(), count);
        assert_eq!(Some(found), fastest);
        let reasons = plan.choice.reasons.join("\n");
        assert!(
            reasons.contains(&format!("{count} micro-batches: ")),
            "{reasons}"
        );
        assert_eq!(reasons.contains("2 replicas"), replicas.is_none());
        (plan.replicas(), count)
    };
    let local = Machine::local(4).unwrap();
    // Operations without an overhead fill the pipeline with as many as there are.
    let mut quick = local.clone();
    (
        quick.rates.operation_ns,
        quick.action_ns,
        quick.link.latency,
    ) = (0, 0, 0);
    quick.rates.bytes_per_s = u64::MAX;
    assert_eq!(chosen(&quick, Some(1)), (1, 24));
    // With one, fewer.
    assert_eq!(chosen(&local, Some(1)), (1, 1));
    assert_eq!(chosen(&local, None), (4, 4));
    // Less memory holds fewer samples at a time.
    let model: u64 = trace(8, 1).parameters().bytes();
    assert_eq!(
        chosen(&local.clone().with_memory_limit(model + 40_000), Some(1)),
        (1, 3)
    );
    assert_eq!(
        chosen(&local.with_memory_limit(model + 30_000), Some(1)),
        (1, 6)
    );
}

#[test]
fn batches_that_can_not_be_split_are_refused() {
    let empty = full_text(&traced(0, 1).unwrap_err());
    let few = trace(3, 1);
    let few = Planner::new(&few, &machine(0, 0)).choose_micro_batches();
    let few = few.replicas(4).plan().unwrap_err().to_string();
    let model = Deferred::new(|device: &Device| LinearConfig::new(4, 4).init(device));
    let forward = |net: &Linear, Whole(x): Whole<Tensor<2>>| Outputs::loss(net.forward(x).mean());
    let batch = Whole(Tensor::<2>::zeros([3, 4], &Device::flex()));
    let whole = model.unwrap().trace(&batch, 1, forward).unwrap();
    let whole = Planner::new(&whole, &machine(0, 0)).choose_micro_batches();
    let whole = whole.plan().unwrap_err().to_string();
    insta::assert_snapshot!([empty, few, whole].join("\n"), @"
    the batch can't be the batch of a step
    the batch has no samples: its tensors have a first dimension of 0
    a batch of 3 samples can't be divided among 4 replicas: use fewer replicas, or a larger batch
    no tensor of the batch is divided by samples: at least one must not be `Whole`
    ");
}

/// Measured times of one size of micro-batch are used for others.
#[test]
fn measured_times_are_scaled() {
    const SAMPLES: usize = 8;
    let local = Machine::local(2).unwrap();
    // Chooses as many micro-batches as there are samples: of one sample, whose backward has fewer operations.
    let mut quick = local.clone();
    (
        quick.rates.operation_ns,
        quick.action_ns,
        quick.link.latency,
    ) = (0, 0, 0);
    quick.rates.bytes_per_s = u64::MAX;
    for (machine, traced_number, tolerance) in [
        (&quick, 1, 0.1),
        (&quick, 3, 0.1),
        (&local, 8, 0.1),
        (&local, 2, 0.01),
        (&local, 1, 0.01),
    ] {
        let traced = trace(SAMPLES, traced_number);
        let program = traced.example_program().unwrap();
        let analytic = OperationTimes::analytic(&program, &machine.rates);
        let mut slower = machine.clone();
        slower.rates.flops_per_s /= 10;
        slower.rates.bytes_per_s /= 10;
        slower.rates.operation_ns *= 10;
        let measured = OperationTimes::analytic(&program, &slower.rates);
        let plan = |times: Option<&OperationTimes>| {
            let planner = Planner::new(&traced, machine).choose_micro_batches();
            let planner = match times {
                Some(times) => planner.times(times.clone()),
                None => planner,
            };
            planner.plan().unwrap()
        };
        // Those from shapes stay as they are.
        let same = plan(Some(&analytic));
        assert_eq!(same, plan(None));
        let tenfold = plan(Some(&measured));
        assert_eq!(same.step, tenfold.step);
        // Of another size than the traced one, where their numbers differ.
        assert_eq!(same.samples, Some(SAMPLES / same.step.micro_batches));
        if traced_number == 8 || machine == &quick {
            assert_ne!(same.samples, traced.micro_batch_samples());
        }
        let time = |plan: &Plan| {
            let stages = plan.stages.iter();
            let sum: u64 = stages
                .map(|stage| stage.costs.forward + stage.costs.backward)
                .sum();
            sum as f64
        };
        let ratio = time(&tenfold) / time(&same);
        assert!((ratio - 10.0).abs() < tolerance, "{traced_number} {ratio}");
    }
}

/// Replicas would refuse running states, and a forward may refuse some numbers of samples.
#[test]
fn only_what_can_run_is_chosen() {
    let model = Deferred::new(|device: &Device| {
        let linear = || LinearConfig::new(8, 8).init(device);
        (linear(), BatchNormConfig::new(8).init(device), linear())
    });
    let forward = |(first, norm, last): &(Linear, BatchNorm, Linear), x: Tensor<2>| {
        Outputs::loss(last.forward(norm.forward(first.forward(x))).mean())
    };
    let batch = Tensor::<2>::ones([8, 8], &Device::flex());
    let trace = model.unwrap().trace(&batch, 1, forward).unwrap();
    let plan = Planner::new(&trace, &Machine::local(2).unwrap())
        .choose_replicas()
        .choose_micro_batches()
        .plan();
    assert_eq!(plan.unwrap().replicas(), 1);

    let model = Deferred::new(|device: &Device| LinearConfig::new(8, 8).init(device));
    let pairs = |layer: &Linear, x: Tensor<2>| {
        let [samples, width] = x.dims();
        Outputs::loss(layer.forward(x).reshape([samples / 2, 2, width]).mean())
    };
    let trace = model.unwrap().trace(&batch, 1, pairs).unwrap();
    let mut machine = Machine::local(1).unwrap();
    // The more the better.
    (machine.rates.operation_ns, machine.action_ns) = (0, 0);
    machine.rates.bytes_per_s = u64::MAX;
    machine.rates.flops_per_s = u64::MAX;
    let plan = Planner::new(&trace, &machine).choose_micro_batches();
    let reasons = plan.plan().unwrap().choice.reasons.join("\n");
    assert!(
        reasons.contains("\n8 micro-batches: the model could not be traced: "),
        "{reasons}"
    );
}

/// With fewer micro-batches than it needs, the schedule is another one of the same stages.
#[test]
fn a_schedule_may_be_another_one_for_few_micro_batches() {
    let kind = ScheduleKind::DualPipeV;
    let machine = Machine::local(2).unwrap();
    let machine = machine.with_chunks(2, kind.placement()).unwrap();
    for count in [1, 2, 3, 8] {
        let trace = trace(8 * count, count);
        let plan = Planner::new(&trace, &machine).schedule(kind).plan();
        let plan = plan.unwrap();
        assert!(plan.lists.is_none());
        assert_eq!(plan.lists_of_step().unwrap().micro_batches, count);
    }
}

/// Also where the plan is for other micro-batches than the traced ones.
#[test]
fn a_chosen_plan_of_another_forward_is_refused() {
    let model = Deferred::new(|device: &Device| -> Vec<Linear> {
        (0..4)
            .map(|_| LinearConfig::new(64, 64).init(device))
            .collect()
    });
    let model = model.unwrap();
    let batch = Tensor::<2>::ones([32, 64], &Device::flex());
    let trace = |activation: fn(Tensor<2>) -> Tensor<2>| {
        let forward = move |layers: &Vec<Linear>, x: Tensor<2>| {
            let y = layers
                .iter()
                .fold(x, |x, layer| activation(layer.forward(x)));
            Outputs::loss(y.mean())
        };
        model.trace(&batch, 1, forward).unwrap()
    };
    let mut machine = Machine::local(2).unwrap();
    (
        machine.rates.operation_ns,
        machine.action_ns,
        machine.link.latency,
    ) = (0, 0, 0);
    let (planned, other) = (trace(Tensor::tanh), trace(Tensor::exp));
    let planner = Planner::new(&planned, &machine).choose_micro_batches();
    let plan = planner.plan().unwrap();
    assert!(plan.step.micro_batches > 1);
    let start = |trace: &Trace<Tensor<2>>| Pipeline::builder(&model, trace, &plan).start();
    assert!(start(&planned).is_ok());
    let error = start(&other).unwrap_err();
    assert!(
        matches!(error, PipelineError::Plan(PlanError::OtherForward { .. })),
        "{error}"
    );
}

#[test]
fn ranks_that_can_not_be_divided_are_refused() {
    let trace = trace(8 * 8, 8);
    let refused = |ranks, replicas| {
        let machine = Machine::local(ranks).unwrap();
        let planner = Planner::new(&trace, &machine);
        planner.replicas(replicas).plan().unwrap_err().to_string()
    };
    let texts = [refused(4, 3), refused(3, 2), refused(2, 0)].join("\n");
    insta::assert_snapshot!(texts, @r#"
    4 ranks can't be divided among 3 replicas: use 1, 2, 4, 8 or another power of two that divides the number of ranks
    3 ranks can't be divided among 2 replicas: use 1, 2, 4, 8 or another power of two that divides the number of ranks
    2 ranks can't be divided among 0 replicas: use 1, 2, 4, 8 or another power of two that divides the number of ranks
    "#);
    let machines = Machine::local(4)
        .unwrap()
        .with_machines(&[2, 1], LinkCosts::default());
    insta::assert_snapshot!(machines.unwrap_err(), @"there are 4 ranks, and the machines have 3: give each rank its machine");
}
