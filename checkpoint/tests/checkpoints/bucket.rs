//! Checkpoints in a bucket, without renames and locks.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use object_store::memory::InMemory;
use tinderbox_checkpoint::{
    Checkpoint, CheckpointMeta, Cleaned, Retention, Role, Run, SaveError, SaveTensor,
    store::{BucketError, BucketStore, FoundKind, Store},
    testing::check_store,
};
use tinderbox_checkpoint_tests::faulty::{Fault, Faulty};
use tinderbox_checkpoint_tests::{Contents, TIMEOUT, chain, load, meta, small_contents};

/// Less than the size of a file's header.
const PART_BYTES: usize = 128;

/// Returns a bucket and the run in it.
fn bucket(objects: &Faulty) -> (Arc<BucketStore>, Run) {
    let store = BucketStore::new(Arc::new(objects.clone()), "runs/1").unwrap();
    // Small enough that every file has several parts.
    let store = Arc::new(store.part_bytes(PART_BYTES));
    (store.clone(), Run::on(store))
}

/// Returns the contents that each of two ranks saves.
fn halves(contents: &Contents) -> [Vec<SaveTensor>; 2] {
    let mut halves = [Vec::new(), Vec::new()];
    for (number, ((role, name), data)) in contents.0.iter().enumerate() {
        halves[number % 2].push(SaveTensor::whole(name.clone(), *role, data.clone()));
    }
    halves
}

fn replacing(step: u64, replace: bool) -> CheckpointMeta {
    CheckpointMeta {
        file_bytes: 150,
        replace,
        ..meta(step, 2)
    }
}

/// Saves the halves of two ranks, in several files, one after the other.
fn save(run: &Run, step: u64, replace: bool, contents: &Contents) -> Result<PathBuf, SaveError> {
    let attempt = run.begin(replacing(step, replace))?;
    let scalars = [contents.1.clone(), BTreeMap::new()];
    for (rank, (tensors, scalars)) in (0..).zip(halves(contents).iter().zip(&scalars)) {
        let handle = attempt.handle().threads(1);
        handle.write_rank(rank, tensors, scalars, &())?;
    }
    attempt.publish(TIMEOUT)
}

/// Returns the verified contents of the newest checkpoint.
fn newest(run: &Run) -> (u64, Contents) {
    let latest = run.latest().unwrap().expect("there is one");
    assert!(latest.skipped.is_empty(), "{:?}", latest.skipped);
    latest.checkpoint.verify().unwrap();
    (latest.checkpoint.step(), load(&latest.checkpoint).unwrap())
}

/// Returns the directory of the attempt that has published a checkpoint.
fn attempt_dir(checkpoint: &Checkpoint) -> String {
    let manifest = checkpoint.manifest();
    format!(".attempt-{}-{}", manifest.step, manifest.attempt)
}

/// Returns the names in the root.
fn names(store: &BucketStore) -> Vec<String> {
    let mut found = store.list("").unwrap();
    assert!(found.iter().all(|found| found.kind == FoundKind::Dir));
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found.into_iter().map(|found| found.name).collect()
}

/// Checks that the store contains only these checkpoints and their files.
fn expect_only(store: &BucketStore, run: &Run, steps: &[u64]) {
    assert_eq!(run.steps().unwrap(), steps);
    let mut expected = Vec::new();
    for step in steps {
        expected.push(format!("step-{step:08}"));
        expected.push(attempt_dir(&run.open(*step).unwrap()));
    }
    expected.sort();
    assert_eq!(names(store), expected);
    assert_eq!(run.leftovers_when_idle().unwrap(), Cleaned::default());
}

#[test]
fn buckets_keep_the_promises_of_a_store() {
    let objects = || Arc::new(InMemory::new());
    for store in [
        BucketStore::new(objects(), "").unwrap(),
        BucketStore::new(objects(), "runs/1").unwrap(),
        BucketStore::new(objects(), "runs/1")
            .unwrap()
            .part_bytes(1000),
        BucketStore::new(Arc::new(Faulty::default()), "runs/1")
            .unwrap()
            .part_bytes(999_983),
        BucketStore::from_url("memory:///runs/1").unwrap(),
    ] {
        let store: Arc<dyn Store> = Arc::new(store);
        check_store(&store).unwrap();
    }
}

