//! Load options, and the predicted and actual reads of a load.

use std::{collections::BTreeMap, sync::Arc};

use burn::tensor::{BoolStore, DType, Device, TensorData};
use proptest::prelude::*;
use regex::Regex;
use tinderbox_checkpoint::{
    BlockSize, Checkpoint, CheckpointMeta, LoadOptions, Role, Run, SaveTensor, store::Store,
};
use tinderbox_checkpoint_tests::volatile::Volatile;
use tinderbox_checkpoint_tests::{Random, TIMEOUT, meta};
use tinderbox_deferred::{ParameterPath, Request, Source, SourceError, Values};
use tinderbox_fake::{DynTensor, Region};

fn floats(values: &[f32]) -> TensorData {
    TensorData::new(values.to_vec(), [values.len()])
}

/// Saves a checkpoint of `a.weight` (2 elements), `a.bias` (1) and `b.weight` (3).
fn checkpoint() -> Checkpoint {
    let run = Run::on(Arc::new(Volatile::default()));
    let attempt = run.begin(meta(1, 1)).unwrap();
    let tensors = [
        ("a.weight", floats(&[1.0, 2.5])),
        ("a.bias", floats(&[3.0])),
        ("b.weight", floats(&[4.0, 5.0, 1e-8])),
    ];
    let tensors = tensors.map(|(name, data)| SaveTensor::whole(name, Role::Model, data));
    attempt
        .handle()
        .write_rank(0, &tensors, &BTreeMap::new(), &())
        .unwrap();
    attempt.publish(TIMEOUT).unwrap();
    run.open(1).unwrap()
}

fn request(path: &str, elements: u64, dtype: DType) -> Request {
    Request {
        path: ParameterPath::new(path),
        clones: Vec::new(),
        shape: vec![elements],
        region: Region::whole(&[elements]).unwrap(),
        dtype,
        device: Device::flex(),
    }
}

fn loaded(source: &dyn Source, requests: &[Request]) -> Result<Vec<TensorData>, String> {
    let values = source
        .load(requests, &())
        .map_err(|error| error.to_string())?;
    Ok(values
        .iter()
        .map(|value| value.to_data().unwrap())
        .collect())
}

#[test]
fn names_change_by_pattern() {
    let pattern = |text: &str| Regex::new(text).unwrap();
    let options = LoadOptions::default()
        .rename(pattern(r"^a\."), "encoder.")
        .rename(pattern(r"^(encoder|b)\.weight$"), "${1}.kernel");
    let source = checkpoint().source(options).unwrap();
    let requests = [
        request("encoder.kernel", 2, DType::F32),
        request("b.kernel", 3, DType::F32),
        request("encoder.bias", 1, DType::F32),
    ];
    let expected = [
        floats(&[1.0, 2.5]),
        floats(&[4.0, 5.0, 1e-8]),
        floats(&[3.0]),
    ];
    assert_eq!(loaded(&source, &requests).unwrap(), expected);
    let error = loaded(&source, &[request("a.weight", 2, DType::F32)]).unwrap_err();
    assert!(error.contains("a.weight"), "{error}");
    let same = LoadOptions::default().rename(pattern("^[ab]"), "c");
    let error = checkpoint().source(same).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`a.weight` and `b.weight` would both be renamed to `c.weight`: change the rename patterns"
    );
}

#[test]
fn floats_are_cast_when_asked_for() {
    let wanted = [
        request("b.weight", 3, DType::BF16),
        request("a.bias", 1, DType::F64),
    ];
    let strict = checkpoint().source(LoadOptions::default()).unwrap();
    let error = loaded(&strict, &wanted).unwrap_err();
    assert!(
        error.contains("b.weight") && error.contains("a.bias"),
        "{error}"
    );
    let source = checkpoint().source(LoadOptions::default().cast()).unwrap();
    let expected = [
        floats(&[4.0, 5.0, 1e-8]).convert_dtype(DType::BF16),
        floats(&[3.0]).convert_dtype(DType::F64),
    ];
    assert_eq!(loaded(&source, &wanted).unwrap(), expected);
    let error = loaded(&source, &[request("a.bias", 1, DType::I32)]).unwrap_err();
    assert!(error.contains("a.bias"), "no float becomes an int: {error}");
}

