//! Replicas: the same bits for any number of them, as threads and as processes.

use std::time::Duration;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::grad_clipping::GradientClippingConfig;
use burn::optim::{
    AdafactorConfig, AdamWConfig, GradientsAccumulator, GradientsParams, LambConfig, MuonConfig,
    SgdConfig,
};
use burn::tensor::{Device, Int, Tensor};
use tinderbox_deferred::{Deferred, random::Seed};
use tinderbox_engines::Delays;
use tinderbox_fake::DynTensor;
use tinderbox_pipeline::{
    Clipping, Evaluation, GradientSum, LossScale, Machine, OptimizerConfig, Outputs, OutputsOn,
    Pipeline, PipelineBuilder, PipelineError, Plan, Planner, RankError, SavedState, ScheduleKind,
    StepError, Trace, Traceable, calibrate_world,
};
use tinderbox_pipeline_tests::{
    Case, SAMPLES, SEED, floats, full_text, parameters, split, squared, tokens,
};

use crate::model::{Batch, MICRO_BATCHES, Net, batch, builder_of, on_world, run, traced};

const TREE: GradientSum = GradientSum::Tree(8);

/// Replicas, ranks of each, and a schedule.
const SHAPES: [(usize, usize, ScheduleKind); 9] = [
    (1, 2, ScheduleKind::ZbH1),
    (2, 1, ScheduleKind::OneFOneB),
    (2, 2, ScheduleKind::OneFOneB),
    (2, 3, ScheduleKind::ZbH1),
    (2, 2, ScheduleKind::Zbv),
    (2, 2, ScheduleKind::GPipe),
    (4, 1, ScheduleKind::GPipe),
    (4, 2, ScheduleKind::Interleaved1F1B),
    (4, 2, ScheduleKind::ZbH2),
];

/// A plan of replicas of so many ranks.
fn plan<B: tinderbox_pipeline::Batch>(trace: &Trace<B>, replicas: usize, ranks: usize) -> Plan {
    let machine = Machine::local(replicas * ranks).unwrap();
    let planner = Planner::new(trace, &machine).replicas(replicas);
    planner.plan().unwrap()
}

fn builder(replicas: usize, ranks: usize, kind: ScheduleKind) -> PipelineBuilder<Net, Batch> {
    builder_of(replicas, ranks, kind).gradient_sum(TREE)
}

/// With dropout, a shared parameter, clipping by the norm of all, averages, uneven and accumulated batches, and what is read
/// and set between steps.
#[test]
fn any_number_of_replicas_has_the_bits_of_one_rank() {
    let expected = run(&mut builder(1, 1, ScheduleKind::GPipe).start().unwrap(), 4);
    for (replicas, ranks, kind) in SHAPES {
        let found = run(&mut builder(replicas, ranks, kind).start().unwrap(), 4);
        assert!(found == expected, "{replicas} x {ranks}, {kind}");
    }
    // Another order of sums has other bits.
    let sequential = builder(1, 1, ScheduleKind::GPipe).gradient_sum(GradientSum::Sequential);
    assert!(run(&mut sequential.start().unwrap(), 4) != expected);
}

#[test]
fn processes_have_the_bits_of_threads() {
    for (replicas, ranks, kind) in SHAPES.into_iter().filter(|(d, p, _)| d * p <= 4) {
        let expected = run(&mut builder(replicas, ranks, kind).start().unwrap(), 4);
        for (seed, millis) in [(0, 0), (1, 3)] {
            let delays = Delays {
                seed,
                most: Duration::from_millis(millis),
            };
            let found = on_world(replicas * ranks, delays, |world, _| {
                run(
                    &mut builder(replicas, ranks, kind)
                        .world(&world)
                        .start()
                        .unwrap(),
                    4,
                )
            });
            for (rank, found) in found.iter().enumerate() {
                assert!(
                    *found == expected,
                    "rank {rank} of {replicas} x {ranks}, {kind}"
                );
            }
        }
    }
}

/// More groups than there can be micro-batches: each has a group of its own, or none.
#[test]
fn any_number_of_groups_can_be_certified() {
    let of = |replicas, groups| {
        let builder = builder(replicas, 1, ScheduleKind::OneFOneB);
        let sum = GradientSum::Tree(groups);
        run(&mut builder.gradient_sum(sum).start().unwrap(), 2)
    };
    let huge = 1 << (usize::BITS - 2);
    assert!(of(1, huge) == of(2, huge));
}