#[test]
fn an_address_says_what_it_lacks() {
    let store = BucketStore::from_url("memory:///runs/1/").unwrap();
    assert_eq!(store.place("step"), Path::new("memory:///runs/1/step"));
    assert_eq!(store.place(""), Path::new("memory:///runs/1"));
    let refused = |url: &str| BucketStore::from_url(url).unwrap_err();
    assert!(matches!(refused("runs/1"), BucketError::Url { .. }));
    let directory = refused("file:///runs/1");
    assert!(matches!(directory, BucketError::Directory { .. }));
    let unknown = refused("ftp://host/runs/1");
    assert!(matches!(unknown, BucketError::Open { .. }), "{unknown}");
    for secret in [
        "https://user:secret@host/run",
        "https://secret@host/run",
        "s3://key:secret@bucket/run",
        "az://container/run?sig=secret",
        "ftp://user:secret@host/run",
    ] {
        let error = refused(secret);
        assert!(matches!(error, BucketError::Secret), "{error}");
        assert!(!chain(&error).contains("secret"), "{error}");
    }
    #[cfg(not(feature = "aws"))]
    {
        let text = refused("s3://bucket/runs/1").to_string();
        assert!(text.contains("feature `aws`"), "{text}");
    }
}

#[test]
fn ranks_that_join_save_and_one_loads() {
    let (store, run) = bucket(&Faulty::default());
    for (step, replace, seed) in [(1, false, 1), (2, false, 2), (2, true, 3)] {
        let contents = small_contents(seed);
        let attempt = run.begin(replacing(step, replace)).unwrap();
        let id = attempt.handle().attempt();
        let halves = halves(&contents);
        thread::scope(|scope| {
            for rank in 0..2u32 {
                let (run, halves, contents) = (run.clone(), &halves, &contents);
                scope.spawn(move || {
                    let handle = run.join(step, id, TIMEOUT, || true).unwrap();
                    let scalars = match rank {
                        0 => contents.1.clone(),
                        _ => BTreeMap::new(),
                    };
                    let tensors = &halves[rank as usize];
                    handle.write_rank(rank, tensors, &scalars, &()).unwrap();
                });
            }
            let place = attempt.publish(TIMEOUT).unwrap();
            assert_eq!(place, run.step_place(step));
        });
        assert_eq!(newest(&run), (step, contents));
    }
    expect_only(&store, &run, &[1, 2]);
    assert_eq!(load(&run.open(1).unwrap()).unwrap(), small_contents(1));
}

#[test]
fn a_step_is_replaced_only_when_that_is_asked_for() {
    let (store, run) = bucket(&Faulty::default());
    save(&run, 1, false, &small_contents(1)).unwrap();
    let error = save(&run, 1, false, &small_contents(2)).unwrap_err();
    assert!(matches!(error, SaveError::StepExists { .. }), "{error}");
    // A reader with open files.
    let old = run.open(1).unwrap();
    let tensor = old.tensor(Role::Model, "mask").unwrap();
    let old_dir = attempt_dir(&old);
    let whole = tinderbox_fake::Region::whole(&tensor.shape).unwrap();
    let data = old.read(tensor, &whole).unwrap();
    assert_eq!(data, small_contents(1).0[&(Role::Model, "mask".to_owned())]);
    save(&run, 1, true, &small_contents(2)).unwrap();
    assert_eq!(newest(&run), (1, small_contents(2)));
    assert!(load(&old).is_err(), "its files are gone");
    assert!(old.read(tensor, &whole).is_err());
    let gone = store.list(&old_dir).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    expect_only(&store, &run, &[1]);
}

