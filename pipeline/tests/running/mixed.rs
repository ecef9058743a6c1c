//! Compares mixed precision with plain Burn, whose module is cast before each step: bit for bit.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, Tensor, activation::gelu};
use tinderbox_deferred::{MaterializeOptions, Values, parameter_values, random::Seed};
use tinderbox_fake::DynTensor;
use tinderbox_pipeline::{
    Clipping, LossScale, Machine, MixedPrecision, Outputs, Pipeline, PipelineBuilder, Planner,
    ScheduleKind, Trace, Traceable,
};
use tinderbox_pipeline_tests::{Case, LR, SAMPLES, SEED, floats, parameters, split, squared};

const STEPS: u64 = 4;
const MICRO_BATCHES: usize = 3;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    norm: LayerNorm,
}

type Batch = (Tensor<2>, Tensor<2>);

/// The first layer is read again at the end, so that one of its gradients comes from two stages.
const CASE: Case<Net, Batch> = Case {
    init: |device| Net {
        layers: (0..5)
            .map(|_| LinearConfig::new(6, 6).init(device))
            .collect(),
        norm: LayerNormConfig::new(6).init(device),
    },
    forward: |net, (x, y)| {
        let x = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
        let x = net.norm.forward(x).matmul(net.layers[0].weight.val());
        (squared(x.cast(DType::F32), y.cast(DType::F32)), None)
    },
    batch: |n, device| {
        let shape = [SAMPLES, 6];
        (floats(shape, n, device), floats(shape, n + 1000, device))
    },
};

fn trace(compute: DType) -> Trace<Batch> {
    let model = CASE.model();
    let batch = (CASE.batch)(0, &Device::flex());
    let forward = |net: &Net, batch: Batch| Outputs::loss((CASE.forward)(net, batch).0);
    let mixed = match compute {
        DType::F16 => MixedPrecision::f16(&model),
        _ => MixedPrecision::bf16(&model),
    };
    mixed.trace(&batch, MICRO_BATCHES, forward).unwrap()
}

fn builder(compute: DType, ranks: usize, kind: ScheduleKind) -> PipelineBuilder<Net, Batch> {
    let trace = trace(compute);
    let chunks = match kind {
        ScheduleKind::Zbv | ScheduleKind::DualPipeV => 2,
        _ => 1,
    };
    let machine = Machine::local(ranks).unwrap();
    let machine = machine.with_chunks(chunks, kind.placement()).unwrap();
    let plan = trace.plan(&machine).unwrap();
    Pipeline::builder(&CASE.model(), &trace, &plan)
        .optimizer(AdamWConfig::new())
        .schedule(kind)
        .seed(SEED)
}

/// The last two have two stages on each rank, and overlapped pairs.
const SHAPES: [(usize, ScheduleKind); 5] = [
    (1, ScheduleKind::GPipe),
    (2, ScheduleKind::OneFOneB),
    (3, ScheduleKind::ZbH1),
    (2, ScheduleKind::Zbv),
    (2, ScheduleKind::DualPipeV),
];

/// Gradients in f32, in the order of the parameters.
struct Collect<'a>(&'a burn::tensor::Gradients, Vec<DynTensor>);

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad(self.0).expect("every parameter is read");
        self.1
            .push(DynTensor::from(gradient).cast_float(DType::F32));
    }
}

/// Assigns them to the parameters of the f32 module.
struct Register(std::vec::IntoIter<DynTensor>, GradientsParams);

impl ModuleVisitor for Register {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = self.0.next().unwrap().typed::<D, burn::tensor::Float>();
        self.1.register(param.id, gradient.unwrap());
    }
}

/// The results of a run.
#[derive(Debug, PartialEq, Default)]
struct Run {
    losses: Vec<Vec<f64>>,
    skipped: Vec<bool>,
    parameters: Vec<BTreeMap<String, Vec<u8>>>,
}