#[test]
fn missing_parameters_come_from_the_next_source() {
    let zero = |path: &str, elements: usize| {
        let data = TensorData::new(vec![0.0f32; elements], [elements]);
        (
            ParameterPath::new(path),
            DynTensor::from_data(data, &Device::flex()),
        )
    };
    let fallback: Values = [zero("new", 2), zero("b.weight", 4)].into_iter().collect();
    let wanted = [
        request("new", 2, DType::F32),
        request("a.bias", 1, DType::F32),
        request("b.weight", 4, DType::F32),
    ];
    let source = |options| {
        checkpoint()
            .source(options)
            .unwrap()
            .or_else(fallback.clone())
    };
    // Another shape is an error, unless it counts as missing.
    let error = loaded(&source(LoadOptions::default()), &wanted).unwrap_err();
    assert!(error.contains("b.weight"), "{error}");
    let found = loaded(
        &source(LoadOptions::default().allow_other_shapes()),
        &wanted,
    )
    .unwrap();
    assert_eq!(
        found,
        [floats(&[0.0; 2]), floats(&[3.0]), floats(&[0.0; 4])]
    );
    // A parameter that no source has is an error.
    let error = loaded(
        &source(LoadOptions::default()),
        &[
            request("a.bias", 1, DType::F32),
            request("nowhere", 1, DType::F32),
        ],
    );
    assert!(error.unwrap_err().contains("nowhere"));
}

#[test]
fn a_model_is_compared_as_the_options_say() {
    let model = |paths: &[(&str, u64)]| {
        let parameter = |(path, elements): &(&str, u64)| {
            (ParameterPath::new(*path), vec![*elements], DType::F32)
        };
        paths.iter().map(parameter).collect::<Vec<_>>()
    };
    let checkpoint = checkpoint();
    let check = |options: LoadOptions, paths: &[(&str, u64)]| {
        let checked = checkpoint
            .source(options)
            .unwrap()
            .check_model(&model(paths));
        checked.map_err(|error| error.to_string())
    };
    let exact = [("a.weight", 2), ("a.bias", 1), ("b.weight", 3)];
    let other = [("a.weight", 2), ("b.weight", 9), ("c", 1)];
    let strict = LoadOptions::default;
    check(strict(), &exact).unwrap();
    let error = check(strict(), &other).unwrap_err();
    for path in ["a.bias", "b.weight", "c"] {
        assert!(error.contains(path), "{path}: {error}");
    }
    check(strict().allow_extra(), &exact[..1]).unwrap();
    check(
        strict().allow_missing(),
        &[&exact[..], &[("c", 1)]].concat(),
    )
    .unwrap();
    check(
        strict().allow_missing().allow_extra().allow_other_shapes(),
        &other,
    )
    .unwrap();
    assert!(check(strict().allow_missing().allow_extra(), &other).is_err());
}

/// Several blocks of 1 MiB, whose boundaries are inside rows; and rows longer than a block. Also around the cache, by threads
/// that write to the same columns.
#[test]
fn large_matrices_are_transposed_in_blocks() {
    let cases = [
        (DType::F32, 3001, 1501),
        (DType::F32, 3, 2_200_001),
        (DType::U8, 4001, 4999),
    ];
    let dir = tempfile::tempdir().unwrap();
    let options = LoadOptions::default().transpose(Regex::new("^w$").unwrap());
    for (step, (dtype, rows, columns)) in (1..).zip(cases) {
        let run = Run::local(dir.path());
        let attempt = run.begin(CheckpointMeta::new(step, 1)).unwrap();
        let data = Random(step).data(&[rows, columns], dtype);
        let tensor = SaveTensor::whole("w", Role::Model, data.clone());
        attempt
            .handle()
            .write_rank(0, &[tensor], &BTreeMap::new(), &())
            .unwrap();
        attempt.publish(TIMEOUT).unwrap();
        let source = run.open(step).unwrap().source(options.clone()).unwrap();
        let shape = vec![columns as u64, rows as u64];
        let request = Request {
            path: ParameterPath::new("w"),
            clones: Vec::new(),
            region: Region::whole(&shape).unwrap(),
            shape,
            dtype,
            device: Device::flex(),
        };
        let requests = [request];
        let cached = source.load(&requests, &()).unwrap();
        let uncached = source.load_uncached(&requests, &()).unwrap();
        for found in [cached, uncached] {
            let found = found[0].to_data().unwrap();
            let (size, found, data) = (dtype.size(), found.as_bytes(), data.as_bytes());
            for row in 0..rows {
                for column in 0..columns {
                    let (from, to) = (row * columns + column, column * rows + row);
                    assert!(
                        found[to * size..][..size] == data[from * size..][..size],
                        "{dtype:?} {row} {column}"
                    );
                }
            }
        }
    }
}

