//! Clipping, accumulation and learning-rate schedules between gradients and parameters, each compared
//! with plain Burn bit for bit.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamGroup};
use burn::nn::{Linear, LinearConfig};
use burn::optim::grad_clipping::GradientClippingConfig;
use burn::optim::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::optim::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrSchedulerConfig};
use burn::optim::{AdamWConfig, GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, Tensor, activation::gelu};
use tinderbox_deferred::random::Seed;
use tinderbox_models::plain::{gradients, weighted};
use tinderbox_pipeline::schedule::{RankIndex, Schedule};
use tinderbox_pipeline::{
    Clipping, Cut, Evaluation, Machine, Pipeline, PipelineBuilder, PipelineError, Placement,
    Planner, ScheduleChoice, ScheduleKind, StartError,
};
use tinderbox_pipeline_tests::{
    Case, Computed, LR, SAMPLES, SEED, floats, full_text, parameters, split, squared,
};

const STEPS: u64 = 3;
const MICRO_BATCHES: usize = 5;

/// Its fields are declared in another order than the forward reads them.
#[derive(Module, Debug)]
struct Net {
    head: Linear,
    layers: Vec<Linear>,
}

type Batch = (Tensor<2>, Tensor<2>);

/// The first layer is read again at the end, so that one of its gradients comes from two stages.
fn forward(net: &Net, (x, y): Batch) -> Computed {
    let x = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
    let x = net.head.forward(x.matmul(net.layers[0].weight.val()));
    (squared(x, y), None)
}

const CASE: Case<Net, Batch> = Case {
    init: |device| Net {
        head: LinearConfig::new(6, 6).init(device),
        layers: (0..8)
            .map(|_| LinearConfig::new(6, 6).init(device))
            .collect(),
    },
    forward,
    batch: |n, device| {
        let shape = [SAMPLES, 6];
        (floats(shape, n, device), floats(shape, n + 1000, device))
    },
};

/// Ranks, and a schedule that fits them.
const SHAPES: [(usize, ScheduleKind); 6] = [
    (1, ScheduleKind::GPipe),
    (2, ScheduleKind::OneFOneB),
    (3, ScheduleKind::ZbH2),
    (2, ScheduleKind::Zbv),
    (4, ScheduleKind::DualPipeV),
    (2, ScheduleKind::InterleavedZb),
];

/// The same in f64, whose digits would be lost in any f32 computation.
const CASE_F64: Case<Net, Batch> = Case {
    init: |device| (CASE.init)(device).map(&mut ToF64),
    forward,
    batch: |n, device| {
        let (x, y) = (CASE.batch)(n, device);
        (x.cast(DType::F64), y.cast(DType::F64))
    },
};

/// Two batches together.
const BOTH: Case<Net, Batch> = Case {
    batch: |n, device| {
        let [(a, x), (b, y)] = [n, n + 1].map(|n| (CASE.batch)(n, device));
        (Tensor::cat(vec![a, b], 0), Tensor::cat(vec![x, y], 0))
    },
    ..CASE
};

struct ToF64;

impl ModuleMapper for ToF64 {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.init_mapper(|tensor| tensor.cast(DType::F64))
    }
}

fn builder(ranks: usize, kind: ScheduleKind) -> PipelineBuilder<Net, Batch> {
    builder_of(CASE, (ranks, MICRO_BATCHES), kind)
}

fn builder_of(
    case: Case<Net, Batch>,
    (ranks, micro_batches): (usize, usize),
    kind: ScheduleKind,
) -> PipelineBuilder<Net, Batch> {
    let chunks = match kind {
        ScheduleKind::Zbv | ScheduleKind::DualPipeV | ScheduleKind::InterleavedZb => 2,
        _ => 1,
    };
    let model = case.model();
    let trace = case.trace(&model, micro_batches);
    let machine = Machine::local(ranks).unwrap();
    let machine = machine.with_chunks(chunks, kind.placement()).unwrap();
    let plan = trace.plan(&machine).unwrap();
    Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .schedule(kind)
        .seed(SEED)
}

/// The parameters after some steps of plain Burn, with gradients that `clip` may change.
fn plain(
    clip: impl Fn(&Net, GradientsParams) -> GradientsParams,
    optimizer: burn::optim::ModuleOptimizer,
    rate: impl FnMut() -> ModuleLearningRate,
) -> BTreeMap<String, Vec<u8>> {
    plain_of(CASE, clip, optimizer, rate)
}