/// The f32 module is cast at each step; loss and objective are f32, gradients are cast, added and scaled back in f32.
fn plain(compute: DType, mut scale: Option<f64>) -> Run {
    let device = Device::flex().autodiff();
    let model = CASE.model();
    let mut master = model
        .materialize(&device, &model.initializer(Seed::new(SEED)))
        .unwrap();
    let mut optimizer = AdamWConfig::new().init();
    let mut run = Run::default();
    for step in 0..STEPS {
        let values: Values = parameter_values(&master).into_iter().collect();
        let options = MaterializeOptions::on(&device).dtype(|_| Some(compute));
        let low = model.materialize(options, &values).unwrap();
        let factor = scale.unwrap_or(1.0) as f32;
        let mut sums: Vec<DynTensor> = Vec::new();
        let mut losses = Vec::new();
        for ((x, y), samples) in split(&(CASE.batch)(step, &device), MICRO_BATCHES) {
            let (loss, _) = (CASE.forward)(&low, (x.cast(compute), y.cast(compute)));
            losses.push(f64::from(loss.clone().into_scalar::<f32>()));
            let weight = samples as f32 / SAMPLES as f32 * factor;
            let mut collect = Collect(&loss.mul_scalar(weight).backward(), Vec::new());
            low.visit(&mut collect);
            sums = match sums.is_empty() {
                true => collect.1,
                false => sums
                    .into_iter()
                    .zip(collect.1)
                    .map(|(sum, gradient)| sum + gradient)
                    .collect(),
            };
        }
        let finite = |gradient: &DynTensor| {
            let data = gradient.to_data().unwrap();
            data.iter::<f32>().all(f32::is_finite)
        };
        let skip = scale.is_some() && !sums.iter().all(finite);
        run.losses.push(losses);
        run.skipped.push(skip);
        if skip {
            scale = scale.map(|factor| factor / 2.0);
        } else {
            let unscaled = sums.into_iter().map(|gradient| {
                let gradient = Tensor::<1>::from_dispatch(gradient.into());
                DynTensor::from(gradient.mul_scalar(1.0 / factor))
            });
            let unscaled: Vec<_> = unscaled.collect();
            let mut register = Register(unscaled.into_iter(), GradientsParams::new());
            master.visit(&mut register);
            master = optimizer.step(LR, master, register.1);
        }
        run.parameters.push(parameters(&master));
    }
    run
}

fn pipelined(builder: PipelineBuilder<Net, Batch>) -> Run {
    let mut pipeline = builder.start().unwrap();
    let mut run = Run::default();
    for step in 0..STEPS {
        let output = pipeline
            .step(LR, (CASE.batch)(step, &Device::flex()))
            .unwrap();
        run.losses.push(output.micro_batch_losses);
        run.skipped.push(output.skipped);
        // State left by an evaluation does not reach the next step.
        let evaluated = pipeline.evaluate((CASE.batch)(step, &Device::flex()));
        assert!(evaluated.unwrap().loss.unwrap().is_finite());
        let gathered = pipeline.gather(&Device::flex()).unwrap();
        run.parameters.push(parameters(&gathered));
    }
    run
}

#[test]
fn bf16_is_plain_burn_with_a_cast_module() {
    let expected = plain(DType::BF16, None);
    assert_ne!(expected.parameters[0], expected.parameters[1]);
    for (ranks, kind) in SHAPES {
        let found = pipelined(builder(DType::BF16, ranks, kind));
        assert!(
            found == expected,
            "{ranks} ranks, {kind}: {found:?} {expected:?}"
        );
    }
}

/// The initial loss scale is so high that steps overflow; none of them changes anything on any rank.
#[test]
fn f16_skips_steps_that_overflow() {
    let factor = (1 << 18) as f64;
    let expected = plain(DType::F16, Some(factor));
    assert!(
        expected.skipped[0] && !expected.skipped[3],
        "{:?}",
        expected.skipped
    );
    for (ranks, kind) in SHAPES {
        let scale = LossScale::fixed(factor).growing_after(1000);
        let found = pipelined(builder(DType::F16, ranks, kind).loss_scale(scale));
        assert!(
            found == expected,
            "{ranks} ranks, {kind}: {found:?} {expected:?}"
        );
    }
}