fn rows(samples: usize, number: u64) -> Batch {
    let (x, y) = batch(number);
    (x.narrow(0, 0, samples), y.narrow(0, 0, samples))
}

/// Batches with fewer samples than there are micro-batches, and than there are replicas.
#[test]
fn small_batches_leave_replicas_idle() {
    let steps = |builder: PipelineBuilder<Net, Batch>| {
        let mut pipeline = builder.start().unwrap();
        let mut seen = Vec::new();
        for (step, samples) in [1, 3, 12, 2, 1].into_iter().enumerate() {
            let output = pipeline.step(1e-2, rows(samples, step as u64)).unwrap();
            let norm = output.gradient_norm.unwrap();
            seen.push((output.micro_batch_losses, output.loss, norm));
            let evaluation = pipeline.evaluate(rows(samples, 20 + step as u64)).unwrap();
            assert_eq!(
                evaluation.output("y").unwrap().len(),
                samples.min(MICRO_BATCHES)
            );
            let loss = evaluation.loss.unwrap();
            seen.push((evaluation.micro_batch_losses, loss, 0.0));
        }
        let module = pipeline.gather(&Device::flex()).unwrap();
        (seen, parameters(&module))
    };
    let expected = steps(builder(1, 1, ScheduleKind::GPipe));
    for (replicas, ranks, kind) in SHAPES {
        let found = steps(builder(replicas, ranks, kind));
        assert!(found == expected, "{replicas} x {ranks}, {kind}");
    }
    let found = on_world(4, Delays::default(), |world, _| {
        steps(builder(4, 1, ScheduleKind::GPipe).world(&world))
    });
    assert!(found.iter().all(|found| *found == expected));
}

/// Without a norm of all, without a loss scale, and with each; the norm is reported by the driver or the ranks.
#[test]
fn every_way_to_change_gradients() {
    type Way = fn(PipelineBuilder<Net, Batch>) -> PipelineBuilder<Net, Batch>;
    let ways: [Way; 6] = [
        |builder| builder.clip(Clipping::Each(GradientClippingConfig::Value(1e-3))),
        |builder| builder.clip(Clipping::Each(GradientClippingConfig::Norm(1e-2))),
        |builder| builder.loss_scale(LossScale::fixed(1024.0)),
        |builder| builder.stop_on_non_finite(),
        |builder| {
            builder.on_gradients(|path, gradient| match path.as_str().contains("bias") {
                true => half::<1>(gradient),
                false => gradient,
            })
        },
        |builder| builder.optimizer(SgdConfig::new().with_weight_decay(None)),
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let of = |replicas, ranks, kind| {
            let (model, trace) = traced();
            let plan = plan(&trace, replicas, ranks);
            let builder = Pipeline::builder(&model, &trace, &plan)
                .optimizer(AdamWConfig::new())
                .average(0.9)
                .schedule(kind)
                .seed(7)
                .threads_per_rank(1)
                .gradient_sum(TREE);
            run(&mut way(builder).start().unwrap(), 3)
        };
        let expected = of(1, 1, ScheduleKind::GPipe);
        for (replicas, ranks) in [(2, 1), (2, 2), (4, 1)] {
            let found = of(replicas, ranks, ScheduleKind::OneFOneB);
            assert!(found == expected, "way {number}, {replicas} x {ranks}");
        }
    }
}

fn half<const D: usize>(tensor: DynTensor) -> DynTensor {
    let tensor = tensor.typed::<D, burn::tensor::Float>().unwrap();
    tensor.mul_scalar(0.5).into()
}

