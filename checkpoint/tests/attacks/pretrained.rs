//! Weights of other programs: anything other than a valid file is rejected with its path.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use tinderbox_checkpoint::{LoadOptions, Pretrained, StoredDType, encode_header};

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
fn a_path_without_a_regular_file_is_refused() {
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

/// A repository that was cloned without Git LFS.
#[test]
fn a_pointer_of_git_lfs_is_named() {
    let pointer = "version https://git-lfs.github.com/spec/v1\n\
                   oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in [
        "model.safetensors",
        "model.bpk",
        "other.safetensors.index.json",
    ] {
        fs::write(at(name), pointer).unwrap();
        let error = Pretrained::open(at(name))
            .map(drop)
            .unwrap_err()
            .to_string();
        let expected =
            " is a pointer of Git LFS instead of the file: run `git lfs pull` in its repository";
        assert_eq!(error, format!("{}{expected}", at(name).display()));
    }
    let index = r#"{"weight_map":{"w":"model.safetensors"}}"#;
    fs::write(at("model.safetensors.index.json"), index).unwrap();
    check(dir.path(), "model.safetensors is a pointer of Git LFS");
    // A file that only begins alike.
    fs::write(at("short.safetensors"), &pointer[..20]).unwrap();
    check(&at("short.safetensors"), "the header has");
}

/// Some editors write a mark before an index.
#[test]
fn an_index_may_have_a_byte_order_mark() {
    let dir = tempfile::tempdir().unwrap();
    write_weights(&dir.path().join("one.safetensors"), [1, 2]);
    let index = dir.path().join("model.safetensors.index.json");
    let text = r#"{"weight_map":{"w":"one.safetensors"}}"#;
    fs::write(&index, format!("\u{feff}{text}")).unwrap();
    assert!(Pretrained::open(dir.path()).unwrap().tensor("w").is_some());
    fs::write(&index, format!("\u{feff}\u{feff}{text}")).unwrap();
    check(dir.path(), "is not a valid safetensors index");
}

/// A tensor that the index does not list is as one that it lists, unless two files have it.
#[test]
fn tensors_that_an_index_does_not_list() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let tensors: [(&str, StoredDType, &[u64]); 2] = [
        ("w", StoredDType::U8, &[2]),
        ("rotary.inv_freq", StoredDType::U8, &[1]),
    ];
    let header = encode_header(&[], &tensors).unwrap();
    fs::write(at("one"), [&header[..], &[1, 2, 3]].concat()).unwrap();
    write_weights(&at("two"), [4, 5]);
    let index = |map: &str| {
        let text = format!(r#"{{"weight_map":{map}}}"#);
        fs::write(at("model.safetensors.index.json"), text).unwrap();
    };
    index(r#"{"w":"one"}"#);
    let weights = Pretrained::open(dir.path()).unwrap();
    let check_model = |options: LoadOptions, names: &[&str]| {
        let model: Vec<_> = names
            .iter()
            .map(|name| {
                let size = if *name == "w" { 2 } else { 1 };
                ((*name).into(), vec![size], burn::tensor::DType::U8)
            })
            .collect();
        let source = weights.source(options).unwrap();
        source
            .check_model(&model)
            .map_err(|error| error.to_string())
    };
    let strict = LoadOptions::default;
    check_model(strict().allow_extra(), &["w"]).unwrap();
    check_model(strict(), &["w", "rotary.inv_freq"]).unwrap();
    let error = check_model(strict(), &["w"]).unwrap_err();
    assert!(error.ends_with("\n  extra: rotary.inv_freq"), "{error}");
    index(r#"{"rotary.inv_freq":"one","w":"two"}"#);
    check(dir.path(), r#"in two files: ["w"]"#);
    index(r#"{"w":"one","v":"two"}"#);
    check(
        dir.path(),
        r#"missing from the listed file: ["v"]; in two files: ["w"]"#,
    );
}
