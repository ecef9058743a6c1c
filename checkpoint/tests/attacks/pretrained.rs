//! Weights of other programs: anything other than a valid file is rejected with its path.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use tinderbox_checkpoint::{Pretrained, StoredDType, encode_header};

/// Returns a file with one tensor of two bytes.
fn write_weights(path: &Path, values: [u8; 2]) {
    let header = encode_header(&[], &[("w", StoredDType::U8, &[2])]).unwrap();
    fs::write(path, [&header[..], &values].concat()).unwrap();
}

#[track_caller]
fn check(path: &Path, expected: &str) {
    // On a thread, so that an endless wait is a failure.
    let (sender, opened) = std::sync::mpsc::channel();
    let owned = path.to_owned();
    std::thread::spawn(move || sender.send(Pretrained::open(owned).map(drop)));
    let opened = opened.recv_timeout(Duration::from_secs(10));
    let error = opened.expect("it waits for ever").unwrap_err().chain();
    assert!(error.contains(expected), "no `{expected}` in: {error}");
}

#[test]
fn what_is_no_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    check(&at("nowhere"), "does not exist");
    check(&at("nowhere/.."), "does not end in a file name");
    check(dir.path(), "has neither model.safetensors nor");
    // A pipe waits for its writer, and a device may have no end.
    let made = std::process::Command::new("mkfifo")
        .arg(at("pipe"))
        .status();
    assert!(made.unwrap().success());
    check(&at("pipe"), "is not a regular file");
    check(Path::new("/dev/zero"), "is not a regular file");
    symlink(at("b"), at("a")).unwrap();
    symlink(at("a"), at("b")).unwrap();
    check(&at("a"), "can't open");
    fs::create_dir(at("model.safetensors")).unwrap();
    check(dir.path(), "is not a regular file");
    fs::write(at("huge.index.json"), "").unwrap();
    let huge = fs::File::options()
        .write(true)
        .open(at("huge.index.json"))
        .unwrap();
    huge.set_len(1 << 40).unwrap();
    check(&at("huge.index.json"), "file too large");
}

/// An incomplete download: the index is a dangling link, and an older model is next to it.
#[test]
fn an_index_that_leads_nowhere_is_not_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    write_weights(&dir.path().join("model.safetensors"), [1, 2]);
    let index = dir.path().join("model.safetensors.index.json");
    symlink(dir.path().join("missing"), index).unwrap();
    check(dir.path(), "model.safetensors.index.json");
}

#[test]
fn an_index_of_any_name_may_be_given() {
    let dir = tempfile::tempdir().unwrap();
    write_weights(&dir.path().join("one.safetensors"), [1, 2]);
    let index = dir.path().join("diffusion.safetensors.index.json");
    let text = r#"{"weight_map":{"w":"one.safetensors"}}"#;
    fs::write(&index, text).unwrap();
    let weights = Pretrained::open(&index).unwrap();
    let tensor = weights.tensor("w").unwrap();
    let read = weights.read(tensor, &tensor.chunks[0].region).unwrap();
    assert_eq!(read.as_bytes(), [1, 2]);
    fs::write(&index, text.replace("one", "../one")).unwrap();
    check(&index, "not a plain file name in the same directory");
}

/// Another file under the same name with the same header can't be distinguished from the first.
#[test]
fn a_file_that_is_replaced_is_not_mixed_in() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    write_weights(&path, [1, 2]);
    let weights = Pretrained::open(&path).unwrap();
    let other = dir.path().join("other");
    write_weights(&other, [8, 9]);
    fs::rename(other, &path).unwrap();
    let tensor = weights.tensor("w").unwrap();
    let read = weights.read(tensor, &tensor.chunks[0].region).unwrap();
    assert_eq!(read.as_bytes(), [1, 2]);
}
