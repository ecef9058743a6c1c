//! A step has the loss and the gradients of one backward over the whole batch in plain Burn,
//! for every reduction of the loss.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::loss::{CrossEntropyLossConfig, MseLoss, Reduction};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::activation::{gelu, log_softmax};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use tinderbox_deferred::{Deferred, random::Seed};
use tinderbox_pipeline::{
    Machine, MixedPrecision, Outputs, Pipeline, PipelineError, ScheduleKind, StepError, Trace,
    TraceError, Traceable,
};
use tinderbox_pipeline_tests::{LR, SEED, Split, full_text, split};

const TOKENS: usize = 7;
const WIDTH: usize = 6;
const PAD: usize = 0;
const LENGTH: usize = 5;

#[derive(Module, Debug)]
struct Net {
    tokens: Embedding,
    layers: Vec<Linear>,
    head: Linear,
}

fn init(device: &Device) -> Net {
    Net {
        tokens: EmbeddingConfig::new(TOKENS, WIDTH).init(device),
        layers: (0..3)
            .map(|_| LinearConfig::new(WIDTH, WIDTH).init(device))
            .collect(),
        head: LinearConfig::new(WIDTH, TOKENS).init(device),
    }
}

impl Net {
    /// One row of scores per token.
    fn scores(&self, tokens: Tensor<2, Int>) -> Tensor<2> {
        let count = tokens.shape().num_elements();
        let x = self.tokens.forward(tokens).reshape([count, WIDTH]);
        let x = self
            .layers
            .iter()
            .fold(x, |x, layer| gelu(layer.forward(x)));
        self.head.forward(x)
    }
}

type Batch = (Tensor<2, Int>, Tensor<2, Int>);

/// Sentences of very different lengths: most of the padding is in the last samples.
fn batch(samples: usize, device: &Device) -> Batch {
    let token =
        |row: usize, column: usize, salt: usize| match column < LENGTH - row * LENGTH / samples {
            true => 1 + (row * 31 + column * 17 + salt * 7) % (TOKENS - 1),
            false => PAD,
        };
    let tensor = |salt| {
        let tokens = (0..samples * LENGTH).map(|at| token(at / LENGTH, at % LENGTH, salt) as i32);
        let data = TensorData::new(tokens.collect::<Vec<i32>>(), [samples, LENGTH]);
        Tensor::<2, Int>::from_data(data, device)
    };
    (tensor(0), tensor(1))
}

fn flat(targets: Tensor<2, Int>) -> Tensor<1, Int> {
    let count = targets.shape().num_elements();
    targets.reshape([count])
}

/// Each kind of loss, as a user of Burn writes it.
type Forward = fn(&Net, Batch) -> Outputs;

const LOSSES: [(&str, Forward); 6] = [
    ("mean over samples", |net, (x, y)| {
        let loss = CrossEntropyLossConfig::new().init(&x.device());
        Outputs::loss(loss.forward(net.scores(x), flat(y)))
    }),
    ("mean over tokens that are not padding", |net, (x, y)| {
        let config = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![PAD]));
        let loss = config.init(&x.device());
        let count = y.clone().not_equal_elem(PAD as i64).int().sum();
        Outputs::loss(loss.forward(net.scores(x), flat(y))).weighted_by(count)
    }),
    ("mean over class weights", |net, (x, y)| {
        let weights: Vec<f32> = (0..TOKENS).map(|class| 0.5 + class as f32).collect();
        let config = CrossEntropyLossConfig::new().with_weights(Some(weights.clone()));
        let loss = config.init(&x.device());
        let weights = Tensor::<1>::from_floats(weights.as_slice(), &x.device());
        let count = weights.select(0, flat(y.clone())).sum();
        Outputs::loss(loss.forward(net.scores(x), flat(y))).weighted_by(count)
    }),
    ("sum", |net, (x, y)| {
        let scores = log_softmax(net.scores(x), 1);
        let of_targets = scores.gather(1, flat(y).unsqueeze_dim(1));
        Outputs::sum(of_targets.sum().neg())
    }),
    ("sum of squares by Burn's loss", |net, (x, y)| {
        let target = flat(y).float().unsqueeze_dim::<2>(1).repeat_dim(1, TOKENS);
        let scores = net.scores(x);
        let target = target.cast(scores.dtype());
        Outputs::sum(MseLoss::new().forward(scores, target, Reduction::Sum) * 0.01)
    }),
    ("mean over masked elements by hand", |net, (x, y)| {
        let mask = y.clone().not_equal_elem(PAD as i64).int();
        let scores = log_softmax(net.scores(x), 1);
        let of_targets = scores.gather(1, flat(y).unsqueeze_dim(1)).neg();
        let float = flat(mask.clone()).float().cast(of_targets.dtype());
        let count = mask.sum();
        let loss = (of_targets.squeeze_dim::<1>(1) * float).sum()
            / count.clone().float().cast(of_targets_dtype(net));
        Outputs::loss(loss).weighted_by(count)
    }),
];

