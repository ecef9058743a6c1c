//! Export with PyTorch's names and layouts, read by the `safetensors` crate.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Arc,
};

use burn::tensor::{DType, Device, TensorData};
use proptest::prelude::*;
use safetensors::SafeTensors;
use tinderbox_checkpoint::{
    Checkpoint, CheckpointMeta, LoadOptions, ModuleTypes, Pretrained, Regex, Role, Run, SaveTensor,
    StoredDType,
    tools::{
        ExportFormat, ExportLayout, ExportOptions, ReshardOptions, TensorSplit, export,
        export_tensors, reshard,
    },
};
use tinderbox_checkpoint_tests::volatile::Volatile;
use tinderbox_checkpoint_tests::{Random, TIMEOUT, chain, meta, names};
use tinderbox_deferred::{ParameterPath, Request, Source};
use tinderbox_fake::Region;

/// Returns the types of the modules at some paths.
fn modules(types: &[(&str, &str)]) -> ModuleTypes {
    let types = types.iter();
    types
        .map(|(path, name)| ((*path).to_owned(), (*name).to_owned()))
        .collect()
}

fn pytorch() -> ExportOptions {
    ExportOptions {
        layout: ExportLayout::PyTorch,
        ..ExportOptions::default()
    }
}

/// A tensor of a file: dtype, shape and bytes.
type Plain = (String, Vec<usize>, Vec<u8>);

/// Reads a directory with the `safetensors` crate: the file, or the files of the index, and nothing else.
fn read(dir: &Path) -> BTreeMap<String, Plain> {
    let index = dir.join("model.safetensors.index.json");
    let (files, listed) = match fs::read(&index) {
        Ok(bytes) => {
            let index: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            let map = index["weight_map"].as_object().unwrap().clone();
            let text = |file: &serde_json::Value| file.as_str().unwrap().to_owned();
            let files: BTreeSet<String> = map.values().map(text).collect();
            assert_eq!(names(dir).len(), files.len() + 1);
            let map: BTreeMap<String, String> =
                map.iter().map(|(k, v)| (k.clone(), text(v))).collect();
            (files, Some((map, index["metadata"]["total_size"].clone())))
        }
        Err(_) => (names(dir).into_iter().collect(), None),
    };
    let (mut all, mut found, mut total) = (BTreeMap::new(), BTreeMap::new(), 0);
    for file in files {
        let bytes = fs::read(dir.join(&file)).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let format = metadata.metadata().as_ref().unwrap()["format"].clone();
        assert_eq!(format, "pt");
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().iter() {
            found.insert(name.to_owned(), file.clone());
            total += view.data().len();
            let plain = (
                view.dtype().to_string(),
                view.shape().to_vec(),
                view.data().to_vec(),
            );
            assert!(all.insert(name.to_owned(), plain).is_none(), "{name} twice");
        }
    }
    if let Some(listed) = listed {
        assert_eq!(listed, (found, total.into()));
    }
    all
}

/// Returns the parts of a matrix that a cut in both directions leaves, by plain loops.
fn parts(name: &str, data: &TensorData, row: usize, column: usize) -> Vec<SaveTensor> {
    let (rows, columns) = (data.shape()[0], data.shape()[1]);
    let size = data.dtype().size();
    let mut all = Vec::new();
    for (top, bottom) in [(0, row), (row, rows)] {
        for (left, right) in [(0, column), (column, columns)] {
            if top == bottom || left == right {
                continue;
            }
            let mut bytes = Vec::new();
            for r in top..bottom {
                bytes.extend(
                    &data.as_bytes()[(r * columns + left) * size..][..(right - left) * size],
                );
            }
            let region = Region::new(
                vec![top as u64, left as u64],
                vec![(bottom - top) as u64, (right - left) as u64],
            );
            let shape = vec![bottom - top, right - left];
            all.push(SaveTensor {
                name: name.to_owned(),
                tied: Vec::new(),
                role: Role::Model,
                shape: vec![rows as u64, columns as u64],
                region: region.unwrap(),
                data: TensorData::from_bytes_vec(bytes, shape, data.dtype()).into(),
            });
        }
    }
    match all.is_empty() {
        true => vec![SaveTensor::whole(name, Role::Model, data.clone())],
        false => all,
    }
}