/// Plain Burn that adds the gradients of micro-batches in groups and joins the groups by a tree.
#[test]
fn the_sums_are_those_of_plain_burn() {
    let case: Case<Vec<Linear>, Batch> = Case {
        init: |device| {
            (0..6)
                .map(|_| LinearConfig::new(6, 6).init(device))
                .collect()
        },
        forward: |layers, (x, y)| {
            let x = layers.iter().fold(x, |x, layer| layer.forward(x).tanh());
            (squared(x, y), None)
        },
        batch: |number, device| {
            let of = |number| floats([SAMPLES, 6], number, device);
            (of(number), of(number + 1000))
        },
    };
    let device = Device::flex().autodiff();
    for (micro_batches, groups) in [(8, 2), (8, 4), (8, 8), (5, 4), (3, 8), (7, 2)] {
        let model = case.model();
        let initializer = model.initializer(Seed::new(SEED));
        let mut module = model.materialize(&device, &initializer).unwrap();
        let mut optimizer = AdamWConfig::new().init();
        for step in 0..3 {
            let parts = split(&(case.batch)(step, &device), micro_batches);
            let mut gradients: Vec<Option<GradientsParams>> = Vec::new();
            for group in 0..groups {
                let mut sum = GradientsAccumulator::new();
                let of_group = group * micro_batches / groups..(group + 1) * micro_batches / groups;
                for k in of_group.clone() {
                    let (batch, samples) = parts[k].clone();
                    let loss = (case.forward)(&module, batch).0;
                    let loss = loss.mul_scalar(samples as f32 / SAMPLES as f32);
                    sum.accumulate(
                        &module,
                        GradientsParams::from_grads(loss.backward(), &module),
                    );
                }
                gradients.push((!of_group.is_empty()).then(|| sum.grads()));
            }
            // Neighbours are joined until one is left.
            while gradients.len() > 1 {
                let mut pairs = gradients.into_iter();
                let mut joined = Vec::new();
                while let (Some(first), Some(second)) = (pairs.next(), pairs.next()) {
                    joined.push(match (first, second) {
                        (Some(first), Some(second)) => {
                            let mut sum = GradientsAccumulator::new();
                            sum.accumulate(&module, first);
                            sum.accumulate(&module, second);
                            Some(sum.grads())
                        }
                        (first, second) => first.or(second),
                    });
                }
                gradients = joined;
            }
            module = optimizer.step(1e-2, module, gradients.remove(0).unwrap());
        }
        let expected = parameters(&module.valid());
        for replicas in [1, 2, 4]
            .into_iter()
            .filter(|replicas| *replicas <= groups.min(micro_batches))
        {
            let trace = case.trace(&model, micro_batches);
            let plan = plan(&trace, replicas, 2);
            let mut pipeline = Pipeline::builder(&model, &trace, &plan)
                .custom_optimizer(AdamWConfig::new().build())
                .gradient_sum(GradientSum::Tree(groups))
                .seed(SEED)
                .start()
                .unwrap();
            for step in 0..3 {
                pipeline
                    .step(1e-2, (case.batch)(step, &Device::flex()))
                    .unwrap();
            }
            let found = parameters(&pipeline.gather(&Device::flex()).unwrap());
            assert!(
                found == expected,
                "{micro_batches} in {groups} groups, {replicas} replicas"
            );
        }
    }
}

/// A model with a parameter that is large enough to be divided among four replicas.
#[derive(Module, Debug)]
struct Wide {
    words: Embedding,
    head: Linear,
}

const WORDS: usize = 8_200;
const WIDTH: usize = 512;

type Words = (Tensor<2, Int>, Tensor<2>);

fn words(number: u64) -> Words {
    let device = Device::flex();
    let x = tokens([SAMPLES, 4], WORDS, number, &device);
    (x, floats([SAMPLES, 4], number + 1000, &device))
}

fn wide(replicas: usize, optimizer: impl OptimizerConfig) -> PipelineBuilder<Wide, Words> {
    let model = Deferred::new(|device| Wide {
        words: EmbeddingConfig::new(WORDS, WIDTH).init(device),
        head: LinearConfig::new(WIDTH, 4).init(device),
    });
    let model = model.unwrap();
    let trace = model.trace(&words(0), 4, |net: &Wide, (x, y): Words| {
        let x = net.words.forward(x).mean_dim(1).squeeze_dim::<2>(1);
        Outputs::loss(squared(net.head.forward(x), y))
    });
    let trace = trace.unwrap();
    let plan = plan(&trace, replicas, 1);
    Pipeline::builder(&model, &trace, &plan)
        .optimizer(optimizer)
        .seed(SEED)
        .threads_per_rank(1)
        .average(0.9)
        .gradient_sum(TREE)
}

/// The bits of values, by path.
type Values = Vec<(String, Vec<u8>)>;

/// The parameters after some steps, with their averages, and the bytes of optimizer state of each rank.
fn trained(builder: PipelineBuilder<Wide, Words>) -> (Values, Vec<usize>, Vec<SavedState>) {
    let mut pipeline = builder.start().unwrap();
    for step in 0..3 {
        pipeline.step(1e-2, words(step)).unwrap();
    }
    let mut values: Vec<_> = parameters(&pipeline.gather(&Device::flex()).unwrap())
        .into_iter()
        .collect();
    let averaged = pipeline.with_averages(|averaged| averaged.gather(&Device::flex()));
    values.extend(parameters(&averaged.unwrap().unwrap()));
    let states = pipeline.on_ranks(|_, stages| stages[0].optimizer_snapshot().to_host().unwrap());
    let states = states.unwrap();
    let bytes = |state: &SavedState| {
        state
            .tensors
            .iter()
            .map(|(_, data)| data.as_bytes().len())
            .sum()
    };
    (values, states.iter().map(bytes).collect(), states)
}