fn plain_of(
    case: Case<Net, Batch>,
    clip: impl Fn(&Net, GradientsParams) -> GradientsParams,
    mut optimizer: burn::optim::ModuleOptimizer,
    mut rate: impl FnMut() -> ModuleLearningRate,
) -> BTreeMap<String, Vec<u8>> {
    let device = Device::flex().autodiff();
    let model = case.model();
    let initializer = model.initializer(Seed::new(SEED));
    let mut net = model.materialize(&device, &initializer).unwrap();
    for step in 0..STEPS {
        let parts = split(&(case.batch)(step, &device), MICRO_BATCHES);
        let summed = gradients(&net, weighted(parts, SAMPLES), |batch| {
            forward(&net, batch).0
        });
        let clipped = clip(&net, summed);
        net = optimizer.step(rate(), net, clipped);
    }
    parameters(&net)
}

/// Multiplies all gradients by one factor, as documented at `Clipping::GlobalNorm`.
fn clip_by_global_norm(net: &Net, gradients: GradientsParams, max: f64) -> (GradientsParams, f64) {
    struct Squares<'a>(&'a GradientsParams, f64);
    impl ModuleVisitor for Squares<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get::<D>(param.id) {
                self.1 += gradient
                    .square()
                    .sum()
                    .into_data()
                    .iter::<f64>()
                    .sum::<f64>();
            }
        }
    }
    struct Scale(GradientsParams, f64);
    impl ModuleVisitor for Scale {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.remove::<D>(param.id) {
                self.0.register::<D>(param.id, gradient.mul_scalar(self.1));
            }
        }
    }
    let mut squares = Squares(&gradients, 0.0);
    net.visit(&mut squares);
    let norm = squares.1.sqrt();
    let factor = max / (norm + 1e-6);
    if factor >= 1.0 {
        return (gradients, norm);
    }
    let mut scale = Scale(gradients, factor);
    net.visit(&mut scale);
    (scale.0, norm)
}

fn gathered(pipeline: &mut Pipeline<Net, Batch>) -> BTreeMap<String, Vec<u8>> {
    parameters(&pipeline.gather(&Device::flex()).unwrap())
}

#[test]
fn clipped_by_the_norm_of_all_gradients() {
    // One that clips at every step, and one that never does.
    for max in [0.01, 1e6] {
        let norms = std::cell::RefCell::new(Vec::new());
        let clip = |net: &Net, gradients| {
            let (clipped, norm) = clip_by_global_norm(net, gradients, max);
            norms.borrow_mut().push(norm);
            clipped
        };
        let expected = plain(clip, AdamWConfig::new().init(), || LR.into());
        let bites = norms.borrow().iter().all(|norm| *norm > max);
        assert_eq!(bites, max < 1.0, "{norms:?}");
        for (ranks, kind) in SHAPES {
            let mut pipeline = builder(ranks, kind)
                .clip(Clipping::GlobalNorm(max))
                .start()
                .unwrap();
            for (step, expected) in norms.borrow().iter().enumerate() {
                let batch = (CASE.batch)(step as u64, &Device::flex());
                let found = pipeline.step(LR, batch).unwrap().gradient_norm;
                assert_eq!(found, Some(*expected), "{ranks} ranks, {kind}");
            }
            assert!(gathered(&mut pipeline) == expected, "{ranks} ranks, {kind}");
        }
    }
}

/// Weights of micro-batches, norm and factor keep the digits of f64, under each of [`SHAPES`].
#[test]
fn a_model_in_f64_trains_with_its_own_digits() {
    const MAX: f64 = 0.01;
    let clip = |net: &Net, gradients| clip_by_global_norm(net, gradients, MAX).0;
    let expected = plain_of(CASE_F64, clip, AdamWConfig::new().init(), || LR.into());
    for (ranks, kind) in SHAPES {
        let builder =
            builder_of(CASE_F64, (ranks, MICRO_BATCHES), kind).clip(Clipping::GlobalNorm(MAX));
        let mut pipeline = builder.start().unwrap();
        for step in 0..STEPS {
            let output = pipeline.step(LR, (CASE_F64.batch)(step, &Device::flex()));
            assert!(output.unwrap().gradient_norm.unwrap() > MAX, "it bites");
        }
        assert!(gathered(&mut pipeline) == expected, "{ranks} ranks, {kind}");
    }
}