#[test]
fn one_of_two_coordinators_publishes() {
    let (store, run) = bucket(&Faulty::default());
    for step in 0..20 {
        let contents = [small_contents(1), small_contents(2)];
        let attempts = [(); 2].map(|()| run.begin(replacing(step, false)).unwrap());
        for (attempt, contents) in attempts.iter().zip(&contents) {
            for (rank, tensors) in (0..).zip(halves(contents)) {
                let scalars = match rank {
                    0 => contents.1.clone(),
                    _ => BTreeMap::new(),
                };
                attempt
                    .handle()
                    .write_rank(rank, &tensors, &scalars, &())
                    .unwrap();
            }
        }
        let published: Vec<_> = thread::scope(|scope| {
            let running = attempts.map(|attempt| scope.spawn(move || attempt.publish(TIMEOUT)));
            running.map(|thread| thread.join().unwrap()).into()
        });
        let winner = published.iter().position(Result::is_ok);
        let winner = winner.expect("one publishes");
        let loser = published[1 - winner].as_ref().unwrap_err();
        assert!(matches!(loser, SaveError::StepExists { .. }), "{loser}");
        assert_eq!(newest(&run), (step, contents[winner].clone()));
    }
    let steps: Vec<u64> = (0..20).collect();
    expect_only(&store, &run, &steps);
}

#[test]
fn a_bucket_without_updates_says_that_it_cannot_replace() {
    let objects = Faulty::default();
    let (store, run) = bucket(&objects);
    objects.set_fault(Some(Fault::NoUpdates));
    save(&run, 1, false, &small_contents(1)).unwrap();
    let error = save(&run, 1, true, &small_contents(2)).unwrap_err();
    assert!(matches!(error, SaveError::CantReplace { .. }), "{error}");
    assert_eq!(newest(&run), (1, small_contents(1)));
    expect_only(&store, &run, &[1]);
}

/// Otherwise two coordinators could both conclude that they have published a step.
#[test]
fn a_service_without_conditions_is_refused_at_once() {
    let objects = Faulty::default();
    let (store, run) = bucket(&objects);
    objects.set_fault(Some(Fault::NoConditions));
    let error = run.begin(replacing(1, false)).unwrap_err();
    let text = chain(&error);
    assert!(text.contains("ignores the condition"), "{text}");
    assert!(names(&store).is_empty());
}

/// A service may report that an object exists because of the same write, which is still in progress.
#[test]
fn a_write_that_lands_late_finds_its_files() {
    for replace in [false, true] {
        let objects = Faulty::default();
        let (_, run) = bucket(&objects);
        save(&run, 1, false, &small_contents(1)).unwrap();
        objects.set_fault(Some(Fault::Late));
        let step = if replace { 1 } else { 2 };
        let error = save(&run, step, replace, &small_contents(2)).unwrap_err();
        assert!(is_unknown(&error), "{error}");
        objects.set_fault(None);
        assert_eq!(newest(&run), (1, small_contents(1)));
        objects.land();
        assert_eq!(newest(&run), (step, small_contents(2)));
    }
}

/// The rank was slow, and its coordinator has aborted.
#[test]
fn a_delayed_rank_leaves_no_files() {
    let (store, run) = bucket(&Faulty::default());
    let attempt = run.begin(replacing(1, false)).unwrap();
    let handle = attempt.handle();
    drop(attempt);
    let tensors = &halves(&small_contents(1))[0];
    let error = handle
        .write_rank(0, tensors, &BTreeMap::new(), &())
        .unwrap_err();
    assert!(matches!(error, SaveError::Aborted { .. }), "{error}");
    assert!(names(&store).is_empty(), "{:?}", names(&store));
    // An attempt that was killed before the check, next to a foreign file.
    store.put("x/y", b"somebody else's").unwrap();
    let dir = run.begin(replacing(1, false)).map(|attempt| {
        let dir = format!(".attempt-1-{}", attempt.handle().attempt());
        drop(attempt);
        dir
    });
    let dir = dir.unwrap();
    store
        .put(&format!("{dir}/model-rank-00000.safetensors"), b"half")
        .unwrap();
    assert_eq!(run.clean().unwrap().kept.len(), 1);
    assert_eq!(run.clean_when_idle().unwrap().removed.len(), 1);
    assert_eq!(names(&store), ["x"]);
}

