//! Weights in PyTorch's layout, written by Burn's own store, loaded into a deferred model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, GroupNorm, GroupNormConfig,
    InstanceNorm, InstanceNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, RmsNorm,
    RmsNormConfig,
};
use burn::tensor::{Device, Tensor, TensorData};
use burn_store::{BurnToPyTorchAdapter, ModuleSnapshot, SafetensorsStore};
use safetensors::{Dtype, tensor::TensorView};
use tinderbox::checkpoint::{LoadOptions, Regex, dry_run};
use tinderbox::deferred::{MaterializeOptions, Values, parameter_values};
use tinderbox::error::{DryRunError, LoadError};
use tinderbox::{Deferred, DynTensor, Outputs, ParameterPath, Pretrained, Source, Traceable};

use crate::plain::data;

/// Modules whose parameters PyTorch names or lays out differently, and some others.
#[derive(Module, Debug)]
struct Net {
    embedding: Embedding,
    layers: Vec<Layer>,
    head: Linear,
}

#[derive(Module, Debug)]
struct Layer {
    conv: Conv2d,
    batch_norm: BatchNorm,
    group_norm: GroupNorm,
    instance_norm: InstanceNorm,
    layer_norm: LayerNorm,
    rms_norm: RmsNorm,
    linear: Linear,
    /// A square matrix: its shape does not show whether it was transposed.
    square: Linear,
}

fn net(device: &Device) -> Net {
    let layer = || Layer {
        conv: Conv2dConfig::new([2, 4], [3, 3]).init(device),
        batch_norm: BatchNormConfig::new(4).init(device),
        group_norm: GroupNormConfig::new(2, 4).init(device),
        instance_norm: InstanceNormConfig::new(4).init(device),
        layer_norm: LayerNormConfig::new(6).init(device),
        rms_norm: RmsNormConfig::new(6).init(device),
        linear: LinearConfig::new(6, 5).init(device),
        square: LinearConfig::new(5, 5).with_bias(false).init(device),
    };
    Net {
        embedding: EmbeddingConfig::new(7, 6).init(device),
        layers: (0..2).map(|_| layer()).collect(),
        head: LinearConfig::new(5, 3).init(device),
    }
}

/// Returns the model with a distinct number in every element of every parameter.
fn numbered(model: &Deferred<Net>) -> Net {
    let mut next = 0.0;
    let values = model.parameters().iter().map(|parameter| {
        let shape: Vec<usize> = parameter.shape.iter().map(|d| *d as usize).collect();
        let numbers = (0..parameter.elements()).map(|_| {
            next += 1.0;
            next
        });
        let value = TensorData::new(numbers.collect::<Vec<f32>>(), shape);
        let value = DynTensor::from_data(value, &Device::flex());
        (parameter.path.clone(), value)
    });
    let values: Values = values.collect();
    model.materialize(&Device::flex(), &values).unwrap()
}

fn bits(module: &Net) -> BTreeMap<ParameterPath, TensorData> {
    let values = parameter_values(module).into_iter();
    values.map(|(path, value)| (path, data(value))).collect()
}

/// Returns the model as Burn's own store exports it for PyTorch.
fn save_for_pytorch(net: &Net, dir: &Path) -> PathBuf {
    let path = dir.join("model.safetensors");
    let store = SafetensorsStore::from_file(&path);
    net.save_into(&mut store.with_to_adapter(BurnToPyTorchAdapter))
        .unwrap();
    path
}

#[test]
fn names_and_layouts_are_those_of_burns_own_store() {
    let dir = tempfile::tempdir().unwrap();
    let model = Deferred::new(net).unwrap();
    let original = numbered(&model);
    let file = save_for_pytorch(&original, dir.path());
    // Neither the names nor the layouts are Burn's, so that the test can fail.
    let weights = Pretrained::open(&file).unwrap();
    let names: Vec<&str> = weights.tensors().map(|tensor| &*tensor.name).collect();
    assert!(names.contains(&"layers.1.rms_norm.weight"), "{names:?}");
    let plain = weights.source(LoadOptions::default()).unwrap();
    assert!(model.materialize(&Device::flex(), &plain).is_err());

    let options = LoadOptions::default().pytorch(model.parameters());
    let source = weights.source(options).unwrap();
    let loaded = model.materialize(&Device::flex(), &source).unwrap();
    assert_eq!(bits(&loaded), bits(&original));
}

