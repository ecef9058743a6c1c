//! Models in many files, in a process that may open few. It has a program of its own, because the limit is the process's.
#![cfg(unix)]

use std::{collections::BTreeMap, fs, path::Path};

use burn::tensor::{DType, Device, TensorData};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tinderbox_checkpoint::{
    Checkpoint, CheckpointMeta, ErrorClass, LoadError, LoadOptions, Pretrained, Role, Run,
    SaveTensor, StoredDType, encode_header,
};
use tinderbox_deferred::{ParameterPath, Request, Source, SourceError};
use tinderbox_fake::Region;

const FILES: usize = 300;
/// Number of elements of a tensor: more than a page, so that the system reads around the cache.
const ELEMENTS: usize = 5000;

fn values(file: usize) -> Vec<u8> {
    (0..ELEMENTS).map(|at| (at * 7 + file) as u8).collect()
}

fn name(file: usize) -> String {
    format!("model-{:05}-of-{FILES:05}.safetensors", file + 1)
}

fn write(path: &Path, file: usize) {
    let tensor = format!("w{file}");
    let tensors = [(&*tensor, StoredDType::U8, &[ELEMENTS as u64][..])];
    let header = encode_header(&[], &tensors).unwrap();
    fs::write(path, [header, values(file)].concat()).unwrap();
}

fn requests() -> Vec<Request> {
    let request = |file: usize| Request {
        path: ParameterPath::new(format!("w{file}")),
        clones: Vec::new(),
        shape: vec![ELEMENTS as u64],
        region: Region::whole(&[ELEMENTS as u64]).unwrap(),
        dtype: DType::U8,
        device: Device::flex(),
    };
    (0..FILES).map(request).collect()
}

#[track_caller]
fn check_values(source: &dyn Source) {
    for _ in 0..2 {
        let cached = source.load(&requests(), &()).unwrap();
        let uncached = source.load_uncached(&requests(), &()).unwrap();
        for (file, (cached, uncached)) in cached.iter().zip(&uncached).enumerate() {
            let expected = TensorData::new(values(file), [ELEMENTS]);
            assert_eq!(cached.to_data().unwrap(), expected, "{file}");
            assert_eq!(uncached.to_data().unwrap(), expected, "{file}");
        }
    }
}

/// Returns the class and the text of the error of a load.
fn error_of(source: &dyn Source) -> (Option<ErrorClass>, String) {
    match source.load(&requests(), &()) {
        Err(SourceError::Failed { source, .. }) => {
            (LoadError::class_in(&*source), source.to_string())
        }
        other => panic!("no error of a file: {:?}", other.map(|values| values.len())),
    }
}

#[test]
fn few_files_are_open_at_a_time() {
    let limit = Rlimit {
        current: Some(64),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let at = |file: usize| dir.path().join(name(file));
    let map: BTreeMap<String, String> = (0..FILES)
        .map(|file| (format!("w{file}"), name(file)))
        .collect();
    (0..FILES).for_each(|file| write(&at(file), file));
    let index = serde_json::json!({ "weight_map": map });
    let index_path = dir.path().join("model.safetensors.index.json");
    fs::write(index_path, index.to_string()).unwrap();

    let open = || {
        let weights = Pretrained::open(dir.path()).unwrap();
        weights.source(LoadOptions::default().threads(8)).unwrap()
    };
    let source = open();
    check_values(&source);
    assert_eq!(
        getrlimit(Resource::Nofile),
        limit,
        "a library does not change the limit"
    );

    // Another file of the same name and contents, one that is longer, and one that was written to.
    let copy = dir.path().join("copy");
    fs::copy(at(250), &copy).unwrap();
    fs::rename(&copy, at(250)).unwrap();
    let (class, error) = error_of(&source);
    assert_eq!(class, Some(ErrorClass::Refused), "{error}");
    let expected = " was replaced or written to since it was opened: open the weights again";
    assert_eq!(error, format!("{}{expected}", at(250).display()));
    let source = open();
    write(&at(200), 200);
    let written = fs::File::options().write(true).open(at(200)).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(10);
    written.set_modified(later).unwrap();
    let (_, error) = error_of(&source);
    assert_eq!(error, format!("{}{expected}", at(200).display()));
    let source = open();
    fs::remove_file(at(299)).unwrap();
    let (_, error) = error_of(&source);
    assert_eq!(error, format!("file {} does not exist", at(299).display()));

    // A checkpoint of as many files.
    let run = Run::local(dir.path().join("run"));
    let attempt = run.begin(CheckpointMeta::new(1, FILES as u32)).unwrap();
    for file in 0..FILES {
        let data = TensorData::new(values(file), [ELEMENTS]);
        let tensor = SaveTensor::whole(format!("w{file}"), Role::Model, data);
        let handle = attempt.handle();
        handle
            .write_rank(file as u32, &[tensor], &BTreeMap::new(), &())
            .unwrap();
    }
    attempt.publish(std::time::Duration::from_secs(60)).unwrap();
    let checkpoint: Checkpoint = run.open(1).unwrap();
    assert_eq!(checkpoint.manifest().files.len(), FILES);
    check_values(
        &checkpoint
            .source(LoadOptions::default().threads(8))
            .unwrap(),
    );
    checkpoint.verify().unwrap();
}
