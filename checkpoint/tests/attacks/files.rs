//! Attacks on the files of a checkpoint: replaced files, and paths that are not files.

use std::{collections::BTreeMap, fs};

use burn::tensor::TensorData;
use serde_json::json;
use tinderbox_checkpoint::{
    BlockSize, Checkpoint, CheckpointMeta, HeaderError, LoadError, Role, Run,
};
use tinderbox_checkpoint_tests::{Contents, chain, load, meta, names, save, small_contents};
use tinderbox_fake::Region;

use crate::forge::{FIRST, SMALL, Victim};

#[test]
fn a_manifest_of_a_run_with_the_same_names() {
    let run = tempfile::tempdir().unwrap();
    let other = save(run.path(), meta(11, 1), &small_contents(1));
    let victim = save(run.path(), meta(12, 1), &small_contents(2));
    fs::copy(other.join("manifest.json"), victim.join("manifest.json")).unwrap();
    let error = load(&Checkpoint::open(&victim).unwrap()).unwrap_err();
    assert!(
        matches!(
            &error,
            LoadError::DamagedTensor { path, tensor, .. } if tensor == "embed.weight" && *path == victim.join(FIRST)
        ),
        "{}",
        chain(&error)
    );
}

#[test]
fn a_manifest_of_a_run_with_other_names() {
    let run = tempfile::tempdir().unwrap();
    let mut other = small_contents(1);
    let mask = other.0.remove(&(Role::Model, "mask".to_owned())).unwrap();
    other.0.insert((Role::Model, "task".to_owned()), mask);
    let other = save(run.path(), meta(11, 1), &other);
    let victim = save(run.path(), meta(12, 1), &small_contents(1));
    fs::copy(other.join("manifest.json"), victim.join("manifest.json")).unwrap();
    let error = load(&Checkpoint::open(&victim).unwrap()).unwrap_err();
    assert!(
        matches!(
            &error,
            LoadError::DamagedFile { path, what: "header", .. } if *path == victim.join(FIRST)
        ),
        "{}",
        chain(&error)
    );
}

#[test]
fn a_file_of_another_run_that_the_manifest_lists() {
    let victim = Victim::whole();
    // The same length and a correct digest; only the names differ.
    victim.replace_header_json(SMALL, |json| json.replace("\"mask\"", "\"task\""));
    let error = victim.header_error(SMALL);
    assert!(
        matches!(&error, HeaderError::NotAsListed { tensor } if tensor == "mask"),
        "{error}"
    );
}

#[test]
fn files_of_two_ranks_that_change_places() {
    let victim = Victim::chunks();
    let (one, other) = (
        victim.dir.join(FIRST),
        victim.dir.join("model-rank-00001.safetensors"),
    );
    let aside = victim.run().join("aside");
    fs::rename(&one, &aside).unwrap();
    fs::rename(&other, &one).unwrap();
    fs::rename(&aside, &other).unwrap();
    let error = victim.error();
    assert!(
        matches!(&error, LoadError::DamagedFile { path, what: "header", .. } if *path == one),
        "{}",
        chain(&error)
    );
    // Also if the manifest is replaced together with the headers: the chunks differ.
    victim.reseal(|body| {
        let files = body["files"].as_array_mut().unwrap();
        let digests: Vec<_> = files.iter().map(|f| f["header_digest"].clone()).collect();
        files[0]["header_digest"] = digests[1].clone();
        files[1]["header_digest"] = digests[0].clone();
    });
    let error = victim.header_error(FIRST);
    assert!(
        matches!(&error, HeaderError::NotAsListed { tensor } if tensor == "w[0..2, 0..3]"),
        "{error}"
    );
}

#[test]
fn a_file_that_the_manifest_lists_and_is_not_there() {
    let victim = Victim::whole();
    fs::remove_file(victim.dir.join(SMALL)).unwrap();
    let error = victim.error();
    assert!(
        matches!(&error, LoadError::FileMissing { path } if *path == victim.dir.join(SMALL)),
        "{}",
        chain(&error)
    );
}

#[test]
fn a_step_directory_that_is_a_file() {
    let run = tempfile::tempdir().unwrap();
    let dir = run.path().join("step-00000001");
    fs::write(&dir, "").unwrap();
    assert!(Run::local(run.path()).latest().unwrap().is_none());
    let error = Run::local(run.path()).open(1).unwrap_err();
    assert!(
        matches!(&error, LoadError::Io(error) if error.path == dir.join("manifest.json")),
        "{}",
        chain(&error)
    );
}

#[test]
fn a_tensor_of_another_checkpoint() {
    let run = tempfile::tempdir().unwrap();
    let data = TensorData::new((0..100).collect::<Vec<i32>>(), [100]);
    let contents: Contents = (
        BTreeMap::from([((Role::Model, "w".to_owned()), data)]),
        BTreeMap::new(),
    );
    let [small, large] = [(1, 64), (2, 1024)].map(|(step, block_bytes)| {
        let meta = CheckpointMeta {
            block_size: Some(BlockSize::new(block_bytes).unwrap()),
            ..meta(step, 1)
        };
        Checkpoint::open(save(run.path(), meta, &contents)).unwrap()
    });
    let whole = Region::whole(&[100]).unwrap();
    for (of, with) in [(&small, &large), (&large, &small)] {
        let tensor = of.tensor(Role::Model, "w").unwrap();
        assert!(with.read(tensor, &whole).is_err());
    }
}