#[test]
fn clipped_each_by_itself() {
    for config in [
        GradientClippingConfig::Norm(0.002),
        GradientClippingConfig::Value(0.0005),
    ] {
        let optimizer = AdamWConfig::new().init();
        let optimizer = optimizer.with_grad_clipping(config.init());
        let expected = plain(|_, gradients| gradients, optimizer, || LR.into());
        let unclipped = plain(
            |_, gradients| gradients,
            AdamWConfig::new().init(),
            || LR.into(),
        );
        assert!(expected != unclipped, "it bites");
        for (ranks, kind) in SHAPES {
            let clipping = Clipping::Each(config.clone());
            let mut pipeline = builder(ranks, kind).clip(clipping).start().unwrap();
            for step in 0..STEPS {
                let output = pipeline
                    .step(LR, (CASE.batch)(step, &Device::flex()))
                    .unwrap();
                assert!(output.gradient_norm.is_some_and(|norm| norm > 0.0));
            }
            assert!(gathered(&mut pipeline) == expected, "{ranks} ranks, {kind}");
        }
        // The same, configured in the optimizer as for Burn's own `init`.
        let of_adam = AdamWConfig::new().with_grad_clipping(Some(config.clone()));
        let found = trained(builder(2, ScheduleKind::ZbH1).optimizer(of_adam.clone()));
        assert!(found == expected, "{config:?} of AdamW");
        let of_sgd = SgdConfig::new().with_gradient_clipping(Some(config.clone()));
        let expected = plain(|_, gradients| gradients, of_sgd.init(), || LR.into());
        let found = trained(builder(2, ScheduleKind::OneFOneB).optimizer(of_sgd));
        assert!(found == expected, "{config:?} of SGD");
        let twice = builder(1, ScheduleKind::GPipe).optimizer(of_adam);
        let error = twice.clip(Clipping::GlobalNorm(1.0)).start().unwrap_err();
        assert!(
            matches!(error, PipelineError::Start(StartError::TwoClippings)),
            "{error}"
        );
    }
}

fn trained(builder: PipelineBuilder<Net, Batch>) -> BTreeMap<String, Vec<u8>> {
    let mut pipeline = builder.start().unwrap();
    for step in 0..STEPS {
        let batch = (CASE.batch)(step, &Device::flex());
        pipeline.step(LR, batch).unwrap();
    }
    gathered(&mut pipeline)
}

fn rows(samples: usize, device: &Device) -> Batch {
    let shape = [samples, 6];
    (floats(shape, 77, device), floats(shape, 78, device))
}

/// The last batch of an epoch has fewer samples than there are micro-batches: each sample is one.
#[test]
fn a_batch_of_few_samples() {
    let mut written = ScheduleKind::OneFOneB
        .generate(2, 1, MICRO_BATCHES)
        .unwrap();
    written.name = "mine".into();
    for samples in [1, MICRO_BATCHES - 1] {
        let device = Device::flex().autodiff();
        let model = CASE.model();
        let net = model.materialize(&device, &model.initializer(Seed::new(SEED)));
        let net = net.unwrap();
        let (x, y) = rows(samples, &device);
        let rows_of_one = (0..samples).map(|row| {
            let sample = |t: &Tensor<2>| t.clone().slice(burn::tensor::s![row..row + 1, ..]);
            ((sample(&x), sample(&y)), 1)
        });
        let summed = gradients(&net, weighted(rows_of_one, samples), |batch| {
            forward(&net, batch).0
        });
        let mut optimizer = AdamWConfig::new().init();
        let expected = parameters(&optimizer.step(LR, net, summed));
        for (ranks, kind) in SHAPES {
            let mut pipeline = builder(ranks, kind).start().unwrap();
            let output = pipeline.step(LR, rows(samples, &Device::flex())).unwrap();
            assert_eq!(output.micro_batch_losses.len(), samples, "{kind}");
            assert!(
                gathered(&mut pipeline) == expected,
                "{samples} samples, {kind}"
            );
        }
        let mut pipeline = builder(2, ScheduleKind::OneFOneB).start().unwrap();
        let full = (CASE.batch)(0, &Device::flex());
        let both = [full, rows(samples, &Device::flex())];
        let output = pipeline.step_accumulated(LR, both).unwrap();
        assert_eq!(output.micro_batch_losses.len(), MICRO_BATCHES + samples);

        let builder = builder(2, ScheduleKind::OneFOneB).schedule(written.clone());
        let mut pipeline = builder.start().unwrap();
        let error = pipeline
            .step(LR, rows(samples, &Device::flex()))
            .unwrap_err();
        assert_eq!(
            full_text(&error),
            format!(
                "the batch can't be used\na batch of {samples} samples can't be split into {MICRO_BATCHES} \
                 micro-batches, and the schedule is for a fixed number: drop the batch, or use a named schedule, which is generated for fewer"
            )
        );
    }
}

