//! Models whose parameters do not stay in memory, compared with a pipeline that holds them and with plain Burn.

use std::fs::File;
use std::io::{Read as _, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use burn_store::{BurnToPyTorchAdapter, BurnpackStore, ModuleSnapshot, SafetensorsStore};
use tinderbox::checkpoint::{LoadOptions, Run};
use tinderbox::deferred::random::Seed;
use tinderbox::deferred::{Observer, Request};
use tinderbox::error::{PipelineError, SourceError, StreamedError};
use tinderbox::fake::Mode;
use tinderbox::planner::DiskRate;
use tinderbox::{
    Checkpoint, Checkpoints, Deferred, DynTensor, Evaluation, Generate, Machine, MemoryBudget,
    MixedPrecision, Outputs, Pipeline, Plan, Planner, Pretrained, Source, Streamed, Trace,
    Traceable,
};
use tinderbox_models::decoder::model::Step;

use crate::command_line::example;
use crate::generate::{small, traced as llama};
use crate::models::{
    Case, LanguageModel, Mlp, SAMPLES, StraightThrough, Tied, UNet, deferred, trace,
};
use crate::plain::data;

/// Stages of one block each.
const FINE: MemoryBudget = MemoryBudget::Values(16);

/// Adds up the bytes that are read.
#[derive(Clone, Default)]
struct Read(Arc<AtomicU64>);

impl Read {
    fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Observer for Read {
    fn begin(&self, _: usize, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The losses and outputs of an evaluation, as bytes.
fn bits(output: &Evaluation) -> (Vec<u64>, Vec<(String, Vec<TensorData>)>) {
    let losses = output.micro_batch_losses.iter().map(|loss| loss.to_bits());
    let outputs = output.outputs().map(|(name, values)| {
        let values = values.iter().map(|value| data(value.clone()));
        (name.to_owned(), values.collect())
    });
    (losses.collect(), outputs.collect())
}

/// The least limit of a model and a plan.
pub fn least<M, B>(started: Result<Streamed<M, B>, PipelineError>) -> u64 {
    match started.map(drop) {
        Err(PipelineError::Streamed(StreamedError::Budget { least_bytes, .. })) => least_bytes,
        other => panic!("the limit is not too low: {other:?}"),
    }
}

/// Evaluates two batches with every limit from the least to one in which all parameters fit, and compares the bits.
fn check<C: Case>(case: &C) {
    let model = deferred(case);
    let example = case.batch(0, &Device::flex());
    let forward = {
        let case = case.clone();
        move |model: &C::Model, batch| case.forward(model, batch)
    };
    for micro_batches in [1, 3] {
        let traced = model.trace_in(Mode::Inference, &example, micro_batches, forward.clone());
        let traced = traced.unwrap();
        let whole = traced.plan_at(&[]).unwrap();
        let fine = traced.plan_streamed(FINE).unwrap();
        let stages = fine.stages.len();
        assert!(stages > 3, "{stages} stages");
        let batches = [1, 2].map(|number| case.batch(number, &Device::flex()));
        let builder = Pipeline::builder(&model, &traced, &whole).seed(7);
        let mut pipeline = builder.start().unwrap();
        let expected = batches
            .clone()
            .map(|batch| bits(&pipeline.evaluate(batch).unwrap()));
        let start = |bytes: u64| {
            let builder = Streamed::builder(&model, &traced, &fine).seed(7);
            builder.memory_limit(MemoryBudget::Values(bytes)).start()
        };
        let least = least(start(0));
        assert!(start(least - 1).is_err());
        let all = least + model.parameters().bytes();
        for part in 0..=4 {
            let limit = least + (all - least) * part / 4;
            let read = Read::default();
            let mut streamed = Streamed::builder(&model, &traced, &fine)
                .seed(7)
                .observer(read.clone())
                .memory_limit(MemoryBudget::Values(limit))
                .start()
                .unwrap();
            for turn in 0..3 {
                for (batch, expected) in batches.iter().zip(&expected) {
                    let found = bits(&streamed.evaluate(batch.clone()).unwrap());
                    assert_eq!(found, *expected, "limit {limit}, turn {turn}");
                }
            }
            let predicted = streamed.predict(DiskRate::new(1 << 30)).unwrap();
            assert!(predicted.peak_bytes <= limit);
            drop(streamed);
            // What was read ahead for the seventh pass is at most a pass.
            let read = read.bytes();
            let first = model.parameters().bytes();
            let others = 5 * predicted.read_bytes;
            assert!(read >= first.max(others), "limit {limit}: {read} bytes");
            assert!(
                read <= first + others + predicted.read_bytes,
                "limit {limit}: {read} bytes"
            );
            if part == 4 {
                assert_eq!((predicted.read_bytes, read), (0, first));
            }
        }
    }
}

#[test]
fn streamed_models_compute_what_pipelines_do() {
    check(&Mlp::<0>);
    check(&LanguageModel::<10>);
    check(&UNet);
    check(&StraightThrough);
}

/// The first and the last stage read one parameter.
#[test]
fn a_streamed_model_reads_a_shared_parameter() {
    check(&Tied);
}

/// A model that was traced for training, with programs of several shapes.
#[test]
fn a_streamed_model_that_was_traced_for_training() {
    let case = Mlp::<10>;
    let model = deferred(&case);
    let traced = trace(&case, &model, 1);
    let fine = traced.plan_streamed(FINE).unwrap();
    let device = Device::flex();
    let whole = traced.plan_at(&[]).unwrap();
    let mut pipeline = Pipeline::builder(&model, &traced, &whole)
        .seed(3)
        .start()
        .unwrap();
    let builder = Streamed::builder(&model, &traced, &fine).seed(3);
    let builder = builder.memory_limit(MemoryBudget::Values(24 << 10));
    let mut streamed = builder.start().unwrap();
    assert!(streamed.predict(DiskRate::new(1 << 30)).is_none());
    for samples in [SAMPLES, 3, SAMPLES, 1] {
        let (x, y) = case.batch(samples as u64, &device);
        let batch = (x.narrow(0, 0, samples), y.narrow(0, 0, samples));
        let expected = pipeline.evaluate(batch.clone()).unwrap();
        let found = streamed.evaluate(batch).unwrap();
        assert_eq!(bits(&found), bits(&expected), "{samples} samples");
    }
}

/// Layers of different sizes.
fn tower(device: &Device) -> Vec<Linear> {
    let widths = [8, 24, 16, 40, 8, 8, 32, 8];
    let pairs = widths.windows(2);
    pairs
        .map(|pair| LinearConfig::new(pair[0], pair[1]).init(device))
        .collect()
}

#[expect(clippy::ptr_arg, reason = "the type of the model")]
fn forward(layers: &Vec<Linear>, x: Tensor<2>) -> Outputs {
    let y = layers.iter().fold(x, |x, layer| layer.forward(x).tanh());
    Outputs::none().with("y", y)
}

fn batch() -> Tensor<2> {
    let values = crate::models::noise(5 * 8, 3);
    Tensor::from_data(TensorData::new(values, [5, 8]), &Device::flex())
}

fn traced(model: &Deferred<Vec<Linear>>) -> Trace<Tensor<2>> {
    model.trace_forward(&batch(), forward).unwrap()
}

/// What plain Burn computes.
fn in_plain_burn(layers: &[Linear]) -> TensorData {
    let y = layers
        .iter()
        .fold(batch(), |x, layer| layer.forward(x).tanh());
    y.into_data()
}

fn evaluated(
    model: &Deferred<Vec<Linear>>,
    source: impl Source + 'static,
    limit: u64,
) -> Result<TensorData, PipelineError> {
    let traced = traced(model);
    let plan = traced.plan_streamed(FINE).unwrap();
    let builder = Streamed::builder(model, &traced, &plan).source(source);
    let mut streamed = builder.memory_limit(MemoryBudget::Values(limit)).start()?;
    assert!(
        streamed.predict(DiskRate::new(1 << 30)).unwrap().read_bytes > 0,
        "not all of it fits"
    );
    let mut last = None;
    for _ in 0..3 {
        let y = streamed.evaluate(batch())?.tensor::<2>("y").unwrap();
        last = Some(y.into_data());
    }
    Ok(last.unwrap())
}

/// A checkpoint, weights in the layout of PyTorch, and a burnpack file.
#[test]
fn streamed_from_files() {
    let dir = tempfile::tempdir().unwrap();
    let model = Deferred::new(tower).unwrap();
    let device = Device::flex();
    let net = model
        .materialize(&device, &model.initializer(Seed::new(9)))
        .unwrap();
    let expected = in_plain_burn(&net);

    // Each thread that reads needs memory.
    let alone = || LoadOptions::default().threads(1);
    let saved = saved(&model, dir.path()).source(alone()).unwrap();
    assert_eq!(evaluated(&model, saved, 12 << 10).unwrap(), expected);

    let packed = dir.path().join("net.bpk");
    net.save_into(&mut BurnpackStore::from_file(&packed))
        .unwrap();
    let pretrained = Pretrained::open(&packed).unwrap();
    let options = alone().burn(model.parameters());
    let source = pretrained.source(options).unwrap();
    assert_eq!(evaluated(&model, source, 12 << 10).unwrap(), expected);

    let of_torch = dir.path().join("model.safetensors");
    let store = SafetensorsStore::from_file(&of_torch);
    net.save_into(&mut store.with_to_adapter(BurnToPyTorchAdapter))
        .unwrap();
    let pretrained = Pretrained::open(&of_torch).unwrap();
    let source = pretrained.source(alone().pytorch(model.parameters()));
    assert_eq!(
        evaluated(&model, source.unwrap(), 12 << 10).unwrap(),
        expected
    );
}

/// Saves the model of a seed.
fn saved(model: &Deferred<Vec<Linear>>, dir: &Path) -> Checkpoint {
    let trace = model.trace(&batch(), 2, |layers: &Vec<Linear>, x| {
        Outputs::loss(layers.iter().fold(x, |x, layer| layer.forward(x)).mean())
    });
    let trace = trace.unwrap();
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let mut pipeline = Pipeline::builder(model, &trace, &plan)
        .seed(9)
        .start()
        .unwrap();
    let run = dir.join("run");
    let saves = Checkpoints::open(&run).unwrap();
    saves.save(&mut pipeline, 0).unwrap();
    Run::local(run).open(0).unwrap()
}

/// Texts that are generated token by token, with caches that stay, and two of them in turn.
#[test]
fn a_streamed_model_generates_what_plain_burn_does() {
    let config = small(false);
    let (model, traced) = llama(&config);
    let device = Device::flex();
    let plain = model
        .materialize(&device, &model.initializer(Seed::new(5)))
        .unwrap();
    let plan = traced.plan_streamed(FINE).unwrap();
    let builder = Streamed::builder(&model, &traced, &plan).seed(5);
    let mut streamed = builder
        .memory_limit(MemoryBudget::Values(24 << 10))
        .start()
        .unwrap();
    assert!(streamed.predict(DiskRate::new(1 << 30)).unwrap().read_bytes > 0);
    let step = |tokens: &[i32], place| Step::new(tokens, place, config.caches(1, &device), &device);
    let prompts = [[3, 1, 4], [9, 2, 6]];
    let mut carries = prompts.map(|_| streamed.carry());
    let mut texts = prompts.map(|prompt| prompt.to_vec());
    let mut caches = prompts.map(|_| config.caches(1, &device));
    let mut done = 0;
    for _ in 0..4 {
        for ((carry, text), caches) in carries.iter_mut().zip(&mut texts).zip(&mut caches) {
            let last = Step::new(&text[done..], done, std::mem::take(caches), &device);
            let (expected, new) = plain.forward(last);
            *caches = new;
            let found = streamed
                .evaluate_carried(carry, step(&text[done..], done))
                .unwrap();
            let found = found.tensor::<2>("scores").unwrap();
            assert_eq!(found.clone().into_data(), expected.into_data());
            text.push(found.argmax(1).into_scalar::<i32>());
        }
        done = texts[0].len() - 1;
    }
    // The loop of one text.
    let generated = Generate::new(4).run(&mut streamed, &prompts[0], step, |_| ());
    let generated = generated.unwrap().tokens;
    assert_eq!([&prompts[0][..], &generated].concat(), texts[0]);
}

/// A forward in 16 bits reads its parameters in 16 bits.
#[test]
fn a_streamed_model_in_mixed_precision() {
    let model = Deferred::new(tower).unwrap();
    let traced = MixedPrecision::bf16(&model)
        .trace_forward(&batch(), forward)
        .unwrap();
    let whole = traced.plan_at(&[]).unwrap();
    let mut pipeline = Pipeline::builder(&model, &traced, &whole)
        .seed(2)
        .start()
        .unwrap();
    let expected = bits(&pipeline.evaluate(batch()).unwrap());
    let plan = traced.plan_streamed(FINE).unwrap();
    let read = Read::default();
    let builder = Streamed::builder(&model, &traced, &plan).seed(2);
    let builder = builder.observer(read.clone());
    let mut streamed = builder
        .memory_limit(MemoryBudget::Values(1 << 20))
        .start()
        .unwrap();
    for _ in 0..2 {
        assert_eq!(bits(&streamed.evaluate(batch()).unwrap()), expected);
    }
    drop(streamed);
    assert_eq!(read.bytes(), model.parameters().bytes() / 2);
}

/// The plan alone says what a pass reads and how long it takes.
#[test]
fn a_plan_predicts_a_pass() {
    let model = Deferred::new(tower).unwrap();
    let traced = traced(&model);
    let mut machine = Machine::local(1).unwrap();
    machine.disk = Some(DiskRate::new(1_000_000));
    let planner = Planner::new(&traced, &machine).streamed(FINE);
    let plan = planner.plan().unwrap();
    let all = model.parameters().bytes();
    let least = plan.predict_streamed(0).unwrap_err().least_bytes;
    let mut most = all;
    for part in 0..=4 {
        let limit = least + all * part / 4;
        let predicted = plan.predict_streamed(limit).unwrap();
        assert!(predicted.peak_bytes <= limit);
        assert_eq!(predicted.read_bytes + predicted.kept_bytes, all);
        assert_eq!(predicted.read_ns, predicted.read_bytes * 1000);
        assert!(predicted.pass_ns >= predicted.read_ns.max(predicted.compute_ns));
        assert!(predicted.read_bytes <= most, "limit {limit}");
        most = predicted.read_bytes;
        // A started model keeps parameters and not whole stages; constants and the batch need some bytes.
        let builder = Streamed::builder(&model, &traced, &plan).seed(1);
        let builder = builder.memory_limit(MemoryBudget::Values(limit + 1024));
        let started = builder
            .start()
            .unwrap()
            .predict(DiskRate::new(1_000_000))
            .unwrap();
        assert!(started.read_bytes <= predicted.read_bytes, "limit {limit}");
    }
    assert_eq!(most, 0);
}

/// The text of an error with its causes.
fn message_of<T>(result: Result<T, PipelineError>) -> String {
    let error = result.map(drop).unwrap_err();
    tinderbox::world::with_causes(&error)
}

#[test]
fn errors_of_streamed_models_name_what_is_wrong() {
    let model = Deferred::new(tower).unwrap();
    let traced = traced(&model);
    let fine = traced.plan_streamed(FINE).unwrap();
    let start = |plan: &Plan, budget| {
        Streamed::builder(&model, &traced, plan)
            .memory_limit(budget)
            .start()
    };
    let too_low = message_of(start(&fine, MemoryBudget::Values(3000)));
    assert_eq!(
        too_low,
        "a memory limit of 2.93 KiB is too low, the least is 5.62 KiB: stage 2 needs 2.66 KiB for its parameters and 2.97 KiB \
         for everything else of the pass; raise the limit, plan smaller stages (`Trace::plan_streamed`), or use more or smaller \
         micro-batches"
    );
    let two = traced.plan(&Machine::local(2).unwrap()).unwrap();
    assert_eq!(
        message_of(start(&two, MemoryBudget::Available)),
        "a streamed model runs on one rank, and the plan has 2: create it with `Trace::plan_streamed`"
    );
    // A larger batch than the traced one needs more.
    let text = message_of(start(&fine, MemoryBudget::Values(3000)));
    let least = least(start(&fine, MemoryBudget::Values(0)));
    assert!(text.contains(&format!(
        "the least is {}",
        tinderbox::deferred::human_bytes(least)
    )));
    let mut streamed = start(&fine, MemoryBudget::Values(least)).unwrap();
    let large = Tensor::<2>::ones([64, 8], &Device::flex());
    let refused = message_of(streamed.evaluate(large));
    assert!(
        refused.contains("use more or smaller micro-batches"),
        "{refused}"
    );
    // It continues.
    streamed.evaluate(batch()).unwrap();

    // What the process holds counts, too.
    let text = message_of(start(&fine, MemoryBudget::Bytes(1 << 20)));
    assert!(
        text.starts_with("a memory limit of 1.00 MiB is too low"),
        "{text}"
    );
}

/// Flips a bit of each byte of a range. The file is changed in place, because values of the next pass may be read from it
/// meanwhile: it never looks shorter than it is.
pub(super) fn flip(path: &Path, range: Range<u64>) {
    let mut file = File::options().read(true).write(true).open(path).unwrap();
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.seek(SeekFrom::Start(range.start)).unwrap();
    file.read_exact(&mut bytes).unwrap();
    bytes.iter_mut().for_each(|byte| *byte ^= 1);
    file.seek(SeekFrom::Start(range.start)).unwrap();
    file.write_all(&bytes).unwrap();
}

/// Damage is named, before the first use of the value, in whichever pass it happens.
#[test]
fn damage_of_a_streamed_file_is_named() {
    let bytes = |shard: &Path| shard.metadata().unwrap().len();
    let flip_half = |shard: &Path| flip(shard, bytes(shard) / 2..bytes(shard));
    let shorten = |shard: &Path| {
        let file = File::options().write(true).open(shard).unwrap();
        file.set_len(bytes(shard) / 2).unwrap();
    };
    let damages: [&dyn Fn(&Path); 2] = [&flip_half, &shorten];
    for damage in damages {
        let dir = tempfile::tempdir().unwrap();
        let model = Deferred::new(tower).unwrap();
        let checkpoint = saved(&model, dir.path());
        let traced = traced(&model);
        let plan = traced.plan_streamed(FINE).unwrap();
        let source = checkpoint.source(LoadOptions::default().threads(1));
        let builder = Streamed::builder(&model, &traced, &plan).source(source.unwrap());
        let mut streamed = builder
            .memory_limit(MemoryBudget::Values(12 << 10))
            .start()
            .unwrap();
        streamed.evaluate(batch()).unwrap();
        let read = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().path();
        let files = std::fs::read_dir(checkpoint.dir()).unwrap().map(read);
        let shards = files.filter(|file| file.extension().is_some_and(|end| end == "safetensors"));
        shards.for_each(|shard| damage(&shard));
        let error = (0..3).find_map(|_| streamed.evaluate(batch()).err());
        let message = tinderbox::world::with_causes(&error.expect("the damage is found"));
        assert!(
            message.contains("the parameters of the stage could not be read"),
            "{message}"
        );
        assert!(message.contains("is damaged"), "{message}");
        let stopped = message_of(streamed.evaluate(batch()));
        assert!(!stopped.is_empty());
    }
}

/// A source of the user that panics.
#[test]
fn a_panic_of_a_source_is_an_error() {
    struct Panics;
    impl Source for Panics {
        fn load(&self, _: &[Request], _: &dyn Observer) -> Result<Vec<DynTensor>, SourceError> {
            panic!("no weights today")
        }

        fn describe(&self) -> String {
            "a source that panics".into()
        }
    }
    let model = Deferred::new(tower).unwrap();
    let message_of = message_of(evaluated(&model, Panics, 6 << 10));
    assert!(
        message_of.contains("the thread that reads parameters has panicked"),
        "{message_of}"
    );
}

/// A model of 512 MiB under a limit of 160 MiB more than the process has without it.
#[test]
#[cfg(target_os = "linux")]
fn a_streamed_model_stays_below_its_limit() {
    use crate::memory::{MIB, status, under_limit};

    const WIDTH: usize = 2048;
    const LAYERS: usize = 32;
    const LIMIT: u64 = 160 * MIB;
    let test = "streamed::a_streamed_model_stays_below_its_limit";
    under_limit(test, LIMIT, |_| {
        let linear = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
        let model = Deferred::new(move |device: &Device| -> Vec<Linear> {
            (0..LAYERS).map(|_| linear.clone().init(device)).collect()
        });
        let model = model.unwrap();
        assert_eq!(model.parameters().bytes(), 512 * MIB);
        let batch = Tensor::<2>::ones([4, WIDTH], &Device::flex());
        let traced = model.trace_forward(&batch, forward).unwrap();
        let budget = MemoryBudget::Bytes(status("VmRSS") + LIMIT);
        let plan = traced.plan_streamed(budget).unwrap();
        let builder = Streamed::builder(&model, &traced, &plan).threads_per_rank(1);
        let mut streamed = builder.memory_limit(budget).start().unwrap();
        for _ in 0..2 {
            streamed.evaluate(batch.clone()).unwrap();
        }
        let MemoryBudget::Bytes(limit) = budget else {
            unreachable!("it was set above");
        };
        let peak = status("VmHWM");
        assert!(peak <= limit, "{} MiB of {} MiB", peak / MIB, limit / MIB);
        // It uses what it may: most of the limit is filled with what stays.
        let kept = streamed.predict(DiskRate::new(1 << 30)).unwrap().kept_bytes;
        assert!(kept >= LIMIT / 3, "{} MiB stay", kept / MIB);
    });
}

/// The example, with a limit that is smaller than the model, and with all of it in memory.
#[test]
fn the_example_runs_a_model_under_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let weights = dir.path().join("llama");
    let weights = weights.to_str().unwrap();
    let run = |arguments: &[&str]| {
        let output = example("run_llama", arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            errors,
        )
    };
    let (code, made, errors) = run(&["make", weights, "--size", "small", "--seed", "1"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(made.contains("57 tensors in 1 file(s), 49.8 MiB"), "{made}");
    let found = |arguments: &[&str]| {
        let (code, text, errors) = run(&[&["run", weights, "--length", "3"], arguments].concat());
        assert_eq!(code, Some(0), "{errors}");
        let lines = text
            .lines()
            .filter(|line| line.starts_with("tokens") || line.contains("digest"));
        (
            lines.map(str::to_owned).collect::<Vec<_>>(),
            text.contains("are read for each token"),
        )
    };
    let (expected, _) = found(&["--in-memory"]);
    assert_eq!(expected.len(), 2);
    let (streamed, reads) = found(&["--memory", "130MiB"]);
    assert_eq!(streamed, expected);
    assert!(reads);
    let (code, _, errors) = run(&["run", weights, "--memory", "20MiB"]);
    assert_eq!(code, Some(1));
    assert!(
        errors.contains("a memory limit of 20.0 MiB is too low, the least is"),
        "{errors}"
    );
}
