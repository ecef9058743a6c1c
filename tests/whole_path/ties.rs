//! Tables that were trained apart, loaded where the model has one.

use std::error::Error;
use std::path::Path;

use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_store::{BurnpackStore, ModuleSnapshot, SafetensorsStore};
use tinderbox::checkpoint::LoadOptions;
use tinderbox::deferred::random::Seed;
use tinderbox::world::WorldOptions;
use tinderbox::{
    Checkpoint, Checkpoints, Deferred, Machine, MemoryBudget, Outputs, Pipeline, Pretrained,
    Source, Streamed, Trace, Traceable, load_module,
};
use tinderbox_engines::{Delays, Threads};

use crate::plain::data;

const WORDS: usize = 7;
const WIDTH: usize = 4;

type Words = Tensor<2, Int>;

#[derive(Module, Debug)]
struct Net {
    words: Embedding,
    layers: Vec<Linear>,
    head: Head,
}

#[derive(Module, Debug)]
struct Head {
    table: Param<Tensor<2>>,
}

fn net(device: &Device, is_tied: bool) -> Net {
    let words = EmbeddingConfig::new(WORDS, WIDTH).init(device);
    let table = match is_tied {
        true => words.weight.clone(),
        false => EmbeddingConfig::new(WORDS, WIDTH).init(device).weight,
    };
    Net {
        layers: (0..4)
            .map(|_| LinearConfig::new(WIDTH, WIDTH).init(device))
            .collect(),
        head: Head { table },
        words,
    }
}

fn scores(net: &Net, words: Words) -> Tensor<3> {
    let x = net.words.forward(words);
    let x = net.layers.iter().fold(x, |x, layer| layer.forward(x));
    x.matmul(net.head.table.val().transpose().unsqueeze())
}

fn loss(net: &Net, words: Words) -> Outputs {
    Outputs::loss(scores(net, words).powf_scalar(2.0).mean())
}

fn words() -> Words {
    Tensor::from_data([[0, 6, 3], [1, 1, 5]], &Device::flex())
}

fn model(is_tied: bool) -> (Deferred<Net>, Trace<Words>) {
    let model = Deferred::new(move |device: &Device| net(device, is_tied)).unwrap();
    let trace = model.trace(&words(), 2, loss).unwrap();
    (model, trace)
}

/// Trains a model whose tables are apart, and saves it.
fn trained(dir: &Path) -> (Checkpoint, Net) {
    let (model, trace) = model(false);
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let builder = Pipeline::builder(&model, &trace, &plan).optimizer(AdamWConfig::new());
    let mut pipeline = builder.start().unwrap();
    pipeline.step(1e-2, words()).unwrap();
    let saved = Checkpoints::open(dir).unwrap().save(&mut pipeline, 0);
    let checkpoint = Checkpoint::open(saved.unwrap()).unwrap();
    (checkpoint, pipeline.gather(&Device::flex()).unwrap())
}

fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| (**cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}\n{cause}"))
}

#[track_caller]
fn check_refused(error: &dyn Error) {
    let text = chain(error);
    assert!(
        text.contains("values of words.weight and head.table: they are one"),
        "{text}"
    );
}

#[test]
fn tables_that_were_trained_apart_are_not_one() {
    let dir = tempfile::tempdir().unwrap();
    let (checkpoint, net) = trained(&dir.path().join("run"));
    let device = Device::flex();
    let (tied, trace) = model(true);
    check_refused(&load_module(&tied, &checkpoint, &device).unwrap_err());
    let (apart, _) = model(false);
    let loaded = load_module(&apart, &checkpoint, &device).unwrap();
    let table = |net: &Net| data(net.head.table.val().into());
    assert_eq!(table(&loaded), table(&net));

    // A resume is of the same parameters: it would drop the state of one of the tables as well.
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let builder = || {
        let builder = Pipeline::builder(&tied, &trace, &plan);
        builder.source(checkpoint.clone())
    };
    let mut started = Pipeline::builder(&tied, &trace, &plan).start().unwrap();
    let saves = Checkpoints::open(dir.path().join("run")).unwrap();
    let error = chain(&saves.resume(&mut started).unwrap_err());
    assert!(error.contains("extra: head.table"), "{error}");

    // Weights alone: the ranks that hold the table compare it, and all of them end with the error.
    check_refused(&builder().start().map(drop).unwrap_err());
    let options = WorldOptions::default();
    let errors = Threads::run(2, Delays::default(), &options, |world, _| {
        let (tied, trace) = model(true);
        let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
        let builder = Pipeline::builder(&tied, &trace, &plan);
        let builder = builder.source(checkpoint.clone());
        chain(&builder.world(&world).start().map(drop).unwrap_err())
    });
    for error in errors.unwrap() {
        assert!(error.contains("words.weight and head.table"), "{error}");
    }

    // Burn's own files.
    for (file, is_pack) in [("net.bpk", true), ("net.safetensors", false)] {
        let file = dir.path().join(file);
        match is_pack {
            true => net.save_into(&mut BurnpackStore::from_file(&file)).unwrap(),
            false => net
                .save_into(&mut SafetensorsStore::from_file(&file))
                .unwrap(),
        };
        let weights = Pretrained::open(&file).unwrap();
        let source = weights
            .source(LoadOptions::default().burn(tied.parameters()))
            .unwrap();
        check_refused(&tied.materialize(&device, &source).unwrap_err());
    }
}

/// Equal tables are one, and a streamed model compares them once.
#[test]
fn equal_tables_are_one() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::flex();
    let (apart, _) = model(false);
    let (tied, _) = model(true);
    let trace = tied.trace_forward(&words(), |net: &Net, words| {
        Outputs::none().with("y", scores(net, words))
    });
    let trace = trace.unwrap();
    let file = dir.path().join("net.safetensors");
    let mut net: Net = apart
        .materialize(&device, &apart.initializer(Seed::new(1)))
        .unwrap();
    let save = |net: &Net| {
        net.save_into(&mut SafetensorsStore::from_file(&file).overwrite(true))
            .unwrap();
        let source = Pretrained::open(&file).unwrap();
        source.source(LoadOptions::default()).unwrap()
    };
    let plan = trace.plan_streamed(MemoryBudget::Values(16)).unwrap();
    let start = |source: Box<dyn Source>| {
        let builder = Streamed::builder(&tied, &trace, &plan).source(source);
        builder
            .memory_limit(MemoryBudget::Values(1 << 20))
            .start()
            .unwrap()
    };
    let evaluate = |source| {
        let mut streamed = start(source);
        let outputs = streamed.evaluate(words());
        outputs.map(|outputs| data(outputs.tensor::<3>("y").unwrap().into()))
    };
    check_refused(&evaluate(Box::new(save(&net))).unwrap_err());
    net.head.table = Param::from_tensor(net.words.weight.val());
    let expected = scores(&net, words()).into_data();
    assert_eq!(evaluate(Box::new(save(&net))).unwrap(), expected);
}
