//! Modules that Burn saved in its own files, loaded into a deferred model.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::Module;
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, Linear, LinearConfig, LinearLayout,
};
use burn::optim::AdamWConfig;
use burn::store::ModuleRecord;
use burn::tensor::{Device, Int, Tensor};
use burn_store::{BurnpackStore, ModuleSnapshot};
use tinderbox::checkpoint::LoadOptions;
use tinderbox::checkpoint::tools::{ExportFormat, ExportOptions, export};
use tinderbox::deferred::parameter_values;
use tinderbox::{
    Checkpoint, Checkpoints, Deferred, Machine, Outputs, Pipeline, Pretrained, Traceable,
};

use crate::plain::data;

#[derive(Module, Debug)]
struct Net {
    embedding: Embedding,
    rows: Linear,
    columns: Linear,
    /// Its shape does not show that it is saved transposed.
    square: Linear,
    norm: BatchNorm,
    head: Head,
}

#[derive(Module, Debug)]
enum Head {
    Linear(Linear),
    #[allow(dead_code, reason = "an enum of one variant is no enum")]
    Norm(BatchNorm),
}

fn net(device: &Device) -> Net {
    let columns = |config: LinearConfig| config.with_layout(LinearLayout::Col).init(device);
    Net {
        embedding: EmbeddingConfig::new(7, 6).init(device),
        rows: LinearConfig::new(6, 5).init(device),
        columns: columns(LinearConfig::new(5, 4)),
        square: columns(LinearConfig::new(4, 4)),
        norm: BatchNormConfig::new(4).init(device),
        head: Head::Linear(LinearConfig::new(4, 3).init(device)),
    }
}

fn forward(net: &Net, words: Tensor<1, Int>) -> Tensor<2> {
    let x = net.embedding.forward(words.unsqueeze()).squeeze_dim::<2>(0);
    let x = net.square.forward(net.columns.forward(net.rows.forward(x)));
    let x = net.norm.forward(x);
    match &net.head {
        Head::Linear(linear) => linear.forward(x),
        Head::Norm(norm) => norm.forward(x),
    }
}

fn values(net: &Net) -> BTreeMap<String, Vec<u8>> {
    let values = parameter_values(net).into_iter();
    values
        .map(|(path, value)| (path.to_string(), data(value).as_bytes().to_vec()))
        .collect()
}

/// Both of Burn's own writers: its store, and a record.
fn save(net: &Net, dir: &Path) -> [std::path::PathBuf; 2] {
    let files = [dir.join("store.bpk"), dir.join("record.bpk")];
    net.save_into(&mut BurnpackStore::from_file(&files[0]))
        .unwrap();
    net.clone().into_record().save(&files[1]).unwrap();
    files
}

#[test]
fn whole_models_and_stages_load_what_burn_saved() {
    let device = Device::flex();
    let dir = tempfile::tempdir().unwrap();
    let saved = net(&device);
    let expected = values(&saved);
    let words = Tensor::<1, Int>::from_ints([0, 3, 6, 1], &device);
    let model = Deferred::new(net).unwrap();
    let trace = model
        .trace_forward(&words, |net: &Net, words| {
            Outputs::none().with("y", forward(net, words))
        })
        .unwrap();
    for file in save(&saved, dir.path()) {
        let weights = Pretrained::open(&file).unwrap();
        let options = || LoadOptions::default().burn(model.parameters());
        let load = |threads| {
            let source = weights.source(options().threads(threads)).unwrap();
            model.materialize(&device, &source).unwrap()
        };
        let loaded = load(1);
        assert!(values(&loaded) == expected, "{}", file.display());
        assert!(values(&load(4)) == expected, "{}", file.display());
        for stages in 1..=3 {
            let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
            let source = weights.source(options()).unwrap();
            let mut pipeline = Pipeline::builder(&model, &trace, &plan)
                .source(source)
                .start()
                .unwrap();
            let found = pipeline.evaluate(words.clone()).unwrap();
            let found = found.tensor::<2>("y").unwrap().into_data();
            // In row-major memory, as values of a deferred model are.
            let plain = forward(&loaded, words.clone()).into_data();
            assert_eq!(found, plain, "{stages} stages");
        }
        // The square weight would be loaded transposed.
        let source = weights.source(LoadOptions::default()).unwrap();
        let refused = model.materialize(&device, &source).unwrap_err();
        let paths = ["columns.weight", "square.weight"];
        let text = format!("{:#}", anyhow::Error::new(refused));
        assert!(paths.iter().all(|path| text.contains(path)), "{text}");
        assert!(text.contains("LoadOptions::burn(model)"), "{text}");
    }
}

/// A part of a tensor.
#[test]
fn regions_are_those_of_the_file() {
    let device = Device::flex();
    let dir = tempfile::tempdir().unwrap();
    let saved = net(&device);
    let [file, _] = save(&saved, dir.path());
    let weights = Pretrained::open(&file).unwrap();
    let tensor = weights.tensor("rows.weight").unwrap();
    let region = tinderbox::fake::Region::new(vec![2, 1], vec![3, 4]).unwrap();
    let part = weights.read(tensor, &region).unwrap();
    let expected = saved.rows.weight.val().slice([2..5, 1..5]).into_data();
    assert_eq!(part, expected);
}

/// What is exported from a checkpoint, Burn's own store and records load.
#[test]
fn burn_loads_what_is_exported() {
    let device = Device::flex();
    let dir = tempfile::tempdir().unwrap();
    let init = |device: &Device| {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        (
            linear(6, 5),
            linear(5, 5),
            BatchNormConfig::new(5).init(device),
        )
    };
    type Layers = (Linear, Linear, BatchNorm);
    let model = Deferred::new(init).unwrap();
    let batch = Tensor::<2>::ones([4, 6], &device);
    let trace = model
        .trace(&batch, 1, |(first, second, norm): &Layers, x| {
            Outputs::loss(
                norm.forward(second.forward(first.forward(x)))
                    .powf_scalar(2.0)
                    .mean(),
            )
        })
        .unwrap();
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let mut pipeline = Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .start()
        .unwrap();
    pipeline.step(1e-3, batch).unwrap();
    let saves = Checkpoints::open(dir.path().join("run")).unwrap().every(1);
    let saved = saves.after_step(&mut pipeline, 0).unwrap().unwrap();
    let values = |layers: &Layers| -> BTreeMap<String, Vec<u8>> {
        let values = parameter_values(layers).into_iter();
        values
            .map(|(path, value)| (path.to_string(), data(value).as_bytes().to_vec()))
            .collect()
    };
    let expected = values(&pipeline.gather(&device).unwrap());
    let checkpoint = Checkpoint::open(&saved).unwrap();
    let options = ExportOptions {
        format: ExportFormat::Burnpack,
        ..ExportOptions::default()
    };
    let to = dir.path().join("exported");
    let exported = export(&checkpoint, &to, &options, &()).unwrap();
    assert_eq!(exported.files, ["model.bpk"]);
    let file = to.join("model.bpk");
    let mut by_store = init(&device);
    let result = by_store
        .load_from(&mut BurnpackStore::from_file(&file))
        .unwrap();
    assert!(result.is_success(), "{result:?}");
    assert!(values(&by_store) == expected);
    let record = ModuleRecord::load(&file).unwrap();
    let by_record = init(&device).load_record(record);
    assert!(values(&by_record) == expected);
    let again = Pretrained::open(&file).unwrap();
    let source = again.source(LoadOptions::default()).unwrap();
    assert!(values(&model.materialize(&device, &source).unwrap()) == expected);
}
