//! Attacks on the part of a rank, with correct digests.

use std::{collections::BTreeMap, fs, path::PathBuf};

use burn::tensor::TensorData;
use serde_json::{Value, json};
use tempfile::TempDir;
use tinderbox_checkpoint::{Attempt, FormatError, Role, Run, SaveError, SaveTensor};
use tinderbox_checkpoint_tests::{TIMEOUT, chain, meta, names};

use crate::forge::{body_of, sealed};

/// An attempt of two ranks that have both written.
struct Written {
    run: TempDir,
    attempt: Attempt,
    dir: PathBuf,
}

impl Written {
    fn new() -> Self {
        let run = tempfile::tempdir().unwrap();
        let attempt = Run::local(run.path()).begin(meta(1, 2)).unwrap();
        for (rank, name) in [(0, "a"), (1, "b")] {
            let data = TensorData::new(vec![1.0f32; 4], [4]);
            let tensor = SaveTensor::whole(name, Role::Model, data);
            let handle = attempt.handle();
            handle
                .write_rank(rank, &[tensor], &BTreeMap::new(), &())
                .unwrap();
        }
        let dir = run.path().join(&names(run.path())[0]);
        Self { run, attempt, dir }
    }

    fn part(&self) -> PathBuf {
        self.dir.join("part-rank-00001.json")
    }

    /// Publishes after modifying the part of rank 1.
    fn error(self, change: impl FnOnce(&mut Value)) -> SaveError {
        let mut body = body_of(&fs::read(self.part()).unwrap());
        change(&mut body);
        fs::write(self.part(), sealed(body.to_string().as_bytes())).unwrap();
        self.publish().unwrap_err()
    }

    fn publish(self) -> Result<PathBuf, SaveError> {
        let published = self.attempt.publish(TIMEOUT);
        let expected: &[&str] = if published.is_ok() {
            &["step-00000001"]
        } else {
            &[]
        };
        assert_eq!(names(self.run.path()), expected);
        published
    }
}

/// Checks the error of the part itself.
fn format_error(change: impl FnOnce(&mut Value)) -> FormatError {
    let written = Written::new();
    let part = written.part();
    match written.error(change) {
        SaveError::Part { path, source } => {
            assert_eq!(path, part);
            source
        }
        error => panic!("{}", chain(&error)),
    }
}

/// Checks the error of the merged manifest.
fn meta_error(change: impl FnOnce(&mut Value)) -> FormatError {
    match Written::new().error(change) {
        SaveError::Meta(source) => source,
        error => panic!("{}", chain(&error)),
    }
}

#[test]
fn a_resealed_part_is_accepted() {
    let written = Written::new();
    let body = body_of(&fs::read(written.part()).unwrap());
    fs::write(written.part(), sealed(body.to_string().as_bytes())).unwrap();
    written.publish().unwrap();
}

#[test]
fn a_part_of_another_attempt() {
    let written = Written::new();
    let (part, attempt) = (written.part(), written.attempt.handle().attempt());
    let error = written.error(|body| body["attempt"] = json!("0".repeat(32)));
    let SaveError::WrongPart {
        path,
        expected,
        found,
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((path, expected), (part, (1, attempt)));
    assert_eq!((found.0, found.1.to_string()), (1, "0".repeat(32)));
}

#[test]
fn a_part_of_another_rank() {
    for rank in [0, 2, u32::MAX] {
        let written = Written::new();
        let (part, attempt) = (written.part(), written.attempt.handle().attempt());
        let error = written.error(|body| body["rank"] = json!(rank));
        let SaveError::WrongPart {
            path,
            expected,
            found,
        } = error
        else {
            panic!("{error}");
        };
        let expected_parts = [(1, attempt), (rank, attempt)];
        assert_eq!((path, [expected, found]), (part, expected_parts));
    }
}

#[test]
fn a_part_with_files_of_another_rank_or_name() {
    for (field, value) in [
        ("rank", json!(0)),
        ("number", json!(1)),
        ("role", json!("state")),
        ("name", json!("model-rank-00000.safetensors")),
        ("name", json!("../../model-rank-00001.safetensors")),
        ("name", json!("/etc/passwd")),
        ("name", json!("part-rank-00000.json")),
    ] {
        let written = Written::new();
        let part = written.part();
        let error = written.error(|body| body["files"][0][field] = value);
        assert!(
            matches!(&error, SaveError::ForeignFile { path, rank: 1, .. } if *path == part),
            "{field}: {}",
            chain(&error)
        );
    }
}

#[test]
fn a_part_with_chunks_in_a_file_of_another_rank() {
    let error = meta_error(|body| {
        body["tensors"][0]["chunks"][0]["file"] = json!("model-rank-00000.safetensors");
    });
    // Rank 0 already has 16 bytes there.
    assert!(
        matches!(&error, FormatError::Data { file, .. } if file == "model-rank-00000.safetensors"),
        "{error}"
    );
    let error = meta_error(|body| body["tensors"][0]["chunks"][0]["file"] = json!("../x"));
    assert!(
        matches!(&error, FormatError::UnlistedFile { tensor, file } if tensor == "b" && file == "../x"),
        "{error}"
    );
}

#[test]
fn a_part_that_claims_a_tensor_of_another_rank() {
    let error = Written::new().error(|body| body["tensors"][0]["name"] = json!("a"));
    assert!(
        matches!(
            &error,
            SaveError::SavedTwice { tensor, first_rank: 0, second_rank: 1, .. } if tensor == "a"
        ),
        "{}",
        chain(&error)
    );
    let error = meta_error(|body| body["tensors"][0]["tied"] = json!(["a"]));
    assert!(
        matches!(&error, FormatError::Name { name, .. } if name == "a"),
        "{error}"
    );
}

#[test]
fn a_part_that_claims_a_huge_shape() {
    let error = meta_error(|body| {
        body["tensors"][0]["shape"] = json!([1u64 << 50]);
        body["tensors"][0]["chunks"][0]["size"] = json!([1u64 << 50]);
    });
    assert!(
        matches!(&error, FormatError::ChunkSize { tensor, .. } if tensor == "b"),
        "{error}"
    );
    let error = meta_error(|body| {
        body["tensors"][0]["shape"] = json!([1u64 << 62]);
        body["tensors"][0]["chunks"][0]["size"] = json!([1u64 << 62]);
    });
    assert!(
        matches!(&error, FormatError::Shape { tensor, .. } if tensor == "b"),
        "{error}"
    );
}

#[test]
fn a_part_of_another_format_or_version() {
    let error = format_error(|body| body["format"] = json!("tinderbox-checkpoint"));
    assert!(
        matches!(
            &error,
            FormatError::Format { expected: "tinderbox-checkpoint-part", found } if found == "tinderbox-checkpoint"
        ),
        "{error}"
    );
    let error = format_error(|body| {
        body["version"] = json!(2);
        body["files"] = json!("unknown form");
    });
    assert!(
        matches!(
            error,
            FormatError::Version {
                expected: 1,
                found: 2
            }
        ),
        "{error}"
    );
    let error = format_error(|body| body["later"] = json!(1));
    assert!(matches!(error, FormatError::Json { .. }), "{error}");
}
