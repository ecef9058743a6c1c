//! A damaged byte is detected and located; no contents of a file cause a panic of the reader.

use std::{collections::BTreeMap, fs, io::Write, path::Path};

use burn::tensor::{DType, Device, TensorData};
use tinderbox_checkpoint::{Checkpoint, CheckpointMeta, Digest, LoadError, LoadOptions, Role, Run};
use tinderbox_checkpoint_tests::{Contents, chain, load, meta, names, save, small_contents};
use tinderbox_deferred::{ParameterPath, Request, Source, SourceError};
use tinderbox_fake::Region;

const MODEL: &str = "model-rank-00000.safetensors";
const STATE: &str = "state-rank-00000.safetensors";
const INDEX: &str = "model.safetensors.index.json";

fn open_and_load(dir: &Path) -> Result<Contents, LoadError> {
    load(&Checkpoint::open(dir)?)
}

/// Replaces a file's bytes, runs a function, and restores the old bytes.
fn with_bytes<T>(path: &Path, bytes: &[u8], run: impl FnOnce() -> T) -> T {
    let old = fs::read(path).unwrap();
    overwrite(path, bytes);
    let result = run();
    overwrite(path, &old);
    result
}

/// Writes without truncating first, because some file systems then flush to the disk, and these tests write
/// thousands of times.
fn overwrite(path: &Path, bytes: &[u8]) {
    let mut file = fs::File::options().write(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
}

#[test]
fn a_flip_of_every_byte_is_found_and_named() {
    let run = tempfile::tempdir().unwrap();
    let contents = small_contents(3);
    let dir = save(run.path(), meta(1, 1), &contents);
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let mut tensors_named = 0;
    for name in names(&dir) {
        let path = dir.join(&name);
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            let found = with_bytes(&path, &flipped, || open_and_load(&dir));
            if name == INDEX {
                // No load reads the index: a flip has no effect there, and `verify` detects it.
                assert_eq!(found.unwrap(), contents);
                let error = with_bytes(&path, &flipped, || checkpoint.verify()).unwrap_err();
                assert!(chain(&error).contains(INDEX), "{error}");
                continue;
            }
            let error = found.expect_err(&format!("byte {at} of {name}"));
            assert!(chain(&error).contains(&name), "byte {at}: {error}");
            // In tensor data, the error names the tensor that contains the byte.
            for tensor in checkpoint
                .tensors(Role::Model)
                .chain(checkpoint.tensors(Role::State))
            {
                let chunk = &tensor.chunks[0];
                let holds =
                    (chunk.start_bytes..chunk.start_bytes + chunk.len_bytes).contains(&(at as u64));
                if chunk.file == name && holds {
                    let LoadError::DamagedTensor { tensor: found, .. } = &error else {
                        panic!("byte {at} of {name}: {error}");
                    };
                    assert_eq!(found, &tensor.name);
                    tensors_named += 1;
                }
            }
        }
    }
    let data: usize = contents.0.values().map(|d| d.as_bytes().len()).sum();
    assert_eq!(tensors_named, data, "every byte of data was flipped");
    assert_eq!(open_and_load(&dir).unwrap(), contents, "all is put back");
}

#[test]
fn every_truncation_is_found() {
    let run = tempfile::tempdir().unwrap();
    let contents = small_contents(4);
    let dir = save(run.path(), meta(1, 1), &contents);
    let checkpoint = Checkpoint::open(&dir).unwrap();
    for name in names(&dir) {
        let path = dir.join(&name);
        let bytes = fs::read(&path).unwrap();
        let longer = [&bytes[..], &[0]].concat();
        for cut in (0..bytes.len()).map(|at| &bytes[..at]).chain([&longer[..]]) {
            let found = with_bytes(&path, cut, || {
                if name == INDEX {
                    checkpoint.verify()
                } else {
                    // A reader that had it open before returns an error or is not affected.
                    assert!(load(&checkpoint).map_or(true, |loaded| loaded == contents));
                    Checkpoint::open(&dir).map(drop)
                }
            });
            let error = found.expect_err(&format!("{} bytes of {name}", cut.len()));
            assert!(chain(&error).contains(&name), "{error}");
        }
    }
}

#[test]
fn a_region_reads_only_its_blocks() {
    let run = tempfile::tempdir().unwrap();
    let mut contents = Contents::default();
    // 4 blocks of 64 bytes.
    let data = TensorData::new((0..64).collect::<Vec<i32>>(), [64]);
    contents.0.insert((Role::Model, "w".into()), data);
    let dir = save(run.path(), meta(1, 1), &contents);
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let tensor = checkpoint.tensor(Role::Model, "w").unwrap();
    let mut bytes = fs::read(dir.join(MODEL)).unwrap();
    bytes[tensor.chunks[0].start_bytes as usize + 70] ^= 1;
    fs::write(dir.join(MODEL), bytes).unwrap();
    for (offset, size, intact) in [
        (0, 16, true),
        (15, 1, true),
        (15, 2, false),
        (16, 1, false),
        (31, 1, false),
        (32, 32, true),
    ] {
        let region = Region::new(vec![offset], vec![size]).unwrap();
        let found = checkpoint.read(tensor, &region);
        assert_eq!(found.is_ok(), intact, "{region}: {found:?}");
    }
}

