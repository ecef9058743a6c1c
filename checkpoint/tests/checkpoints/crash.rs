//! No fault and no power failure, at any operation, loses an earlier checkpoint or leaves a partial later
//! one.

use std::{cell::Cell, collections::BTreeMap, sync::Arc};

use tinderbox_checkpoint::{
    CheckpointMeta, Role, Run, SaveError, SaveTensor,
    store::{FoundKind, LocalStore, Store},
    testing::check_store,
};
use tinderbox_checkpoint_tests::volatile::{Fault, Volatile};
use tinderbox_checkpoint_tests::{Contents, TIMEOUT, load, meta, small_contents};

#[test]
fn every_store_keeps_its_promises() {
    let dir = tempfile::tempdir().unwrap();
    let stores: [Arc<dyn Store>; 3] = [
        Arc::new(LocalStore::new(dir.path().join("not/there/yet"))),
        Arc::new(LocalStore::new(
            tempfile::tempdir_in(dir.path()).unwrap().keep(),
        )),
        Arc::new(Volatile::default()),
    ];
    for store in stores {
        check_store(&store).unwrap();
    }
}

#[test]
fn a_store_that_breaks_a_promise_is_found_out() {
    // One operation after the other fails, and each time a promise is broken.
    let whole = Volatile::default();
    check_store(&(Arc::new(whole.clone()) as Arc<dyn Store>)).unwrap();
    for at in 1..=whole.operations() {
        let store = Volatile::default();
        store.set_fault(Some(Fault::Once(at)));
        let checked = check_store(&(Arc::new(store) as Arc<dyn Store>));
        assert!(checked.is_err(), "operation {at} of {}", whole.operations());
    }
}

/// The number of subsets of the unsynced changes that are tried.
const LOSSES: usize = 40;

/// Saves the halves of two ranks, in several files.
fn save(store: &Volatile, step: u64, replace: bool, contents: &Contents) -> Result<(), SaveError> {
    let run = Run::on(Arc::new(store.clone()));
    let meta = CheckpointMeta {
        file_bytes: 150,
        replace,
        ..meta(step, 2)
    };
    let attempt = run.begin(meta)?;
    let tensors = contents.0.iter();
    let mut ranks = [Vec::new(), Vec::new()];
    for (number, ((role, name), data)) in tensors.enumerate() {
        ranks[number % 2].push(SaveTensor::whole(name.clone(), *role, data.clone()));
    }
    let scalars = [contents.1.clone(), BTreeMap::new()];
    for (rank, (tensors, scalars)) in (0..).zip(ranks.iter().zip(&scalars)) {
        // One thread, so that the order of operations is deterministic.
        attempt
            .handle()
            .threads(1)
            .write_rank(rank, tensors, scalars, &())?;
    }
    attempt.publish(TIMEOUT).map(drop)
}

/// Returns a store with step 1, completely durable.
fn with_one_step() -> Volatile {
    let store = Volatile::default();
    save(&store, 1, false, &small_contents(1)).unwrap();
    store.after_power_loss()
}

/// Returns the verified contents of the newest checkpoint.
fn newest(store: &Volatile) -> (u64, Contents) {
    let run = Run::on(Arc::new(store.clone()));
    let latest = run.latest().unwrap().expect("there is one");
    assert!(latest.skipped.is_empty(), "{:?}", latest.skipped);
    latest.checkpoint.verify().unwrap();
    (latest.checkpoint.step(), load(&latest.checkpoint).unwrap())
}

/// Returns the names in the root.
fn names(store: &Volatile) -> Vec<String> {
    let found = store.list("").unwrap();
    assert!(found.iter().all(|found| found.kind == FoundKind::Dir));
    found.into_iter().map(|found| found.name).collect()
}

/// Saves with a fault at each operation in turn, until there are no more operations.
fn for_every_operation(
    fault: impl Fn(u64) -> Fault,
    replace: bool,
    check: impl Fn(u64, &Volatile, Result<(), SaveError>),
) -> u64 {
    let step = if replace { 1 } else { 2 };
    for at in 1.. {
        let store = with_one_step();
        store.set_fault(Some(fault(at)));
        let saved = save(&store, step, replace, &small_contents(2));
        let reached = store.operations() >= at;
        check(at, &store, saved);
        if !reached {
            return at;
        }
    }
    unreachable!("a save ends")
}