fn of_targets_dtype(net: &Net) -> DType {
    net.head.weight.val().dtype()
}

#[derive(Debug, Default)]
struct Found {
    loss: f64,
    gradients: BTreeMap<String, Vec<f64>>,
    bits: BTreeMap<String, Vec<u8>>,
}

struct Gradients<'a> {
    path: Vec<String>,
    gradients: &'a burn::tensor::Gradients,
    found: Found,
}

impl ModuleVisitor for Gradients<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = param.val().grad(self.gradients) {
            let data = gradient.into_data();
            let path = self.path.join(".");
            self.found
                .gradients
                .insert(path.clone(), data.iter::<f64>().collect());
            self.found.bits.insert(path, data.as_bytes().to_vec());
        }
    }
}

/// One backward over the whole batch.
fn whole(model: &Deferred<Net>, forward: Forward, batch: Batch) -> Found {
    let device = Device::flex().autodiff();
    let net = model
        .materialize(&device, &model.initializer(Seed::new(SEED)))
        .unwrap();
    let (x, y) = batch;
    let on = |tensor: Tensor<2, Int>| Tensor::from_data(tensor.into_data(), &device);
    let loss = forward(&net, (on(x), on(y))).into_loss().unwrap();
    let value = loss.clone().into_data().iter::<f64>().next().unwrap();
    let gradients = loss.backward();
    let mut visitor = Gradients {
        path: Vec::new(),
        gradients: &gradients,
        found: Found::default(),
    };
    net.visit(&mut visitor);
    Found {
        loss: value,
        ..visitor.found
    }
}

fn pipelined(
    model: &Deferred<Net>,
    trace: &Trace<Batch>,
    batch: Batch,
    (stages, kind): (usize, ScheduleKind),
) -> Found {
    let chunks = if kind.chunks().contains(1) { 1 } else { 2 };
    let machine = Machine::local(stages).unwrap();
    let plan = trace
        .plan(&machine.with_chunks(chunks, kind.placement()).unwrap())
        .unwrap();
    let mut pipeline = Pipeline::builder(model, trace, &plan)
        .optimizer(SgdConfig::new())
        .schedule(kind)
        .seed(SEED)
        .keep_gradients()
        .start()
        .unwrap();
    let loss = pipeline.step(LR, batch).unwrap().loss;
    let gradients = pipeline.on_ranks(|_, stages| {
        let gradients = stages.iter().flat_map(|stage| stage.gradients());
        let data = gradients.map(|(path, value)| (path.to_string(), value.to_data().unwrap()));
        data.collect::<Vec<_>>()
    });
    let mut found = Found {
        loss,
        ..Found::default()
    };
    for (path, data) in gradients.unwrap().into_iter().flatten() {
        found
            .gradients
            .insert(path.clone(), data.iter::<f64>().collect());
        found.bits.insert(path, data.as_bytes().to_vec());
    }
    found
}

/// The largest difference of a loss or gradient, relative to the largest element of each.
fn difference(found: &Found, expected: &Found) -> f64 {
    assert!(found.gradients.keys().eq(expected.gradients.keys()));
    assert!(found.loss.is_finite() && expected.loss.is_finite());
    let mut largest = (found.loss - expected.loss).abs() / expected.loss.abs();
    for (path, expected) in &expected.gradients {
        let scale = expected
            .iter()
            .fold(f64::MIN_POSITIVE, |most, x| most.max(x.abs()));
        let found = &found.gradients[path];
        assert_eq!(found.len(), expected.len(), "{path}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.is_finite() && expected.is_finite(), "{path}");
            largest = largest.max((found - expected).abs() / scale);
        }
    }
    largest
}