/// A restarted rank joins the attempt while its first process still writes to it.
#[test]
fn one_call_writes_for_a_rank() {
    let (store, run) = bucket(&Faulty::default());
    let attempt = run.begin(replacing(1, false)).unwrap();
    let dir = format!(".attempt-1-{}", attempt.handle().attempt());
    let claim = format!("{dir}/claim-rank-00000");
    store.put(&claim, b"of the first").unwrap();
    let [tensors, _] = halves(&small_contents(1));
    let write = || {
        attempt
            .handle()
            .write_rank(0, &tensors, &BTreeMap::new(), &())
    };
    let error = write().unwrap_err();
    assert!(matches!(error, SaveError::RankWritten { .. }), "{error}");
    // The first call fails, and releases the claim.
    store.remove_file(&claim).unwrap();
    write().unwrap();
}

/// Returns whether the error reports an unknown outcome of the save.
fn is_unknown(error: &SaveError) -> bool {
    error.to_string().contains("can't determine whether")
}

#[test]
fn a_fault_at_any_request_of_a_save_loses_nothing() {
    let before = Faulty::default();
    save(&bucket(&before).1, 1, false, &small_contents(1)).unwrap();
    let (mut unknown_and_old, mut unknown_and_new) = (0, 0);
    for replace in [false, true] {
        let new_step = if replace { 1 } else { 2 };
        for fault in [Fault::Once, Fault::From, Fault::Unanswered, Fault::Cut] {
            for at in 1.. {
                let objects = before.fork();
                let (store, run) = bucket(&objects);
                objects.set_fault(Some(fault(at)));
                let saved = save(&run, new_step, replace, &small_contents(2));
                let reached = objects.requests() >= at;
                objects.set_fault(None);
                let what = format!("{:?}, replace {replace}: {saved:?}", fault(at));
                let (step, contents) = newest(&run);
                let new = contents == small_contents(2);
                assert!(new || contents == small_contents(1), "{what}");
                assert_eq!(step, if new { new_step } else { 1 }, "{what}");
                match &saved {
                    Ok(_) => assert!(new, "{what}"),
                    Err(error) if is_unknown(error) && new => unknown_and_new += 1,
                    Err(error) if is_unknown(error) => unknown_and_old += 1,
                    Err(SaveError::Io(_)) => assert!(!new, "{what}"),
                    Err(error) => panic!("another error, {}: {what}", chain(error)),
                }
                // Attempts that may be alive are kept; a checkpoint is not a leftover.
                run.clean().unwrap();
                run.open(step).unwrap();
                run.clean_when_idle().unwrap();
                let steps: &[u64] = if step == 2 { &[1, 2] } else { &[1] };
                expect_only(&store, &run, steps);
                assert_eq!(newest(&run), (step, contents), "{what}");
                if !reached {
                    assert!(at > 40, "{at} requests");
                    break;
                }
            }
        }
    }
    assert!(unknown_and_old > 0 && unknown_and_new > 0);
}

#[test]
fn a_removal_leaves_a_whole_checkpoint_or_none() {
    let before = Faulty::default();
    for step in [1, 2] {
        save(&bucket(&before).1, step, false, &small_contents(step)).unwrap();
    }
    for fault in [Fault::Once, Fault::From, Fault::Unanswered, Fault::Cut] {
        for at in 1.. {
            let objects = before.fork();
            let (store, run) = bucket(&objects);
            objects.set_fault(Some(fault(at)));
            let removed = run.remove(2);
            let reached = objects.requests() >= at;
            objects.set_fault(None);
            let (step, contents) = newest(&run);
            assert_eq!(contents, small_contents(step), "{:?}", fault(at));
            assert!(removed.is_err() || step == 1, "{:?}", fault(at));
            // The attempt was published, so its files are known to be dead.
            let kept = run.clean().unwrap().kept;
            assert!(kept.is_empty(), "{:?}: {kept:?}", fault(at));
            let steps: &[u64] = if step == 2 { &[1, 2] } else { &[1] };
            expect_only(&store, &run, steps);
            if !reached {
                assert!(at > 5, "{at} requests");
                break;
            }
        }
    }
}

