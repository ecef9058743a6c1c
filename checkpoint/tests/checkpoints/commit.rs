//! A save is published completely or not at all, with a clear error.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use burn::tensor::{DType, TensorData};
use tinderbox_checkpoint::{
    AttemptId, Checkpoint, CheckpointMeta, Retention, Role, Run, SaveError, SaveTensor, Scalar,
    StoreError,
};
use tinderbox_checkpoint_tests::{
    Contents, TIMEOUT, chain, load, meta, names, save, small_contents,
};
use tinderbox_fake::Region;

fn whole(name: &str, value: f32) -> SaveTensor {
    SaveTensor::whole(name, Role::Model, TensorData::new(vec![value; 4], [4]))
}

fn rows(name: &str, offset: u64, size: u64) -> SaveTensor {
    SaveTensor {
        name: name.to_owned(),
        role: Role::Model,
        shape: vec![4],
        tied: Vec::new(),
        region: Region::new(vec![offset], vec![size]).unwrap(),
        data: TensorData::new(vec![1.0f32; size as usize], [size as usize]).into(),
    }
}

/// The contents of the ranks: their tensors and scalars.
type Ranks<'a> = &'a [(&'a [SaveTensor], &'a [(&'a str, Scalar)])];

fn publish(run_dir: &Path, ranks: Ranks<'_>) -> Result<std::path::PathBuf, SaveError> {
    let attempt = Run::local(run_dir).begin(meta(1, ranks.len() as u32))?;
    for (rank, (tensors, scalars)) in ranks.iter().enumerate() {
        let scalars = scalars.iter().map(|(n, s)| ((*n).to_owned(), *s)).collect();
        attempt
            .handle()
            .write_rank(rank as u32, tensors, &scalars, &())?;
    }
    attempt.publish(TIMEOUT)
}

#[test]
fn a_run_directory_is_made_with_those_above_it() {
    let dir = tempfile::tempdir().unwrap();
    for run in ["run", "a/b/run", "a/b/other"] {
        let run = dir.path().join(run);
        let published = publish(&run, &[(&[whole("w", 1.0)], &[])]).unwrap();
        assert_eq!(published.parent(), Some(run.as_path()));
        assert!(Run::local(&run).latest().unwrap().is_some());
    }
}

#[test]
fn an_incomplete_checkpoint_is_refused_with_the_reason() {
    let one = Scalar::Int(1);
    let long = SaveTensor::whole("w", Role::Model, TensorData::new(vec![1.0f32; 5], [5]));
    let wide = SaveTensor::whole("w", Role::Model, TensorData::new(vec![1.0f64; 4], [4]));
    let outside = SaveTensor {
        shape: vec![3],
        ..whole("w", 0.0)
    };
    let other_size = SaveTensor {
        data: TensorData::new(vec![1.0f32; 3], [3]).into(),
        ..whole("w", 0.0)
    };
    let flex = TensorData::from_bytes_vec(vec![0; 4], [1], DType::Flex32);
    let w = || whole("w", 1.0);
    let cases: &[(Ranks<'_>, &str)] = &[
        (
            &[(&[w()], &[]), (&[w()], &[])],
            "elements [0..4] of tensor `w` are saved by rank 0 and by rank 1: save each once",
        ),
        (
            &[(&[rows("w", 0, 3)], &[]), (&[rows("w", 2, 2)], &[])],
            "elements [2..3] of tensor `w` are saved by rank 0 and by rank 1: save each once",
        ),
        (
            &[(&[rows("w", 0, 2)], &[]), (&[rows("w", 3, 1)], &[])],
            "the metadata of the attempt can't be written: the chunks of tensor `w` do not tile it: 1 of 4 elements are in no chunk: every chunk must be saved",
        ),
        (
            &[(&[w()], &[]), (&[long], &[])],
            "rank 1 saves tensor `w` as F32 of shape [5], another rank as F32 of shape [4]",
        ),
        (
            &[(&[w()], &[]), (&[wide], &[])],
            "rank 1 saves tensor `w` as F64 of shape [4], another rank as F32 of shape [4]",
        ),
        (
            &[(&[], &[("t", one)]), (&[], &[("t", one)])],
            "scalar `t` is saved by rank 0 and by rank 1: save it once",
        ),
        (
            &[(&[w(), w()], &[])],
            "the header of model-rank-00000.safetensors can't be written: tensor `w` is listed twice or has a reserved name",
        ),
        (
            &[(&[outside], &[])],
            "a chunk of tensor `w` can't be saved: region [0..4] reaches past the shape [3]",
        ),
        (
            &[(&[other_size], &[])],
            "tensor `w` has data of shape [3] for region [0..4]",
        ),
        (
            &[(&[rows("w", 0, 0)], &[])],
            "a chunk of tensor `w` can't be saved: chunk [0..0] is empty: omit it",
        ),
        (
            &[(&[SaveTensor::whole("w", Role::Model, flex)], &[])],
            "tensor `w` has dtype flex32, which can't be stored: cast it first",
        ),
        (
            &[(&[whole("", 0.0)], &[])],
            "tensor `` can't be saved: name `` is empty",
        ),
        (
            &[(&[], &[("", one)])],
            "tensor `` can't be saved: name `` is empty",
        ),
    ];
    let run = tempfile::tempdir().unwrap();
    for (ranks, expected) in cases {
        let error = publish(run.path(), ranks).unwrap_err();
        assert_eq!(chain(&error), *expected);
        assert_eq!(names(run.path()), [""; 0], "{expected}");
    }
    publish(run.path(), &[(&[w()], &[("t", one)]), (&[], &[])]).unwrap();
}

#[test]
fn a_missing_rank_is_named_after_the_timeout() {
    let run = tempfile::tempdir().unwrap();
    let attempt = Run::local(run.path()).begin(meta(1, 4)).unwrap();
    for rank in [0, 2] {
        attempt
            .handle()
            .write_rank(rank, &[], &BTreeMap::new(), &())
            .unwrap();
    }
    let error = attempt.publish(Duration::from_millis(30)).unwrap_err();
    let SaveError::MissingRanks { ranks, waited_ms } = &error else {
        panic!("{error}");
    };
    assert_eq!(ranks, &[1, 3]);
    assert!((30..5000).contains(waited_ms), "{waited_ms}");
    assert_eq!(names(run.path()), [""; 0]);
}

#[test]
fn the_coordinator_waits_for_late_ranks() {
    let run = tempfile::tempdir().unwrap();
    let attempt = Run::local(run.path()).begin(meta(1, 2)).unwrap();
    let (first, second) = (attempt.handle(), attempt.handle());
    let none = BTreeMap::new();
    first.write_rank(0, &[whole("w", 1.0)], &none, &()).unwrap();
    let dir = std::thread::scope(|scope| {
        let published = scope.spawn(|| attempt.publish(TIMEOUT));
        assert!(Run::local(run.path()).latest().unwrap().is_none());
        second
            .write_rank(1, &[whole("v", 2.0)], &none, &())
            .unwrap();
        published.join().unwrap().unwrap()
    });
    assert_eq!(
        Checkpoint::open(dir).unwrap().tensors(Role::Model).count(),
        2
    );
}

#[test]
fn parts_of_two_attempts_never_mix() {
    let run = tempfile::tempdir().unwrap();
    let none = BTreeMap::new();
    let [old, new] = [1, 1].map(|step| Run::local(run.path()).begin(meta(step, 1)).unwrap());
    old.handle()
        .write_rank(0, &[whole("w", 1.0)], &none, &())
        .unwrap();
    let dirs = names(run.path());
    let (from, to) = if dirs[0].ends_with(&old.handle().attempt().to_string()) {
        (&dirs[0], &dirs[1])
    } else {
        (&dirs[1], &dirs[0])
    };
    for name in ["part-rank-00000.json", "model-rank-00000.safetensors"] {
        fs::copy(
            run.path().join(from).join(name),
            run.path().join(to).join(name),
        )
        .unwrap();
    }
    let (old_id, new_id) = (old.handle().attempt(), new.handle().attempt());
    let error = new.publish(TIMEOUT).unwrap_err();
    let expected = (0, new_id);
    assert!(
        matches!(&error, SaveError::WrongPart { expected: of_path, found, .. } if *of_path == expected && found.1 == old_id),
        "{error}"
    );
    // The other attempt is unchanged.
    old.publish(TIMEOUT).unwrap();
}

#[test]
fn parts_of_another_rank_or_with_damage_are_refused() {
    let run = tempfile::tempdir().unwrap();
    let none = BTreeMap::new();
    for damage in [false, true] {
        let attempt = Run::local(run.path()).begin(meta(1, 2)).unwrap();
        attempt
            .handle()
            .write_rank(0, &[whole("w", 1.0)], &none, &())
            .unwrap();
        let dir = run.path().join(&names(run.path())[0]);
        let mut bytes = fs::read(dir.join("part-rank-00000.json")).unwrap();
        if damage {
            bytes[70] ^= 1;
        }
        fs::write(dir.join("part-rank-00001.json"), bytes).unwrap();
        let text = chain(&attempt.publish(TIMEOUT).unwrap_err());
        let expected = if damage {
            "it is damaged"
        } else {
            "is the part of rank 0 of attempt"
        };
        assert!(
            text.contains(expected) && text.contains("part-rank-00001"),
            "{text}"
        );
    }
}

#[test]
fn a_truncated_or_missing_shard_is_refused_at_publication() {
    let run = tempfile::tempdir().unwrap();
    for gone in [false, true] {
        let attempt = Run::local(run.path()).begin(meta(1, 1)).unwrap();
        let handle = attempt.handle();
        handle
            .write_rank(0, &[whole("w", 1.0)], &BTreeMap::new(), &())
            .unwrap();
        let shard = run
            .path()
            .join(&names(run.path())[0])
            .join("model-rank-00000.safetensors");
        if gone {
            fs::remove_file(&shard).unwrap();
        } else {
            fs::File::options()
                .write(true)
                .open(&shard)
                .unwrap()
                .set_len(50)
                .unwrap();
        }
        let error = attempt.publish(TIMEOUT).unwrap_err();
        let matches = match &error {
            SaveError::FileSize {
                rank, found_bytes, ..
            } => !gone && (*rank, *found_bytes) == (0, 50),
            SaveError::Io(_) => gone,
            _ => false,
        };
        assert!(matches, "{error}");
    }
}

#[test]
fn a_published_step_is_not_replaced_unasked() {
    let run = tempfile::tempdir().unwrap();
    let contents = small_contents(1);
    let late = Run::local(run.path()).begin(meta(1, 1)).unwrap();
    let dir = save(run.path(), meta(1, 1), &contents);
    let exists =
        |error: &SaveError| matches!(error, SaveError::StepExists { path } if *path == dir);
    let error = Run::local(run.path()).begin(meta(1, 1)).unwrap_err();
    assert!(exists(&error), "{error}");
    late.handle()
        .write_rank(0, &[], &BTreeMap::new(), &())
        .unwrap();
    let error = late.publish(TIMEOUT).unwrap_err();
    assert!(exists(&error), "{error}");
    assert_eq!(load(&Checkpoint::open(&dir).unwrap()).unwrap(), contents);
    assert_eq!(names(run.path()), ["step-00000001"]);
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    let run = tempfile::tempdir().unwrap();
    for world_size in [0, 70_000] {
        let error = Run::local(run.path())
            .begin(meta(1, world_size))
            .unwrap_err();
        assert!(matches!(error, SaveError::Meta { .. }), "{error}");
    }
    let mut deep = serde_json::json!(1);
    for _ in 0..200 {
        deep = serde_json::json!([deep]);
    }
    let mut nested = meta(1, 1);
    nested.metadata = deep;
    let error = Run::local(run.path()).begin(nested).unwrap_err();
    assert!(matches!(error, SaveError::Meta { .. }), "{error}");
    let attempt = Run::local(run.path()).begin(meta(1, 1)).unwrap();
    let none = BTreeMap::new();
    let error = attempt.handle().write_rank(1, &[], &none, &()).unwrap_err();
    assert_eq!(error.to_string(), "rank 1 is out of range for world size 1");
    attempt.handle().write_rank(0, &[], &none, &()).unwrap();
    let error = attempt.handle().write_rank(0, &[], &none, &()).unwrap_err();
    assert!(
        matches!(error, SaveError::RankWritten { rank: 0, .. }),
        "{error}"
    );
}

#[test]
fn a_rank_joins_the_attempt_whose_id_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::local(dir.path().join("later"));
    let soon = Duration::from_millis(30);
    let unknown: AttemptId = "0".repeat(32).parse().unwrap();
    let error = run.join(1, unknown, soon, || true).unwrap_err();
    assert!(
        matches!(error, SaveError::NoAttempt { step: 1, .. }),
        "{error}"
    );
    // The caller ends the wait, at the second look.
    let mut looks = 0..1;
    let error = run.join(1, unknown, TIMEOUT, || looks.next().is_some());
    let error = error.unwrap_err();
    let SaveError::NoAttempt { waited_ms, .. } = error else {
        panic!("{error}");
    };
    assert!(waited_ms < TIMEOUT.as_millis(), "{waited_ms}");
    // Another coordinator saves the same step.
    let other = run.begin(meta(1, 2)).unwrap();
    let attempt = run.begin(meta(1, 2)).unwrap();
    let id = attempt.handle().attempt();
    let handle = run.join(1, id, TIMEOUT, || true).unwrap();
    assert_eq!(handle.attempt(), id);
    assert_eq!((handle.step(), handle.world_size()), (1, 2));
    // The marker in a directory is that of another attempt.
    let at = dir.path().join("later");
    let [from, to] = [id, unknown].map(|id| at.join(format!(".attempt-1-{id}")));
    fs::create_dir(&to).unwrap();
    fs::copy(from.join("attempt.json"), to.join("attempt.json")).unwrap();
    let error = run.join(1, unknown, soon, || true).unwrap_err();
    assert!(matches!(error, SaveError::NoAttempt { .. }), "{error}");
    for rank in 0..2 {
        handle.write_rank(rank, &[], &BTreeMap::new(), &()).unwrap();
    }
    assert!(run.open(1).is_err());
    attempt.publish(TIMEOUT).unwrap();
    let published = || run.open(1).unwrap().manifest().attempt;
    assert_eq!(published(), id);
    drop(other);
    // An attempt for another step, one that was published, and an aborted one.
    for step in [1, 2] {
        let error = run.join(step, id, soon, || true).unwrap_err();
        assert!(matches!(error, SaveError::NoAttempt { .. }), "{error}");
    }
    let aborted = run.begin(meta(2, 1)).unwrap();
    let joined = run
        .join(2, aborted.handle().attempt(), soon, || true)
        .unwrap();
    drop(aborted);
    let error = joined
        .write_rank(0, &[whole("w", 1.0)], &BTreeMap::new(), &())
        .unwrap_err();
    assert!(
        matches!(
            error,
            SaveError::Io(StoreError {
                action: "create",
                ..
            })
        ),
        "{error}"
    );
    assert_eq!(published(), id);
}

/// The attempt appears later for this process than for its coordinator, as on a shared file system.
#[test]
fn a_rank_waits_until_it_sees_the_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let (at, seen) = (dir.path().join("at"), dir.path().join("seen"));
    let attempt = Run::local(&at).begin(meta(1, 1)).unwrap();
    let id = attempt.handle().attempt();
    std::thread::scope(|scope| {
        let joined = scope.spawn(|| Run::local(&seen).join(1, id, TIMEOUT, || true));
        std::thread::sleep(Duration::from_millis(30));
        fs::rename(&at, &seen).unwrap();
        assert_eq!(joined.join().unwrap().unwrap().attempt(), id);
    });
    fs::rename(&seen, &at).unwrap();
}

#[test]
fn the_coordinator_repeats_why_a_rank_failed() {
    let run = tempfile::tempdir().unwrap();
    let attempt = Run::local(run.path()).begin(meta(1, 2)).unwrap();
    let flex = TensorData::from_bytes_vec(vec![0; 4], [1], DType::Flex32);
    let tensors = [SaveTensor::whole("w", Role::Model, flex)];
    attempt
        .handle()
        .write_rank(1, &tensors, &BTreeMap::new(), &())
        .unwrap_err();
    let started = std::time::Instant::now();
    let error = attempt.publish(TIMEOUT).unwrap_err();
    assert!(
        started.elapsed() < TIMEOUT / 2,
        "the coordinator does not wait for it"
    );
    assert_eq!(
        chain(&error),
        "rank 1 failed: tensor `w` has dtype flex32, which can't be stored: cast it first"
    );
    assert_eq!(names(run.path()), [""; 0]);
}

#[test]
fn a_step_is_replaced_in_one_instant_when_asked_for() {
    let run = tempfile::tempdir().unwrap();
    let replacing = || CheckpointMeta {
        replace: true,
        ..meta(1, 1)
    };
    for seed in 1..4 {
        let dir = save(run.path(), replacing(), &small_contents(seed));
        assert_eq!(names(run.path()), ["step-00000001"]);
        let checkpoint = Checkpoint::open(dir).unwrap();
        checkpoint.verify().unwrap();
        assert_eq!(load(&checkpoint).unwrap(), small_contents(seed));
    }
    // A kill immediately after the exchange leaves the earlier checkpoint under the attempt's name.
    let other = tempfile::tempdir().unwrap();
    let earlier = save(other.path(), meta(1, 1), &small_contents(9));
    let published = Run::local(run.path()).open(1).unwrap().manifest().attempt;
    let left = run.path().join(format!(".attempt-1-{published}"));
    fs::rename(&earlier, &left).unwrap();
    // The same name for an unpublished attempt is not ours.
    let foreign = run.path().join(format!(".attempt-1-{}", "a".repeat(32)));
    fs::create_dir(&foreign).unwrap();
    fs::copy(left.join("manifest.json"), foreign.join("manifest.json")).unwrap();
    let found = Run::local(run.path()).leftovers().unwrap();
    assert_eq!(found.removed, std::slice::from_ref(&left));
    assert!(left.exists());
    let cleaned = Run::local(run.path()).clean().unwrap();
    assert_eq!(cleaned, found);
    assert_eq!(cleaned.kept, [(foreign, "it has no marker")]);
    assert!(!left.exists());
    assert_eq!(
        load(&Run::local(run.path()).open(1).unwrap()).unwrap(),
        small_contents(3)
    );
}

#[test]
fn expired_checkpoints_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::local(dir.path());
    for step in [1, 2, 3, 4, 5, 6, 7] {
        save(dir.path(), meta(step, 1), &Contents::default());
    }
    // Checkpoints that can't be opened are neither counted nor removed.
    fs::write(dir.path().join("step-00000007/manifest.json"), "{}").unwrap();
    let keep = |last, every| Retention { last, every };
    assert_eq!(run.prune(keep(2, Some(3))).unwrap(), [1, 2, 4]);
    assert_eq!(run.steps().unwrap(), [3, 5, 6, 7]);
    assert_eq!(run.prune(keep(0, None)).unwrap(), [3, 5]);
    assert_eq!(run.steps().unwrap(), [6, 7]);
    assert_eq!(names(dir.path()), ["step-00000006", "step-00000007"]);
    let error = run.remove(7).unwrap_err();
    assert!(matches!(error, SaveError::NoStep { .. }), "{error}");
    // A kill during its removal.
    let trash = |digit: &str| dir.path().join(format!(".removed-6-{}", digit.repeat(32)));
    let id = run.open(6).unwrap().manifest().attempt.to_string();
    let ours = dir.path().join(format!(".removed-6-{id}"));
    fs::rename(dir.path().join("step-00000006"), &ours).unwrap();
    fs::remove_dir_all(dir.path().join("step-00000007")).unwrap();
    fs::create_dir(trash("b")).unwrap();
    fs::create_dir(trash("c")).unwrap();
    fs::copy(ours.join("manifest.json"), trash("c").join("manifest.json")).unwrap();
    let cleaned = run.clean().unwrap();
    let mut removed = vec![ours, trash("b")];
    removed.sort();
    assert_eq!(cleaned.removed, removed);
    let reason = "neither marker nor manifest identifies it as a directory of a save";
    assert_eq!(cleaned.kept, [(trash("c"), reason)]);
    assert!(run.latest().unwrap().is_none());
}

#[test]
fn large_ranks_write_several_files() {
    let run = tempfile::tempdir().unwrap();
    let limited = CheckpointMeta {
        file_bytes: 150,
        ..meta(1, 1)
    };
    let dir = save(run.path(), limited, &small_contents(1));
    let shards: Vec<_> = names(&dir)
        .into_iter()
        .filter(|n| n.ends_with(".safetensors"))
        .collect();
    assert_eq!(
        shards,
        [
            "model-rank-00000-00001.safetensors",
            "model-rank-00000.safetensors",
            "state-rank-00000.safetensors"
        ]
    );
    let checkpoint = Checkpoint::open(&dir).unwrap();
    checkpoint.verify().unwrap();
    assert_eq!(load(&checkpoint).unwrap(), small_contents(1));
    // Every file except the file of a larger tensor is within the limit.
    for file in &checkpoint.manifest().files {
        assert!(file.size_bytes - file.header_bytes <= 150, "{}", file.name);
    }
    // With a limit of 0, every tensor has a file of its own.
    let limited = CheckpointMeta {
        file_bytes: 0,
        ..meta(2, 1)
    };
    let dir = save(run.path(), limited, &small_contents(2));
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let manifest = checkpoint.manifest();
    assert_eq!(manifest.files.len(), manifest.tensors.len());
    assert_eq!(load(&checkpoint).unwrap(), small_contents(2));
}

#[test]
fn a_tied_weight_is_saved_once_and_has_all_its_names() {
    let run = tempfile::tempdir().unwrap();
    let tied = SaveTensor {
        tied: vec!["head".into(), "a".into()],
        ..whole("embed", 1.0)
    };
    let dir = publish(run.path(), &[(&[tied, whole("w", 2.0)], &[])]).unwrap();
    let checkpoint = Checkpoint::open(dir).unwrap();
    checkpoint.verify().unwrap();
    assert_eq!(checkpoint.tensors(Role::Model).count(), 2);
    for name in ["embed", "head", "a"] {
        assert_eq!(checkpoint.tensor(Role::Model, name).unwrap().name, "embed");
    }
    assert!(checkpoint.tensor(Role::State, "head").is_none());
    // A name identifies one tensor.
    for name in ["w", "embed", ""] {
        let run = tempfile::tempdir().unwrap();
        let tied = SaveTensor {
            tied: vec![name.into()],
            ..whole("embed", 1.0)
        };
        let error = publish(run.path(), &[(&[tied, whole("w", 2.0)], &[])]).unwrap_err();
        assert!(chain(&error).contains("name `"), "{error}");
    }
}

#[test]
fn a_failed_rank_leaves_no_file_and_may_try_again() {
    let run = tempfile::tempdir().unwrap();
    let old = save(run.path(), meta(1, 1), &small_contents(1));
    let attempt = Run::local(run.path()).begin(meta(2, 1)).unwrap();
    let dir = run.path().join(&names(run.path())[0]);
    let state = SaveTensor {
        role: Role::State,
        ..whole("w", 1.0)
    };
    let tensors = [whole("w", 1.0), state];
    let none = BTreeMap::new();
    // An obstacle to a later file, so that other files exist when the rank fails.
    for name in ["state-rank-00000.safetensors", "part-rank-00000.json.tmp"] {
        let obstacle = dir.join(name);
        fs::create_dir(&obstacle).unwrap();
        let error = attempt.handle().write_rank(0, &tensors, &none, &());
        let text = chain(&error.unwrap_err());
        assert!(
            text.contains(name.trim_end_matches(".tmp")) || text.contains("has already written"),
            "{text}"
        );
        fs::remove_dir(&obstacle).unwrap();
        // Except the error for the coordinator, unless another call appears to have written.
        let left = ["attempt.json", "failed-rank-00000.txt"];
        let errors = usize::from(name.starts_with("part"));
        assert_eq!(names(&dir), left[..1 + errors]);
    }
    assert_eq!(
        load(&Checkpoint::open(&old).unwrap()).unwrap(),
        small_contents(1)
    );
    attempt
        .handle()
        .write_rank(0, &tensors, &none, &())
        .unwrap();
    attempt.publish(TIMEOUT).unwrap();
}

#[test]
fn clean_removes_dead_attempts_only() {
    let run = tempfile::tempdir().unwrap();
    let old = save(run.path(), meta(1, 1), &Contents::default());
    let live = Run::local(run.path()).begin(meta(2, 1)).unwrap();
    live.handle()
        .write_rank(0, &[whole("w", 1.0)], &BTreeMap::new(), &())
        .unwrap();
    let live_name = names(run.path())[0].clone();
    let copy = |name: &str, marker: &[u8]| {
        let dir = run.path().join(name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("attempt.json"), marker).unwrap();
        fs::write(dir.join("model-rank-00000.safetensors"), "x").unwrap();
        dir
    };
    let marker = fs::read(run.path().join(&live_name).join("attempt.json")).unwrap();
    let id = |digit: &str| digit.repeat(32);
    let own = String::from_utf8(marker.clone()).unwrap();
    let own = own.replace(&live.handle().attempt().to_string(), &id("a"));
    // Dead and ours; and empty, from a kill at the start.
    let dead = copy(&format!(".attempt-2-{}", id("a")), own.as_bytes());
    let empty = run.path().join(format!(".attempt-2-{}", id("b")));
    fs::create_dir(&empty).unwrap();
    // From a kill while its marker was written.
    let cut = run.path().join(format!(".attempt-2-{}", "bc".repeat(16)));
    fs::create_dir(&cut).unwrap();
    fs::write(cut.join("attempt.json"), &own.as_bytes()[..20]).unwrap();
    // Not known to be ours: the marker of another attempt or step, truncated or missing; foreign names.
    let kept = [
        copy(&format!(".attempt-2-{}", id("c")), &marker),
        copy(&format!(".attempt-3-{}", id("a")), own.as_bytes()),
        copy(&format!(".attempt-4-{}", id("a")), &own.as_bytes()[..20]),
    ];
    copy(".attempt-2-mine", own.as_bytes());
    copy("attempt", own.as_bytes());
    fs::write(run.path().join(format!(".attempt-5-{}", id("a"))), "a file").unwrap();
    let cleaned = Run::local(run.path()).clean().unwrap();
    assert_eq!(cleaned.removed, [dead.clone(), empty.clone(), cut.clone()]);
    assert!(!cut.exists());
    assert!(!dead.exists() && !empty.exists());
    assert!(kept.iter().all(|dir| dir.exists()));
    let reason = |name: &str| {
        let found = cleaned
            .kept
            .iter()
            .find(|(path, _)| *path == run.path().join(name));
        found.map(|(_, reason)| *reason)
    };
    assert_eq!(
        reason(&live_name),
        Some("it is alive: its marker is locked")
    );
    assert_eq!(cleaned.kept.len(), 5);
    assert!(old.exists());
    live.publish(TIMEOUT).unwrap();
    assert_eq!(
        Run::local(run.path())
            .latest()
            .unwrap()
            .unwrap()
            .checkpoint
            .step(),
        2
    );
    assert_eq!(
        Run::local(run.path().join("none")).clean().unwrap(),
        Default::default()
    );
}

#[test]
fn the_bytes_do_not_depend_on_the_order_of_ranks_and_tensors() {
    let bytes_of = |reverse: bool| {
        let run = tempfile::tempdir().unwrap();
        let attempt = Run::local(run.path()).begin(meta(1, 2)).unwrap();
        let (mut order, mut tensors) = ([0, 1], vec![whole("a", 1.0), rows("b", 0, 4)]);
        if reverse {
            order.reverse();
            tensors.reverse();
        }
        for rank in order {
            let mine = if rank == 0 { &tensors[..] } else { &[] };
            attempt
                .handle()
                .write_rank(rank, mine, &BTreeMap::new(), &())
                .unwrap();
        }
        let id = attempt.handle().attempt().to_string();
        let dir = attempt.publish(TIMEOUT).unwrap();
        let manifest = fs::read_to_string(dir.join("manifest.json")).unwrap();
        // Everything after the digest, without the only field that differs.
        let body = manifest[45..].replace(&id, "");
        (
            body,
            fs::read(dir.join("model-rank-00000.safetensors")).unwrap(),
        )
    };
    assert_eq!(bytes_of(false), bytes_of(true));
}

#[test]
fn a_disk_error_at_publish_leaves_the_old_checkpoint_only() {
    let run = tempfile::tempdir().unwrap();
    let old = save(run.path(), meta(1, 1), &small_contents(1));
    for name in ["manifest.json.tmp", "model.safetensors.index.json.tmp"] {
        let attempt = Run::local(run.path()).begin(meta(2, 1)).unwrap();
        let handle = attempt.handle();
        handle
            .write_rank(0, &[whole("w", 1.0)], &BTreeMap::new(), &())
            .unwrap();
        fs::create_dir(run.path().join(&names(run.path())[0]).join(name)).unwrap();
        let error = attempt.publish(TIMEOUT).unwrap_err();
        let name = name.trim_end_matches(".tmp");
        assert!(error.to_string().ends_with(name), "{error}");
        assert_eq!(names(run.path()), ["step-00000001"]);
    }
    let checkpoint = Checkpoint::open(old).unwrap();
    assert_eq!(load(&checkpoint).unwrap(), small_contents(1));
}