fn model(float: DType) -> Deferred<Net> {
    let init = move |device: &Device| match float {
        DType::F64 => init(device).map(&mut ToF64),
        _ => init(device),
    };
    Deferred::new(init).unwrap()
}

struct ToF64;

impl burn::module::ModuleMapper for ToF64 {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.init_mapper(|tensor| tensor.cast(DType::F64))
    }
}

/// In f64 the bound is tight: a computation in f32 would cause an error of 1e-8.
#[test]
fn every_loss_is_that_of_the_whole_batch_under_every_schedule() {
    for (float, bound) in [(DType::F32, 1e-6), (DType::F64, 1e-13)] {
        let model = model(float);
        // Burn's own loss keeps class weights in the default dtype, f32, and does not support scores in
        // f64.
        let takes = |name: &str| float == DType::F32 || name != "mean over class weights";
        for (name, forward) in LOSSES.into_iter().filter(|(name, _)| takes(name)) {
            // 11 samples: no number of micro-batches divides them.
            for samples in [8, 11] {
                let batch = batch(samples, &Device::flex());
                let expected = whole(&model, forward, batch.clone());
                for count in [2, 4, 8] {
                    let trace = model.trace(&batch, count, forward).unwrap();
                    // All schedules for four micro-batches, two of them for the other numbers.
                    let some = [ScheduleKind::OneFOneB, ScheduleKind::ZbH1];
                    let kinds = ScheduleKind::ALL.into_iter();
                    for kind in kinds.filter(|kind| count == 4 || some.contains(kind)) {
                        let found = pipelined(&model, &trace, batch.clone(), (2, kind));
                        let difference = difference(&found, &expected);
                        let what =
                            format!("{name}, {float:?}, {samples} samples, {kind}, m = {count}");
                        assert!(difference <= bound, "{what}: {difference:e}");
                    }
                }
            }
        }
    }
}

fn not_padding(batch: &Batch) -> f64 {
    let data = batch.1.clone().into_data();
    let tokens = data.iter::<i64>();
    tokens.filter(|token| *token != PAD as i64).count() as f64
}

/// Bit for bit the gradients of plain Burn that accumulates with the same weights: the counts are computed on
/// the host here.
#[test]
fn a_weighted_mean_has_the_bits_of_plain_burn_that_accumulates() {
    has_the_bits_of_plain_burn(LOSSES[1].1, |part, batch| {
        not_padding(part) / not_padding(batch)
    });
}

#[test]
fn a_sum_has_the_bits_of_plain_burn_that_accumulates() {
    has_the_bits_of_plain_burn(LOSSES[3].1, |_, _| 1.0);
}

fn has_the_bits_of_plain_burn(forward: Forward, weight: fn(&Batch, &Batch) -> f64) {
    let model = model(DType::F32);
    let device = Device::flex().autodiff();
    for count in [2, 4, 8] {
        let batch = batch(8, &Device::flex());
        let net = model
            .materialize(&device, &model.initializer(Seed::new(SEED)))
            .unwrap();
        let mut sums: BTreeMap<String, Vec<f32>> = BTreeMap::new();
        for (part, _) in split(&batch, count) {
            let weight = weight(&part, &batch) as f32;
            let on = |tensor: Tensor<2, Int>| Tensor::from_data(tensor.into_data(), &device);
            let loss = forward(&net, (on(part.0), on(part.1))).into_loss().unwrap();
            let gradients = loss.mul_scalar(weight).backward();
            let mut visitor = Gradients {
                path: Vec::new(),
                gradients: &gradients,
                found: Found::default(),
            };
            net.visit(&mut visitor);
            for (path, bytes) in visitor.found.bits {
                let values = bytes
                    .chunks(4)
                    .map(|b| f32::from_ne_bytes(b.try_into().unwrap()));
                let values: Vec<f32> = values.collect();
                let sum = sums.entry(path).or_insert_with(|| vec![0.0; values.len()]);
                sum.iter_mut()
                    .zip(values)
                    .for_each(|(sum, value)| *sum += value);
            }
        }
        // Some kinds support no other number.
        let kinds = ScheduleKind::ALL.into_iter().filter(|_| count == 4);
        let under_all = kinds.map(|kind| (2, kind));
        let stages = [1, 3].map(|stages| (stages, ScheduleKind::OneFOneB));
        let trace = model.trace(&batch, count, forward).unwrap();
        for (stages, kind) in stages.into_iter().chain(under_all) {
            let found = pipelined(&model, &trace, batch.clone(), (stages, kind));
            for (path, sum) in &sums {
                let bits: Vec<u8> = sum.iter().flat_map(|value| value.to_ne_bytes()).collect();
                assert!(
                    found.bits[path] == bits,
                    "{path}, {stages} stages, {kind}, m = {count}"
                );
            }
        }
    }
}

