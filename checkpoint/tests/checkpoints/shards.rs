//! Shards of PyTorch's `HuggingFaceStorageWriter`: whole tensors from their parts.

use std::{fs, path::Path, process::Command};

use burn::tensor::TensorData;
use proptest::prelude::*;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use tinderbox_checkpoint::{
    CheckpointMeta, Pretrained, Run,
    tools::{ConvertOptions, convert, diff},
};
use tinderbox_checkpoint_tests::Random;
use tinderbox_fake::Region;

/// A part of a tensor in a file: name, offset, size, dtype, bytes.
type Part = (&'static str, Vec<u64>, Vec<usize>, Dtype, Vec<u8>);

/// Writes a shard as PyTorch does.
fn write(path: &Path, parts: &[Part]) {
    let offsets = parts
        .iter()
        .map(|(name, offset, ..)| ((*name).to_owned(), json!({ "saved_offsets": offset })));
    let offsets: serde_json::Map<String, Value> = offsets.collect();
    write_with(path, parts, &Value::Object(offsets).to_string());
}

fn write_with(path: &Path, parts: &[Part], sharding: &str) {
    let metadata = [
        ("DCP_SHARDING_INFO", sharding),
        ("DCP_VERSION", "1.0"),
        ("format", "pt"),
    ];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let views = parts.iter().map(|(name, _, size, dtype, bytes)| {
        (*name, TensorView::new(*dtype, size.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, Some(metadata.into()), path).unwrap();
}

fn file(rank: usize, index: usize, count: usize) -> String {
    format!("shard-{rank:05}-model-{index:05}-of-{count:05}.safetensors")
}

fn bytes(elements: &[u16]) -> Vec<u8> {
    elements
        .iter()
        .flat_map(|element| element.to_le_bytes())
        .collect()
}

/// The elements of a box of a tensor whose elements are numbered, computed one by one.
fn numbered(shape: &[usize], offset: &[u64], size: &[usize]) -> Vec<u16> {
    let elements = size.iter().product();
    let element = |at: usize| {
        let (mut rest, mut number, mut stride) = (at, 0, 1);
        for d in (0..shape.len()).rev() {
            let index = offset[d] as usize + rest % size[d];
            rest /= size[d];
            number += index * stride;
            stride *= shape[d];
        }
        number as u16
    };
    (0..elements).map(element).collect()
}

/// Cuts a box at random until no part is cut further.
fn cut(
    random: &mut Random,
    offset: Vec<u64>,
    size: Vec<usize>,
    parts: &mut Vec<(Vec<u64>, Vec<usize>)>,
) {
    let sides: Vec<usize> = (0..size.len()).filter(|d| size[*d] > 1).collect();
    if sides.is_empty() || random.next().is_multiple_of(3) || parts.len() > 12 {
        return parts.push((offset, size));
    }
    let d = sides[random.next() as usize % sides.len()];
    let at = 1 + random.next() as usize % (size[d] - 1);
    let (mut second, mut first_size, mut second_size) =
        (offset.clone(), size.clone(), size.clone());
    second[d] += at as u64;
    first_size[d] = at;
    second_size[d] -= at;
    cut(random, offset, first_size, parts);
    cut(random, second, second_size, parts);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Any region of a tensor of any rank, cut into boxes that are on several ranks, and some ranks without a row of it.
    #[test]
    fn tensors_are_put_together(
        seed in any::<u64>(),
        shape in prop::collection::vec(1usize..7, 0..5),
        ranks in 1usize..5,
    ) {
        let mut random = Random(seed);
        let dir = tempfile::tempdir().unwrap();
        let mut boxes = Vec::new();
        cut(&mut random, vec![0; shape.len()], shape.clone(), &mut boxes);
        // A file has one part of a tensor, so there are at least as many ranks as parts.
        let ranks = ranks.max(boxes.len());
        for rank in 0..ranks {
            let mut parts: Vec<Part> = Vec::new();
            match boxes.get(rank) {
                Some((offset, size)) => {
                    let data = bytes(&numbered(&shape, offset, size));
                    parts.push(("w", offset.clone(), size.clone(), Dtype::U16, data));
                }
                None if !shape.is_empty() => {
                    let mut offset = vec![0; shape.len()];
                    offset[0] = shape[0] as u64;
                    let mut size = shape.clone();
                    size[0] = 0;
                    parts.push(("w", offset, size, Dtype::U16, Vec::new()));
                }
                None => {}
            }
            if rank == 0 {
                parts.push(("step", vec![], vec![], Dtype::I64, 9_i64.to_le_bytes().into()));
            }
            write(&dir.path().join(file(rank + 1, 1, 1)), &parts);
        }
        let weights = Pretrained::open(dir.path()).unwrap();
        let names: Vec<&str> = weights.tensors().map(|tensor| &*tensor.name).collect();
        prop_assert_eq!(names, ["step", "w"]);
        let tensor = weights.tensor("w").unwrap();
        let expected: Vec<u64> = shape.iter().map(|size| *size as u64).collect();
        prop_assert_eq!(&tensor.shape, &expected);
        for _ in 0..4 {
            let sides = shape.iter().map(|side| {
                let from = random.next() as usize % side;
                (from as u64, 1 + random.next() as usize % (side - from))
            });
            let (offset, size): (Vec<u64>, Vec<usize>) = sides.unzip();
            let expected = TensorData::new(numbered(&shape, &offset, &size), size.clone());
            let size = size.iter().map(|size| *size as u64).collect();
            let region = Region::new(offset, size).unwrap();
            prop_assert_eq!(weights.read(tensor, &region).unwrap(), expected);
        }
        // Saved again, they are whole.
        let run = Run::local(dir.path().join("run"));
        let meta = CheckpointMeta::new(1, 1);
        convert(&weights, &run, meta, &ConvertOptions::default(), &()).unwrap();
        let saved = run.open(1).unwrap();
        let found = diff(&weights, &saved, &()).unwrap();
        prop_assert!(found.is_empty() && found.equal_tensors == 2, "{found:?}");
        let tensor = saved.tensor(tinderbox_checkpoint::Role::Model, "w").unwrap();
        let whole = saved.read(tensor, &tensor.chunks[0].region).unwrap();
        let zero = vec![0; shape.len()];
        prop_assert_eq!(whole, TensorData::new(numbered(&shape, &zero, &shape), shape));
    }
}

/// Writes files, and returns the error of opening the directory or the path in it.
fn error_of(files: &[(String, Vec<Part>)], at: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    for (name, parts) in files {
        write(&dir.path().join(name), parts);
    }
    let path = match at {
        "" => dir.path().to_owned(),
        at => dir.path().join(at),
    };
    let error = Pretrained::open(path).map(drop).unwrap_err();
    error
        .chain()
        .replace(&dir.path().display().to_string(), "DIR")
}

fn rows(from: u64, count: usize, dtype: Dtype) -> Vec<Part> {
    let size = dtype.bitsize() / 8;
    vec![(
        "w",
        vec![from, 0],
        vec![count, 2],
        dtype,
        vec![0; count * 2 * size],
    )]
}

#[test]
fn parts_that_do_not_form_a_tensor_are_refused() {
    let f32 = |from, count| rows(from, count, Dtype::F32);
    // A missing file between others.
    let error = error_of(
        &[(file(1, 1, 1), f32(0, 2)), (file(3, 1, 1), f32(4, 2))],
        "",
    );
    insta::assert_snapshot!(error, @r#"the parts of tensor `w` in DIR do not form it; a shard may be missing, or be of another checkpoint; parts are in ["shard-00001-model-00001-of-00001.safetensors", "shard-00003-model-00001-of-00001.safetensors"]: 4 of 12 elements are in no chunk: every chunk must be saved"#);
    // The first one.
    let error = error_of(&[(file(2, 1, 1), f32(2, 2))], "");
    insta::assert_snapshot!(error, @r#"the parts of tensor `w` in DIR do not form it; a shard may be missing, or be of another checkpoint; parts are in ["shard-00002-model-00001-of-00001.safetensors"]: 4 of 8 elements are in no chunk: every chunk must be saved"#);
    // Files of two checkpoints, of another number of ranks.
    let error = error_of(
        &[(file(1, 1, 1), f32(0, 3)), (file(2, 1, 1), f32(2, 2))],
        "",
    );
    insta::assert_snapshot!(error, @r#"the parts of tensor `w` in DIR do not form it; a shard may be missing, or be of another checkpoint; parts are in ["shard-00001-model-00001-of-00001.safetensors", "shard-00002-model-00001-of-00001.safetensors"]: elements [2..3, 0..2] are contained twice, in chunks 0 and 1"#);
    let error = error_of(
        &[
            (file(1, 1, 1), f32(0, 2)),
            (file(2, 1, 1), rows(2, 2, Dtype::BF16)),
        ],
        "",
    );
    insta::assert_snapshot!(error, @"the parts of tensor `w` in DIR do not fit each other: F32 with 2 dimensions in shard-00001-model-00001-of-00001.safetensors, BF16 with 2 dimensions in shard-00002-model-00001-of-00001.safetensors");
    let flat: Vec<Part> = vec![("w", vec![2], vec![2], Dtype::F32, vec![0; 8])];
    let error = error_of(&[(file(1, 1, 1), f32(0, 2)), (file(2, 1, 1), flat)], "");
    insta::assert_snapshot!(error, @"the parts of tensor `w` in DIR do not fit each other: F32 with 2 dimensions in shard-00001-model-00001-of-00001.safetensors, F32 with 1 dimensions in shard-00002-model-00001-of-00001.safetensors");
    // No rank has a file of some index.
    let error = error_of(
        &[(file(1, 1, 3), f32(0, 2)), (file(2, 1, 3), f32(2, 2))],
        "",
    );
    insta::assert_snapshot!(error, @r#"DIR lacks shards of the model: ["shard-*-model-00002-of-00003.safetensors", "shard-*-model-00003-of-00003.safetensors"]; copy all files of the checkpoint"#);
    let error = error_of(&[(file(1, 1, 1), f32(0, 2))], &file(1, 1, 1));
    insta::assert_snapshot!(error, @"DIR/shard-00001-model-00001-of-00001.safetensors is one shard of a model: open its directory, which has the others");
    let huge: Vec<Part> = vec![("w", vec![u64::MAX, 0], vec![2, 2], Dtype::F32, vec![0; 16])];
    let error = error_of(&[(file(1, 1, 1), f32(0, 2)), (file(2, 1, 1), huge)], "");
    assert!(error.contains("the parts of tensor `w`"), "{error}");
}

#[test]
fn positions_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(file(1, 1, 1));
    let check = |sharding: &str, expected: &str| {
        write_with(&path, &rows(0, 2, Dtype::F32), sharding);
        let error = Pretrained::open(dir.path()).map(drop).unwrap_err().chain();
        assert!(error.contains(expected), "{sharding}: {error}");
    };
    check(
        "{",
        "has an invalid `DCP_SHARDING_INFO` in its metadata: EOF",
    );
    check("[]", "has an invalid `DCP_SHARDING_INFO`");
    check(r#"{"w":{}}"#, "missing field `saved_offsets`");
    check(r#"{"w":{"saved_offsets":[-1,0]}}"#, "invalid value");
    let lacks = "does not contain which part of tensor `w` it has";
    check("{}", lacks);
    check(r#"{"w":{"saved_offsets":[0]}}"#, lacks);
    check(
        r#"{"w":{"saved_offsets":[0,1]}}"#,
        "elements are in no chunk",
    );
    write_with(
        &path,
        &rows(0, 2, Dtype::F32),
        r#"{"w":{"saved_offsets":[0,0],"more":1}}"#,
    );
    Pretrained::open(dir.path()).unwrap();
    // A file without the name of a shard is not a shard.
    for name in [
        "shard-1-model-1-of-1.safetensors",
        "shard-00001-model-00001-of-00001.bin",
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::copy(&path, dir.path().join(name)).unwrap();
        let error = Pretrained::open(dir.path())
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(error.contains("no shards"), "{name}: {error}");
    }
}

/// Files that PyTorch 2.15 has written with `shards.py` from four processes: tensors that are divided by one or two dimensions,
/// or not. One of the tensors has no column for one of the processes.
#[test]
fn shards_of_pytorch_are_read() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/pytorch-2.15-shards");
    check_of_pytorch(Path::new(golden));
}

/// The same, by the PyTorch of this machine.
#[test]
fn shards_of_the_installed_pytorch_are_read() {
    let python = std::env::var("TINDERBOX_PYTORCH").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python)
        .args([
            "-c",
            "import torch.distributed.checkpoint.hf_storage, safetensors",
        ])
        .output();
    if !has.is_ok_and(|ran| ran.status.success()) {
        eprintln!(
            "NOT RUN: shards that PyTorch writes, because `{python}` has no torch and safetensors"
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/shards.py");
    let ran = Command::new(&python)
        .arg(script)
        .arg(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    check_of_pytorch(dir.path());
}

/// Checks the tensors of `shards.py`, whose elements are numbered.
fn check_of_pytorch(dir: &Path) {
    let weights = Pretrained::open(dir).unwrap();
    let tensors = weights
        .tensors()
        .map(|tensor| (&*tensor.name, &*tensor.shape));
    let expected: [(&str, &[u64]); 4] = [
        ("both", &[7, 6]),
        ("columns", &[3, 9]),
        ("rows", &[10, 4]),
        ("whole", &[5]),
    ];
    assert_eq!(tensors.collect::<Vec<_>>(), expected);
    for tensor in weights.tensors() {
        let whole = Region::whole(&tensor.shape).unwrap();
        let found = weights
            .read(tensor, &whole)
            .unwrap()
            .try_to_vec::<f32>()
            .unwrap();
        let expected: Vec<f32> = (0..found.len()).map(|at| at as f32).collect();
        assert_eq!(found, expected, "{}", tensor.name);
    }
}