/// Without over- and underflow, a loss scale that is a power of two changes no bit.
#[test]
fn a_scale_changes_no_bit_of_bf16() {
    let expected = pipelined(builder(DType::BF16, 2, ScheduleKind::OneFOneB));
    for factor in [1.0, 1024.0] {
        let scaled = builder(DType::BF16, 2, ScheduleKind::OneFOneB);
        let found = pipelined(scaled.loss_scale(LossScale::fixed(factor)));
        assert_eq!(found, expected, "{factor}");
    }
}

/// The norm for clipping, which is returned, is the norm of the gradients without the loss scale.
#[test]
fn clipping_sees_unscaled_gradients() {
    let run = |scale: Option<f64>| {
        let builder = builder(DType::BF16, 2, ScheduleKind::OneFOneB)
            .clip(Clipping::GlobalNorm(0.01))
            .optimizer(SgdConfig::new());
        let builder = match scale {
            Some(factor) => builder.loss_scale(LossScale::fixed(factor)),
            None => builder,
        };
        let mut pipeline = builder.start().unwrap();
        let batch = (CASE.batch)(0, &Device::flex());
        let norm = pipeline.step(LR, batch).unwrap().gradient_norm.unwrap();
        assert!(norm > 0.01, "it bites: {norm}");
        let gathered = pipeline.gather(&Device::flex()).unwrap();
        (norm, parameter_values(&gathered))
    };
    let (norm, values) = run(None);
    let (scaled_norm, scaled) = run(Some(4096.0));
    assert_eq!(norm, scaled_norm);
    for ((path, value), (_, scaled)) in values.iter().zip(&scaled) {
        let [one, other] = [value, scaled].map(|value| value.to_data().unwrap());
        for (one, other) in one.iter::<f32>().zip(other.iter::<f32>()) {
            assert!((one - other).abs() <= 1e-7, "{path}: {one} {other}");
        }
    }
}

/// By default f16 is scaled and bf16 is not.
#[test]
fn defaults() {
    let scale = |compute| {
        let started = builder(compute, 1, ScheduleKind::GPipe).start().unwrap();
        started.loss_scale().map(|scale| scale.factor())
    };
    assert_eq!(scale(DType::F16), Some(32_768.0));
    assert_eq!(scale(DType::BF16), None);
}

/// The plan counts the 16-bit copy of each parameter, and activations in 16 bits.
#[test]
fn the_plan_counts_both_types() {
    let machine = Machine::local(1).unwrap();
    let plan = |trace: &Trace<Batch>| {
        let plan = Planner::new(trace, &machine).plan().unwrap();
        plan.prediction.ranks[0].memory
    };
    let single = plan(&CASE.trace(&CASE.model(), MICRO_BATCHES));
    let mixed = plan(&trace(DType::BF16));
    assert_eq!(mixed.parameters * 2, single.parameters * 3);
    assert!(mixed.activations < single.activations);
}

/// The gradients passed to the optimizer, without the loss scale; none for a skipped step.
#[test]
fn kept_gradients_are_unscaled() {
    let gradients = |scale: LossScale| {
        let builder = builder(DType::BF16, 2, ScheduleKind::OneFOneB).keep_gradients();
        let mut pipeline = builder.loss_scale(scale).start().unwrap();
        let batch = (CASE.batch)(0, &Device::flex());
        let skipped = pipeline.step(LR, batch).unwrap().skipped;
        let kept = pipeline.on_ranks(|_, stages| {
            let kept = stages.iter().flat_map(|stage| stage.gradients());
            kept.map(|(_, gradient)| gradient.to_data().unwrap())
                .collect::<Vec<_>>()
        });
        (skipped, kept.unwrap())
    };
    let (skipped, unscaled) = gradients(LossScale::fixed(1.0));
    assert!(!skipped && unscaled[0].len() > 2);
    assert_eq!(gradients(LossScale::fixed(256.0)), (false, unscaled));
    // A batch that overflows in f16, and in every type with the range of f16.
    let mut overflows = builder(DType::F16, 2, ScheduleKind::OneFOneB)
        .keep_gradients()
        .loss_scale(LossScale::fixed(16_777_216.0))
        .start()
        .unwrap();
    let batch = (CASE.batch)(0, &Device::flex());
    assert!(overflows.step(LR, batch).unwrap().skipped);
    let kept = overflows.on_ranks(|_, stages| {
        let kept = stages.iter().map(|stage| stage.gradients().count());
        kept.sum::<usize>()
    });
    assert_eq!(kept.unwrap(), [0, 0]);
}