/// Burn's mean over no token is NaN; over the whole batch those samples do not count.
#[test]
fn a_micro_batch_of_padding_adds_nothing() {
    let (_, forward) = LOSSES[1];
    let model = model(DType::F32);
    let (x, y) = batch(8, &Device::flex());
    let padding = Tensor::<2, Int>::zeros([4, LENGTH], &Device::flex());
    let batch = (x, Tensor::cat(vec![y.narrow(0, 0, 4), padding], 0));
    let expected = whole(&model, forward, batch.clone());
    for count in [2, 4] {
        let trace = model.trace(&batch, count, forward).unwrap();
        let setting = (2, ScheduleKind::OneFOneB);
        let found = pipelined(&model, &trace, batch.clone(), setting);
        assert!(
            difference(&found, &expected) <= 1e-6,
            "{}",
            difference(&found, &expected)
        );
    }
}

#[test]
fn an_evaluation_uses_the_same_weights() {
    for (name, forward) in LOSSES {
        let model = model(DType::F32);
        let batch = batch(7, &Device::flex());
        let expected = whole(&model, forward, batch.clone()).loss;
        let trace = model.trace(&batch, 4, forward).unwrap();
        let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
        let pipeline = Pipeline::builder(&model, &trace, &plan).seed(SEED);
        let found = pipeline
            .start()
            .unwrap()
            .evaluate(batch)
            .unwrap()
            .loss
            .unwrap();
        assert!(((found - expected) / expected).abs() <= 1e-6, "{name}");
    }
}

fn trace_error(forward: Forward) -> TraceError {
    let example = batch(4, &Device::flex());
    model(DType::F32).trace(&example, 1, forward).unwrap_err()
}

#[test]
fn invalid_counts_are_refused() {
    let error = trace_error(|net, (x, y)| {
        let scores = net.scores(x);
        let count = scores.clone().abs().sum();
        Outputs::loss(scores.mean() + flat(y).float().mean()).weighted_by(count)
    });
    insta::assert_snapshot!(error, @"the count in `weighted_by` depends on parameter `tokens.weight`: it must be computed from the batch only, because a step needs it before the forward runs");
    let error = trace_error(|net, (x, y)| Outputs::loss(net.scores(x).mean()).weighted_by(flat(y)));
    insta::assert_snapshot!(error, @"the count in `weighted_by` has 20 elements: reduce it to one, with `sum`");
    let error = trace_error(|net, (x, y)| {
        let count = y.float().cast(DType::BF16).sum();
        Outputs::loss(net.scores(x).mean()).weighted_by(count)
    });
    insta::assert_snapshot!(error, @"the count in `weighted_by` is computed in bf16, which is too imprecise for counts: count in ints, as in `mask.int().sum()`, and pass masks as ints or bools, since mixed precision casts the floats of a batch");
    let error = trace_error(|net, (x, _)| {
        let count = Tensor::<1>::ones([1], &Device::flex());
        Outputs::loss(net.scores(x).mean()).weighted_by(count)
    });
    insta::assert_snapshot!(error, @"the count in `weighted_by` is a tensor that was not created under recording: compute it from the tensors of the batch");
}

fn step_error(forward: Forward, micro_batches: usize, samples: usize) -> String {
    let model = model(DType::F32);
    let batch = batch(samples, &Device::flex());
    let trace = model.trace(&batch, micro_batches, forward).unwrap();
    let plan = trace.plan(&Machine::local(1).unwrap()).unwrap();
    let mut pipeline = Pipeline::builder(&model, &trace, &plan)
        .optimizer(SgdConfig::new())
        .start()
        .unwrap();
    full_text(&pipeline.step(LR, batch).unwrap_err())
}