/// The state of the optimizer is divided, also within a parameter, and no bit changes.
#[test]
fn replicas_divide_the_state_of_the_optimizer() {
    let of = |replicas| wide(replicas, AdamWConfig::new()).clip(Clipping::GlobalNorm(0.01));
    let (expected, whole, _) = trained(of(1));
    for replicas in [2, 4] {
        let (found, bytes, states) = trained(of(replicas));
        assert!(found == expected, "{replicas} replicas");
        assert_eq!(bytes.iter().sum::<usize>(), whole[0]);
        let most = *bytes.iter().max().unwrap() as f64;
        assert!(
            most / (whole[0] as f64) < 1.03 / replicas as f64,
            "{bytes:?}"
        );
        assert!(states.iter().any(|state| !state.parts.is_empty()));
    }
}

/// Optimizers that read the whole parameter update it on one replica.
#[test]
fn optimizers_that_need_whole_parameters_get_them() {
    fn check(config: impl OptimizerConfig + Clone, is_divided: bool) {
        let (expected, _, _) = trained(wide(1, config.clone()));
        let (found, _, states) = trained(wide(2, config.clone()));
        assert!(found == expected, "{}", config.describe());
        // Muon does not update an embedding well, but it updates it.
        let has_parts = states.iter().any(|state| !state.parts.is_empty());
        assert_eq!(has_parts, is_divided, "{}", config.describe());
    }
    check(AdamWConfig::new(), true);
    check(LambConfig::new(), false);
    check(AdafactorConfig::new(), false);
    check(
        AdamWConfig::new().with_grad_clipping(Some(GradientClippingConfig::Norm(1e-3))),
        false,
    );
    check(
        AdamWConfig::new().with_grad_clipping(Some(GradientClippingConfig::Value(1e-3))),
        true,
    );
    check(
        tinderbox_pipeline::AnyPrecisionAdamW::new().kahan_summation(true),
        true,
    );
}

/// Muon is for matrices alone.
#[test]
fn muon_with_replicas() {
    let steps = |replicas, ranks| {
        let (model, trace) = traced();
        let plan = plan(&trace, replicas, ranks);
        let matrices = model
            .parameters()
            .group(|parameter| parameter.shape.len() == 2);
        let mut pipeline = Pipeline::builder(&model, &trace, &plan)
            .optimizer(AdamWConfig::new())
            .optimizer_group(matrices, MuonConfig::new())
            .seed(SEED)
            .gradient_sum(TREE)
            .start()
            .unwrap();
        for step in 0..3 {
            pipeline.step(1e-2, batch(step)).unwrap();
        }
        parameters(&pipeline.gather(&Device::flex()).unwrap())
    };
    let expected = steps(1, 1);
    assert!(steps(2, 2) == expected && steps(4, 1) == expected);
}

/// What is not finite in the micro-batches of one replica stops or skips the step of all.
#[test]
fn one_replica_stops_all() {
    let bad = |number| {
        let (x, y) = batch(number);
        // In the last micro-batch.
        let nan = Tensor::full([1, x.dims()[1]], f32::NAN, &x.device());
        (Tensor::cat(vec![x.narrow(0, 0, 11), nan], 0), y)
    };
    for (replicas, ranks) in [(1, 1), (2, 1), (2, 2), (4, 1)] {
        let mut pipeline = builder(replicas, ranks, ScheduleKind::OneFOneB)
            .stop_on_non_finite()
            .start()
            .unwrap();
        pipeline.step(1e-2, batch(0)).unwrap();
        let before = parameters(&pipeline.gather(&Device::flex()).unwrap());
        let error = pipeline.step(1e-2, bad(1)).unwrap_err();
        let PipelineError::Step(StepError::NotFinite {
            losses, gradients, ..
        }) = &error
        else {
            panic!("{error}");
        };
        assert_eq!(losses.len(), 1, "{error}");
        assert_eq!(losses[0].0.index(), 3);
        assert_eq!(gradients.len(), 16);
        assert!(parameters(&pipeline.gather(&Device::flex()).unwrap()) == before);
        pipeline.step(1e-2, batch(2)).unwrap();

        let mut pipeline = builder(replicas, ranks, ScheduleKind::OneFOneB)
            .loss_scale(LossScale::dynamic())
            .start()
            .unwrap();
        pipeline.step(1e-2, batch(0)).unwrap();
        let before = parameters(&pipeline.gather(&Device::flex()).unwrap());
        assert!(pipeline.step(1e-2, bad(1)).unwrap().skipped);
        assert!(parameters(&pipeline.gather(&Device::flex()).unwrap()) == before);
        assert!(!pipeline.step(1e-2, batch(2)).unwrap().skipped);
    }
}