/// Adds what Burn's own store does not write: PyTorch's names for an instance norm, and the counter of a
/// batch norm.
#[test]
fn names_that_only_pytorch_writes() {
    #[derive(Module, Debug)]
    struct Norms {
        instance: InstanceNorm,
        batch: BatchNorm,
    }
    let init = |device: &Device| Norms {
        instance: InstanceNormConfig::new(2).init(device),
        batch: BatchNormConfig::new(2).init(device),
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weights.safetensors");
    let (two, one) = (
        [1.5f32, -2.0].map(f32::to_le_bytes).concat(),
        7i64.to_le_bytes(),
    );
    let float = || TensorView::new(Dtype::F32, vec![2], &two).unwrap();
    let mut tensors: BTreeMap<&str, TensorView<'_>> = [
        "instance.weight",
        "instance.bias",
        "batch.weight",
        "batch.bias",
        "batch.running_mean",
        "batch.running_var",
    ]
    .map(|name| (name, float()))
    .into();
    let counter = TensorView::new(Dtype::I64, vec![], &one).unwrap();
    tensors.insert("batch.num_batches_tracked", counter.clone());
    safetensors::serialize_to_file(tensors.clone(), None, &file).unwrap();
    let model = Deferred::new(init).unwrap();
    let load = |file: &Path| {
        let options = LoadOptions::default().pytorch(model.parameters());
        let source = Pretrained::open(file).unwrap().source(options).unwrap();
        model.materialize(&Device::flex(), &source)
    };
    let loaded = load(&file).unwrap();
    let gamma = loaded.instance.gamma.as_ref().unwrap().val();
    assert_eq!(gamma.into_data().as_bytes(), two);

    // The same counter elsewhere is an extra parameter.
    tensors.insert("instance.num_batches_tracked", counter);
    safetensors::serialize_to_file(tensors, None, &file).unwrap();
    let error = chain(&load(&file).map(drop).unwrap_err());
    assert!(
        error.ends_with("\n  extra: instance.num_batches_tracked\n"),
        "{error}"
    );
}

/// A bias that is only in the file would change the model's results.
#[test]
fn what_the_model_has_not_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = Deferred::new(net).unwrap();
    let weights = Pretrained::open(save_for_pytorch(&numbered(&model), dir.path())).unwrap();
    let smaller = Deferred::new(|device: &Device| {
        let mut net = net(device);
        net.head = LinearConfig::new(5, 3).with_bias(false).init(device);
        net
    })
    .unwrap();
    let source = |options: LoadOptions| {
        let options = options.pytorch(smaller.parameters());
        weights.source(options).unwrap()
    };
    let strict = source(LoadOptions::default());
    let whole = smaller.materialize(&Device::flex(), &strict).map(drop);
    // Part of a model does not match the whole file either.
    let part = MaterializeOptions::on(&Device::flex()).only(|p| p.path.leaf() == "gamma");
    let part = smaller.materialize_parameters(part, &strict);
    for error in [whole.unwrap_err(), part.map(drop).unwrap_err()] {
        let error = chain(&error);
        assert!(error.ends_with("\n  extra: head.bias\n"), "{error}");
    }
    let lenient = source(LoadOptions::default().allow_extra());
    smaller.materialize(&Device::flex(), &lenient).unwrap();
}

#[test]
fn a_part_of_a_transposed_weight_is_that_part() {
    let dir = tempfile::tempdir().unwrap();
    let model = Deferred::new(net).unwrap();
    let original = numbered(&model);
    let weights = Pretrained::open(save_for_pytorch(&original, dir.path())).unwrap();
    let options = LoadOptions::default().pytorch(model.parameters());
    let source = weights.source(options).unwrap();
    let (values, device) = (bits(&original), Device::flex());
    let region = tinderbox::fake::Region::new(vec![2, 1], vec![3, 4]).unwrap();
    for path in ["layers.0.linear.weight", "layers.1.square.weight"] {
        let part = model.materialize_region(path, &region, &device, &source);
        let whole = Tensor::<2>::from_data(values[&ParameterPath::from(path)].clone(), &device);
        let expected = whole.slice([2..5, 1..5]).into_data();
        assert_eq!(part.unwrap().to_data().unwrap(), expected, "{path}");
    }
}