#[test]
fn counts_that_are_negative_are_refused_before_the_step() {
    let forward: Forward = |net, (x, y)| {
        let count = y.not_equal_elem(PAD as i64).int().sum() - 1000;
        Outputs::loss(net.scores(x).mean()).weighted_by(count)
    };
    insta::assert_snapshot!(step_error(forward, 1, 5), @"the count that weights the loss of micro-batch 0 is -985: it must be finite and not negative");
}

#[test]
fn losses_of_different_kinds_in_one_step_are_refused() {
    let forward: Forward = |net, (x, _)| match x.dims()[0] {
        3 => Outputs::loss(net.scores(x).mean()),
        _ => Outputs::sum(net.scores(x).sum()),
    };
    insta::assert_snapshot!(step_error(forward, 2, 5), @"the loss of micro-batch 1 is over other items than the loss of micro-batch 0: use the same one of `Outputs::loss`, `weighted_by` and `Outputs::sum` for every batch");
}

#[test]
fn a_batch_without_counts_is_refused_and_changes_nothing() {
    let (_, forward) = LOSSES[1];
    let model = model(DType::F32);
    let good = batch(8, &Device::flex());
    let padding = (good.0.clone(), Tensor::zeros([8, LENGTH], &Device::flex()));
    let trace = model.trace(&good, 2, forward).unwrap();
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let mut pipeline = Pipeline::builder(&model, &trace, &plan)
        .optimizer(SgdConfig::new())
        .start()
        .unwrap();
    let error = pipeline.step(LR, padding).unwrap_err();
    assert!(
        matches!(error, PipelineError::Step(StepError::NothingCounts)),
        "{error}"
    );
    insta::assert_snapshot!(full_text(&error), @"the counts that weight the losses are 0 for all micro-batches, so the loss is undefined: leave the batch out");
    assert_eq!(pipeline.steps(), 0);
    pipeline.step(LR, good).unwrap();
}

/// Mixed precision casts a float mask to 16 bits: 300 ones would be counted as 256 or 304.
#[test]
fn a_count_of_floats_in_mixed_precision_is_refused() {
    let model = model(DType::F32);
    let (x, y) = batch(4, &Device::flex());
    let mask = Tensor::<2>::ones([4, LENGTH], &Device::flex());
    let forward = |net: &Net, ((x, _), mask): (Batch, Tensor<2>)| {
        let loss = net.scores(x).cast(DType::F32).mean();
        Outputs::loss(loss).weighted_by(mask.sum().int())
    };
    let traced = MixedPrecision::bf16(&model).trace(&((x, y), mask), 1, forward);
    insta::assert_snapshot!(traced.unwrap_err(), @"the count in `weighted_by` is computed in bf16, which is too imprecise for counts: count in ints, as in `mask.int().sum()`, and pass masks as ints or bools, since mixed precision casts the floats of a batch");
}

/// A label out of range is an error before the step, as in the forward, and not a panic of the caller's
/// thread.
#[test]
fn a_label_out_of_range_in_a_count() {
    let (_, forward) = LOSSES[2];
    let model = model(DType::F32);
    let good = batch(8, &Device::flex());
    let wrong = (good.0.clone(), good.1.clone() + 100);
    let trace = model.trace(&good, 2, forward).unwrap();
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    for checked in [true, false] {
        let mut pipeline = Pipeline::builder(&model, &trace, &plan)
            .optimizer(SgdConfig::new())
            .check_indices(checked)
            .start()
            .unwrap();
        let error = pipeline.step(LR, wrong.clone()).unwrap_err();
        // With index checks, the whole batch is checked before the count is computed.
        let is_named = match checked {
            true => {
                matches!(&error, PipelineError::Step(StepError::MicroBatch { micro_batch, .. }) if micro_batch.index() == 0)
            }
            false => matches!(
                error,
                PipelineError::Step(StepError::Count { micro_batch: 0, .. })
            ),
        };
        assert!(is_named, "{error}");
        pipeline.step(LR, good.clone()).unwrap();
    }
}

/// The reference's own splitting: rows, in order, the larger parts first.
#[test]
fn the_reference_splits_as_documented() {
    let (x, _) = batch(11, &Device::flex());
    let sizes: Vec<usize> = split(&x, 4).iter().map(|part| part.1).collect();
    assert_eq!(sizes, [3, 3, 3, 2]);
    assert_eq!(x.samples(), Some(11));
}
