//! Files and checkpoints with several names of one parameter.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use burn::{
    module::Module,
    nn::{Embedding, EmbeddingConfig},
    tensor::{DType, Device, TensorData},
};
use regex::Regex;
use safetensors::{Dtype, tensor::TensorView};
use tinderbox_checkpoint::{
    Checkpoint, CheckpointMeta, LoadOptions, Pretrained, Role, Run, SaveTensor,
    tools::{ConvertOptions, convert},
};
use tinderbox_checkpoint_tests::{Random, TIMEOUT, meta, volatile::Volatile};
use tinderbox_deferred::{
    Deferred, Mismatch, ParameterPath, Request, Source, SourceError, Values, random::Seed,
};
use tinderbox_fake::Region;

const ROWS: usize = 5;
const COLUMNS: usize = 3;
const SHARED: &str = "shared.weight";
const ENCODER: &str = "encoder.embed_tokens.weight";
const DECODER: &str = "decoder.embed_tokens.weight";

#[derive(Module, Debug)]
struct Net {
    shared: Embedding,
    encoder: Part,
    decoder: Part,
}

#[derive(Module, Debug)]
struct Part {
    embed_tokens: Embedding,
}

/// The three fields have one table.
fn tied() -> Deferred<Net> {
    let init = |device: &Device| {
        let shared = EmbeddingConfig::new(ROWS, COLUMNS).init(device);
        let part = || Part {
            embed_tokens: shared.clone(),
        };
        Net {
            encoder: part(),
            decoder: part(),
            shared,
        }
    };
    Deferred::new(init).unwrap()
}

/// The three fields have a table each.
fn untied() -> Deferred<Net> {
    let init = |device: &Device| {
        let table = || EmbeddingConfig::new(ROWS, COLUMNS).init(device);
        let part = || Part {
            embed_tokens: table(),
        };
        Net {
            shared: table(),
            encoder: part(),
            decoder: part(),
        }
    };
    Deferred::new(init).unwrap()
}

/// Writes tables as the package `safetensors` does.
fn write(path: &Path, tables: &[(&str, Vec<f32>)], metadata: &[(&str, &str)]) {
    let bytes = |values: &Vec<f32>| -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    };
    let tables: Vec<(&str, Vec<u8>)> = tables
        .iter()
        .map(|(name, values)| (*name, bytes(values)))
        .collect();
    let views = tables.iter().map(|(name, bytes)| {
        let shape = vec![ROWS, COLUMNS];
        (*name, TensorView::new(Dtype::F32, shape, bytes).unwrap())
    });
    let metadata = metadata.iter();
    let metadata = metadata.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let metadata: std::collections::HashMap<String, String> = metadata.collect();
    let metadata = Some(metadata).filter(|metadata| !metadata.is_empty());
    safetensors::serialize_to_file(views, metadata, path).unwrap();
}

fn filled(value: f32) -> Vec<f32> {
    vec![value; ROWS * COLUMNS]
}

fn tables_of(net: &Net) -> [Vec<f32>; 3] {
    [
        &net.shared,
        &net.encoder.embed_tokens,
        &net.decoder.embed_tokens,
    ]
    .map(|table| table.weight.val().into_data().try_to_vec().unwrap())
}

/// Returns the mismatches of a load.
fn mismatches(error: &SourceError) -> Vec<Mismatch> {
    match error {
        SourceError::Mismatch { mismatches, .. } => mismatches.0.clone(),
        error => panic!("another error: {error:?}"),
    }
}

fn differ(path: &str, other: &str) -> Mismatch {
    Mismatch::Differ {
        path: ParameterPath::new(path),
        other: ParameterPath::new(other),
    }
}

fn request(model: &Deferred<Net>) -> Request {
    let table = model.parameters();
    Request::of(table, table.find(SHARED).unwrap(), &Device::flex())
}

