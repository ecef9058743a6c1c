//! Carried values, compared with a loop in plain Burn that passes them from call to call.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::activation::softmax;
use burn::tensor::{DType, Device, IndexingUpdateOp, Int, Tensor};
use tinderbox_deferred::{Deferred, MaterializeOptions, random::Seed};
use tinderbox_fake::Mode;
use tinderbox_pipeline::{
    Batch, Carried, Carry, Cut, Machine, MixedPrecision, Outputs, Pipeline, Planner, Trace,
    TraceError, Traceable, Whole,
};
use tinderbox_pipeline_tests::{SEED, full_text, tokens};

const WIDTH: usize = 8;
const WORDS: usize = 11;
const PLACES: usize = 10;
const SAMPLES: usize = 4;

#[derive(Module, Debug)]
struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
}

#[derive(Module, Debug)]
struct Net {
    embedding: Embedding,
    places: Embedding,
    layers: Vec<Layer>,
    head: Linear,
}

/// Keys and values of a layer, `[samples, places, width]`.
type Cache = Vec<(Tensor<3>, Tensor<3>)>;
/// Words, the places of the words, the caches.
type Words = (Tensor<2, Int>, Whole<Tensor<1, Int>>, Carried<Cache>);

fn net(device: &Device) -> Net {
    let linear = || LinearConfig::new(WIDTH, WIDTH).init(device);
    let layer = || Layer {
        query: linear(),
        key: linear(),
        value: linear(),
        out: linear(),
    };
    Net {
        embedding: EmbeddingConfig::new(WORDS, WIDTH).init(device),
        places: EmbeddingConfig::new(PLACES, WIDTH).init(device),
        layers: (0..4).map(|_| layer()).collect(),
        head: LinearConfig::new(WIDTH, WORDS).init(device),
    }
}

/// Scores of the word after each.
fn scores(
    net: &Net,
    words: Tensor<2, Int>,
    places: Tensor<1, Int>,
    cache: Cache,
) -> (Tensor<3>, Cache) {
    let [samples, count] = words.dims();
    let device = words.device();
    let all = Tensor::<1, Int>::arange(0..PLACES as i64, &device);
    let later = all
        .reshape([1, 1, PLACES])
        .expand([samples, count, PLACES])
        .greater(
            places
                .clone()
                .reshape([1, count, 1])
                .expand([samples, count, PLACES]),
        );
    let mut x = net.embedding.forward(words) + net.places.forward(places.clone().unsqueeze());
    let mut new = Cache::new();
    for (layer, (keys, values)) in net.layers.iter().zip(cache) {
        let write = |cache: Tensor<3>, linear: &Linear| {
            let rows = linear.forward(x.clone());
            cache.select_assign(1, places.clone(), rows, IndexingUpdateOp::Assign)
        };
        let (keys, values) = (write(keys, &layer.key), write(values, &layer.value));
        let scores = layer
            .query
            .forward(x.clone())
            .matmul(keys.clone().transpose());
        let weights = softmax(scores.mask_fill(later.clone(), f32::NEG_INFINITY), 2);
        x = x + layer.out.forward(weights.matmul(values.clone()));
        new.push((keys, values));
    }
    (net.head.forward(x), new)
}

fn forward(net: &Net, (words, Whole(places), Carried(cache)): Words) -> Outputs {
    let (scores, cache) = scores(net, words, places, cache);
    Outputs::none().with("scores", scores).carry(cache)
}

fn empty(samples: usize) -> Cache {
    let zeros = || Tensor::<3>::zeros([1, 1, 1], &Device::flex()).expand([samples, PLACES, WIDTH]);
    (0..4).map(|_| (zeros(), zeros())).collect()
}

fn words(samples: usize, places: std::ops::Range<usize>, number: u64) -> Words {
    let device = Device::flex();
    let all = tokens([samples, PLACES], WORDS, number, &device);
    let words = all.slice([0..samples, places.clone()]);
    let places = Tensor::arange(places.start as i64..places.end as i64, &device);
    (words, Whole(places), Carried(empty(samples)))
}

fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u8> {
    tensor.into_data().as_bytes().to_vec()
}

fn model() -> Deferred<Net> {
    Deferred::new(net).unwrap()
}