#[test]
fn a_fault_at_any_operation_loses_nothing() {
    for replace in [false, true] {
        for fault in [Fault::Once, Fault::From] {
            let operations = for_every_operation(fault, replace, |at, store, saved| {
                let what = format!("{:?}, replace {replace}: {saved:?}", fault(at));
                store.set_fault(None);
                let (step, contents) = newest(store);
                let new = contents == small_contents(2);
                assert!(new || contents == small_contents(1), "{what}");
                assert_eq!(step, if new && !replace { 2 } else { 1 }, "{what}");
                match saved {
                    // A fault after the commit is not an error, or reports the publication.
                    Ok(()) | Err(SaveError::NotDurable { .. }) => assert!(new, "{what}"),
                    Err(SaveError::Io(_)) => assert!(!new, "{what}"),
                    Err(SaveError::RankFailed { .. }) => {
                        panic!("the rank's own error comes first: {what}")
                    }
                    Err(_) => panic!("another error: {what}"),
                }
                // After a single fault no files are left, unless the fault hits the removal itself.
                let run = Run::on(Arc::new(store.clone()));
                run.clean().unwrap();
                assert!(
                    names(store).iter().all(|name| name.starts_with("step-")),
                    "{what}"
                );
                assert_eq!(newest(store).1 == small_contents(2), new, "{what}");
                // And the run continues.
                save(store, 3, false, &small_contents(3)).unwrap();
                assert_eq!(newest(store), (3, small_contents(3)));
            });
            assert!(operations > 40, "{operations}");
        }
    }
}

#[test]
fn a_loss_of_power_at_any_operation_leaves_the_old_or_the_new() {
    for replace in [false, true] {
        let (old, new) = (Cell::new(0), Cell::new(0));
        for_every_operation(Fault::PowerLoss, replace, |at, store, saved| {
            for (kept, store) in store.after_power_losses(LOSSES, at).into_iter().enumerate() {
                let what = format!("operation {at}, part {kept}, replace {replace}: {saved:?}");
                let (_, contents) = newest(&store);
                let is_new = contents == small_contents(2);
                assert!(is_new || contents == small_contents(1), "neither: {what}");
                // Published checkpoints are kept.
                assert!(is_new || saved.is_err(), "{what}");
                let tally = if is_new { &new } else { &old };
                tally.set(tally.get() + 1);
                let run = Run::on(Arc::new(store.clone()));
                run.clean().unwrap();
                assert!(
                    names(&store).iter().all(|name| name.starts_with("step-")),
                    "{what}: {:?}",
                    names(&store)
                );
                // Another power failure after the cleanup.
                for store in store.after_power_losses(LOSSES, at) {
                    assert_eq!(newest(&store).1 == small_contents(2), is_new, "{what}");
                }
                save(&store, 3, false, &small_contents(3)).unwrap();
                for store in store.after_power_losses(LOSSES, at) {
                    assert_eq!(newest(&store), (3, small_contents(3)), "{what}");
                }
            }
        });
        let (old, new) = (old.get(), new.get());
        assert!(old > 200 && new > 1, "{old} old, {new} new");
    }
}

#[test]
fn a_removal_leaves_a_whole_checkpoint_or_none() {
    for fault in [Fault::Once, Fault::From, Fault::PowerLoss] {
        for at in 1.. {
            let mut store = with_one_step();
            save(&store, 2, false, &small_contents(2)).unwrap();
            store = store.after_power_loss();
            store.set_fault(Some(fault(at)));
            let run = Run::on(Arc::new(store.clone()));
            let removed = run.remove(2);
            let reached = store.operations() >= at;
            store.set_fault(None);
            let left = match fault(at) {
                Fault::PowerLoss(_) => store.after_power_losses(LOSSES, at),
                _ => vec![store],
            };
            for store in left {
                // A checkpoint is complete or missing: none is skipped as damaged.
                let (step, contents) = newest(&store);
                assert_eq!(contents, small_contents(step), "{:?}", fault(at));
                let run = Run::on(Arc::new(store.clone()));
                run.clean().unwrap();
                assert!(
                    names(&store).iter().all(|name| name.starts_with("step-")),
                    "{:?}",
                    fault(at)
                );
                assert!(
                    removed.is_err() || run.steps().unwrap() == [1],
                    "{:?}",
                    fault(at)
                );
            }
            if !reached {
                break;
            }
        }
    }
}

#[test]
fn a_fault_while_loading_is_an_error() {
    let store = with_one_step();
    let run = Run::on(Arc::new(store.clone()));
    for at in 1.. {
        store.set_fault(Some(Fault::Once(at)));
        let loaded = run.open(1).and_then(|checkpoint| {
            checkpoint.verify()?;
            load(&checkpoint)
        });
        if store.operations() < at {
            assert_eq!(loaded.unwrap(), small_contents(1));
            assert!(at > 10);
            break;
        }
        // The listing of files may fail: each file is looked up then.
        assert!(loaded.is_err() || at == 3, "operation {at}");
        if let Err(error) = loaded {
            assert!(error.to_string().contains("/volatile"), "{error}");
        }
    }
    store.set_fault(None);
    assert_eq!(run.open(1).unwrap().tensors(Role::Model).count(), 3);
}