#[test]
fn a_bit_of_every_file_of_a_resealed_checkpoint() {
    // The forged digests are as valid as the writer's.
    let victim = Victim::whole();
    victim.reseal(|body| body["metadata"] = json!(null));
    let checkpoint = Checkpoint::open(&victim.dir).unwrap();
    for name in names(&victim.dir) {
        if name == "manifest.json" {
            continue;
        }
        let path = victim.dir.join(&name);
        let old = fs::read(&path).unwrap();
        let mut bytes = old.clone();
        *bytes.last_mut().unwrap() ^= 0x80;
        fs::write(&path, bytes).unwrap();
        let text = chain(&checkpoint.verify().unwrap_err());
        assert!(text.contains(&name), "{text}");
        fs::write(&path, old).unwrap();
    }
    checkpoint.verify().unwrap();
}

#[cfg(unix)]
mod unix {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use super::*;

    #[test]
    fn a_step_directory_that_is_a_link() {
        let victim = Victim::whole();
        let run = tempfile::tempdir().unwrap();
        symlink(&victim.dir, run.path().join("step-00000011")).unwrap();
        let run = Run::local(run.path());
        assert_eq!(run.steps().unwrap(), [11]);
        // A removal does not change the target of the link.
        let before = names(&victim.dir);
        run.remove(11).unwrap();
        assert_eq!(run.steps().unwrap(), [0u64; 0]);
        assert_eq!(names(&victim.dir), before);
    }

    #[test]
    fn links_that_lead_nowhere() {
        for name in ["manifest.json", FIRST] {
            let victim = Victim::whole();
            let path = victim.dir.join(name);
            fs::remove_file(&path).unwrap();
            for target in ["nothing", name] {
                symlink(target, &path).unwrap();
                let error = Checkpoint::open(&victim.dir).unwrap_err();
                assert!(
                    matches!(&error, LoadError::NotAFile { path: found } if *found == path),
                    "{name} to {target}: {}",
                    chain(&error)
                );
                fs::remove_file(&path).unwrap();
            }
        }
    }

    #[test]
    fn sockets() {
        for name in ["manifest.json", FIRST] {
            let victim = Victim::whole();
            let path = victim.dir.join(name);
            fs::remove_file(&path).unwrap();
            let _socket = UnixListener::bind(&path).unwrap();
            let error = Checkpoint::open(&victim.dir).unwrap_err();
            assert!(
                matches!(&error, LoadError::NotAFile { path: found } if *found == path),
                "{name}: {}",
                chain(&error)
            );
        }
    }
}

/// Opening a pipe blocks until it has a writer.
#[cfg(target_os = "linux")]
mod pipes {
    use std::path::Path;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::forge::unblocked;

    fn make_pipe(path: &Path) {
        fs::remove_file(path).unwrap();
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }

    fn check(error: &LoadError, expected: &Path) {
        assert!(
            matches!(error, LoadError::NotAFile { path } if path == expected),
            "{}",
            chain(error)
        );
    }

    #[test]
    fn a_pipe_instead_of_a_shard() {
        let victim = Victim::whole();
        let path = victim.dir.join(SMALL);
        make_pipe(&path);
        let dir = victim.dir.clone();
        let error = unblocked(move || Checkpoint::open(dir).map(drop)).unwrap_err();
        check(&error, &path);
    }

    #[test]
    fn a_pipe_instead_of_a_manifest() {
        let victim = Victim::whole();
        let path = victim.dir.join("manifest.json");
        make_pipe(&path);
        let dir = victim.dir.clone();
        let error = unblocked(move || Checkpoint::open(dir).map(drop)).unwrap_err();
        check(&error, &path);
    }

    #[test]
    fn a_pipe_instead_of_a_shard_after_it_was_opened() {
        let victim = Victim::whole();
        let checkpoint = Checkpoint::open(&victim.dir).unwrap();
        let path = victim.dir.join(SMALL);
        make_pipe(&path);
        let error = unblocked(move || checkpoint.verify()).unwrap_err();
        check(&error, &path);
    }

    #[test]
    fn a_pipe_instead_of_an_index() {
        let victim = Victim::whole();
        let checkpoint = Checkpoint::open(&victim.dir).unwrap();
        let path = victim.dir.join("model.safetensors.index.json");
        make_pipe(&path);
        let error = unblocked(move || checkpoint.verify()).unwrap_err();
        check(&error, &path);
    }

    #[test]
    fn a_pipe_instead_of_a_marker() {
        let run = tempfile::tempdir().unwrap();
        let id = "0".repeat(32);
        let dir = run.path().join(format!(".attempt-5-{id}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("attempt.json"), "").unwrap();
        make_pipe(&dir.join("attempt.json"));
        let run = Run::local(run.path());
        let (joining, wait) = (run.clone(), std::time::Duration::from_millis(10));
        let id = id.parse().unwrap();
        assert!(unblocked(move || joining.join(5, id, wait, || true).map(drop)).is_err());
        let cleaned = unblocked(move || run.clean()).unwrap();
        assert_eq!((cleaned.removed.len(), cleaned.kept.len()), (0, 1));
    }
}