const FLOATS: [DType; 4] = [DType::F32, DType::BF16, DType::F16, DType::F64];

/// A value that the wanted type does not have is an error where it is wanted, and only there.
#[test]
fn transposed_values_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::local(dir.path());
    let attempt = run.begin(CheckpointMeta::new(1, 1)).unwrap();
    let numbers = TensorData::new(vec![1.0_f32, 2.0, 3.0, 1e6], [2, 2]);
    let truths = TensorData::new(vec![true, true, false, false], [2, 2]);
    let tensors = [("numbers", numbers), ("truths", truths)]
        .map(|(name, data)| SaveTensor::whole(name, Role::Model, data));
    let handle = attempt.handle();
    handle
        .write_rank(0, &tensors, &BTreeMap::new(), &())
        .unwrap();
    attempt.publish(TIMEOUT).unwrap();
    let options = LoadOptions::default().transpose(Regex::new("").unwrap());
    let source = run.open(1).unwrap().source(options.cast()).unwrap();
    let load = |name: &str, size: [u64; 2], dtype| {
        let request = Request {
            path: ParameterPath::new(name),
            clones: Vec::new(),
            region: Region::new(vec![0, 0], size.to_vec()).unwrap(),
            shape: vec![2, 2],
            dtype,
            device: Device::flex(),
        };
        let loaded = source.load(&[request], &())?;
        Ok::<_, SourceError>(loaded[0].to_data().unwrap())
    };
    let first = load("numbers", [2, 1], DType::F16).unwrap();
    let expected = TensorData::new(vec![1.0_f32, 2.0], [2, 1]);
    assert_eq!(first, expected.convert_dtype(DType::F16));
    let error = load("numbers", [2, 2], DType::F16).unwrap_err();
    let message = format!("{error:?}");
    assert!(
        message.contains("Overflow") && message.contains("1000000"),
        "{message}"
    );
    for store in [BoolStore::Native, BoolStore::U8, BoolStore::U32] {
        let found = load("truths", [2, 2], DType::Bool(store)).unwrap();
        let found: Vec<bool> = found.iter::<bool>().collect();
        assert_eq!(found, [true, false, true, false], "{store:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Any region of a transposed matrix, from chunks of rows or columns, listed in any order, with and without a cast.
    #[test]
    fn matrices_are_transposed(
        seed in any::<u64>(),
        rows in 1usize..80,
        columns in 1usize..80,
        cut in any::<prop::sample::Index>(),
        by_columns in any::<bool>(),
        is_reversed in any::<bool>(),
        stored in prop::sample::select(FLOATS.to_vec()),
        dtype in prop::sample::select(FLOATS.to_vec()),
    ) {
        let mut random = Random(seed);
        // In the range of all types, however they are rounded: the largest of bf16 that f16 has is 65280.
        let values = (0..rows * columns).map(|_| random.next() as i32 as f32 % 65280.0);
        let values: Vec<f32> = values.collect();
        let value = |row: usize, column: usize| values[row * columns + column];
        let run = Run::on(Arc::new(Volatile::default()));
        let meta = CheckpointMeta {
            block_size: Some(BlockSize::new(64).unwrap()),
            ..CheckpointMeta::new(1, 1)
        };
        let attempt = run.begin(meta).unwrap();
        let cut = cut.index(if by_columns { columns } else { rows });
        let parts = if by_columns {
            [((0, 0), (rows, cut)), ((0, cut), (rows, columns - cut))]
        } else {
            [((0, 0), (cut, columns)), ((cut, 0), (rows - cut, columns))]
        };
        let mut tensors: Vec<SaveTensor> = parts
            .into_iter()
            .filter(|(_, (height, width))| height * width > 0)
            .map(|((r, c), (height, width))| {
                let part = (r..r + height).flat_map(|r| (c..c + width).map(move |c| (r, c)));
                let part: Vec<f32> = part.map(|(r, c)| value(r, c)).collect();
                SaveTensor {
                    name: "linear.weight".to_owned(),
                    tied: Vec::new(),
                    role: Role::Model,
                    shape: vec![rows as u64, columns as u64],
                    region: Region::new(vec![r as u64, c as u64], vec![height as u64, width as u64]).unwrap(),
                    data: TensorData::new(part, [height, width]).convert_dtype(stored).into(),
                }
            })
            .collect();
        if is_reversed {
            tensors.reverse();
        }
        attempt.handle().write_rank(0, &tensors, &BTreeMap::new(), &()).unwrap();
        attempt.publish(TIMEOUT).unwrap();
        let options = LoadOptions::default()
            .rename(Regex::new("^linear").unwrap(), "layers.0")
            .transpose(Regex::new(r"^layers\.\d+\.weight$").unwrap())
            .cast();
        let source = run.open(1).unwrap().source(options).unwrap();
        let mut part = |size: usize| {
            let (a, b) = (random.next() as usize % size, random.next() as usize % size);
            (a.min(b), a.max(b) - a.min(b) + 1)
        };
        let ((c, width), (r, height)) = (part(columns), part(rows));
        let region = Region::new(vec![c as u64, r as u64], vec![width as u64, height as u64]);
        let request = Request {
            path: ParameterPath::new("layers.0.weight"),
            clones: Vec::new(),
            shape: vec![columns as u64, rows as u64],
            region: region.unwrap(),
            dtype,
            device: Device::flex(),
        };
        let found = source.load(&[request], &()).unwrap()[0].to_data().unwrap();
        let expected = (c..c + width).flat_map(|c| (r..r + height).map(move |r| (r, c)));
        let expected: Vec<f32> = expected.map(|(r, c)| value(r, c)).collect();
        let expected = TensorData::new(expected, [width, height]);
        let expected = expected.convert_dtype(stored).convert_dtype(dtype);
        prop_assert_eq!(found, expected);
    }

    /// The plan of a load contains the bytes that the load reads, and each block once.
    #[test]
    fn a_dry_run_is_what_a_load_reads(
        seed in any::<u64>(),
        rows in 1u64..40,
        columns in 1u64..40,
        ranks in 1u64..4,
        by_columns in any::<bool>(),
    ) {
        let mut random = Random(seed);
        let store = Volatile::default();
        let run = Run::on(Arc::new(store.clone()));
        let ranks = ranks.min(if by_columns { columns } else { rows });
        let attempt = run.begin(CheckpointMeta {
            block_size: Some(BlockSize::new(64).unwrap()),
            ..CheckpointMeta::new(1, ranks as u32)
        }).unwrap();
        let shape = vec![rows, columns];
        for rank in 0..ranks {
            let (mut offset, mut size) = (vec![0, 0], shape.clone());
            let d = usize::from(by_columns);
            offset[d] = shape[d] * rank / ranks;
            size[d] = shape[d] * (rank + 1) / ranks - offset[d];
            let tensor = SaveTensor {
                name: "w".to_owned(),
                tied: Vec::new(),
                role: Role::Model,
                shape: shape.clone(),
                data: random.data(&[size[0] as usize, size[1] as usize], DType::F32).into(),
                region: Region::new(offset, size).unwrap(),
            };
            attempt.handle().write_rank(rank as u32, &[tensor], &BTreeMap::new(), &()).unwrap();
        }
        attempt.publish(TIMEOUT).unwrap();
        let checkpoint = run.open(1).unwrap();
        let mut part = |size: u64| {
            let (a, b) = (random.next() % size, random.next() % size);
            (a.min(b), a.max(b) - a.min(b) + 1)
        };
        let ((r, height), (c, width)) = (part(rows), part(columns));
        let request = Request {
            path: ParameterPath::new("w"),
            clones: Vec::new(),
            shape: shape.clone(),
            region: Region::new(vec![r, c], vec![height, width]).unwrap(),
            dtype: DType::F32,
            device: Device::flex(),
        };
        let source = checkpoint.source(LoadOptions::default().threads(1)).unwrap();
        let plan = source.dry_run(&[vec![request.clone()], Vec::new()]).unwrap();
        let before = store.bytes_read();
        source.load(&[request], &()).unwrap();
        let planned = &plan.ranks[0];
        prop_assert_eq!(store.bytes_read() - before, planned.read_bytes);
        prop_assert_eq!(planned.stored_bytes, height * width * 4);
        prop_assert!(planned.amplification() >= 1.0);
        prop_assert_eq!((plan.ranks[1].read_bytes, plan.ranks[1].files), (0, 0));
        // Nothing is read twice: not more than the size of all files.
        let all: u64 = checkpoint.manifest().files.iter().map(|file| file.size_bytes).sum();
        prop_assert!(planned.read_bytes <= all);
        prop_assert!(store.list("").is_ok());
    }
}
