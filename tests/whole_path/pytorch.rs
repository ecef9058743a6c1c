//! Models trained in a pipeline, exported with PyTorch's names and layouts, and loaded again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use burn::module::Module;
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, GroupNorm, GroupNormConfig, LayerNorm,
    LayerNormConfig, Linear, LinearConfig, LinearLayout, RmsNorm, RmsNormConfig,
};
use burn::optim::AdamWConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_store::{BurnToPyTorchAdapter, ModuleSnapshot, SafetensorsStore};
use safetensors::SafeTensors;
use tinderbox::checkpoint::tools::{ExportLayout, ExportOptions, export};
use tinderbox::checkpoint::{LoadOptions, ModuleTypes, Regex};
use tinderbox::deferred::parameter_values;
use tinderbox::{
    Checkpoint, Checkpoints, Deferred, Machine, Outputs, Pipeline, Pretrained, Traceable,
    export_pipeline,
};

use crate::plain::data;

#[derive(Module, Debug)]
struct Net {
    embedding: Embedding,
    rows: Linear,
    columns: Linear,
    /// Its shape does not show whether it is transposed.
    square: Linear,
    norms: (LayerNorm, LayerNorm, RmsNorm),
    batch: BatchNorm,
    group: GroupNorm,
}

fn net(device: &Device) -> Net {
    let columns = |config: LinearConfig| config.with_layout(LinearLayout::Col).init(device);
    let norm = || LayerNormConfig::new(4).init(device);
    Net {
        embedding: EmbeddingConfig::new(7, 6).init(device),
        rows: LinearConfig::new(6, 5).init(device),
        columns: columns(LinearConfig::new(5, 4)),
        square: columns(LinearConfig::new(4, 4).with_bias(false)),
        norms: (norm(), norm(), RmsNormConfig::new(4).init(device)),
        batch: BatchNormConfig::new(4).init(device),
        group: GroupNormConfig::new(2, 4).init(device),
    }
}

fn forward(net: &Net, words: Tensor<1, Int>) -> Tensor<2> {
    let x = net.embedding.forward(words.unsqueeze()).squeeze_dim::<2>(0);
    let x = net
        .square
        .forward(gelu(net.columns.forward(net.rows.forward(x))));
    let (first, second, third) = &net.norms;
    let x = third.forward(second.forward(gelu(first.forward(x))));
    net.group.forward(net.batch.forward(x))
}

fn values(net: &Net) -> BTreeMap<String, TensorData> {
    let values = parameter_values(net).into_iter();
    values
        .map(|(path, value)| (path.to_string(), data(value)))
        .collect()
}

/// Reads all files of a directory with the `safetensors` crate.
fn read(dir: &Path) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "safetensors") {
            let bytes = fs::read(path).unwrap();
            for (name, view) in SafeTensors::deserialize(&bytes).unwrap().iter() {
                let tensor = (view.shape().to_vec(), view.data().to_vec());
                all.insert(name.to_owned(), tensor);
            }
        }
    }
    all
}

#[test]
fn a_trained_model_goes_to_pytorch_and_comes_back() {
    let device = Device::flex();
    let dir = tempfile::tempdir().unwrap();
    let words = || Tensor::<1, Int>::from_ints([0, 3, 6, 1, 2, 2], &device);
    let model = Deferred::new(net).unwrap();
    let trace = model
        .trace(&words(), 1, |net: &Net, words| {
            Outputs::loss(forward(net, words).powf_scalar(2.0).mean())
        })
        .unwrap();
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let mut pipeline = Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .start()
        .unwrap();
    pipeline.step(1e-2, words()).unwrap();
    let trained = pipeline.gather(&device).unwrap();
    let saves = Checkpoints::open(dir.path().join("run")).unwrap();
    let saved = Checkpoint::open(saves.save(&mut pipeline, 0).unwrap()).unwrap();
    let types = ModuleTypes::of(model.parameters());
    assert_eq!(saved.manifest().modules(), types);
    assert_eq!(types.get("norms.1"), Some("LayerNorm"));

    // By the checkpoint alone, by the model's table, and from the pipeline: the same files.
    let options = || ExportOptions {
        file_bytes: 300,
        ..ExportOptions::default()
    };
    let of_layout = || ExportOptions {
        layout: ExportLayout::PyTorch,
        ..options()
    };
    let renamed = |options: ExportOptions| options.rename(Regex::new("^").unwrap(), "model.");
    let to = ["checkpoint", "table", "pipeline"].map(|name| dir.path().join(name));
    let exported = export(&saved, &to[0], &renamed(of_layout()), &()).unwrap();
    let by_table = renamed(options().pytorch(model.parameters()));
    export(&saved, &to[1], &by_table, &()).unwrap();
    let by_pipeline = export_pipeline(&mut pipeline, &to[2], &renamed(of_layout())).unwrap();
    assert_eq!(exported, by_pipeline);
    assert!(exported.files.len() > 2, "{exported:?}");
    for name in exported.files.iter().map(String::as_str) {
        for name in [name, "model.safetensors.index.json"] {
            let [first, others @ ..] = to.each_ref().map(|dir| fs::read(dir.join(name)).unwrap());
            assert!(others.iter().all(|other| *other == first), "{name}");
        }
    }

    // PyTorch's layouts, by Burn's own operations.
    let found = read(&to[0]);
    for (name, linear) in [
        ("rows", &trained.rows),
        ("columns", &trained.columns),
        ("square", &trained.square),
    ] {
        let expected = linear.weight.val().transpose().into_data();
        let (shape, bytes) = &found[&format!("model.{name}.weight")];
        assert!(
            **shape == **expected.shape() && *bytes == expected.as_bytes(),
            "{name}"
        );
    }
    let counter = &found["model.batch.num_batches_tracked"];
    assert_eq!(*counter, (Vec::new(), vec![0; 8]));

    // Loaded as any weights of PyTorch.
    let weights = Pretrained::open(&to[0]).unwrap();
    let options = LoadOptions::default()
        .rename(Regex::new(r"^model\.").unwrap(), "")
        .pytorch(model.parameters());
    let source = weights.source(options).unwrap();
    let loaded = model.materialize(&device, &source).unwrap();
    assert_eq!(values(&loaded), values(&trained));
    let mut pipeline = Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .source(source)
        .start()
        .unwrap();
    assert_eq!(values(&pipeline.gather(&device).unwrap()), values(&trained));

    // A checkpoint of another model is refused.
    let other = Deferred::new(|device: &Device| LinearConfig::new(2, 2).init(device)).unwrap();
    let other = ExportOptions::default().pytorch(other.parameters());
    let error = export(&saved, &dir.path().join("other"), &other, &()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("use the model that was saved"), "{text}");
    let error = export_pipeline(&mut pipeline, &to[0], &of_layout()).unwrap_err();
    let text = format!("{:#}", anyhow::Error::new(error));
    assert!(text.contains("is not an empty directory"), "{text}");
}

