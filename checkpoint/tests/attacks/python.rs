//! Tests of the Python reader, which is written from `FORMAT.md` alone: it must reject every attack and
//! accept valid checkpoints.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    sync::LazyLock,
};

use serde_json::{Value, json};
use tinderbox_checkpoint::{Checkpoint, Digest, Role, Run, Scalar};
use tinderbox_checkpoint_tests::{Random, TIMEOUT, meta, names, save, small_contents};
use tinderbox_fake::Region;

use crate::forge::Victim;

/// Returns whether Python is installed.
static PYTHON: LazyLock<bool> = LazyLock::new(|| {
    let there = Command::new("python3").arg("--version").output().is_ok();
    if !there {
        eprintln!("NOT RUN: the reader in Python, because there is no `python3`");
    }
    there
});

/// Returns the output of the Python reader for a checkpoint, if Python is installed.
fn read(dir: &Path, tensor: &[&str]) -> Option<Output> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../read_checkpoint.py");
    PYTHON.then(|| {
        let mut python = Command::new("python3");
        python.arg(script).arg(dir).args(tensor);
        python.output().unwrap()
    })
}

/// Checks that the Python reader rejects the checkpoint, with a one-line error.
pub fn check_refused(dir: &Path) {
    let Some(output) = read(dir, &[]) else { return };
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(1),
        "it accepts the checkpoint: {message}"
    );
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
}

/// Returns the contents of a valid checkpoint according to the Python reader.
fn summary(dir: &Path) -> Option<Value> {
    let output = read(dir, &[])?;
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Checks that the Python reader and this crate read the same contents.
fn check_equal(dir: &Path) {
    let Some(summary) = summary(dir) else { return };
    let checkpoint = Checkpoint::open(dir).unwrap();
    let manifest = checkpoint.manifest();
    assert_eq!(summary["step"], manifest.step);
    assert_eq!(summary["seed"], manifest.seed);
    assert_eq!(summary["metadata"], manifest.metadata());
    assert_eq!(
        summary["plan"],
        checkpoint.plan().unwrap().unwrap_or_default()
    );
    let scalars = checkpoint.scalars().iter().map(|(name, value)| {
        let value = match value {
            Scalar::Int(value) => json!({"int": value}),
            Scalar::Uint(value) => json!({"uint": value}),
            Scalar::Bool(value) => json!({"bool": value}),
            Scalar::Float(value) => json!({"float": format!("{:016x}", value.to_bits())}),
        };
        json!({"name": name, "value": value})
    });
    assert_eq!(summary["scalars"], Value::from_iter(scalars));
    let mut listed = summary["tensors"].as_array().unwrap().iter();
    for (role, called) in [(Role::Model, "model"), (Role::State, "state")] {
        for tensor in checkpoint.tensors(role) {
            let whole = Region::whole(&tensor.shape).unwrap();
            let data = checkpoint.read(tensor, &whole).unwrap();
            let digest = Digest::of(data.as_bytes()).to_string();
            assert_eq!(
                *listed.next().unwrap(),
                json!([
                    called,
                    tensor.name,
                    tensor.dtype.to_string(),
                    tensor.shape,
                    digest
                ])
            );
            for name in [&tensor.name].into_iter().chain(&tensor.tied) {
                let bytes = read(dir, &[called, name]).unwrap().stdout;
                assert_eq!(bytes, data.as_bytes(), "{name}");
            }
        }
    }
    assert_eq!(listed.next(), None);
}

#[test]
fn it_reads_what_we_write() {
    for victim in [Victim::whole(), Victim::chunks(), Victim::first_version()] {
        check_equal(&victim.dir);
    }
    let run = tempfile::tempdir().unwrap();
    check_equal(&save(run.path(), meta(3, 1), &small_contents(3)));
    // With blocks that use the long form of the digest.
    let attempt = Run::local(run.path()).begin(tinderbox_checkpoint::CheckpointMeta::new(4, 1));
    let attempt = attempt.unwrap();
    let mut random = Random(4);
    let tensors: Vec<_> = [
        (Role::Model, "w", 70_001),
        (Role::State, "w.moment", 70_001),
    ]
    .into_iter()
    .map(|(role, name, elements)| {
        let data = random.data(&[elements], burn::tensor::DType::F16);
        tinderbox_checkpoint::SaveTensor::whole(name, role, data)
    })
    .collect();
    attempt
        .handle()
        .write_rank(0, &tensors, &Default::default(), &())
        .unwrap();
    check_equal(&attempt.publish(TIMEOUT).unwrap());
}

#[test]
fn it_finds_damage() {
    for victim in [Victim::whole(), Victim::chunks()] {
        for name in names(&victim.dir) {
            let path = victim.dir.join(&name);
            let sound = fs::read(&path).unwrap();
            let step = sound.len() / 12 + 1;
            for at in (0..sound.len()).step_by(step) {
                let mut damaged = sound.clone();
                damaged[at] ^= 1;
                fs::write(&path, &damaged).unwrap();
                check_refused(&victim.dir);
                fs::write(&path, &sound[..at]).unwrap();
                check_refused(&victim.dir);
            }
            fs::remove_file(&path).unwrap();
            check_refused(&victim.dir);
            fs::write(&path, &sound).unwrap();
        }
        assert_ne!(summary(&victim.dir), Some(Value::Null), "it is whole again");
    }
}

#[test]
fn it_accepts_a_newer_minor_version_and_refuses_a_feature() {
    let victim = Victim::whole();
    victim.reseal(|body| {
        body["minor"] = json!(7);
        body["later"] = json!({"a": [1]});
    });
    check_equal(&victim.dir);
    victim.reseal(|body| body["required_features"] = json!(["sparse"]));
    check_refused(&victim.dir);
}

/// Checks the digest test vectors in `FORMAT.md`.
#[test]
fn the_digests_of_the_text_are_right() {
    let text = include_str!("../../FORMAT.md");
    let rows = text.lines().filter_map(|line| {
        let (n, digest) = line.strip_prefix("| ")?.split_once(" | `")?;
        let digest = digest
            .strip_suffix("` |")
            .filter(|digest| digest.len() == 32)?;
        Some((n.parse::<usize>().ok()?, digest))
    });
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), 10);
    for (n, digest) in rows {
        let bytes: Vec<u8> = (0..n).map(|i| (i % 251) as u8).collect();
        assert_eq!(Digest::of(&bytes).to_string(), digest, "{n} bytes");
    }
}