/// A restored state is the state of any number of replicas.
#[test]
fn the_state_is_restored_under_other_numbers_of_replicas() {
    let start = |replicas| wide(replicas, AdamWConfig::new()).start().unwrap();
    let mut whole = start(1);
    (0..4).for_each(|step| drop(whole.step(1e-2, words(step)).unwrap()));
    let expected = parameters(&whole.gather(&Device::flex()).unwrap());
    let mut first = start(1);
    (0..2).for_each(|step| drop(first.step(1e-2, words(step)).unwrap()));
    let states = first.on_ranks(|_, stages| {
        let values = stages[0].parameters().values();
        let values: Vec<_> = values.map(|(path, value)| (path.clone(), value)).collect();
        (values, stages[0].optimizer_snapshot().to_host().unwrap())
    });
    let (values, state) = states.unwrap().remove(0);
    for replicas in [2, 4] {
        let mut second = start(replicas);
        let values: tinderbox_deferred::Values = values.iter().cloned().collect();
        second.restore(values, state.clone()).unwrap();
        second.resume_at(2);
        (2..4).for_each(|step| drop(second.step(1e-2, words(step)).unwrap()));
        assert!(parameters(&second.gather(&Device::flex()).unwrap()) == expected);
    }
}

/// A frozen parameter is not updated, by whichever replica.
#[test]
fn parameters_can_be_frozen() {
    let steps = |replicas, ranks| {
        let mut pipeline = builder(replicas, ranks, ScheduleKind::OneFOneB)
            .start()
            .unwrap();
        let group = burn::module::ParamGroup::from_path("layers.3.weight");
        pipeline.step(1e-2, batch(0)).unwrap();
        pipeline.freeze(&group).unwrap();
        pipeline.step(1e-2, batch(1)).unwrap();
        pipeline.unfreeze(&group).unwrap();
        pipeline.step(1e-2, batch(2)).unwrap();
        parameters(&pipeline.gather(&Device::flex()).unwrap())
    };
    let expected = steps(1, 1);
    for (replicas, ranks) in [(2, 1), (2, 2), (4, 1)] {
        assert!(steps(replicas, ranks) == expected, "{replicas} x {ranks}");
    }
}