#[test]
fn expired_checkpoints_and_dead_attempts_are_removed() {
    let (store, run) = bucket(&Faulty::default());
    for step in 1..=4 {
        save(&run, step, false, &small_contents(step)).unwrap();
    }
    let keep = Retention {
        last: 1,
        every: Some(2),
    };
    assert_eq!(run.prune(keep).unwrap(), [1, 3]);
    expect_only(&store, &run, &[2, 4]);
    // A kill: nothing is cleaned up.
    let dead = run.begin(replacing(4, true)).unwrap();
    let dir = store.place(&format!(".attempt-4-{}", dead.handle().attempt()));
    std::mem::forget(dead);
    let reason = "the store has no locks, so it may be alive";
    let kept = Cleaned {
        kept: vec![(dir.clone(), reason)],
        ..Cleaned::default()
    };
    // The publication of the step by another attempt proves nothing.
    save(&run, 4, true, &small_contents(5)).unwrap();
    assert_eq!(run.leftovers().unwrap(), kept);
    assert_eq!(run.clean().unwrap(), kept);
    let name = dir.file_name().unwrap().to_str().unwrap();
    let files = store.list(name).unwrap();
    let gone = Cleaned {
        removed_bytes: files.iter().map(|file| file.bytes).sum(),
        removed: vec![dir],
        kept: Vec::new(),
    };
    assert!(gone.removed_bytes > 0, "the marker of the attempt");
    assert_eq!(run.leftovers_when_idle().unwrap(), gone);
    assert_eq!(run.clean_when_idle().unwrap(), gone);
    expect_only(&store, &run, &[2, 4]);
    assert_eq!(newest(&run), (4, small_contents(5)));
}

/// Few requests in addition to one per file, because services charge for requests and they take time.
#[test]
fn requests_of_a_save_and_of_an_open() {
    const RANKS: u32 = 8;
    const FILES: u64 = 1024;
    let objects = Faulty::default();
    let store = BucketStore::new(Arc::new(objects.clone()), "runs/1").unwrap();
    let run = Run::on(Arc::new(store));
    let counted = |what: &str, most_per_file: f64| {
        let requests = objects.requests();
        objects.set_fault(None);
        let per_file = requests as f64 / FILES as f64;
        println!("{what}: {requests} requests, {per_file:.3} per file");
        assert!(per_file <= most_per_file, "{what}: {requests} requests");
    };
    objects.set_fault(None);
    // As many files as tensors.
    let meta = CheckpointMeta {
        file_bytes: 64,
        ..meta(1, RANKS)
    };
    let attempt = run.begin(meta).unwrap();
    for rank in 0..RANKS {
        let tensors = (0..FILES / u64::from(RANKS)).map(|at| {
            let data = burn::tensor::TensorData::new(vec![at as f32; 16], [16]);
            SaveTensor::whole(format!("rank.{rank}.{at}"), Role::Model, data)
        });
        let tensors: Vec<_> = tensors.collect();
        let scalars = BTreeMap::new();
        attempt
            .handle()
            .write_rank(rank, &tensors, &scalars, &())
            .unwrap();
    }
    attempt.publish(TIMEOUT).unwrap();
    counted("save", 1.1);
    let checkpoint = run.open(1).unwrap();
    assert_eq!(checkpoint.manifest().files.len() as u64, FILES);
    counted("open", 0.2);
    run.latest().unwrap();
    counted("latest", 0.2);
}

