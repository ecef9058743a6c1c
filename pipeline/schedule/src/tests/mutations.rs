//! Every single-action mutation of a list is rejected, unless the oracle accepts it.

use proptest::prelude::*;

use super::oracle::completes;
use super::{rich, v_shaped, zero_bubble};
use crate::{
    Dependencies, Form, Schedule, ScheduleKind, ScheduleMode, VerifyError, forward_only, gpipe,
    lower, one_f_one_b, verify,
};

/// Tries all drops, duplicates and swaps, and returns how many swaps were accepted and rejected.
///
/// A drop or a duplicate changes the set of actions and must be rejected. A swap keeps it, so the
/// verifier and the oracle must agree on it.
fn check(schedule: &Schedule, dependencies: &Dependencies) -> (usize, usize) {
    assert_eq!(verify(schedule, dependencies), Ok(()));
    assert!(completes(schedule, dependencies));
    let (mut accepted, mut refused) = (0, 0);
    for at in schedule.places() {
        let (rank, position) = (at.rank.index(), at.position);
        let mut dropped = schedule.clone();
        dropped.ranks[rank].remove(position);
        let error = verify(&dropped, dependencies).expect_err("an action is missing");
        let is_named = matches!(
            error,
            VerifyError::Missing { .. } | VerifyError::Unpaired { .. }
        );
        assert!(is_named, "{at}: {error}");

        for target in 0..=schedule.ranks[rank].len() {
            let mut doubled = schedule.clone();
            doubled.ranks[rank].insert(target, at.action);
            let error = verify(&doubled, dependencies).expect_err("an action is there twice");
            let VerifyError::Duplicate { at: second, .. } = error else {
                panic!("{at}: {error}")
            };
            assert_eq!(second.action, at.action);
        }

        for other in position + 1..schedule.ranks[rank].len() {
            let mut swapped = schedule.clone();
            swapped.ranks[rank].swap(position, other);
            let found = verify(&swapped, dependencies);
            let (is_ok, expected) = (found.is_ok(), completes(&swapped, dependencies));
            assert_eq!(is_ok, expected, "{at} and {other}: {found:?}\n{swapped}");
            accepted += usize::from(expected);
            refused += usize::from(!expected);
        }
    }
    (accepted, refused)
}

/// Also actions that move to another rank; all of them are rejected.
fn check_moves(schedule: &Schedule, dependencies: &Dependencies) {
    for at in schedule.places() {
        for other in (0..schedule.world_size()).filter(|other| *other != at.rank.index()) {
            let mut moved = schedule.clone();
            moved.ranks[at.rank.index()].remove(at.position);
            moved.ranks[other].insert(0, at.action);
            let error = verify(&moved, dependencies).expect_err("an action is on another rank");
            let VerifyError::WrongRank { at: one, expected } = error else {
                panic!("{at}: {error}")
            };
            assert_eq!((one.action, expected), (at.action, at.rank));
        }
    }
}

#[test]
fn small_schedules_exhaustively() {
    let schedules = [
        gpipe(1, 1),
        gpipe(1, 3),
        gpipe(3, 2),
        one_f_one_b(2, 3),
        one_f_one_b(4, 2),
        forward_only(3, 2),
        v_shaped(),
        zero_bubble(),
    ];
    let (mut accepted, mut refused) = (0, 0);
    for schedule in schedules {
        for dependencies in [Dependencies::chain(schedule.stages), rich(schedule.stages)] {
            let lowered = lower(&schedule, &dependencies);
            check_moves(&lowered, &dependencies);
            let counts = check(&lowered, &dependencies);
            accepted += counts.0;
            refused += counts.1;
            // Without messages, waits are implied; the verifier and the oracle agree on these lists too.
            assert_eq!(schedule.form, Form::ComputeOnly);
            check(&schedule, &dependencies);
            if schedule.mode == ScheduleMode::Training {
                let replicated = dependencies.clone().with_replicas();
                check(&lower(&schedule, &replicated), &replicated);
                let clipped = replicated.with_global_norm();
                check(&lower(&schedule, &clipped), &clipped);
            }
        }
    }
    // Both answers occur, so the comparison with the oracle tests each.
    let both = accepted > 100 && refused > 1000;
    assert!(both, "{accepted} accepted, {refused} refused");
}

/// Each generator, lowered with the norms of a clip by all gradients.
#[test]
fn named_schedules_exhaustively() {
    for kind in ScheduleKind::ALL {
        let chunks = kind.chunks().least();
        // With fewer than two per rank there is no overlap.
        let micro_batches = match kind {
            ScheduleKind::DualPipeV => 4,
            _ => 2,
        };
        let schedule = kind.generate(2, chunks, micro_batches).unwrap();
        assert_eq!(schedule.name, kind.name());
        let dependencies = Dependencies::chain(schedule.stages).with_global_norm();
        let lowered = lower(&schedule, &dependencies);
        check_moves(&lowered, &dependencies);
        let (accepted, refused) = check(&lowered, &dependencies);
        let both = accepted > 0 && refused > accepted;
        assert!(both, "{kind}: {accepted} and {refused}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Several swaps at once reach deadlocks that one swap does not.
    #[test]
    fn shuffled_lists_agree_with_the_oracle(
        kind in 0..5_usize,
        p in 1..=5_usize,
        m in 1..=5_usize,
        is_lowered: bool,
        swaps in prop::collection::vec((any::<prop::sample::Index>(), 0..64_usize, 1..8_usize), 1..6),
    ) {
        let schedule = match kind {
            0 => gpipe(p, m),
            1 => one_f_one_b(p, m),
            2 => forward_only(p, m),
            3 => v_shaped(),
            _ => zero_bubble(),
        };
        let dependencies = rich(schedule.stages);
        let mut schedule = if is_lowered { lower(&schedule, &dependencies) } else { schedule };
        for (rank, position, distance) in swaps {
            let rank = rank.index(schedule.world_size());
            let length = schedule.ranks[rank].len();
            schedule.ranks[rank].swap(position % length, (position + distance) % length);
        }
        let found = verify(&schedule, &dependencies);
        prop_assert_eq!(found.is_ok(), completes(&schedule, &dependencies), "{:?}", found);
        if let Err(VerifyError::Deadlock { cycle, .. }) = found {
            // A cycle: each rank waits for an action of the next one that is after the action at which that rank waits.
            prop_assert!(cycle.len() > 1);
            for (at, wait) in cycle.iter().enumerate() {
                let next = cycle[(at + 1) % cycle.len()].waiting;
                prop_assert_eq!(wait.awaited.rank, next.rank);
                prop_assert!(wait.awaited.position >= next.position);
            }
        }
    }
}
