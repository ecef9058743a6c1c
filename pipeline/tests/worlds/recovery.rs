//! Ranks that are lost: those that are left compute what an undisturbed run computes, bit by bit.

use std::time::Duration;

use tinderbox_pipeline::{GradientSum, PipelineBuilder, PipelineError, Recovery, ScheduleKind};
use tinderbox_world::testing::{Delays, Net as Connections};
use tinderbox_world::{RankIndex, World};

use crate::model::{Batch, MICRO_BATCHES, Net, Seen, batch, builder_of, on_world, run};

const STEPS: u64 = 6;

fn recovering(replicas: usize, ranks: usize, kind: ScheduleKind) -> PipelineBuilder<Net, Batch> {
    builder_of(replicas, ranks, kind)
        .gradient_sum(GradientSum::Tree(MICRO_BATCHES))
        .recovery(Recovery::default())
}

fn undisturbed() -> Seen {
    let mut pipeline = recovering(1, 1, ScheduleKind::OneFOneB).start().unwrap();
    run(&mut pipeline, STEPS)
}

/// Cuts a rank off after some time, while all run their program. Returns what the others have seen, and how often they
/// recovered.
fn kill(
    replicas: usize,
    ranks: usize,
    kind: ScheduleKind,
    killed: usize,
    after: Duration,
) -> Vec<(Seen, usize)> {
    let size = replicas * ranks;
    let program = |world: World, net: &Connections| {
        let own = world.rank();
        let builder = recovering(replicas, ranks, kind).world(&world);
        let mut pipeline = builder.start().unwrap();
        if own.index() == killed {
            let net = net.clone();
            std::thread::spawn(move || {
                std::thread::sleep(after);
                net.kill(own);
            });
            // It runs on alone, or finds that it is cut off.
            let cut_off = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                run(&mut pipeline, STEPS)
            }));
            drop(cut_off);
            return None;
        }
        let seen = run(&mut pipeline, STEPS);
        let recovered = pipeline.recovered();
        for one in recovered {
            assert_eq!(one.lost, [RankIndex::new(killed)]);
            assert!(one.repeated <= 1, "{one}");
            assert_eq!(
                (one.ranks, pipeline.plan().world_size()),
                (size - 1, size - 1)
            );
        }
        Some((seen, recovered.len()))
    };
    on_world(size, Delays::default(), program)
        .into_iter()
        .flatten()
        .collect()
}

#[test]
fn those_that_are_left_compute_the_same() {
    let expected = undisturbed();
    let mut recovered = 0;
    let mut cases = 0;
    for (replicas, ranks, kind) in [
        (1, 2, ScheduleKind::OneFOneB),
        (1, 3, ScheduleKind::ZbH1),
        (2, 1, ScheduleKind::OneFOneB),
        (2, 2, ScheduleKind::OneFOneB),
        (1, 2, ScheduleKind::Zbv),
        (4, 1, ScheduleKind::GPipe),
    ] {
        let size = replicas * ranks;
        for killed in 0..size {
            for after in [0, 5, 13, 27, 45, 70, 100] {
                let after = Duration::from_millis(after);
                let found = kill(replicas, ranks, kind, killed, after);
                assert_eq!(found.len(), size - 1);
                for (seen, count) in found {
                    assert!(
                        seen == expected,
                        "{replicas} x {ranks}, {kind}: {killed} after {after:?}"
                    );
                    recovered += count;
                    cases += 1;
                }
            }
        }
    }
    println!("{recovered} of {cases} survivors went on");
    assert!(recovered * 2 > cases, "{recovered} of {cases}");
}

/// Two of four that are no neighbours, one after the other.
#[test]
fn several_ranks_may_be_lost_one_after_the_other() {
    let expected = undisturbed();
    let program = |world: World, net: &Connections| {
        let own = world.rank();
        let builder = recovering(2, 2, ScheduleKind::OneFOneB).world(&world);
        let mut pipeline = builder.start().unwrap();
        let after = match own.index() {
            1 => 4,
            3 => 60,
            _ => {
                let seen = run(&mut pipeline, STEPS);
                return Some((seen, pipeline.recovered().len()));
            }
        };
        let net = net.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(after));
            net.kill(own);
        });
        let cut_off =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&mut pipeline, STEPS)));
        drop(cut_off);
        None
    };
    let found = on_world(4, Delays::default(), program);
    for (seen, recovered) in found.into_iter().flatten() {
        assert!(seen == expected);
        assert!(recovered > 0);
    }
}

/// Without recovery, a lost rank ends all.
#[test]
fn without_recovery_a_lost_rank_ends_all() {
    let found = on_world(2, Delays::default(), |world, net| {
        let builder = builder_of(1, 2, ScheduleKind::OneFOneB).world(&world);
        let mut pipeline = builder.start().unwrap();
        pipeline.step(1e-2, batch(0)).unwrap();
        if world.is_first() {
            net.kill(world.rank());
        }
        let error = (1..100).find_map(|step| pipeline.step(1e-2, batch(step)).err());
        assert!(!pipeline.recover().unwrap());
        error.map(|error| matches!(error, PipelineError::World(_)))
    });
    assert_eq!(found[1], Some(true));
}