/// What Burn's own store writes for PyTorch, which has neither counters nor ties.
#[test]
fn names_and_layouts_are_those_that_burns_own_store_writes() {
    let device = Device::flex();
    let dir = tempfile::tempdir().unwrap();
    let init = |device: &Device| -> (Linear, LayerNorm, RmsNorm, BatchNorm, GroupNorm, Embedding) {
        (
            LinearConfig::new(6, 5).init(device),
            LayerNormConfig::new(5).init(device),
            RmsNormConfig::new(5).init(device),
            BatchNormConfig::new(5).init(device),
            GroupNormConfig::new(1, 5).init(device),
            EmbeddingConfig::new(3, 2).init(device),
        )
    };
    let model = Deferred::new(init).unwrap();
    let batch = Tensor::<2>::ones([4, 6], &device);
    let trace = model.trace_forward(&batch, |net: &(_, _, _, _, _, Embedding), x: Tensor<2>| {
        let (linear, layer, rms, batch, group, _): &(
            Linear,
            LayerNorm,
            RmsNorm,
            BatchNorm,
            GroupNorm,
            _,
        ) = net;
        let x = batch.forward(rms.forward(layer.forward(linear.forward(x))));
        Outputs::none().with("y", group.forward(x))
    });
    let trace = trace.unwrap();
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let mut pipeline = Pipeline::builder(&model, &trace, &plan).start().unwrap();
    let module = pipeline.gather(&device).unwrap();
    let file = dir.path().join("model.safetensors");
    let mut store = SafetensorsStore::from_file(&file).with_to_adapter(BurnToPyTorchAdapter);
    module.save_into(&mut store).unwrap();
    let expected = read(dir.path());
    let options = ExportOptions {
        layout: ExportLayout::PyTorch,
        ..ExportOptions::default()
    };
    let to = dir.path().join("exported");
    export_pipeline(&mut pipeline, &to, &options).unwrap();
    let mut found = read(&to);
    assert!(found.remove("3.num_batches_tracked").is_some());
    assert_eq!(found, expected);
}

/// A forward by PyTorch's definitions in plain Python, which reads the files itself.
#[test]
fn python_computes_the_same_from_the_files() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("NOT RUN: the forward in Python, because there is no `python3`");
        return;
    }
    let device = Device::flex();
    let dir = tempfile::tempdir().unwrap();
    type Layers = (Linear, LayerNorm, Linear, BatchNorm);
    let model = Deferred::new(|device: &Device| -> Layers {
        let columns = LinearConfig::new(5, 4).with_layout(LinearLayout::Col);
        (
            LinearConfig::new(3, 5).init(device),
            LayerNormConfig::new(5).init(device),
            columns.init(device),
            BatchNormConfig::new(4).init(device),
        )
    });
    let model = model.unwrap();
    let rows = [[0.5_f32, -1.0, 2.0], [1.5, 0.25, -0.75]];
    let batch = || Tensor::<2>::from_floats(rows, &device);
    let trace = model.trace(&batch(), 1, |(first, norm, second, batch): &Layers, x| {
        let y = batch.forward(second.forward(norm.forward(first.forward(x))));
        Outputs::loss(y.clone().powf_scalar(3.0).mean()).with("y", y)
    });
    let trace = trace.unwrap();
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let mut pipeline = Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .start()
        .unwrap();
    for _ in 0..2 {
        pipeline.step(1e-1, batch()).unwrap();
    }
    let y = pipeline
        .evaluate(batch())
        .unwrap()
        .tensor::<2>("y")
        .unwrap();
    let options = ExportOptions {
        layout: ExportLayout::PyTorch,
        file_bytes: 100,
        ..ExportOptions::default()
    };
    export_pipeline(&mut pipeline, dir.path(), &options).unwrap();

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/whole_path/pytorch.py");
    let mut python = Command::new("python3");
    python.arg(script).arg(dir.path());
    python.args(rows.concat().iter().map(f32::to_string));
    let ran = python.output().unwrap();
    let error = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{error}");
    let found: Vec<f32> = serde_json::from_slice(&ran.stdout).unwrap();
    let expected = y.into_data().try_to_vec::<f32>().unwrap();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() <= 1e-5, "{found} and {expected}");
    }
}
