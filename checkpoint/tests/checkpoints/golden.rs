//! The format is stable: checkpoints of earlier versions can still be read, and checkpoints of the newest version
//! can still be written.
//!
//! After a deliberate change of the format, add a new minor version, and new directories, which this test
//! writes with `TINDERBOX_WRITE_GOLDEN=<directory>`. The old ones stay.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::TensorData;
use tinderbox_checkpoint::{Checkpoint, CheckpointMeta, ModuleTypes, Role, Run, SaveTensor};
use tinderbox_checkpoint_tests::{TIMEOUT, load, meta, names, small_contents};
use tinderbox_fake::Region;

/// Returns the types of the modules of whole tensors.
fn types() -> ModuleTypes {
    let types = [("", "Net"), ("embed", "Embedding"), ("norm", "LayerNorm")];
    types
        .map(|(path, name)| (path.to_owned(), name.to_owned()))
        .into_iter()
        .collect()
}

/// The settings that determined the losses, and digests of the results of the processor.
fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect()
}

fn settings() -> BTreeMap<String, String> {
    texts(&[("micro_batches", "4"), ("optimizer", "SgdConfig {}")])
}

fn numerics() -> BTreeMap<String, String> {
    texts(&[("sums", "0123456789abcdef")])
}

/// Returns whole tensors in several files of one rank, one of them tied, with a Hugging Face index.
fn save_whole(run_dir: &Path) -> PathBuf {
    let small_files = CheckpointMeta {
        file_bytes: 150,
        plan: Some(serde_json::json!({"stages": [0, 1]})),
        modules: types(),
        settings: settings(),
        numerics: numerics(),
        ..meta(11, 1)
    };
    let attempt = Run::local(run_dir).begin(small_files).unwrap();
    let (tensors, scalars) = small_contents(11);
    let tensors: Vec<_> = tensors
        .into_iter()
        .map(|((role, name), data)| {
            let mut tensor = SaveTensor::whole(name, role, data);
            if (tensor.role, &*tensor.name) == (Role::Model, "embed.weight") {
                tensor.tied.push("head.weight".to_owned());
            }
            tensor
        })
        .collect();
    attempt
        .handle()
        .write_rank(0, &tensors, &scalars, &())
        .unwrap();
    attempt.publish(TIMEOUT).unwrap()
}

/// Returns one tensor in chunks of two ranks, along both dimensions.
fn save_chunks(run_dir: &Path) -> PathBuf {
    let attempt = Run::local(run_dir).begin(meta(12, 2)).unwrap();
    for rank in 0..2u32 {
        let chunks = [(0, 2), (2, 1)].map(|(row, rows)| {
            let region = Region::new(vec![row, 3 * u64::from(rank)], vec![rows, 3]).unwrap();
            let elements = (0..rows).flat_map(|r| {
                (0..3).map(move |c| ((row + r) * 6 + u64::from(rank) * 3 + c) as f32)
            });
            SaveTensor {
                name: "w".to_owned(),
                tied: Vec::new(),
                role: Role::Model,
                shape: vec![3, 6],
                data: TensorData::new(elements.collect(), [rows as usize, 3]).into(),
                region,
            }
        });
        let handle = attempt.handle();
        handle
            .write_rank(rank, &chunks, &BTreeMap::new(), &())
            .unwrap();
    }
    attempt.publish(TIMEOUT).unwrap()
}

/// Opens a committed checkpoint and reads all of it.
fn committed(name: &str) -> Checkpoint {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR"));
    let checkpoint = Checkpoint::open(golden.join("golden").join(name)).unwrap();
    checkpoint.verify().unwrap();
    checkpoint
}

/// Opens the committed checkpoint after comparing it with one written now.
fn golden(name: &str, save: fn(&Path) -> PathBuf) -> Checkpoint {
    let run = tempfile::tempdir().unwrap();
    let dir = save(run.path());
    if let Ok(target) = std::env::var("TINDERBOX_WRITE_GOLDEN") {
        let target = Path::new(&target).join(name);
        fs::create_dir_all(&target).unwrap();
        for name in names(&dir) {
            fs::copy(dir.join(&name), target.join(name)).unwrap();
        }
    }
    let checkpoint = committed(name);
    let golden = checkpoint.dir();
    assert_eq!(names(&dir), names(golden));
    for name in names(&dir) {
        let [written, expected] = [&*dir, golden].map(|dir| {
            let bytes = fs::read(dir.join(&name)).unwrap();
            // The id of the attempt, and therefore the manifest's own digest, is always new.
            if name == "manifest.json" {
                let id = Checkpoint::open(dir)
                    .unwrap()
                    .manifest()
                    .attempt
                    .to_string();
                let text = String::from_utf8(bytes).unwrap();
                text[45..].replace(&id, "").into_bytes()
            } else {
                bytes
            }
        });
        assert!(written == expected, "{name} is written differently");
    }
    checkpoint
}

/// In version 1.0 the plan is in the manifest; later it is a file. The types of modules are there since version
/// 1.2, settings and numerics since version 1.3.
#[test]
fn whole_tensors() {
    let none = BTreeMap::new;
    for (checkpoint, modules, (saved, computed)) in [
        (
            committed("version-1"),
            ModuleTypes::default(),
            (none(), none()),
        ),
        (
            committed("version-1.1"),
            ModuleTypes::default(),
            (none(), none()),
        ),
        (committed("version-1.2"), types(), (none(), none())),
        (
            golden("version-1.3", save_whole),
            types(),
            (settings(), numerics()),
        ),
    ] {
        assert_eq!(checkpoint.manifest().modules(), modules);
        assert_eq!(checkpoint.manifest().settings(), saved);
        assert_eq!(checkpoint.manifest().numerics(), computed);
        assert_eq!(load(&checkpoint).unwrap(), small_contents(11));
        let head = checkpoint.tensor(Role::Model, "head.weight").unwrap();
        assert_eq!(head.name, "embed.weight");
        let plan = checkpoint.plan().unwrap().expect("it was saved with one");
        assert_eq!(plan, serde_json::json!({"stages": [0, 1]}));
        assert!(checkpoint.manifest().has_plan());
    }
}

#[test]
fn chunks() {
    for checkpoint in [
        committed("version-1-chunks"),
        committed("version-1.1-chunks"),
        committed("version-1.2-chunks"),
        golden("version-1.3-chunks", save_chunks),
    ] {
        let expected = TensorData::new((0..18).map(|i| i as f32).collect(), [3, 6]);
        let tensor = checkpoint.tensor(Role::Model, "w").unwrap();
        let whole = Region::whole(&tensor.shape).unwrap();
        assert_eq!(checkpoint.read(tensor, &whole).unwrap(), expected);
        assert_eq!(checkpoint.plan().unwrap(), None);
    }
}