#[test]
fn what_replicas_can_not_do_is_refused() {
    let refused = |builder: PipelineBuilder<Net, Batch>| full_text(&builder.start().unwrap_err());
    let kind = ScheduleKind::GPipe;
    // The planner divides ranks among powers of two alone.
    let (model, trace) = traced();
    let mut three = plan(&trace, 1, 1);
    three.step.replicas = 3;
    let texts = [
        refused(Pipeline::builder(&model, &trace, &three)),
        refused(builder_of(2, 1, kind).gradient_sum(GradientSum::Sequential)),
        refused(builder_of(2, 1, kind).gradient_sum(GradientSum::Tree(6))),
        refused(builder_of(1, 1, kind).gradient_sum(GradientSum::Tree(0))),
        refused(builder_of(8, 1, kind)),
    ];
    insta::assert_snapshot!(texts.join("\n"), @r#"
    3 replicas have no binary tree of sums: use a power of two, such as 4
    the order of sums is `sequential`, which 2 replicas can't keep: use a tree whose number of groups is a power of two, and at least the number of replicas
    the order of sums is `tree of 6 groups`, which 2 replicas can't keep: use a tree whose number of groups is a power of two, and at least the number of replicas
    the order of sums is `tree of 0 groups`, which one replica can't keep: use a tree whose number of groups is a power of two, and at least the number of replicas
    8 replicas need at least 8 micro-batches, and there are 4: each replica runs its own, so trace the model with more
    "#);
    let texts = on_world(2, Delays::default(), |world, _| {
        full_text(&builder_of(2, 2, kind).world(&world).start().unwrap_err())
    });
    insta::assert_snapshot!(texts[0], @"the plan has 4 ranks and the world 2 processes: plan for as many ranks as there are processes; with `recovery`, it may be fewer, and the others wait as spares");
}

/// Steps of which each process passes only the samples of its replica, with a loss that is a mean over samples or over a count.
#[test]
fn processes_can_pass_shares_of_a_batch() {
    fn steps(
        pipeline: &mut Pipeline<Net, Batch>,
        step: impl Fn(&mut Pipeline<Net, Batch>, u64, Batch) -> tinderbox_pipeline::StepOutput,
    ) -> (Vec<f64>, Vec<Vec<u8>>) {
        let (mut numbers, mut outputs) = (Vec::new(), Vec::new());
        for (number, samples) in [12, 7, 1, 3, 12].into_iter().enumerate() {
            let number = number as u64;
            let output = step(pipeline, number, rows(samples, number));
            numbers.extend(&output.micro_batch_losses);
            numbers.extend(&output.micro_batch_weights);
            numbers.extend([output.loss, output.gradient_norm.unwrap()]);
            let values = output.output("y").unwrap_or_default().iter();
            outputs.extend(values.map(|value| value.to_data().unwrap().as_bytes().to_vec()));
        }
        let values = parameters(&pipeline.gather(&Device::flex()).unwrap());
        outputs.extend(values.into_values());
        (numbers, outputs)
    }
    let build = |counts: bool, replicas: usize, ranks: usize| {
        let model = Deferred::new(Net::init).unwrap();
        let trace = model.trace(&batch(0), MICRO_BATCHES, move |net: &Net, (x, y): Batch| {
            let output = net.forward(x);
            let outputs = Outputs::loss(squared(output.clone(), y.clone())).with("y", output);
            match counts {
                true => outputs.weighted_by(y.powf_scalar(2.0).sum()),
                false => outputs,
            }
        });
        let trace = trace.unwrap();
        let plan = plan(&trace, replicas, ranks);
        Pipeline::builder(&model, &trace, &plan)
            .optimizer(AdamWConfig::new())
            .clip(Clipping::GlobalNorm(0.05))
            .gradient_sum(TREE)
            .threads_per_rank(1)
            .timeout(Duration::from_secs(20))
    };
    let share_of = |pipeline: &Pipeline<Net, Batch>, (x, y): &Batch| {
        let range = pipeline.share(x.dims()[0]);
        let rows = |tensor: &Tensor<2>| tensor.clone().slice(range.clone());
        (rows(x), rows(y))
    };
    for counts in [false, true] {
        let mut alone = build(counts, 1, 1).start().unwrap();
        let expected = steps(&mut alone, |pipeline, _, batch| {
            pipeline.step(1e-2, batch).unwrap()
        });
        for (replicas, ranks) in [(1, 2), (2, 1), (2, 2), (4, 1)] {
            let found = on_world(replicas * ranks, Delays::default(), |world, _| {
                let mut pipeline = build(counts, replicas, ranks)
                    .world(&world)
                    .start()
                    .unwrap();
                let replica = world.rank().index() / ranks;
                let twelve = pipeline.share(12);
                assert_eq!(
                    twelve,
                    replica * 12 / replicas..(replica + 1) * 12 / replicas
                );
                steps(&mut pipeline, |pipeline, _, batch| {
                    let samples = batch.0.dims()[0];
                    let share = share_of(pipeline, &batch);
                    pipeline.step_share(1e-2, share, samples).unwrap()
                })
            });
            assert!(
                found.iter().all(|found| *found == expected),
                "{replicas} x {ranks}"
            );
        }
        // Threads have all shares.
        let mut threads = build(counts, 2, 2).start().unwrap();
        assert_eq!(threads.share(12), 0..12);
        let found = steps(&mut threads, |pipeline, _, batch| {
            let samples = batch.0.dims()[0];
            pipeline.step_share(1e-2, batch, samples).unwrap()
        });
        assert!(found == expected);
    }
}

/// A share of the wrong size is an error on all processes, after which they continue.
#[test]
fn a_share_that_can_not_be_used_is_refused_by_all() {
    let texts = on_world(2, Delays::default(), |world, _| {
        let mut pipeline = builder(2, 1, ScheduleKind::GPipe)
            .world(&world)
            .start()
            .unwrap();
        let (x, y) = batch(0);
        let range = pipeline.share(12);
        let range = match world.rank().index() {
            1 => range.start + 1..range.end,
            _ => range,
        };
        let share = (x.clone().slice(range.clone()), y.clone().slice(range));
        let text = full_text(&pipeline.step_share(1e-2, share, 12).unwrap_err());
        let range = pipeline.share(12);
        let share = (x.slice(range.clone()), y.slice(range));
        pipeline.step_share(1e-2, share, 12).unwrap();
        text
    });
    insta::assert_snapshot!(texts.join("\n---\n"), @r#"
    the batch can't be used
    the share of rank 1 can't be used: the batch can't be used: the share of this process is 6 samples, and 5 were passed: read the range that `share` returns
    ---
    the batch can't be used
    the share of this process is 6 samples, and 5 were passed: read the range that `share` returns
    "#);
}

/// All ranks of a replica pass the same samples.
#[test]
fn another_share_within_a_replica_is_refused() {
    let texts = on_world(4, Delays::default(), |world, _| {
        let mut pipeline = builder(2, 2, ScheduleKind::GPipe)
            .world(&world)
            .check_batches(true)
            .start()
            .unwrap();
        let range = pipeline.share(12);
        let mut step = |number| {
            let (x, y) = batch(number);
            let share = (x.slice(range.clone()), y.slice(range.clone()));
            pipeline.step_share(1e-2, share, 12)
        };
        let other = u64::from(world.rank().index() == 3);
        let text = full_text(&step(other).unwrap_err());
        step(0).unwrap();
        text
    });
    insta::assert_snapshot!(texts.join("\n---\n"), @r#"
    the batch can't be used
    rank 3 has another share than a rank of the same replica: all of them pass the same samples
    ---
    the batch can't be used
    rank 3 has another share than a rank of the same replica: all of them pass the same samples
    ---
    the batch can't be used
    rank 3 has another share than a rank of the same replica: all of them pass the same samples
    ---
    the batch can't be used
    rank 3 has another share than a rank of the same replica: all of them pass the same samples
    "#);
}

/// A state of which a replica has a part is not taken for the whole.
#[test]
fn a_part_of_a_state_is_refused() {
    let mut pipeline = wide(2, AdamWConfig::new()).start().unwrap();
    pipeline.step(1e-2, words(0)).unwrap();
    let states = pipeline.on_ranks(|_, stages| {
        let values = stages[0].parameters().values();
        let values: Vec<_> = values.map(|(path, value)| (path.clone(), value)).collect();
        (values, stages[0].optimizer_snapshot().to_host().unwrap())
    });
    let (values, state) = states.unwrap().remove(0);
    let values: tinderbox_deferred::Values = values.into_iter().collect();
    let error = pipeline.restore(values, state).unwrap_err();
    insta::assert_snapshot!(full_text(&error), @r#"
    the saved state of rank 0 could not be restored; nothing was changed
    the optimizer state `optimizer.words.weight.average` was saved with shape [4096, 512], but the parameter has shape [8200, 512]; if it is the part of one replica, join the parts of all first, or read the state from a checkpoint
    "#);
    // Nothing has changed.
    pipeline.step(1e-2, words(1)).unwrap();
}

/// Outputs that stay where they are made belong to the batch that they are of.
#[test]
fn own_outputs_are_those_of_their_batch() {
    let kind = ScheduleKind::OneFOneB;
    let of_batches = |pipeline: &mut Pipeline<Net, Batch>| -> Vec<Vec<Vec<u8>>> {
        let output = pipeline.step_accumulated(1e-2, [batch(0), batch(1)]);
        let bytes = |one: &DynTensor| one.to_data().unwrap().as_bytes().to_vec();
        let of = |one: &Evaluation| {
            one.output("y")
                .unwrap_or_default()
                .iter()
                .map(bytes)
                .collect()
        };
        output.unwrap().of_batches().map(|one| of(&one)).collect()
    };
    let expected = of_batches(&mut builder(1, 1, kind).start().unwrap());
    assert_eq!(expected[0].len(), MICRO_BATCHES);
    assert!(of_batches(&mut builder(2, 2, kind).start().unwrap()) == expected);
    let found = on_world(2, Delays::default(), |world, _| {
        let builder = builder(2, 1, kind).outputs_on(OutputsOn::Own).world(&world);
        of_batches(&mut builder.start().unwrap())
    });
    assert!(found[0] == [expected[0].clone(), vec![]]);
    assert!(found[1] == [vec![], expected[1].clone()]);
}

/// An error names the micro-batch among the micro-batches of all replicas.
#[test]
fn a_failing_micro_batch_is_named_by_its_number() {
    let mut pipeline = wide(2, AdamWConfig::new())
        .check_indices(false)
        .start()
        .unwrap();
    let (x, y) = words(0);
    let last = x.dims()[0] - 1;
    let wrong = Tensor::<2, Int>::full([1, 1], WORDS as i64, &Device::flex());
    let x = x.slice_assign([last..last + 1, 0..1], wrong);
    match pipeline.step(1e-2, (x, y)).unwrap_err() {
        PipelineError::Rank(RankError::Action { micro_batch, .. }) => {
            assert_eq!(micro_batch.unwrap().index(), 3)
        }
        other => panic!("{}", full_text(&other)),
    }
}

/// The replica without samples is not the one that is drawn.
#[test]
fn a_timeline_shows_a_replica_that_computes() {
    let builder = builder(2, 1, ScheduleKind::GPipe).measure();
    let mut pipeline = builder.start().unwrap();
    for samples in [1, 12] {
        let output = pipeline.step(1e-2, rows(samples, 0)).unwrap();
        let timeline = output.timeline.unwrap();
        assert_eq!(timeline.ranks.len(), 1);
        let spans = timeline.ranks[0].spans.iter();
        let computes = spans.filter(|span| !span.action.tasks().is_empty()).count();
        assert_eq!(computes, 2 * samples.min(2), "{samples} samples");
    }
}

/// A machine of two processes.
#[test]
fn processes_measure_their_machine_together() {
    let machines = on_world(2, Delays::default(), |world, net| {
        net.set_time_per_mib(Duration::from_millis(4));
        calibrate_world(&world, &Device::flex(), 1).unwrap()
    });
    let machine = &machines[0];
    assert_eq!(machine.to_json(), machines[1].to_json());
    assert_eq!(machine.ranks(), 2);
    assert!(machine.link.latency > 0);
    // Nanoseconds. A frame never takes less; other load may delay the short frames by a part of it.
    let per_mib = machine.link.ticks_per_mib;
    assert!((3_000_000..40_000_000).contains(&per_mib), "{per_mib}");
    assert_eq!(machine.network, None);
    let alone = tinderbox_pipeline::calibrate(&Device::flex(), 2, 1).unwrap();
    let memory = |machine: &Machine| machine.rank_models()[0].memory_bytes.unwrap() as f64;
    let ratio = memory(machine) / memory(&alone);
    assert!((0.8..1.25).contains(&ratio), "{ratio}");
}

/// Digests are of values, whoever holds them; a change of a parameter is named.
#[test]
fn digests_do_not_depend_on_who_holds_the_values() {
    let digests = |builder: PipelineBuilder<Wide, Words>| {
        let mut pipeline = builder.start().unwrap();
        let mut digests = vec![pipeline.digest().unwrap()];
        for step in 0..2 {
            pipeline.step(1e-2, words(step)).unwrap();
            digests.push(pipeline.digest().unwrap());
        }
        digests
    };
    let expected = digests(wide(1, AdamWConfig::new()));
    assert_eq!(expected[2].step, 2);
    assert_eq!(expected[2].parameters.len(), 3);
    assert!(expected[0].state.is_empty());
    // Moments, averages and the time of three parameters.
    assert_eq!(expected[2].state.len(), 3 * 4);
    assert_ne!(expected[1].value(), expected[2].value());
    for replicas in [2, 4] {
        assert!(digests(wide(replicas, AdamWConfig::new())) == expected);
    }
    let found = on_world(2, Delays::default(), |world, _| {
        digests(wide(2, AdamWConfig::new()).world(&world))
    });
    assert!(found.iter().all(|found| *found == expected));
    // Stages as well.
    let of = |replicas, ranks| {
        let mut pipeline = builder(replicas, ranks, ScheduleKind::OneFOneB)
            .start()
            .unwrap();
        pipeline.step(1e-2, batch(0)).unwrap();
        let before = pipeline.digest().unwrap();
        let value = pipeline.parameter("layers.5.weight").unwrap();
        let value = half::<2>(value);
        pipeline
            .set_parameters([("layers.5.weight", value)])
            .unwrap();
        let after = pipeline.digest().unwrap();
        assert!(before.differences(&before).is_empty());
        assert_eq!(before.differences(&after), ["layers.5.weight"]);
        (before, after)
    };
    let expected = of(1, 1);
    assert!(of(1, 3) == expected && of(2, 2) == expected && of(4, 1) == expected);
}
