//! Streamed models that read a few rows of a large table, compared with plain Burn and with a pipeline that holds the table.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use burn_store::{ModuleSnapshot, SafetensorsStore};
use tinderbox::checkpoint::LoadOptions;
use tinderbox::deferred::Observer;
use tinderbox::deferred::random::Seed;
use tinderbox::{
    Checkpoint, Checkpoints, Deferred, MemoryBudget, Outputs, Pipeline, Pretrained, Source,
    Streamed, Trace, Traceable, WorkingDir,
};

use crate::streamed::flip;

const WORDS: usize = 4000;
const WIDTH: usize = 32;
const SEED: u64 = 11;
/// Bytes of a table.
const TABLE: u64 = (WORDS * WIDTH * size_of::<f32>()) as u64;
/// Much less than a table.
const LITTLE: u64 = TABLE / 4;
/// Digests are of blocks, each of which is read as a whole: here a table.
const WITH_BLOCKS: u64 = 4 * TABLE;

/// Counts the bytes that are requested.
#[derive(Clone, Default)]
struct Read(Arc<AtomicU64>);

impl Observer for Read {
    fn begin(&self, _: usize, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A table at the start, whose indices are the batch's, and one further on, whose indices are computed and read by two operations.
#[derive(Module, Debug)]
struct Reader {
    words: Embedding,
    first: Linear,
    table: Param<Tensor<2>>,
    last: Linear,
}

impl Reader {
    fn new(device: &Device) -> Self {
        let linear = || LinearConfig::new(WIDTH, WIDTH).init(device);
        let table = Tensor::random([WORDS, WIDTH], Distribution::Normal(0.0, 1.0), device);
        Self {
            words: EmbeddingConfig::new(WORDS, WIDTH).init(device),
            first: linear(),
            table: Param::from_tensor(table),
            last: linear(),
        }
    }

    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [samples, length] = tokens.dims();
        let x = self.first.forward(self.words.forward(tokens.clone()));
        let next = tokens
            .reshape([samples * length])
            .mul_scalar(3)
            .add_scalar(1);
        let one = self.table.val().select(0, next.clone());
        let other = self.table.val().select(0, next.sub_scalar(1));
        let x = x + (one * other).reshape([samples, length, WIDTH]);
        self.last.forward(x)
    }
}

fn outputs(reader: &Reader, tokens: Tensor<2, Int>) -> Outputs {
    Outputs::none().with("y", reader.forward(tokens))
}

/// The first, the last, equal and adjacent rows.
fn tokens() -> Tensor<2, Int> {
    let rows = [[0, 1, 2, 7, 7], [1332, 900, 901, 0, 13]];
    Tensor::from_data(rows, &Device::flex())
}

fn traced(model: &Deferred<Reader>) -> Trace<Tensor<2, Int>> {
    model.trace_forward(&tokens(), outputs).unwrap()
}

/// The values of a model in plain Burn.
fn in_plain_burn(model: &Deferred<Reader>) -> (Reader, TensorData) {
    let initializer = model.initializer(Seed::new(SEED));
    let reader: Reader = model.materialize(&Device::flex(), &initializer).unwrap();
    let expected = reader.forward(tokens()).into_data();
    (reader, expected)
}

fn start(
    model: &Deferred<Reader>,
    traced: &Trace<Tensor<2, Int>>,
    source: impl Source + 'static,
    limit: u64,
    read: &Read,
) -> Streamed<Reader, Tensor<2, Int>> {
    let limit = MemoryBudget::Values(limit);
    let plan = traced.plan_streamed(limit).unwrap();
    let builder = Streamed::builder(model, traced, &plan).source(source);
    let builder = builder.observer(read.clone()).memory_limit(limit);
    builder.start().unwrap()
}

fn saved(model: &Deferred<Reader>, dir: &Path) -> Checkpoint {
    let traced = traced(model);
    let plan = traced.plan_at(&[]).unwrap();
    let mut pipeline = Pipeline::builder(model, &traced, &plan)
        .seed(SEED)
        .start()
        .unwrap();
    let saved = Checkpoints::open(dir).unwrap().save(&mut pipeline, 0);
    Checkpoint::open(saved.unwrap()).unwrap()
}

#[test]
fn few_rows_of_a_table_are_read() {
    let model = Deferred::new(Reader::new).unwrap();
    let traced = traced(&model);
    let (reader, expected) = in_plain_burn(&model);
    let dir = tempfile::tempdir().unwrap();
    // Each thread that reads needs memory.
    let alone = || LoadOptions::default().threads(1);
    let file = dir.path().join("reader.safetensors");
    reader
        .save_into(&mut SafetensorsStore::from_file(&file))
        .unwrap();
    let file = Pretrained::open(&file).unwrap();
    let file = file.source(alone().burn(model.parameters())).unwrap();
    let checkpoint = saved(&model, &dir.path().join("run"));
    let sources: [(Arc<dyn Source>, u64); 3] = [
        (Arc::new(model.initializer(Seed::new(SEED))), LITTLE),
        (Arc::new(checkpoint.source(alone()).unwrap()), WITH_BLOCKS),
        (Arc::new(file), LITTLE),
    ];
    for (source, limit) in sources {
        let (described, read) = (source.describe(), Read::default());
        let mut streamed = start(&model, &traced, source, limit, &read);
        for turn in 0..3 {
            let y = streamed.evaluate(tokens()).unwrap();
            let y = y.tensor::<3>("y").unwrap().into_data();
            assert_eq!(y, expected, "{described}, turn {turn}");
        }
        drop(streamed);
        // Of each table at most two rows for each token.
        let linear = 2 * (WIDTH * WIDTH + WIDTH) * size_of::<f32>();
        let rows = 3 * tokens().dims().iter().product::<usize>() * WIDTH * size_of::<f32>();
        let read = read.0.load(Ordering::Relaxed);
        assert!(
            read <= 4 * (linear + rows) as u64,
            "{described}: {read} bytes"
        );
    }
}

#[test]
fn an_index_that_is_out_of_range_is_named() {
    let model = Deferred::new(Reader::new).unwrap();
    let traced = traced(&model);
    let start = || {
        let initializer = model.initializer(Seed::new(SEED));
        start(&model, &traced, initializer, LITTLE, &Read::default())
    };
    let message = |token: i32| {
        let tokens = Tensor::full([1, 5], token, &Device::flex());
        let tokens = Tensor::cat(vec![tokens.clone(), tokens], 0);
        tinderbox::world::with_causes(&start().evaluate(tokens).unwrap_err())
    };
    for token in [WORDS as i32, -1] {
        let message = message(token);
        assert!(
            message.contains("`words`") && message.contains(&token.to_string()),
            "{message}"
        );
    }
    // In range of the first table, and not of the second, whose indices are computed.
    let message = message(WORDS as i32 - 1);
    assert!(message.contains(&(3 * WORDS - 2).to_string()), "{message}");
    assert!(message.contains("is out of range"), "{message}");
}

/// A source that can't be read any more is an error of the stage.
#[test]
fn rows_that_cannot_be_read_are_an_error() {
    let model = Deferred::new(Reader::new).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = saved(&model, &dir.path().join("run"));
    let source = checkpoint
        .source(LoadOptions::default().threads(1))
        .unwrap();
    let mut streamed = start(
        &model,
        &traced(&model),
        source,
        WITH_BLOCKS,
        &Read::default(),
    );
    streamed.evaluate(tokens()).unwrap();
    let files = std::fs::read_dir(checkpoint.dir()).unwrap();
    for file in files.map(|entry| entry.unwrap().path()) {
        if file.extension().is_some_and(|end| end == "safetensors") {
            // Values of a table: they are most of the file.
            let quarter = file.metadata().unwrap().len() / 4;
            flip(&file, quarter..quarter + 4096);
        }
    }
    let every = Tensor::<1, Int>::arange(0..10, &Device::flex()).mul_scalar(133);
    let failed = streamed.evaluate(every.reshape([2, 5])).unwrap_err();
    let message = tinderbox::world::with_causes(&failed);
    assert!(message.contains("could not be read"), "{message}");
    assert!(message.contains("is damaged"), "{message}");
}

/// After a training step, rows are those that it has written.
#[test]
fn rows_of_a_trained_table() {
    let model = Deferred::new(Reader::new).unwrap();
    let loss = |reader: &Reader, tokens| {
        let y = reader.forward(tokens);
        Outputs::loss(y.clone().powi_scalar(2).mean()).with("y", y)
    };
    let traced = model.trace(&tokens(), 1, loss).unwrap();
    let whole = traced.plan_at(&[]).unwrap();
    let builder = Pipeline::builder(&model, &traced, &whole).seed(SEED);
    let mut pipeline = builder.optimizer(AdamWConfig::new()).start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let plan = traced.plan_streamed(MemoryBudget::Values(16)).unwrap();
    let store = WorkingDir::open(dir.path(), &model, model.initializer(Seed::new(SEED)));
    let read = Read::default();
    let mut streamed = Streamed::builder(&model, &traced, &plan)
        .optimizer(AdamWConfig::new())
        .store(store.unwrap())
        .observer(read.clone())
        .memory_limit(MemoryBudget::Values(64 * TABLE))
        .start()
        .unwrap();
    for step in 0..2 {
        let before = read.0.load(Ordering::Relaxed);
        let y =
            |evaluation: tinderbox::Evaluation| evaluation.tensor::<3>("y").unwrap().into_data();
        let found = y(streamed.evaluate(tokens()).unwrap());
        assert_eq!(
            found,
            y(pipeline.evaluate(tokens()).unwrap()),
            "step {step}"
        );
        let evaluated = read.0.load(Ordering::Relaxed) - before;
        assert!(evaluated < TABLE, "step {step}: {evaluated} bytes");
        let found = streamed.step(0.1, tokens()).unwrap().loss;
        assert_eq!(
            found,
            pipeline.step(0.1, tokens()).unwrap().loss,
            "step {step}"
        );
    }
}