/// Every choice of the three names, each with one of two values, from a file and from a checkpoint.
#[test]
fn names_of_one_parameter_have_one_value() {
    let dir = tempfile::tempdir().unwrap();
    let (model, requests) = (tied(), [request(&tied())]);
    let choices = [None, Some(1.0), Some(-1.0)];
    for number in 0..27 {
        let names = [SHARED, ENCODER, DECODER].into_iter().enumerate();
        let given: Vec<(&str, f32)> = names
            .filter_map(|(at, name)| Some((name, choices[number / 3_usize.pow(at as u32) % 3]?)))
            .collect();
        let file = dir.path().join("model.safetensors");
        let tables: Vec<_> = given
            .iter()
            .map(|(name, of)| (*name, filled(*of)))
            .collect();
        write(&file, &tables, &[]);
        let weights = Pretrained::open(&file).unwrap();
        let plain = weights.source(LoadOptions::default()).unwrap();
        let run = Run::on(Arc::new(Volatile::default()));
        save(&run, 1, &tables);
        let saved = run.open(1).unwrap();
        let in_memory = tables.iter().map(|(name, values)| {
            let data = TensorData::new(values.clone(), [ROWS, COLUMNS]);
            let value = tinderbox_fake::DynTensor::from_data(data, &Device::flex());
            (ParameterPath::new(*name), value)
        });
        let in_memory: Values = in_memory.collect();

        let sources: [&dyn Source; 3] = [&plain, &saved, &in_memory];
        for source in sources {
            let described = source.describe();
            let Some((first, expected)) = given.first().copied() else {
                let error = source.load(&requests, &()).unwrap_err();
                let path = ParameterPath::new(SHARED);
                assert_eq!(mismatches(&error), [Mismatch::Missing { path }]);
                continue;
            };
            let others = given.iter().filter(|(_, value)| *value != expected);
            let others: Vec<Mismatch> = others.map(|(other, _)| differ(first, other)).collect();
            if others.is_empty() {
                source.check(model.parameters(), &requests).unwrap();
                let net = model.materialize(&Device::flex(), &source).unwrap();
                assert_eq!(
                    tables_of(&net),
                    [(); 3].map(|()| filled(expected)),
                    "{described}"
                );
                continue;
            }
            for _ in 0..2 {
                for uncached in [false, true] {
                    let loaded = match uncached {
                        true => source.load_uncached(&requests, &()),
                        false => source.load(&requests, &()),
                    };
                    assert_eq!(
                        mismatches(&loaded.unwrap_err()),
                        others,
                        "{described} {given:?}"
                    );
                }
            }
            assert!(model.materialize(&Device::flex(), &source).is_err());
            // Values of another source do not replace the comparison.
            let other = source.or_else(model.initializer(Seed::new(1)));
            assert!(model.materialize(&Device::flex(), &other).is_err());
        }
    }
}

fn save(run: &Run, step: u64, tables: &[(&str, Vec<f32>)]) {
    let attempt = run.begin(meta(step, 1)).unwrap();
    let tensors = tables.iter().map(|(name, values)| {
        let data = TensorData::new(values.clone(), [ROWS, COLUMNS]);
        SaveTensor::whole(*name, Role::Model, data)
    });
    let tensors: Vec<SaveTensor> = tensors.collect();
    let handle = attempt.handle();
    handle
        .write_rank(0, &tensors, &BTreeMap::new(), &())
        .unwrap();
    attempt.publish(TIMEOUT).unwrap();
}

#[test]
fn the_error_names_both() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.safetensors");
    write(
        &file,
        &[(SHARED, filled(1.0)), (DECODER, filled(-1.0))],
        &[],
    );
    let weights = Pretrained::open(&file).unwrap();
    let source = weights.source(LoadOptions::default()).unwrap();
    let error = source.load(&[request(&tied())], &()).unwrap_err();
    insta::assert_snapshot!(mismatches(&error)[0], @"values of shared.weight and decoder.embed_tokens.weight: they are one parameter of the model, and differ in the source; construct the model with a parameter for each, or leave one out of the source: rename it, with `allow_extra`");
    // That is a way out, and a model with three tables has them all.
    let renamed = LoadOptions::default()
        .rename(Regex::new("^decoder").unwrap(), "unused")
        .allow_extra();
    let source = weights.source(renamed).unwrap();
    let net = tied().materialize(&Device::flex(), &source).unwrap();
    assert_eq!(tables_of(&net)[2], filled(1.0));
    write(
        &file,
        &[
            (SHARED, filled(1.0)),
            (ENCODER, filled(2.0)),
            (DECODER, filled(-1.0)),
        ],
        &[],
    );
    let weights = Pretrained::open(&file).unwrap();
    let source = weights.source(LoadOptions::default()).unwrap();
    let net = untied().materialize(&Device::flex(), &source).unwrap();
    assert_eq!(tables_of(&net), [1.0, 2.0, -1.0].map(filled));
}