/// The memory of a measured step equals the costs of the pipeline, with 16-bit copies in both.
#[test]
fn costs_count_the_casts() {
    let mut pipeline = builder(DType::BF16, 1, ScheduleKind::GPipe)
        .measure()
        .start()
        .unwrap();
    let batch = (CASE.batch)(0, &Device::flex());
    let (_, costs) = pipeline.costs(&batch).unwrap();
    let parameters = pipeline.model().parameters().bytes();
    assert_eq!(costs.stages[0].resident_bytes, parameters * 5 / 2);
    let measured = pipeline.step(LR, batch).unwrap().timeline.unwrap();
    let held: Vec<u64> = measured.ranks[0].bytes.iter().map(|(_, b)| *b).collect();
    // After the last backward only parameters, copies and gradients are left; after the update only
    // parameters.
    assert!(held.contains(&(parameters * 5 / 2)), "{held:?}");
    assert_eq!(held.last(), Some(&parameters), "{held:?}");
}

/// Tensors that the forward creates without a dtype have the dtype of the forward.
#[test]
fn a_tensor_of_the_forward_is_in_16_bits() {
    let model = CASE.model();
    let example = (CASE.batch)(0, &Device::flex());
    let forward = |net: &Net, (x, _): Batch| {
        let made = Tensor::<2>::ones([1, 6], &x.device());
        let sum = net.layers[0].forward(x) + made;
        Outputs::loss(sum.clone().cast(DType::F32).mean()).with("sum", sum)
    };
    let trace = MixedPrecision::bf16(&model)
        .trace(&example, 1, forward)
        .unwrap();
    let plan = trace.plan(&Machine::local(1).unwrap()).unwrap();
    let mut pipeline = Pipeline::builder(&model, &trace, &plan).start().unwrap();
    let output = pipeline.evaluate(example).unwrap();
    assert_eq!(output.output("sum").unwrap()[0].dtype(), DType::BF16);
}

/// Values that ranks hold, send, evaluate and return stay f32.
#[test]
fn parameters_stay_f32() {
    let mut pipeline = builder(DType::BF16, 2, ScheduleKind::OneFOneB)
        .keep_gradients()
        .start()
        .unwrap();
    let batch = (CASE.batch)(0, &Device::flex());
    let loss = pipeline.step(LR, batch.clone()).unwrap().loss;
    let evaluated = pipeline.evaluate(batch).unwrap().loss.unwrap();
    assert!(evaluated < loss, "{evaluated} {loss}");
    let held = pipeline.on_ranks(|_, stages| {
        let dtypes = |stage: &tinderbox_pipeline::Stage| {
            let values = stage.parameters().values().map(|(_, value)| value.dtype());
            let gradients = stage.gradients().map(|(_, gradient)| gradient.dtype());
            let all: Vec<_> = values.chain(gradients).collect();
            (all, stage.parameter_bytes(), stage.cast_bytes())
        };
        stages.iter().map(dtypes).collect::<Vec<_>>()
    });
    for (dtypes, bytes, cast_bytes) in held.unwrap().into_iter().flatten() {
        assert!(
            dtypes.iter().all(|dtype| *dtype == DType::F32),
            "{dtypes:?}"
        );
        assert_eq!(cast_bytes * 2, bytes);
    }
}