/// The transposed elements of a matrix, by plain loops.
fn transposed(data: &TensorData) -> Vec<u8> {
    let (rows, columns, size) = (data.shape()[0], data.shape()[1], data.dtype().size());
    let mut bytes = Vec::new();
    for column in 0..columns {
        for row in 0..rows {
            bytes.extend(&data.as_bytes()[(row * columns + column) * size..][..size]);
        }
    }
    bytes
}

/// Saves tensors from one rank.
fn save(tensors: &[SaveTensor], types: &ModuleTypes) -> Checkpoint {
    let run = Run::on(Arc::new(Volatile::default()));
    let attempt = run.begin(CheckpointMeta {
        modules: types.clone(),
        ..meta(1, 1)
    });
    let attempt = attempt.unwrap();
    let handle = attempt.handle();
    handle
        .write_rank(0, tensors, &BTreeMap::new(), &())
        .unwrap();
    attempt.publish(TIMEOUT).unwrap();
    run.open(1).unwrap()
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0_usize), Just(1), 2..40_usize]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Every shape, dtype, cut and number of files: the names and bytes of PyTorch, and the way back.
    #[test]
    fn an_export_for_pytorch_loads_again(
        seed in any::<u64>(),
        (rows, columns) in (size(), size()),
        cuts in any::<[prop::sample::Index; 2]>(),
        dtype in prop::sample::select(vec![DType::F32, DType::BF16, DType::F64, DType::U8]),
        file_bytes in 1_u64..4000,
        transpose_bytes in 0_u64..600,
    ) {
        let mut random = Random(seed);
        let mut data = |shape: &[usize]| random.data(shape, dtype);
        let [row, column] = [(rows, 0), (columns, 1)].map(|(size, d)| cuts[d].index(size.max(1)));
        let (matrix, table) = (data(&[rows, columns]), data(&[rows, columns]));
        let vector = data(&[columns]);
        let mut tensors = parts("a.linear.weight", &matrix, row, column);
        tensors.extend(parts("embedding.weight", &table, row, column));
        for (name, shape) in [
            ("a.linear.bias", &[columns][..]),
            ("a.norm.gamma", &[columns]),
            ("a.norm.beta", &[columns]),
            // A three-dimensional weight stays as it is.
            ("conv.weight", &[2, 3, 2]),
        ] {
            let data = if name == "a.norm.gamma" { vector.clone() } else { data(shape) };
            tensors.push(SaveTensor::whole(name, Role::Model, data));
        }
        let types = modules(&[
            ("a.linear", "Linear"),
            ("a.norm", "LayerNorm"),
            ("conv", "Conv1d"),
            ("embedding", "Embedding"),
        ]);
        let checkpoint = save(&tensors, &types);
        let options = ExportOptions { file_bytes, transpose_bytes, ..pytorch() }
            .rename(Regex::new(r"^a\.(\w+)\.").unwrap(), "encoder.${1}.0.");
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("saved");
        let exported = export(&checkpoint, &to, &options, &()).unwrap();
        prop_assert_eq!(exported.tensors, 6);

        let stored = StoredDType::of(dtype).unwrap().to_string();
        let found = read(&to);
        let listed: Vec<&str> = found.keys().map(String::as_str).collect();
        prop_assert_eq!(listed, [
            "conv.weight",
            "embedding.weight",
            "encoder.linear.0.bias",
            "encoder.linear.0.weight",
            "encoder.norm.0.bias",
            "encoder.norm.0.weight",
        ]);
        prop_assert_eq!(
            &found["encoder.linear.0.weight"],
            &(stored.clone(), vec![columns, rows], transposed(&matrix))
        );
        prop_assert_eq!(
            &found["embedding.weight"],
            &(stored.clone(), vec![rows, columns], table.as_bytes().to_vec())
        );
        prop_assert_eq!(
            &found["encoder.norm.0.weight"],
            &(stored, vec![columns], vector.as_bytes().to_vec())
        );

        let options = LoadOptions::default()
            .rename(Regex::new(r"^encoder\.(\w+)\.0\.").unwrap(), "a.${1}.")
            .transpose(Regex::new(r"^a\.linear\.weight$").unwrap())
            .rename(Regex::new(r"^a\.norm\.weight$").unwrap(), "a.norm.gamma");
        let source = Pretrained::open(&to).unwrap().source(options).unwrap();
        let request = |path: &str, data: &TensorData| {
            let shape: Vec<u64> = data.shape().iter().map(|d| *d as u64).collect();
            Request {
                path: ParameterPath::new(path),
                clones: Vec::new(),
                region: Region::whole(&shape).unwrap(),
                shape,
                dtype,
                device: Device::flex(),
            }
        };
        let wanted = [
            ("a.linear.weight", &matrix),
            ("a.norm.gamma", &vector),
            ("embedding.weight", &table),
        ];
        let requests = wanted.map(|(path, data)| request(path, data));
        let back = source.load(&requests, &()).unwrap();
        for ((path, data), back) in wanted.iter().zip(back) {
            prop_assert_eq!(&back.to_data().unwrap(), *data, "{}", path);
        }

        // From memory, and with the types of a call.
        let whole: Vec<SaveTensor> = tensors
            .iter()
            .filter(|tensor| tensor.region.is_whole(&tensor.shape))
            .filter(|tensor| !["a.linear.weight", "embedding.weight"].contains(&&*tensor.name))
            .cloned()
            .chain([
                SaveTensor::whole("a.linear.weight", Role::Model, matrix.clone()),
                SaveTensor::whole("embedding.weight", Role::Model, table.clone()),
            ])
            .collect();
        let options = ExportOptions { file_bytes, transpose_bytes, modules: Some(types), ..pytorch() }
            .rename(Regex::new(r"^a\.(\w+)\.").unwrap(), "encoder.${1}.0.");
        let from_memory = dir.path().join("memory");
        export_tensors(&whole, &from_memory, &options, &()).unwrap();
        prop_assert_eq!(names(&from_memory), names(&to));
        for name in names(&to) {
            let [a, b] = [&to, &from_memory].map(|dir| fs::read(dir.join(&name)).unwrap());
            prop_assert!(a == b, "{}", name);
        }
    }
}