/// The plan's own schedule, searched for its micro-batches, is searched again for fewer.
#[test]
fn a_batch_of_few_samples_under_the_schedule_of_a_plan() {
    let losses = |builder: PipelineBuilder<Net, Batch>| {
        let mut pipeline = builder.start().unwrap();
        for samples in [SAMPLES, 2, 1, SAMPLES] {
            let output = pipeline.step(LR, rows(samples, &Device::flex())).unwrap();
            assert_eq!(output.micro_batch_losses.len(), samples.min(MICRO_BATCHES));
        }
        gathered(&mut pipeline)
    };
    let model = CASE.model();
    let trace = CASE.trace(&model, MICRO_BATCHES);
    let machine = Machine::local(2).unwrap();
    let plan = Planner::new(&trace, &machine)
        .cuts(&["layers.2", "layers.5"].map(Cut::before))
        .on_ranks(&[0, 1, 1].map(RankIndex::new))
        .plan()
        .unwrap();
    assert!(plan.lists.is_some());
    let planned = Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .seed(SEED);
    assert!(losses(planned) == losses(builder(1, ScheduleKind::GPipe)));
}

#[test]
fn a_batch_without_samples() {
    let mut pipeline = builder(1, ScheduleKind::GPipe).start().unwrap();
    let empty = || rows(0, &Device::flex());
    let trained = pipeline.step(LR, empty()).map(Evaluation::from);
    for error in [trained, pipeline.evaluate(empty())] {
        assert_eq!(
            full_text(&error.unwrap_err()),
            "the batch can't be used\nthe batch has no samples: its tensors have a first dimension of 0"
        );
    }
}

#[test]
fn a_learning_rate_schedule_of_burn_with_a_group() {
    let schedule = || {
        let all = CosineAnnealingLrSchedulerConfig::new(1e-2, 5).with_min_lr(1e-4);
        let third = CosineAnnealingLrSchedulerConfig::new(5e-2, 3);
        ModuleLrSchedulerConfig::new(all.into())
            .with_group(ParamGroup::from_path("layers.3.weight"), third)
            .init()
            .unwrap()
    };
    let mut rates = schedule();
    let expected = plain(
        |_, gradients| gradients,
        AdamWConfig::new().init(),
        || rates.step(),
    );
    for (ranks, kind) in SHAPES {
        let mut pipeline = builder(ranks, kind).start().unwrap();
        let mut rates = schedule();
        for step in 0..STEPS {
            let batch = (CASE.batch)(step, &Device::flex());
            pipeline.step(rates.step(), batch).unwrap();
        }
        assert!(gathered(&mut pipeline) == expected, "{ranks} ranks, {kind}");
    }
}

/// Batches that are accumulated are micro-batches of one step.
#[test]
fn accumulated_batches() {
    let device = Device::flex();
    let two = |n| [(CASE.batch)(n, &device), (CASE.batch)(n + 1, &device)];
    let count = 4;
    for (ranks, kind) in SHAPES {
        let start = |case, count| builder_of(case, (ranks, count), kind).start().unwrap();
        let mut apart = start(CASE, count);
        let mut together = start(BOTH, 2 * count);
        for step in 0..STEPS {
            let found = apart.step_accumulated(LR, two(2 * step)).unwrap();
            let expected = together.step(LR, (BOTH.batch)(2 * step, &device)).unwrap();
            assert_eq!(found.micro_batch_losses, expected.micro_batch_losses);
            assert_eq!(found.loss, expected.loss);
            let losses = found.of_batches().map(|batch| batch.loss.unwrap());
            let losses: Vec<f64> = losses.collect();
            let mean = losses.iter().sum::<f64>() / losses.len() as f64;
            assert!((mean - found.loss).abs() <= 1e-12, "{losses:?}");
            assert_eq!(losses.len(), 2);
        }
        assert_eq!(apart.steps(), STEPS);
        assert!(gathered(&mut apart) == gathered(&mut together), "{kind}");
    }
    let mut pipeline = builder(2, ScheduleKind::OneFOneB).start().unwrap();
    let error = pipeline.step_accumulated(LR, []).unwrap_err();
    assert!(
        full_text(&error).contains("the batch can't be used"),
        "{}",
        full_text(&error)
    );
}