/// Values are compared where they are loaded.
#[test]
fn regions_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.safetensors");
    let mut other = filled(1.0);
    other[3 * COLUMNS..].fill(2.0);
    write(&file, &[(SHARED, filled(1.0)), (ENCODER, other)], &[]);
    let source = Pretrained::open(&file).unwrap();
    let source = source.source(LoadOptions::default()).unwrap();
    let whole = request(&tied());
    for _ in 0..2 {
        source.load(&[whole.rows(0, 3)], &()).unwrap();
        for (from, to) in [(0, 4), (3, 5), (0, 5), (2, 4)] {
            let error = source.load(&[whole.rows(from, to)], &()).unwrap_err();
            assert_eq!(
                mismatches(&error),
                [differ(SHARED, ENCODER)],
                "{from}..{to}"
            );
        }
    }
}

/// The files of T5 and BART, and the files of `save_model`, have one of the names.
#[test]
fn left_out_names_are_in_the_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.safetensors");
    let metadata = [
        (ENCODER, SHARED),
        ("format", "pt"),
        // A name that is not left out, and one that was not kept.
        (DECODER, SHARED),
        ("other", "nowhere"),
    ];
    write(
        &file,
        &[(SHARED, filled(1.0)), (DECODER, filled(2.0))],
        &metadata,
    );
    let weights = Pretrained::open(&file).unwrap();
    let by_name = weights.tensor(ENCODER).unwrap();
    assert_eq!(
        (&*by_name.name, &*by_name.tied),
        (SHARED, &[ENCODER.to_owned()][..])
    );
    let source = weights.source(LoadOptions::default()).unwrap();
    let net = untied().materialize(&Device::flex(), &source).unwrap();
    assert_eq!(tables_of(&net), [1.0, 1.0, 2.0].map(filled));
    // The names of a file are the names of its tensors, not of its metadata.
    let renamed = LoadOptions::default().rename(Regex::new("^shared.*").unwrap(), ENCODER);
    let source = weights.source(renamed.allow_missing()).unwrap();
    let first = untied().materialize_tensor(ENCODER, &Device::flex(), &source);
    assert_eq!(
        first
            .unwrap()
            .to_data()
            .unwrap()
            .try_to_vec::<f32>()
            .unwrap(),
        filled(1.0)
    );
    // A checkpoint that is made of it has the names too.
    let run = Run::local(dir.path().join("run"));
    let meta = CheckpointMeta::new(1, 1);
    convert(&weights, &run, meta, &ConvertOptions::default(), &()).unwrap();
    let net = untied()
        .materialize(&Device::flex(), &run.open(1).unwrap())
        .unwrap();
    assert_eq!(tables_of(&net), [1.0, 1.0, 2.0].map(filled));
}

/// Each block is read once for each name, and the blocks of other names only until they were compared.
#[test]
fn a_comparison_reads_each_name_once() {
    let store = Volatile::default();
    let run = Run::on(Arc::new(store.clone()));
    let tables = [SHARED, ENCODER, DECODER].map(|name| (name, filled(1.0)));
    save(&run, 1, &tables);
    let checkpoint = run.open(1).unwrap();
    let source = checkpoint.source(LoadOptions::default()).unwrap();
    let requests = vec![request(&tied())];
    let planned = source.dry_run(std::slice::from_ref(&requests)).unwrap();
    let read = || {
        let before = store.bytes_read();
        source.load(&requests, &()).unwrap();
        store.bytes_read() - before
    };
    let first = read();
    assert_eq!(planned.ranks[0].read_bytes, first);
    let bytes = (ROWS * COLUMNS * size_of::<f32>()) as u64;
    let header = checkpoint.manifest().files[0].header_bytes;
    assert_eq!((first - header, read(), read()), (3 * bytes, bytes, bytes));
    // Without other names nothing is compared.
    let one = vec![request(&untied())];
    let before = store.bytes_read();
    source.load(&one, &()).unwrap();
    assert_eq!(store.bytes_read() - before, bytes);
}