/// Several pieces of 8 MiB in each of one or two parts, whose borders are inside of rows; at the root of a model.
#[test]
fn large_matrices_are_transposed_in_parts() {
    let data = Random(1).data(&[3001, 1501], DType::F32);
    let tensors = parts("weight", &data, 1234, 777);
    let checkpoint = save(&tensors, &modules(&[("", "Linear")]));
    for transpose_bytes in [256 << 20, 10 << 20] {
        let dir = tempfile::tempdir().unwrap();
        let options = ExportOptions {
            transpose_bytes,
            ..pytorch()
        };
        let exported = export(&checkpoint, dir.path(), &options, &()).unwrap();
        assert_eq!(exported.bytes, 3001 * 1501 * 4);
        let (_, shape, bytes) = &read(dir.path())["weight"];
        assert_eq!(*shape, [1501, 3001]);
        assert!(*bytes == transposed(&data), "{transpose_bytes}");
    }
}

/// A batch norm has a counter in PyTorch, and the types of modules survive resharding.
#[test]
fn a_batch_norm_gets_its_counter() {
    let two = |value: f32| TensorData::new(vec![value; 2], [2]);
    let tensors = [
        ("norm.gamma", two(1.0)),
        ("norm.beta", two(2.0)),
        ("norm.running_mean", two(3.0)),
        ("norm.running_var", two(4.0)),
        ("embed.weight", TensorData::new(vec![5.0_f32; 6], [3, 2])),
    ];
    let mut tensors = tensors.map(|(name, data)| SaveTensor::whole(name, Role::Model, data));
    tensors[4].tied = vec!["norm.tied".to_owned(), "head.gamma".to_owned()];
    let types = modules(&[
        ("embed", "Embedding"),
        ("head", "RmsNorm"),
        ("norm", "BatchNorm"),
    ]);
    let dir = tempfile::tempdir().unwrap();
    let run = Run::local(dir.path().join("run"));
    let by_rows = ReshardOptions {
        split: TensorSplit::Rows,
        ..ReshardOptions::default()
    };
    reshard(&save(&tensors, &types), &run, 2, &by_rows, &()).unwrap();
    let checkpoint = run.open(1).unwrap();
    assert_eq!(checkpoint.manifest().modules(), types);

    let to = dir.path().join("exported");
    let options = pytorch().rename(Regex::new("^norm").unwrap(), "bn");
    let exported = export(&checkpoint, &to, &options, &()).unwrap();
    assert_eq!((exported.tensors, exported.bytes), (6, 8 + 8 * 4 + 24));
    let tied = |name: &str| (name.to_owned(), "embed.weight".to_owned());
    assert_eq!(exported.tied, [tied("bn.tied"), tied("head.weight")]);
    let found = read(&to);
    let listed: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(
        listed,
        [
            "bn.bias",
            "bn.num_batches_tracked",
            "bn.running_mean",
            "bn.running_var",
            "bn.weight",
            "embed.weight",
        ]
    );
    let counter = ("I64".to_owned(), Vec::new(), vec![0; 8]);
    assert_eq!(found["bn.num_batches_tracked"], counter);
}