#[test]
fn a_directory_that_was_copied_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let place = tinderbox_checkpoint_tests::save(dir.path(), meta(1, 1), &small_contents(1));
    let (store, run) = bucket(&Faulty::default());
    for file in std::fs::read_dir(&place).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        store.put(&format!("step-00000001/{name}"), &bytes).unwrap();
    }
    assert_eq!(newest(&run), (1, small_contents(1)));
    // Conversely, the directory of an attempt is a checkpoint.
    save(&run, 2, false, &small_contents(2)).unwrap();
    let published = attempt_dir(&run.open(2).unwrap());
    let copy = dir.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for found in store.list(&published).unwrap() {
        let file = store.open(&format!("{published}/{}", found.name)).unwrap();
        let mut bytes = vec![0; file.bytes() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        std::fs::write(copy.join(found.name), bytes).unwrap();
    }
    let copy = Checkpoint::open(copy).unwrap();
    copy.verify().unwrap();
    assert_eq!(load(&copy).unwrap(), small_contents(2));
    // Everything is removed.
    run.remove(1).unwrap();
    expect_only(&store, &run, &[2]);
}

#[test]
fn an_upload_in_parts_that_fails_has_its_first_error() {
    let objects = Faulty::default();
    let (store, _) = bucket(&objects);
    let upload = |path: &str| {
        let mut file = store.create(path)?;
        file.write_all(&[0; 1000])?;
        file.finish()
    };
    objects.set_fault(None);
    upload("whole").unwrap();
    // The last request completes the upload.
    let last = objects.requests();
    objects.set_fault(Some(Fault::From(last)));
    let error = upload("broken").unwrap_err();
    let text = error.to_string();
    assert!(text.ends_with(&format!("at request {last}")), "{text}");
    // The requests after it failed as well: the lookup of the object, and its removal.
    assert_eq!(objects.requests(), last + 2);
}

#[test]
fn a_file_appears_whole_when_it_is_finished() {
    let objects = Faulty::default();
    let (store, _) = bucket(&objects);
    let bytes = tinderbox_checkpoint_tests::Random(1).bytes(1000);
    // None, less than a part, exact multiples of a part, and several parts with a remainder.
    for len in [0, 1, 127, 128, 129, 256, 640, 1000] {
        for piece in [1, 100, 128, 1000] {
            let path = format!("{len}-{piece}");
            let mut file = store.create(&path).unwrap();
            for piece in bytes[..len].chunks(piece) {
                file.write_all(piece).unwrap();
            }
            let missing = store.look(&path).unwrap_err();
            assert_eq!(missing.kind(), ErrorKind::NotFound);
            file.finish().unwrap();
            let file = store.open(&path).unwrap();
            assert_eq!(file.bytes(), len as u64);
            let mut read = vec![0; len];
            file.read_exact_at(&mut read, 0).unwrap();
            assert_eq!(read, bytes[..len]);
        }
    }
    // It does not exist after a drop or an error.
    for fault in [Fault::Once, Fault::From] {
        for at in 1.. {
            objects.set_fault(Some(fault(at)));
            let written = store.create("file").and_then(|mut file| {
                file.write_all(&bytes)?;
                file.finish()
            });
            let reached = objects.requests() >= at;
            objects.set_fault(None);
            assert_eq!(written.is_err(), reached, "{:?}", fault(at));
            assert_eq!(store.look("file").is_err(), reached, "{:?}", fault(at));
            if !reached {
                store.remove_file("file").unwrap();
                break;
            }
        }
    }
    let mut file = store.create("file").unwrap();
    file.write_all(&bytes).unwrap();
    drop(file);
    assert!(store.look("file").is_err());
}

#[test]
fn a_file_that_was_replaced_is_not_read() {
    let (store, _) = bucket(&Faulty::default());
    store.put("file", b"old bytes").unwrap();
    let file = store.open("file").unwrap();
    store.put("file", b"new bytes").unwrap();
    let error = file.read_exact_at(&mut [0; 3], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StaleNetworkFileHandle, "{error}");
}

#[test]
fn it_works_on_threads_of_another_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (_, run) = bucket(&Faulty::default());
        save(&run, 1, false, &small_contents(1)).unwrap();
        assert_eq!(newest(&run), (1, small_contents(1)));
        // And its own runtime is dropped here.
    });
}