/// Schedules that do not fit are refused before any parameter is materialized.
#[test]
fn schedules_that_do_not_fit_the_plan() {
    let text =
        |result: Result<Pipeline<Net, Batch>, PipelineError>| full_text(&result.unwrap_err());
    let model = CASE.model();
    let trace = CASE.trace(&model, 4);
    let machine = Machine::local(2)
        .unwrap()
        .with_chunks(2, Placement::Loop)
        .unwrap();
    let start_in = |micro_batches, schedule: ScheduleChoice| {
        let trace = trace.with_micro_batches(micro_batches).unwrap();
        let plan = trace.plan(&machine).unwrap();
        Pipeline::builder(&model, &trace, &plan)
            .optimizer(SgdConfig::new())
            .schedule(schedule)
            .start()
    };
    let start = |schedule| start_in(4, schedule);
    assert_eq!(
        text(start(ScheduleKind::Zbv.into())),
        "schedule `zbv` places its stages on ranks [0, 1, 1, 0], but the plan places them on ranks [0, 1, 0, 1]: create the plan for this schedule with `Machine::with_chunks` or `Planner::on_ranks`"
    );
    let one_chunk = text(start(ScheduleKind::OneFOneB.into()));
    assert!(
        one_chunk.starts_with("the schedule can't be generated\n"),
        "{one_chunk}"
    );
    let rows = "0F0 2F0 2B0 0B0\n1F0 3F0 3B0 1B0";
    let written = |rows| Schedule::parse("mine", rows).unwrap();
    // The schedule fixes the number of micro-batches, which is the plan's.
    start_in(1, written(rows).into()).unwrap();
    assert_eq!(
        text(start(written(rows).into())),
        "schedule `mine` is for 1 micro-batches, but the plan has 4: trace the model with 1 micro-batches, or use a named schedule"
    );
    // Or it is for several batches: one alone is refused.
    let mut both = ScheduleKind::Interleaved1F1B.generate(2, 2, 8).unwrap();
    both.name = "mine".into();
    let mut pipeline = start(both.into()).unwrap();
    let batch = |n| (CASE.batch)(n, &Device::flex());
    assert_eq!(
        full_text(&pipeline.step(LR, batch(0)).unwrap_err()),
        "schedule `mine` is for 8 micro-batches, but the step has 4: use batches that together split into 8 (`step_accumulated`), or use a named schedule"
    );
    let output = pipeline.step_accumulated(LR, [batch(0), batch(1)]).unwrap();
    assert_eq!(output.micro_batch_losses.len(), 8);
    assert_eq!(
        text(start_in(1, written("0F0 2F0\n1F0 3F0").into())),
        "schedule `mine` has no backward: a training step needs one, and `evaluate` needs no schedule"
    );
    let short = text(start_in(1, written("0F0 2F0 2B0 0B0\n1F0 3F0 3B0").into()));
    assert!(
        short.starts_with("the schedule can't be run\nrank 1 lacks `1B0`"),
        "{short}"
    );

    let cuts = [1, 2, 3].map(|layer| Cut::before(format!("layers.{layer}")));
    let uneven = Planner::new(&trace, &machine)
        .cuts(&cuts)
        .on_ranks(&[0, 1, 2, 0].map(RankIndex::new))
        .plan()
        .unwrap();
    let error = Pipeline::builder(&model, &trace, &uneven)
        .optimizer(SgdConfig::new())
        .schedule(ScheduleKind::OneFOneB)
        .start()
        .unwrap_err();
    assert_eq!(
        full_text(&error),
        "a named schedule needs the same number of stages on every rank, but the plan has 4 stages on 3 ranks: create the plan with `Machine::with_chunks`, or write a schedule for it"
    );
    for max in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let clipped = builder(2, ScheduleKind::OneFOneB).clip(Clipping::GlobalNorm(max));
        assert!(
            text(clipped.start()).starts_with("gradients can't be clipped"),
            "{max}"
        );
    }
}