#[test]
fn an_impossible_export_is_refused() {
    let one = |name: &str| SaveTensor::whole(name, Role::Model, TensorData::new(vec![1_u8], [1]));
    let norm = modules(&[("a", "LayerNorm")]);
    let check = |names: &[&str], types: &ModuleTypes, options: ExportOptions, expected: &str| {
        let tensors: Vec<SaveTensor> = names.iter().map(|name| one(name)).collect();
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to");
        let error = export(&save(&tensors, types), &to, &options, &()).unwrap_err();
        let text = chain(&error);
        assert!(text.contains(expected), "no `{expected}` in: {text}");
        // From memory.
        let options = ExportOptions {
            modules: Some(types.clone()),
            ..options
        };
        assert!(export_tensors(&tensors, &to, &options, &()).is_err());
        assert!(!to.exists());
    };
    let none = ModuleTypes::default();
    let renamed = |with: &str| ExportOptions::default().rename(Regex::new("^.*$").unwrap(), with);
    check(
        &["a.gamma"],
        &none,
        pytorch(),
        "call `tools::export` with `ExportOptions::pytorch(model)`, or resume the run and save",
    );
    check(
        &["a.gamma", "b.c.weight", "d"],
        &norm,
        pytorch(),
        "use the model that was saved: b.c.weight, d",
    );
    check(
        &["a.gamma", "a.weight"],
        &norm,
        pytorch(),
        "`a.gamma` and `a.weight` would both be written as `a.weight`: change the rename patterns",
    );
    check(
        &["a", "b"],
        &none,
        renamed("c"),
        "`a` and `b` would both be written as `c`",
    );
    check(&["a"], &none, renamed(""), "is empty");
    check(&["a"], &none, renamed("__metadata__"), "is reserved");
    let burnpack = ExportOptions {
        format: ExportFormat::Burnpack,
        ..pytorch()
    };
    check(
        &["a.gamma"],
        &norm,
        burnpack,
        "use the format `safetensors` for PyTorch's",
    );

    // A part of a tensor, which only a checkpoint can contain.
    let matrix = TensorData::new(vec![1_u8; 4], [2, 2]);
    let part = &parts("w", &matrix, 1, 0)[..1];
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    let error = export_tensors(part, &to, &ExportOptions::default(), &()).unwrap_err();
    assert!(chain(&error).contains("`w`"), "{}", chain(&error));
}