/// Hugging Face's cache: links to files with other names, in several shards with an index.
#[cfg(unix)]
#[test]
fn links_and_shards_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (dir.path().join("blobs"), dir.path().join("snapshot"));
    for dir in [&blobs, &snapshot] {
        std::fs::create_dir(dir).unwrap();
    }
    let model = Deferred::new(net).unwrap();
    let original = numbered(&model);
    let values = bits(&original);
    let mut index = serde_json::Map::new();
    for shard in 0..3 {
        let name = format!("model-{:05}-of-00003.safetensors", shard + 1);
        let tensors = values.iter().enumerate().filter(|(at, _)| at % 3 == shard);
        let tensors: Vec<(String, TensorView<'_>)> = tensors
            .map(|(_, (path, data))| {
                index.insert(format!("net.{path}"), name.clone().into());
                let shape = data.shape().to_vec();
                let view = TensorView::new(Dtype::F32, shape, data.as_bytes());
                (format!("net.{path}"), view.unwrap())
            })
            .collect();
        let blob = blobs.join(format!("{shard}"));
        safetensors::serialize_to_file(tensors, None, &blob).unwrap();
        std::os::unix::fs::symlink(&blob, snapshot.join(&name)).unwrap();
    }
    let index = serde_json::json!({"metadata": {}, "weight_map": index});
    std::fs::write(blobs.join("index"), index.to_string()).unwrap();
    let index = snapshot.join("model.safetensors.index.json");
    std::os::unix::fs::symlink(blobs.join("index"), index).unwrap();

    let weights = Pretrained::open(&snapshot).unwrap();
    let rename = |from: &str| LoadOptions::default().rename(Regex::new(from).unwrap(), "");
    let source = weights.source(rename(r"^net\.")).unwrap();
    let loaded = model.materialize(&Device::flex(), &source).unwrap();
    assert_eq!(bits(&loaded), values);

    // Truncating the target of a link is detected by the read.
    std::fs::write(blobs.join("1"), "short").unwrap();
    let error = model.materialize(&Device::flex(), &source).unwrap_err();
    let all = chain(&error);
    assert!(all.contains("can't read"), "{all}");
    let error = Pretrained::open(&snapshot).unwrap_err();
    assert!(matches!(error, LoadError::Header { .. }), "{error:?}");
}

#[test]
fn what_does_not_fit_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let model = Deferred::new(net).unwrap();
    let file = save_for_pytorch(&numbered(&model), dir.path());
    let weights = Pretrained::open(&file).unwrap();
    // Without the adapters, norms are missing and matrices have another shape.
    let source = weights.source(LoadOptions::default()).unwrap();
    let error = chain(&model.materialize(&Device::flex(), &source).unwrap_err());
    for expected in [
        "missing: layers.0.layer_norm.gamma",
        "missing: layers.1.rms_norm.gamma",
        "layers.0.linear.weight",
        "head.weight",
    ] {
        assert!(error.contains(expected), "no `{expected}` in: {error}");
    }
    // It can be combined with an initializer.
    let options = LoadOptions::default()
        .pytorch(model.parameters())
        .rename(Regex::new("^head").unwrap(), "classifier")
        .allow_missing()
        .allow_extra();
    let initializer = model.initializer(tinderbox::deferred::random::Seed::new(1));
    let source = weights
        .source(options)
        .unwrap()
        .or_else(initializer.clone());
    let loaded = bits(&model.materialize(&Device::flex(), &source).unwrap());
    let fresh = bits(&model.materialize(&Device::flex(), &initializer).unwrap());
    let original = bits(&numbered(&model));
    for (path, value) in &loaded {
        let from = if path.as_str().starts_with("head") {
            &fresh
        } else {
            &original
        };
        assert_eq!(value, &from[path], "{path}");
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(|cause| cause.to_string() + "\n").collect()
}

/// The reads of a load can't be predicted with a plan for another model.
#[test]
fn a_dry_run_refuses_the_plan_of_another_model() {
    let dir = tempfile::tempdir().unwrap();
    let model = Deferred::new(net).unwrap();
    let file = save_for_pytorch(&numbered(&model), dir.path());
    let options = LoadOptions::default().pytorch(model.parameters());
    let source = Pretrained::open(&file).unwrap().source(options).unwrap();
    let other = Deferred::new(|device| LinearConfig::new(4, 4).init(device)).unwrap();
    let example = Tensor::<2>::zeros([2, 4], &Device::flex());
    let trace = other.trace(&example, 1, |net: &Linear, x| {
        Outputs::loss(net.forward(x).mean())
    });
    let plan = trace.unwrap().plan_at(&[]).unwrap();
    let error = dry_run(&model, &plan, &source).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, DryRunError::Plan(_)), "{text}");
    assert!(
        text.starts_with("the plan is for another model: "),
        "{text}"
    );
}