/// A trace of two micro-batches.
fn traced_in_two(model: &Deferred<Net>) -> Trace<Words> {
    let traced = model.trace_in(Mode::Inference, &words(SAMPLES, 3..4, 0), 2, forward);
    traced.unwrap()
}

fn plain(model: &Deferred<Net>) -> Net {
    let initializer = model.initializer(Seed::new(SEED));
    model.materialize(&Device::flex(), &initializer).unwrap()
}

fn start<M: Module + Sync + 'static, B: Batch>(
    model: &Deferred<M>,
    trace: &Trace<B>,
    stages: usize,
    micro_batches: usize,
) -> Pipeline<M, B> {
    start_replicas(model, trace, (1, stages), micro_batches)
}

fn start_replicas<M: Module + Sync + 'static, B: Batch>(
    model: &Deferred<M>,
    trace: &Trace<B>,
    (replicas, stages): (usize, usize),
    micro_batches: usize,
) -> Pipeline<M, B> {
    let trace = trace.with_micro_batches(micro_batches).unwrap();
    let machine = Machine::local(replicas * stages).unwrap();
    let planner = Planner::new(&trace, &machine).replicas(replicas);
    let plan = planner.plan().unwrap();
    Pipeline::builder(model, &trace, &plan)
        .seed(SEED)
        .start()
        .unwrap()
}

/// The places of each call: a prompt, then word by word, then several words.
const CALLS: [std::ops::Range<usize>; 6] = [0..3, 3..4, 4..5, 5..6, 6..8, 8..9];

/// The scores of plain Burn, whose loop passes the caches, for the samples of each micro-batch.
fn plain_loop(net: &Net, number: u64, micro_batches: usize) -> Vec<Vec<u8>> {
    let size = SAMPLES / micro_batches;
    let of_part = |part: usize| {
        let rows = part * size..(part + 1) * size;
        let mut cache = empty(size);
        let calls = CALLS.map(|places| {
            let (words, Whole(places), _) = words(SAMPLES, places, number);
            let count = words.dims()[1];
            let words = words.slice([rows.clone(), 0..count]);
            let (scores, new) = scores(net, words, places, std::mem::take(&mut cache));
            cache = new;
            bits(scores)
        });
        calls.to_vec()
    };
    let parts: Vec<Vec<Vec<u8>>> = (0..micro_batches).map(of_part).collect();
    let calls = 0..CALLS.len();
    calls
        .map(|call| parts.iter().flat_map(|part| part[call].clone()).collect())
        .collect()
}

fn run(
    pipeline: &mut Pipeline<Net, Words>,
    carry: &mut Carry,
    call: usize,
    number: u64,
) -> Vec<u8> {
    let batch = words(SAMPLES, CALLS[call].clone(), number);
    let output = pipeline.evaluate_carried(carry, batch).unwrap();
    bits(output.tensor::<3>("scores").unwrap())
}

/// A prompt and a word at a time, in one to four stages.
#[test]
fn a_prompt_and_its_continuation_are_those_of_plain_burn() {
    let model = model();
    let trace = model.trace_forward(&words(SAMPLES, 3..4, 0), forward);
    let trace = trace.unwrap();
    let net = plain(&model);
    for micro_batches in [1, 2] {
        let expected = plain_loop(&net, 1, micro_batches);
        for stages in 1..=4 {
            let mut pipeline = start(&model, &trace, stages, micro_batches);
            let mut carry = pipeline.carry();
            assert!(!carry.has_values());
            for (call, expected) in expected.iter().enumerate() {
                let found = run(&mut pipeline, &mut carry, call, 1);
                assert!(
                    found == *expected,
                    "call {call}, {stages} stages, {micro_batches}"
                );
                assert!(carry.has_values());
            }
        }
    }
}

/// Each replica has the values of its samples.
#[test]
fn replicas_carry_the_values_of_their_samples() {
    let model = model();
    let trace = model.trace_forward(&words(SAMPLES, 3..4, 0), forward);
    let trace = trace.unwrap();
    let net = plain(&model);
    for (replicas, stages, micro_batches) in [(2, 1, 2), (2, 2, 4), (4, 1, 4)] {
        let expected = plain_loop(&net, 1, micro_batches);
        let mut pipeline = start_replicas(&model, &trace, (replicas, stages), micro_batches);
        let mut carry = pipeline.carry();
        for (call, expected) in expected.iter().enumerate() {
            let found = run(&mut pipeline, &mut carry, call, 1);
            assert!(found == *expected, "call {call}, {replicas} x {stages}");
        }
    }
}