/// Blocks that begin and end anywhere in a page, and a flip in each, read through the cache of the system and around it.
#[test]
fn a_flip_is_found_around_the_cache() {
    let run = tempfile::tempdir().unwrap();
    let values = (0..600_001).map(|at| at as f32).collect::<Vec<f32>>();
    let mut contents = Contents::default();
    for (name, from) in [("a", 599_998), ("b", 0), ("c", 0)] {
        let data = TensorData::new(values[from..].to_vec(), [values.len() - from]);
        contents.0.insert((Role::Model, name.into()), data);
    }
    let meta = CheckpointMeta::new(1, 1);
    let dir = save(run.path(), meta, &contents);
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let source = checkpoint.source(LoadOptions::default()).unwrap();
    let request = |name: &str| {
        let tensor = checkpoint.tensor(Role::Model, name).unwrap();
        Request {
            path: ParameterPath::new(name),
            clones: Vec::new(),
            shape: tensor.shape.clone(),
            region: Region::whole(&tensor.shape).unwrap(),
            dtype: DType::F32,
            device: Device::flex(),
        }
    };
    let requests = ["a", "b", "c"].map(request);
    let expected: Vec<&TensorData> = contents.0.values().collect();
    let loaded = source.load_uncached(&requests, &()).unwrap();
    let loaded: Vec<TensorData> = loaded.iter().map(|v| v.to_data().unwrap()).collect();
    assert_eq!(loaded.iter().collect::<Vec<_>>(), expected);
    let tensor = checkpoint.tensor(Role::Model, "c").unwrap();
    let chunk = &tensor.chunks[0];
    let path = dir.join(&chunk.file);
    let bytes = fs::read(&path).unwrap();
    for at in [0, 1 << 20, 2 << 20, chunk.len_bytes - 1] {
        let mut flipped = bytes.clone();
        flipped[(chunk.start_bytes + at) as usize] ^= 1;
        let found = with_bytes(&path, &flipped, || source.load_uncached(&requests, &()));
        let error = chain(&found.map(drop).unwrap_err());
        assert!(error.contains("`c`"), "{error}");
    }
}