/// Large tables, one of them saved transposed, with every difference of one element that is at an end of a piece.
#[test]
fn large_tables_are_compared_in_pieces() {
    const SIZE: [usize; 2] = [1700, 1301];
    let data = Random(3).data(&SIZE, DType::I32);
    let values: Vec<i32> = data.try_to_vec().unwrap();
    let turned = |values: &[i32]| -> Vec<i32> {
        let [rows, columns] = SIZE;
        let column = |c: usize| (0..rows).map(move |r| values[r * columns + c]);
        (0..columns).flat_map(column).collect()
    };
    let piece = (8 << 20) / 4 / SIZE[1] * SIZE[1];
    let ends = [0, piece - 1, piece, values.len() - 1];
    let matrix = Regex::new("^c$").unwrap();
    for (step, end) in (1..).zip([None].into_iter().chain(ends.map(Some))) {
        let mut other = values.clone();
        if let Some(end) = end {
            other[end] ^= 1;
        }
        let run = Run::on(Arc::new(Volatile::default()));
        let attempt = run.begin(CheckpointMeta::new(step, 1)).unwrap();
        let tensors = [
            ("a", TensorData::new(values.clone(), SIZE)),
            ("b", TensorData::new(other.clone(), SIZE)),
            ("c", TensorData::new(turned(&other), [SIZE[1], SIZE[0]])),
        ];
        let tensors = tensors.map(|(name, data)| SaveTensor::whole(name, Role::Model, data));
        let handle = attempt.handle();
        handle
            .write_rank(0, &tensors, &BTreeMap::new(), &())
            .unwrap();
        attempt.publish(TIMEOUT).unwrap();
        let options = LoadOptions::default().transpose(matrix.clone());
        let source = run.open(step).unwrap().source(options.threads(3)).unwrap();
        let shape: Vec<u64> = SIZE.iter().map(|size| *size as u64).collect();
        for (path, others) in [("a", ["b", "c"]), ("c", ["a", "b"])] {
            let request = Request {
                path: ParameterPath::new(path),
                clones: others.map(ParameterPath::new).into(),
                region: Region::whole(&shape).unwrap(),
                shape: shape.clone(),
                dtype: DType::I32,
                device: Device::flex(),
            };
            let loaded = source.load(&[request], &());
            let expected = match (end, path) {
                (None, _) => Vec::new(),
                (Some(_), "a") => vec![differ("a", "b"), differ("a", "c")],
                (Some(_), _) => vec![differ("c", "a")],
            };
            match loaded {
                Ok(loaded) => {
                    assert_eq!(expected, [], "{end:?}");
                    assert_eq!(
                        loaded[0].to_data().unwrap().try_to_vec::<i32>().unwrap(),
                        values
                    );
                }
                Err(error) => assert_eq!(mismatches(&error), expected, "{end:?}"),
            }
        }
    }
}

/// A name whose tensor has another shape is a mismatch, unless it counts as missing.
#[test]
fn shapes_of_all_names_are_checked() {
    let run = Run::on(Arc::new(Volatile::default()));
    let attempt = run.begin(meta(1, 1)).unwrap();
    let table = |rows: usize| TensorData::new(vec![1.0_f32; rows * COLUMNS], [rows, COLUMNS]);
    let tensors = [(SHARED, table(ROWS)), (ENCODER, table(ROWS + 1))];
    let tensors = tensors.map(|(name, data)| SaveTensor::whole(name, Role::Model, data));
    let handle = attempt.handle();
    handle
        .write_rank(0, &tensors, &BTreeMap::new(), &())
        .unwrap();
    attempt.publish(TIMEOUT).unwrap();
    let checkpoint: Checkpoint = run.open(1).unwrap();
    let requests = [request(&tied())];
    let error = checkpoint
        .check(tied().parameters(), &requests)
        .unwrap_err();
    let [Mismatch::Shape { path, .. }] = &mismatches(&error)[..] else {
        panic!("another error: {error}");
    };
    assert_eq!(path.as_str(), ENCODER);
    let source = checkpoint
        .source(LoadOptions::default().allow_other_shapes())
        .unwrap();
    source.load(&requests, &()).unwrap();
}