/// The caches of a text are read by its own calls alone, and the caches of a dropped carry are freed.
#[test]
fn carries_are_independent_and_freed_when_they_are_dropped() {
    let model = model();
    let trace = model.trace_forward(&words(SAMPLES, 3..4, 0), forward);
    let trace = trace.unwrap();
    let net = plain(&model);
    let expected = [1, 2].map(|number| plain_loop(&net, number, 2));
    let mut pipeline = start(&model, &trace, 3, 2);
    let mut carries = [pipeline.carry(), pipeline.carry()];
    // The second begins when the first has a prompt and a word.
    for (which, call) in [
        (0, 0),
        (0, 1),
        (1, 0),
        (0, 2),
        (1, 1),
        (1, 2),
        (0, 3),
        (1, 3),
    ] {
        let found = run(&mut pipeline, &mut carries[which], call, which as u64 + 1);
        assert!(found == expected[which][call], "carry {which}, call {call}");
        // Plain evaluations read the batch alone and leave no values.
        let alone = pipeline
            .evaluate(words(SAMPLES, CALLS[0].clone(), 1))
            .unwrap();
        assert!(bits(alone.tensor::<3>("scores").unwrap()) == expected[0][0]);
    }
    let held = |pipeline: &mut Pipeline<Net, Words>| -> u64 {
        let held =
            pipeline.on_ranks(|_, stages| stages.iter().map(|s| s.carried_bytes()).sum::<u64>());
        held.unwrap().into_iter().sum()
    };
    let of_one = (4 * 2 * SAMPLES * PLACES * WIDTH * 4) as u64;
    assert_eq!(held(&mut pipeline), 2 * of_one);
    let [first, mut second] = carries;
    drop(first);
    run(&mut pipeline, &mut second, 4, 2);
    assert_eq!(held(&mut pipeline), of_one);
    drop(second);
    pipeline
        .evaluate(words(SAMPLES, CALLS[0].clone(), 1))
        .unwrap();
    assert_eq!(held(&mut pipeline), 0);
}

