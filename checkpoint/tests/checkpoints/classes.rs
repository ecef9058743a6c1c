//! Only damaged checkpoints are skipped: any other error of the newest checkpoint is returned or retried.

use std::{collections::BTreeMap, io::ErrorKind, sync::Arc};

use burn::tensor::{DType, TensorData};
use tinderbox_checkpoint::{ErrorClass, LoadError, Role, Run, SaveTensor, store::Store};
use tinderbox_checkpoint_tests::volatile::{Fault, Volatile};
use tinderbox_checkpoint_tests::{TIMEOUT, chain, meta, small_contents};

fn with_two_steps() -> (Volatile, Run) {
    let store = Volatile::default();
    let run = Run::on(Arc::new(store.clone()));
    for step in [1, 2] {
        let attempt = run.begin(meta(step, 1)).unwrap();
        let tensors: Vec<SaveTensor> = {
            let contents = small_contents(step);
            let tensors = contents.0.into_iter();
            let model = tensors.filter(|((role, _), _)| *role == Role::Model);
            model
                .map(|((role, name), data)| SaveTensor::whole(name, role, data))
                .collect()
        };
        let rank = attempt.handle().threads(1);
        rank.write_rank(0, &tensors, &BTreeMap::new(), &()).unwrap();
        attempt.publish(TIMEOUT).unwrap();
    }
    (store, run)
}

/// Finds the newest intact checkpoint with a fault at each operation of the store in turn.
fn for_every_operation(
    kind: ErrorKind,
    fault: impl Fn(u64) -> Fault,
    check: impl Fn(u64, Result<u64, LoadError>),
) {
    let (store, run) = with_two_steps();
    store.set_kind(kind);
    for at in 1.. {
        store.set_fault(Some(fault(at)));
        let latest = run.latest_verified();
        let reached = store.operations() >= at;
        check(
            at,
            latest.map(|latest| latest.expect("there are two").checkpoint.step()),
        );
        if !reached {
            assert!(at > 10, "{at} operations");
            return;
        }
    }
}

#[test]
fn an_error_that_passes_is_tried_again() {
    for kind in [
        ErrorKind::TimedOut,
        ErrorKind::ConnectionReset,
        ErrorKind::ResourceBusy,
        ErrorKind::Other,
    ] {
        for_every_operation(kind, Fault::Once, |at, latest| {
            assert_eq!(latest.unwrap(), 2, "{kind}, operation {at}");
        });
    }
}

#[test]
fn an_error_that_stays_ends_with_an_error_and_no_older_step() {
    let denied = |at, latest: Result<u64, LoadError>| match latest {
        // The listing of files may fail: each file is looked up then.
        Ok(step) => assert_eq!(step, 2, "operation {at}"),
        Err(error) => {
            assert_eq!(error.class(), ErrorClass::Refused, "operation {at}");
            assert!(
                !matches!(error, LoadError::NoneUsable { .. }),
                "operation {at}"
            );
        }
    };
    for_every_operation(ErrorKind::PermissionDenied, Fault::Once, denied);
    for_every_operation(ErrorKind::PermissionDenied, Fault::From, denied);

    // Each of these waits for the pauses between the retries.
    let (store, run) = with_two_steps();
    store.set_kind(ErrorKind::TimedOut);
    for at in [1, 3, 6] {
        store.set_fault(Some(Fault::From(at)));
        let error = run.latest_verified().unwrap_err();
        assert_eq!(error.class(), ErrorClass::Transient, "operation {at}");
        assert!(store.operations() < at + 12, "there is a limit");
    }
    store.set_fault(None);
    assert_eq!(run.latest().unwrap().unwrap().checkpoint.step(), 2);
}

#[test]
fn the_error_says_what_to_do() {
    let (store, run) = with_two_steps();
    store.set_kind(ErrorKind::PermissionDenied);
    store.set_fault(Some(Fault::From(3)));
    let error = run.latest().unwrap_err();
    assert_eq!(
        chain(&error),
        "the checkpoint of step 2 can't be used; it is not known to be damaged, so no older one is used (give \
         this program read access; to resume from an older step, move this one out of the run): can't open \
         /volatile/step-00000002/manifest.json: permission denied"
    );
}

/// A store that can't be asked for a step does not report that the step is missing.
#[test]
fn a_step_that_can_not_be_looked_up() {
    let (store, run) = with_two_steps();
    store.remove_file("step-00000002/manifest.json").unwrap();
    store.set_kind(ErrorKind::PermissionDenied);
    // The first operation opens the manifest.
    store.set_fault(Some(Fault::From(2)));
    let error = run.open(2).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Refused);
    assert_eq!(
        chain(&error),
        "can't look at /volatile/step-00000002: permission denied"
    );
    store.set_fault(None);
    for (step, expected) in [(2, true), (3, false)] {
        let error = run.open(step).unwrap_err();
        assert!(
            matches!(error, LoadError::NotPublished { exists, .. } if exists == expected),
            "{error}"
        );
    }
}

/// A rank that fails while the coordinator waits retries, and the checkpoint is complete.
#[test]
fn a_failed_rank_tries_again_while_the_coordinator_waits() {
    let store = Volatile::default();
    let run = Run::on(Arc::new(store.clone()));
    let attempt = run.begin(meta(1, 1)).unwrap();
    let rank = attempt.handle();
    std::thread::scope(|scope| {
        let coordinator = scope.spawn(|| attempt.publish(TIMEOUT));
        let data = |dtype| TensorData::from_bytes_vec(vec![0; 4], [1], dtype);
        let save = |dtype| {
            let tensor = SaveTensor::whole("w", Role::Model, data(dtype));
            rank.write_rank(0, &[tensor], &BTreeMap::new(), &())
        };
        // An unsupported dtype.
        save(DType::Flex32).unwrap_err();
        // The coordinator checks several times and finds that the rank has failed.
        let failed = store.operations();
        while store.operations() < failed + 8 && !coordinator.is_finished() {
            std::thread::yield_now();
        }
        save(DType::F32).unwrap();
        coordinator.join().unwrap().unwrap();
    });
    run.open(1).unwrap().verify().unwrap();
}

#[test]
fn a_missing_manifest_is_skipped_and_a_removed_step_is_nothing() {
    let (store, run) = with_two_steps();
    store.remove_file("step-00000002/manifest.json").unwrap();
    let latest = run.latest().unwrap().unwrap();
    assert_eq!(latest.checkpoint.step(), 1);
    let [skipped] = &latest.skipped[..] else {
        panic!("{:?}", latest.skipped);
    };
    assert_eq!(
        (skipped.step, skipped.reason.class()),
        (2, ErrorClass::Missing)
    );
}