#[test]
fn a_file_of_another_checkpoint_is_refused() {
    let run = tempfile::tempdir().unwrap();
    let first = save(run.path(), meta(1, 1), &small_contents(5));
    let second = save(run.path(), meta(2, 1), &small_contents(6));
    fs::copy(first.join(MODEL), second.join(MODEL)).unwrap();
    let error = open_and_load(&second).unwrap_err();
    assert!(matches!(error, LoadError::DamagedTensor { .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn links_and_directories_are_refused() {
    let run = tempfile::tempdir().unwrap();
    let dir = save(run.path(), meta(1, 1), &small_contents(7));
    for name in ["manifest.json", MODEL, STATE] {
        let (path, aside) = (dir.join(name), run.path().join(name));
        fs::rename(&path, &aside).unwrap();
        std::os::unix::fs::symlink(&aside, &path).unwrap();
        let error = Checkpoint::open(&dir).unwrap_err();
        assert!(
            matches!(error, LoadError::NotAFile { .. }),
            "{name}: {error}"
        );
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = Checkpoint::open(&dir).unwrap_err();
        assert!(
            matches!(error, LoadError::NotAFile { .. }),
            "{name}: {error}"
        );
        fs::remove_dir(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
    }
    open_and_load(&dir).unwrap();
}

#[test]
fn all_mismatches_are_listed_at_once() {
    let run = tempfile::tempdir().unwrap();
    let dir = save(run.path(), meta(1, 1), &small_contents(8));
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let model = [
        ("embed.weight", vec![7, 5], DType::F32),
        ("head.bias", vec![3], DType::F32),
        ("norm.gamma", vec![3], DType::F32),
        ("time", vec![], DType::I64),
    ];
    let at = dir.display();
    let listed = model.clone().map(|(n, s, d)| (ParameterPath::new(n), s, d));
    let source = checkpoint.source(LoadOptions::default()).unwrap();
    assert_eq!(
        source.check_model(&listed).unwrap_err().to_string(),
        format!(
            "{at} does not fit the model, nothing was loaded:
  shape of embed.weight: the model has [7, 5], the source [5, 7]
  missing: head.bias
  dtype of norm.gamma: the model has f32, the source bf16
  missing: time
  extra: mask"
        )
    );
    let mut requests = model.map(|(name, shape, dtype)| Request {
        path: ParameterPath::new(name),
        clones: Vec::new(),
        region: Region::whole(&shape).unwrap(),
        shape,
        dtype,
        device: Device::flex(),
    });
    requests[2].region = Region::new(vec![2], vec![2]).unwrap();
    let error = checkpoint.load(&requests, &()).unwrap_err();
    assert!(matches!(error, SourceError::Mismatch { .. }));
    assert_eq!(
        error.to_string(),
        format!(
            "checkpoint {at} does not fit the model, nothing was loaded:
  shape of embed.weight: the model has [7, 5], the source [5, 7]
  missing: head.bias
  dtype of norm.gamma: the model has f32, the source bf16
  region of norm.gamma: region [2..4] reaches past the shape [3]
  missing: time"
        )
    );
    let error = checkpoint.state(&["mask", "time", "x"], &()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{at} does not hold optimizer state [\"mask\", \"x\"]")
    );
    let exact: Vec<_> = checkpoint
        .tensors(Role::Model)
        .map(|t| {
            (
                ParameterPath::new(&*t.name),
                t.shape.clone(),
                t.dtype.burn(),
            )
        })
        .collect();
    source.check_model(&exact).unwrap();
}

#[test]
fn damage_reaches_the_user_of_a_source() {
    let run = tempfile::tempdir().unwrap();
    let dir = save(run.path(), meta(1, 1), &small_contents(9));
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let tensor = checkpoint.tensor(Role::Model, "mask").unwrap();
    let request = Request {
        path: ParameterPath::new("mask"),
        clones: Vec::new(),
        shape: tensor.shape.clone(),
        region: Region::whole(&tensor.shape).unwrap(),
        dtype: tensor.dtype.burn(),
        device: Device::flex(),
    };
    checkpoint
        .load(std::slice::from_ref(&request), &())
        .unwrap();
    let mut bytes = fs::read(dir.join(MODEL)).unwrap();
    bytes[tensor.chunks[0].start_bytes as usize] ^= 2;
    fs::write(dir.join(MODEL), bytes).unwrap();
    let error = checkpoint.load(&[request], &()).unwrap_err();
    let text = chain(&error);
    assert!(
        text.contains("tensor `mask` is damaged") && text.contains(MODEL),
        "{text}"
    );
}

#[test]
fn latest_skips_what_can_not_be_used() {
    let run = tempfile::tempdir().unwrap();
    assert!(Run::local(run.path()).latest().unwrap().is_none());
    assert!(
        Run::local(run.path().join("none"))
            .latest()
            .unwrap()
            .is_none()
    );
    let contents: BTreeMap<u64, _> = (1..=4).map(|s| (s, small_contents(s))).collect();
    for (step, contents) in &contents {
        save(run.path(), meta(*step, 1), contents);
    }
    let step = |n: u64| run.path().join(format!("step-{n:08}"));
    let latest = || {
        Run::local(run.path())
            .latest()
            .map(|found| found.unwrap().checkpoint.step())
    };
    assert_eq!(latest().unwrap(), 4);
    // Not checkpoints: a foreign name, an attempt, a file.
    fs::rename(step(4), run.path().join("step-4")).unwrap();
    fs::create_dir(run.path().join(".attempt-9-x")).unwrap();
    fs::write(step(9), "").unwrap();
    assert_eq!(latest().unwrap(), 3);
    // No manifest, a damaged one, a missing file, another step.
    fs::create_dir(step(8)).unwrap();
    let mut bytes = fs::read(step(3).join("manifest.json")).unwrap();
    bytes[100] ^= 1;
    fs::write(step(3).join("manifest.json"), bytes).unwrap();
    assert_eq!(latest().unwrap(), 2);
    fs::remove_file(step(2).join(STATE)).unwrap();
    assert_eq!(latest().unwrap(), 1);
    fs::rename(step(1), step(7)).unwrap();
    let error = latest().unwrap_err();
    let LoadError::NoneUsable { reasons, .. } = &error else {
        panic!("{error}");
    };
    assert!(matches!(
        &reasons[..],
        [
            LoadError::NotPublished { .. },
            LoadError::WrongStep { .. },
            LoadError::Manifest { .. },
            LoadError::FileMissing { .. }
        ]
    ));
    let text = error.to_string();
    assert!(text.contains("step-00000008 has no manifest"), "{text}");
    let expected = "step-00000007 holds step 1; its name specifies step 7";
    assert!(
        text.contains(expected) && text.contains("none of the 4 checkpoint(s)"),
        "{text}"
    );
}

/// Modifies a manifest and recomputes its digest, like an attacker.
fn reseal(dir: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let path = dir.join("manifest.json");
    let mut whole: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut whole["body"]);
    let body = whole["body"].to_string();
    let digest = Digest::of(body.as_bytes());
    let sealed = format!("{{\"xxh3_128\":\"{digest}\",\"body\":{body}}}\n");
    fs::write(path, sealed).unwrap();
}

#[test]
fn a_header_that_names_other_tensors_is_refused() {
    let run = tempfile::tempdir().unwrap();
    let dir = save(run.path(), meta(1, 1), &small_contents(10));
    let path = dir.join(MODEL);
    let old = fs::read(&path).unwrap();
    let at = |needle: &[u8]| old.windows(needle.len()).position(|w| w == needle).unwrap();
    for (from, to, expected) in [
        (
            "mask",
            "task",
            "tensor `mask` does not match its entry in the manifest",
        ),
        ("[5,7]", "[7,5]", "tensor `embed.weight` does not match"),
        ("BF16", "F1.6", "dtype F1.6"),
        ("[5,7]", "[5,8]", "has 160 bytes by its shape"),
    ] {
        let mut bytes = old.clone();
        let start = at(from.as_bytes());
        bytes[start..start + to.len()].copy_from_slice(to.as_bytes());
        fs::write(&path, &bytes).unwrap();
        reseal(&dir, |body| {
            let header = body["files"][0]["header_bytes"].as_u64().unwrap() as usize;
            let digest = Digest::of(&bytes[..header]).to_string();
            body["files"][0]["header_digest"] = digest.into();
        });
        let text = chain(&open_and_load(&dir).unwrap_err());
        assert!(text.contains(expected) && text.contains(MODEL), "{text}");
    }
}

#[test]
fn a_truth_value_that_is_neither_is_refused() {
    let run = tempfile::tempdir().unwrap();
    let mut contents = Contents::default();
    let data = TensorData::new(vec![true, false], [2]);
    contents.0.insert((Role::Model, "m".into()), data);
    let dir = save(run.path(), meta(1, 1), &contents);
    let mut bytes = fs::read(dir.join(MODEL)).unwrap();
    let last = bytes.len() - 1;
    bytes[last] = 2;
    fs::write(dir.join(MODEL), &bytes).unwrap();
    reseal(&dir, |body| {
        let digest = Digest::of(&[1, 2]).to_string();
        body["tensors"][0]["chunks"][0]["digests"][0] = digest.into();
    });
    let error = open_and_load(&dir).unwrap_err();
    assert!(matches!(error, LoadError::InvalidBoolean { .. }), "{error}");
    let error = Checkpoint::open(&dir).unwrap().verify().unwrap_err();
    assert!(matches!(error, LoadError::InvalidBoolean { .. }), "{error}");
}

#[test]
fn a_claimed_size_is_never_allocated() {
    let run = tempfile::tempdir().unwrap();
    let mut contents = Contents::default();
    let data = TensorData::new(vec![1u8; 64], [64]);
    contents.0.insert((Role::Model, "m".into()), data);
    let dir = save(run.path(), meta(1, 1), &contents);
    // A valid manifest of a petabyte, with a file of 100 bytes.
    reseal(&dir, |body| {
        let header = body["files"][0]["header_bytes"].as_u64().unwrap();
        let claimed = 64u64 << 44;
        body["block_bytes"] = (64 << 20).into();
        body["files"][0]["size_bytes"] = (header + claimed).into();
        body["tensors"][0]["shape"] = vec![claimed].into();
        let chunk = &mut body["tensors"][0]["chunks"][0];
        chunk["size"] = vec![claimed].into();
        chunk["len_bytes"] = claimed.into();
        let digests = vec!["0".repeat(32); 1];
        chunk["digests"] = digests.into();
    });
    let error = Checkpoint::open(&dir).unwrap_err();
    assert!(chain(&error).contains("does not match its size"), "{error}");
    // With the correct number of digests, the size of the file decides.
    reseal(&dir, |body| {
        let header = body["files"][0]["header_bytes"].as_u64().unwrap();
        let claimed = 64u64 << 30;
        body["files"][0]["size_bytes"] = (header + claimed).into();
        body["tensors"][0]["shape"] = vec![claimed].into();
        let chunk = &mut body["tensors"][0]["chunks"][0];
        chunk["size"] = vec![claimed].into();
        chunk["len_bytes"] = claimed.into();
        chunk["digests"] = vec!["0".repeat(32); 1 << 10].into();
    });
    let error = Checkpoint::open(&dir).unwrap_err();
    assert!(matches!(error, LoadError::FileSize { .. }), "{error}");
}