/// A batch that is refused before anything runs leaves the values as they were.
#[test]
fn a_refused_batch_changes_nothing() {
    let model = model();
    let trace = traced_in_two(&model);
    let net = plain(&model);
    let expected = plain_loop(&net, 1, 2);
    let start = |seed| {
        let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
        let builder = Pipeline::builder(&model, &trace, &plan).check_indices(true);
        builder.seed(seed).start().unwrap()
    };
    let mut pipeline = start(SEED);
    let mut carry = pipeline.carry();
    let refused = |pipeline: &mut Pipeline<Net, Words>, carry: &mut _, batch: Words| {
        full_text(&pipeline.evaluate_carried(carry, batch).unwrap_err())
    };
    for (call, expected) in expected.iter().enumerate() {
        let places = CALLS[call].clone();
        // A word that the embedding does not have.
        let (right, at, cache) = words(SAMPLES, places.clone(), 1);
        let wrong = right.clone().mul_scalar(0).add_scalar(WORDS as i64);
        let text = refused(&mut pipeline, &mut carry, (wrong, at, cache));
        assert!(text.contains("is out of range"), "{text}");
        assert!(run(&mut pipeline, &mut carry, call, 1) == *expected);
        if call != 0 {
            continue;
        }
        let next = || words(SAMPLES, CALLS[1].clone(), 1);
        let short = |samples| {
            let (words, places, _) = words(samples, CALLS[1].clone(), 1);
            (words, places, Carried(empty(samples)))
        };
        insta::assert_snapshot!(refused(&mut pipeline, &mut carry, short(1)), @r"
    the carried values can't be used, and nothing was run
    the batch has 1 micro-batch(es), and the carry has values of 2: use as many samples as before, or another carry
    ");
        insta::assert_snapshot!(refused(&mut pipeline, &mut carry, short(2)), @r"
    the carried values can't be used, and nothing was run
    the carried tensors of micro-batch 0 differ from the values that the carry has: `2.0.0` f32[2, 10, 8] is kept, and the batch has `2.0.0` f32[1, 10, 8]; use the same shapes as before, or another carry
    ");
        let (words, places, Carried(mut caches)) = next();
        caches.pop();
        let text = refused(&mut pipeline, &mut carry, (words, places, Carried(caches)));
        insta::assert_snapshot!(text, @r"
    the carried values can't be used, and nothing was run
    the carried tensors of micro-batch 0 differ from the values that the carry has: `2.3.0` f32[2, 10, 8] is kept, and the batch has nothing; use the same shapes as before, or another carry
    ");
        insta::assert_snapshot!(refused(&mut start(SEED), &mut carry, next()), @r"
    the carried values can't be used, and nothing was run
    the carry is of another pipeline: its values are on the ranks of that one
    ");
    }
}

/// A rank that fails stops the pipeline: its caches may be partly new.
#[test]
fn a_failed_rank_stops_the_pipeline() {
    let model = model();
    let trace = traced_in_two(&model);
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let builder = Pipeline::builder(&model, &trace, &plan).check_indices(false);
    let mut pipeline = builder.seed(SEED).start().unwrap();
    let mut carry = pipeline.carry();
    run(&mut pipeline, &mut carry, 0, 1);
    let (right, at, cache) = words(SAMPLES, CALLS[1].clone(), 1);
    // The last sample alone, so that another micro-batch has replaced its caches.
    let wrong = right.slice_fill([SAMPLES - 1..SAMPLES, 0..1], WORDS as i64);
    let error = pipeline.evaluate_carried(&mut carry, (wrong, at, cache));
    let text = full_text(&error.unwrap_err());
    assert!(text.starts_with("rank 0, stage 0, micro-batch 1"), "{text}");
    let again = pipeline.evaluate_carried(&mut carry, words(SAMPLES, CALLS[1].clone(), 1));
    insta::assert_snapshot!(full_text(&again.unwrap_err()), @"the pipeline has stopped after an earlier error: start a new one");
}

/// A batch without caches trains, one with caches is evaluated, in programs of one trace.
type Both = (
    Tensor<2, Int>,
    Whole<Tensor<1, Int>>,
    Option<Carried<Cache>>,
);

#[test]
fn a_trained_model_generates() {
    let model = model();
    let both = |(words, places, cache): Words| -> Both { (words, places, Some(cache)) };
    let whole = |number| {
        let (words, places, _) = words(SAMPLES, 0..PLACES, number);
        (words, places, None)
    };
    let forward = |net: &Net, (words, Whole(places), cache): Both| {
        let [samples, _] = words.dims();
        match cache {
            Some(Carried(cache)) => {
                let (scores, cache) = scores(net, words, places, cache);
                Outputs::loss(scores.clone().mean())
                    .with("scores", scores)
                    .carry(cache)
            }
            None => {
                let zeros = || Tensor::zeros([samples, PLACES, WIDTH], &words.device());
                let cache = (0..4).map(|_| (zeros(), zeros())).collect();
                let (scores, _) = scores(net, words, places, cache);
                Outputs::loss(scores.powi_scalar(2).mean())
            }
        }
    };
    let trace = model.trace(&whole(0), 2, forward).unwrap();
    for stages in 1..=3 {
        let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
        let builder =
            Pipeline::builder(&model, &trace, &plan).optimizer(burn::optim::SgdConfig::new());
        let mut pipeline = builder.seed(SEED).start().unwrap();
        let first = pipeline.step(0.1, whole(1)).unwrap().loss;
        assert!(pipeline.step(0.1, whole(1)).unwrap().loss < first);
        let net = pipeline.gather(&Device::flex()).unwrap();
        let mut carry = pipeline.carry();
        for (call, expected) in plain_loop(&net, 3, 2).into_iter().enumerate() {
            let batch = both(words(SAMPLES, CALLS[call].clone(), 3));
            let output = pipeline.evaluate_carried(&mut carry, batch).unwrap();
            let found = bits(output.tensor::<3>("scores").unwrap());
            assert!(found == expected, "call {call}, {stages} stages");
        }
    }
}

/// In mixed precision the caches have 16 bits.
#[test]
fn in_16_bits() {
    let model = model();
    let half = |cache: Cache| -> Cache {
        let cast = |t: Tensor<3>| t.cast(DType::BF16);
        cache.into_iter().map(|(k, v)| (cast(k), cast(v))).collect()
    };
    let words = |places| {
        let (words, places, Carried(cache)) = words(2, places, 1);
        (words, places, Carried(half(cache)))
    };
    let trace = MixedPrecision::bf16(&model)
        .trace_forward(&words(3..4), forward)
        .unwrap();
    let options = MaterializeOptions::on(&Device::flex()).dtype(|_| Some(DType::BF16));
    let initializer = model.initializer(Seed::new(SEED));
    let net = model.materialize(options, &initializer).unwrap();
    for stages in 1..=3 {
        let mut pipeline = start(&model, &trace, stages, 1);
        let mut carry = pipeline.carry();
        let (_, _, Carried(mut cache)) = words(0..1);
        for places in CALLS {
            let output = pipeline
                .evaluate_carried(&mut carry, words(places.clone()))
                .unwrap();
            let (words, Whole(places), _) = words(places);
            let (expected, new) = scores(&net, words, places, cache);
            cache = new;
            let found = output.tensor::<3>("scores").unwrap();
            assert_eq!(found.dtype(), DType::BF16);
            assert!(bits(found) == bits(expected), "{stages} stages");
        }
    }
    let refused = MixedPrecision::bf16(&model).trace_forward(&self::words(2, 3..4, 0), forward);
    insta::assert_snapshot!(full_text(&refused.unwrap_err()), @r"
    the forward returns no new value of the carried tensor `2.0.0` that can replace it
    it is f32[2, 10, 8] in the batch and becomes bf16[2, 10, 8]: use one shape and dtype for both
    ");
}

type Counted = (Tensor<2, Int>, Carried<(Whole<Tensor<1, Int>>, Cache)>);

/// Each stage that reads a tensor which depends on no parameter has its own copy: here the place of the next word.
#[test]
fn places_are_counted_on_every_stage() {
    let model = model();
    let counted = |places: std::ops::Range<usize>| -> Counted {
        let (words, _, cache) = words(SAMPLES, places, 1);
        let first = Tensor::zeros([1], &Device::flex());
        (words, Carried((Whole(first), cache.0)))
    };
    let forward = |net: &Net, (words, Carried((Whole(first), cache))): Counted| {
        let count = words.dims()[1] as i64;
        let places = Tensor::arange(0..count, &words.device()) + first.clone();
        let (scores, cache) = scores(net, words, places, cache);
        Outputs::none()
            .with("scores", scores)
            .carry((first + count, cache))
    };
    let trace = model.trace_forward(&counted(3..4), forward).unwrap();
    let expected = plain_loop(&plain(&model), 1, 2);
    for stages in 1..=4 {
        let mut pipeline = start(&model, &trace, stages, 2);
        let mut carry = pipeline.carry();
        for (call, expected) in expected.iter().enumerate() {
            let batch = counted(CALLS[call].clone());
            let output = pipeline.evaluate_carried(&mut carry, batch).unwrap();
            let found = bits(output.tensor::<3>("scores").unwrap());
            assert!(found == *expected, "call {call}, {stages} stages");
        }
    }
}

type Row = (Tensor<2>, Carried<Tensor<2>>);

fn row(samples: usize, width: usize) -> Row {
    let ones = Tensor::ones([samples, width], &Device::flex());
    (ones, Carried(Tensor::zeros([samples, 4], &Device::flex())))
}

fn chain() -> Deferred<Vec<Linear>> {
    let layer = |device: &Device| LinearConfig::new(4, 4).init(device);
    Deferred::new(move |device: &Device| (0..4).map(|_| layer(device)).collect::<Vec<_>>()).unwrap()
}

/// The first layer writes what the last one reads: they stay together, wherever a cut is requested.
#[test]
fn a_cut_does_not_separate_what_reads_and_writes_a_tensor() {
    let model = chain();
    let forward = |layers: &Vec<Linear>, (x, Carried(sum)): Row| {
        let first = layers[0].forward(x);
        let new = sum.clone() + first.clone();
        let x = layers[2].forward(layers[1].forward(first)) + sum;
        Outputs::none().with("y", layers[3].forward(x)).carry(new)
    };
    let trace = model.trace_forward(&row(1, 4), forward).unwrap();
    let initializer = model.initializer(Seed::new(SEED));
    let plain = model.materialize(&Device::flex(), &initializer).unwrap();
    // The sum is written after the first layer, and read after the third.
    for (cut, owned) in [("1", [2, 6]), ("2", [2, 6]), ("3", [6, 2])] {
        let plan = trace.plan_at(&[Cut::before(cut)]).unwrap();
        let found = plan.stages.iter().map(|stage| stage.parameters.len());
        assert_eq!(found.collect::<Vec<_>>(), owned, "before {cut}");
        let builder = Pipeline::builder(&model, &trace, &plan);
        let mut pipeline = builder.seed(SEED).start().unwrap();
        let mut carry = pipeline.carry();
        let (x, Carried(mut sum)) = row(1, 4);
        for _ in 0..3 {
            let first = plain[0].forward(x.clone());
            let y = plain[2].forward(plain[1].forward(first.clone())) + sum.clone();
            sum = sum + first;
            let output = pipeline.evaluate_carried(&mut carry, row(1, 4)).unwrap();
            let found = output.tensor::<2>("y").unwrap();
            assert_eq!(found.into_data(), plain[3].forward(y).into_data());
        }
    }
}

/// Of width 4, the last layer adds to the sum; of width 5, the first; of width 6, the first replaces what the last reads.
fn of_width(layers: &[Linear], x: Tensor<2>, sum: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    let width = x.dims()[1];
    let first = layers[0].forward(x.slice([0..1, 0..4]));
    let last = layers[3].forward(layers[2].forward(layers[1].forward(first.clone())));
    match width {
        4 => (last.clone(), sum + last),
        5 => (last + 1.0, sum + first),
        _ => (last + sum, first),
    }
}

/// A forward of another structure than the planned one reads and writes a tensor where the planned one does.
#[test]
fn programs_of_several_structures_share_a_carry() {
    let model = chain();
    let forward = |layers: &Vec<Linear>, (x, Carried(sum)): Row| {
        let (y, new) = of_width(layers, x, sum);
        Outputs::none()
            .with("y", y)
            .with("sum", new.clone())
            .carry(new)
    };
    let trace = model.trace_forward(&row(1, 4), forward).unwrap();
    let plan = trace.plan_at(&[Cut::before("2")]).unwrap();
    let builder = Pipeline::builder(&model, &trace, &plan);
    let mut pipeline = builder.seed(SEED).start().unwrap();
    let initializer = model.initializer(Seed::new(SEED));
    let plain = model.materialize(&Device::flex(), &initializer).unwrap();
    let mut carry = pipeline.carry();
    let (_, Carried(mut sum)) = row(1, 4);
    for width in [4, 5, 5, 4] {
        let output = pipeline
            .evaluate_carried(&mut carry, row(1, width))
            .unwrap();
        let (y, new) = of_width(&plain, row(1, width).0, sum);
        sum = new;
        for (name, expected) in [("y", y), ("sum", sum.clone())] {
            let found = output.tensor::<2>(name).unwrap();
            assert_eq!(
                found.into_data(),
                expected.into_data(),
                "{name}, width {width}"
            );
        }
    }
}

/// Without carried tensors in the planned forward, programs are cut by the parameters that they read.
#[test]
fn values_on_another_stage_than_the_reader_are_refused() {
    type Training = (Tensor<2>, Option<Carried<Tensor<2>>>);
    let model = chain();
    let forward = |layers: &Vec<Linear>, (x, sum): Training| match sum {
        None => Outputs::loss(layers.iter().fold(x, |x, layer| layer.forward(x)).mean()),
        Some(Carried(sum)) => {
            let (y, new) = of_width(layers, x, sum);
            Outputs::loss(y.mean()).carry(new)
        }
    };
    let (x, _) = row(1, 4);
    let trace = model.trace(&(x, None), 1, forward).unwrap();
    let plan = trace.plan_at(&[Cut::before("2")]).unwrap();
    let mut pipeline = Pipeline::builder(&model, &trace, &plan).start().unwrap();
    let mut carry = pipeline.carry();
    let mut run = |width| {
        let (x, sum) = row(1, width);
        pipeline.evaluate_carried(&mut carry, (x, Some(sum)))
    };
    run(4).unwrap();
    let mut refused = |width| full_text(&run(width).unwrap_err());
    insta::assert_snapshot!(refused(5), @r"
    the carried values can't be used, and nothing was run
    the value of the carried tensor `1` is on stage 1, and for a batch of this shape stage 0 reads it: cut the model elsewhere, so that one stage does both
    ");
    insta::assert_snapshot!(refused(6), @r"
    the plan can't be used
    stage 0 computes the new value of the carried tensor `1`, and stage 1 reads the tensor: one stage must do both, because carried values stay on it; cut elsewhere
    ");
    run(4).unwrap();
}

#[test]
fn a_batch_without_carried_tensors_is_refused() {
    let model = chain();
    let (x, _) = row(1, 4);
    let alone = model.trace_forward(&x, |layers: &Vec<Linear>, x| {
        Outputs::none().with("y", layers[0].forward(x))
    });
    let alone = alone.unwrap();
    let plan = alone.plan(&Machine::local(1).unwrap()).unwrap();
    let mut pipeline = Pipeline::builder(&model, &alone, &plan).start().unwrap();
    let mut carry = pipeline.carry();
    let error = pipeline.evaluate_carried(&mut carry, x).unwrap_err();
    insta::assert_snapshot!(full_text(&error), @r"
    the carried values can't be used, and nothing was run
    the batch has no carried tensor: wrap a part of it in `Carried`, or use `evaluate`
    ");
}

/// The new values must have the structure of the carried part.
#[test]
fn new_values_of_another_structure_are_refused() {
    type Pair = (Tensor<2>, Carried<(Tensor<2>, Vec<Tensor<2>>)>);
    let model = chain();
    let x = || Tensor::<2>::ones([1, 4], &Device::flex());
    let batch = || -> Pair { (x(), Carried((x(), vec![x(), x()]))) };
    let refused = |carry: fn(Outputs, (Tensor<2>, Vec<Tensor<2>>)) -> Outputs| {
        let forward = move |layers: &Vec<Linear>, (x, Carried(old)): Pair| {
            carry(Outputs::none().with("y", layers[0].forward(x)), old)
        };
        let error: TraceError = model.trace_forward(&batch(), forward).unwrap_err();
        full_text(&error)
    };
    insta::assert_snapshot!(refused(|outputs, _| outputs), @r"
    the forward returns no new value of the carried tensor `1.0` that can replace it
    the new value is missing: return the new values of all carried tensors by `Outputs::carry`, in the structure of the batch
    ");
    insta::assert_snapshot!(refused(|outputs, (_, list)| outputs.carry(list)), @r"
    the forward returns no new value of the carried tensor `1.1.0` that can replace it
    its place has `1`: return the new values in the structure and the order of the batch
    ");
    insta::assert_snapshot!(refused(
        |outputs, (first, list)| outputs.carry((first, list[..1].to_vec()))
    ), @r"
    the forward returns no new value of the carried tensor `1.1.1` that can replace it
    the new value is missing: return the new values of all carried tensors by `Outputs::carry`, in the structure of the batch
    ");
    insta::assert_snapshot!(refused(
        |outputs, (first, list)| outputs.carry((first.cast(DType::F16), list))
    ), @r"
    the forward returns no new value of the carried tensor `1.0` that can replace it
    it is f32[1, 4] in the batch and becomes f16[1, 4]: use one shape and dtype for both
    ");
    insta::assert_snapshot!(refused(|outputs, (first, mut list)| {
        list[1] = list[1].clone().slice([0..1, 0..3]);
        outputs.carry((first, list))
    }), @r"
    the forward returns no new value of the carried tensor `1.1.1` that can replace it
    it is f32[1, 4] in the batch and becomes f32[1, 3]: use one shape and dtype for both
    ");
    insta::assert_snapshot!(refused(|outputs, (first, list)| {
        let foreign = Tensor::<2>::zeros(first.dims(), &Device::flex());
        outputs.carry((foreign, list))
    }), @r"
    the forward returns no new value of the carried tensor `1.0` that can replace it
    it was not created under recording: create it on the device of the batch or of a parameter
    ");
    insta::assert_snapshot!(refused(|outputs, old| outputs
        .carry(old.clone())
        .carry(old)), @"the forward carries `0`, after the last carried tensor of the batch: wrap every tensor that it carries in `Carried`, and call `Outputs::carry` once for each such part");
}
