//! The formulas of the literature, matched exactly, and properties of every generated schedule.

use proptest::prelude::*;

use crate::{
    ComputeTimes, Costs, Dependencies, RankIndex, Schedule, ScheduleKind, StageIndex,
    forward_only_on, lower, peak_activations, peak_bytes, simulate, verify,
};

use super::rich;

/// F, I and W of a chunk: equal, W short, F long, I long, W as long as F, and W longer.
const TIMES: [[u64; 3]; 8] = [
    [1, 1, 1],
    [2, 3, 1],
    [2, 2, 0],
    [5, 1, 1],
    [1, 5, 1],
    [3, 4, 3],
    [1, 2, 2],
    [3, 4, 7],
];

fn generate(kind: ScheduleKind, ranks: usize, chunks: usize, micro_batches: usize) -> Schedule {
    kind.generate(ranks, chunks, micro_batches).unwrap()
}

fn costs(schedule: &Schedule, [f, i, w]: [u64; 3]) -> Costs {
    Costs::uniform(schedule.stages, ComputeTimes::new(f, i, w))
}

fn bubble(schedule: &Schedule, costs: &Costs) -> u64 {
    let chain = Dependencies::chain(schedule.stages);
    simulate(schedule, &chain, costs).unwrap().largest_bubble()
}

/// A rank's times are v times a chunk's, which cancels the v of the literature's divisors.
#[test]
fn bubbles_of_loop_placement() {
    type Formula = fn(u64, u64, u64) -> u64;
    let one_f_one_b: Formula = |f, i, w| f + i + w;
    let zero_bubble: Formula = |f, i, w| if w <= f { f + i - w } else { i };
    let longer: Formula = |f, i, w| (f + i).saturating_sub(2 * w).max(i.saturating_sub(f));
    let cases = [
        (ScheduleKind::GPipe, 1..=1, 1, one_f_one_b),
        (ScheduleKind::OneFOneB, 1..=1, 1, one_f_one_b),
        (ScheduleKind::LoopedBfs, 1..=4, 1, one_f_one_b),
        (ScheduleKind::Interleaved1F1B, 1..=4, 1, one_f_one_b),
        (ScheduleKind::ZbH1, 1..=1, 1, zero_bubble),
        (ScheduleKind::InterleavedZb, 1..=4, 1, zero_bubble),
        (ScheduleKind::ZbH2, 1..=1, 2, longer),
    ];
    for (kind, chunks, rounds, formula) in cases {
        // Ranks and micro-batches per rank.
        let sizes = [2, 4, 8].map(|p| [1, 2, 4].map(|per_rank| (p, per_rank)));
        let sizes = sizes.as_flattened();
        for (v, &(p, per_rank)) in chunks.flat_map(|v| sizes.iter().map(move |size| (v, size))) {
            // One micro-batch more than a multiple of p is not worse.
            for m in [p * per_rank, p * per_rank + 1] {
                if m + 1 < p * rounds {
                    continue;
                }
                let schedule = generate(kind, p, v, m);
                for [f, i, w] in TIMES {
                    let found = bubble(&schedule, &costs(&schedule, [f, i, w]));
                    let expected = (p as u64 - 1) * formula(f, i, w);
                    assert_eq!(found, expected, "{kind} {p} {v} {m} {:?}", [f, i, w]);
                }
            }
        }
    }
}

#[test]
fn zbv_has_no_bubble() {
    for (p, extra) in (1..=16).flat_map(|p| [0, 1, p, 3 * p].map(|extra| (p, extra))) {
        let schedule = generate(ScheduleKind::Zbv, p, 2, 2 * p - 1 + extra);
        let found = bubble(&schedule, &costs(&schedule, [1, 1, 1]));
        assert_eq!(found, 0, "{p} {extra}");
    }
}

/// In chunk times 1F1B with two chunks in one stage has 2(p-1)(F+B) = 6(p-1).
#[test]
fn v_half_and_v_min_stay_below_their_share_of_one_f_one_b() {
    for (p, per_rank) in (2..=16).flat_map(|p| [4, 6].map(|n| (p, n))) {
        for (kind, share) in [(ScheduleKind::VHalf, 3), (ScheduleKind::VMin, 4)] {
            let schedule = generate(kind, p, 2, per_rank * p);
            let found = bubble(&schedule, &costs(&schedule, [1, 1, 1]));
            let limit = share * (p as u64 - 1);
            let is_close = found < limit && found + 3 > limit;
            assert!(is_close, "{kind} {p} {per_rank}: {found}");
        }
    }
}

/// (p-1)(F&B + B - 3W) at F = I = W, where F&B is the time of a pair, which takes as long as its programs one after the
/// other.
#[test]
fn bubbles_of_dual_pipe_v() {
    for (p, per_rank) in (1..=16).flat_map(|p| [2, 3, 5].map(|n| (p, n))) {
        let schedule = generate(ScheduleKind::DualPipeV, p, 2, per_rank * p);
        let found = bubble(&schedule, &costs(&schedule, [10, 10, 10]));
        assert_eq!(found, (p as u64 - 1) * (30 + 20 - 30), "{p} {per_rank}");
    }
}

#[test]
fn peaks() {
    for (p, per_rank) in (1..=16).flat_map(|p| [2, 4].map(|n| (p, n))) {
        let m = per_rank * p;
        let check = |kind: ScheduleKind, v, expected: &dyn Fn(usize) -> usize| {
            let expected: Vec<usize> = (0..p).map(expected).collect();
            let schedule = generate(kind, p, v, m);
            assert_eq!(peak_activations(&schedule), expected, "{kind} {p} {v} {m}");
            let bytes = peak_bytes(&schedule, &costs(&schedule, [1, 1, 1]));
            let expected: Vec<u64> = expected.into_iter().map(|held| held as u64).collect();
            assert_eq!(bytes, expected, "{kind} {p} {v} {m}");
        };
        check(ScheduleKind::GPipe, 1, &|_| m);
        check(ScheduleKind::OneFOneB, 1, &|rank| p - rank);
        check(ScheduleKind::ZbH1, 1, &|_| p);
        check(ScheduleKind::ZbH2, 1, &|_| 2 * p - 1);
        for v in 1..=4 {
            check(ScheduleKind::LoopedBfs, v, &|_| v * m);
            check(ScheduleKind::InterleavedZb, v, &|_| v * p);
        }
        for v in 2..=4 {
            let held = |rank: usize| v * p + p - 1 - 2 * rank;
            check(ScheduleKind::Interleaved1F1B, v, &held);
        }
        check(ScheduleKind::Zbv, 2, &|_| 2 * p);
        check(ScheduleKind::DualPipeV, 2, &|_| 2 * p + 1);
        for (kind, limit) in [
            (ScheduleKind::VHalf, (p + 2) / 2),
            (ScheduleKind::VMin, (p + 4) / 3),
        ] {
            let peaks = peak_activations(&generate(kind, p, 2, m));
            assert_eq!(peaks.into_iter().max(), Some(2 * limit), "{kind} {p} {m}");
        }
    }
}

/// A number of micro-batches that is not a multiple of p costs at most the longer rounds.
#[test]
fn peaks_of_uneven_rounds() {
    for (p, m) in (1..=12_usize).flat_map(|p| (1..=40_usize).map(move |m| (p, m))) {
        let longest = m.div_ceil((m / p).max(1));
        for v in 2..=4 {
            for (kind, more) in [
                (ScheduleKind::Interleaved1F1B, 2 * p - 1),
                (ScheduleKind::InterleavedZb, p),
            ] {
                let peaks = peak_activations(&generate(kind, p, v, m));
                let limit = (v * m).min((v - 1) * longest + more);
                let most = peaks.into_iter().max();
                assert!(most <= Some(limit), "{kind} {p} {v} {m}");
            }
        }
    }
}

/// Every kind with this many chunks, 1 to 16 ranks, 1 to 64 micro-batches.
fn check_every_size(chunks: usize) {
    let kinds = ScheduleKind::ALL.into_iter();
    for kind in kinds.filter(|kind| kind.chunks().contains(chunks)) {
        for p in 1..=16 {
            let chain = Dependencies::chain(p * chunks);
            for m in 1..=64 {
                let schedule = generate(kind, p, chunks, m);
                let lowered = lower(&schedule, &chain);
                for schedule in [schedule, lowered] {
                    assert_eq!(verify(&schedule, &chain), Ok(()), "{kind} {p} {chunks} {m}");
                }
            }
        }
    }
}

#[test]
fn every_kind_verifies_with_one_chunk() {
    check_every_size(1);
}

#[test]
fn every_kind_verifies_with_two_chunks() {
    check_every_size(2);
}

#[test]
fn every_kind_verifies_with_three_chunks() {
    check_every_size(3);
}

#[test]
fn every_kind_verifies_with_four_chunks() {
    check_every_size(4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Skips and ties on top of the chain, and any size, also without enough micro-batches.
    #[test]
    fn every_kind_verifies_with_skips_and_ties(
        kind in prop::sample::select(ScheduleKind::ALL.to_vec()),
        chunks in 1..6_usize,
        p in 1..20_usize,
        m in 1..50_usize,
    ) {
        prop_assume!(kind.chunks().contains(chunks));
        let rich = rich(p * chunks);
        let schedule = generate(kind, p, chunks, m);
        prop_assert_eq!(verify(&schedule, &rich), Ok(()));
        prop_assert_eq!(verify(&lower(&schedule, &rich), &rich), Ok(()));
        let splits = schedule.places().any(|at| {
            at.action.tasks().iter().any(|task| task.compute == crate::Compute::WeightGradient)
        });
        prop_assert_eq!(splits, kind.splits_backward());
        let map = kind.placement().stage_to_rank(p, chunks);
        prop_assert_eq!(&schedule.stage_to_rank, &map);
        let evaluation = forward_only_on(&map, m);
        prop_assert_eq!(verify(&evaluation, &rich), Ok(()));
        prop_assert_eq!(evaluation.world_size(), p);
    }
}

#[test]
fn evaluation_refuses_a_rank_without_a_stage() {
    let map = [0, 2].map(RankIndex::new);
    let schedule = forward_only_on(&map, 1);
    let expected = crate::VerifyError::NoSuchRank {
        stage: StageIndex::new(1),
        rank: RankIndex::new(2),
        world_size: 2,
    };
    assert_eq!(verify(&schedule, &Dependencies::chain(2)), Err(expected));
    let beyond = forward_only_on(&[RankIndex::new(usize::MAX)], 1);
    assert_eq!(beyond.world_size(), 1);
}

/// A list of 64 ranks and 512 micro-batches, which a quadratic generator would not finish.
#[test]
fn large_steps_are_generated() {
    for kind in ScheduleKind::ALL {
        let v = kind.chunks().least();
        let schedule = generate(kind, 64, v, 512);
        let chain = Dependencies::chain(64 * v);
        assert_eq!(verify(&schedule, &chain), Ok(()), "{kind}");
    }
}
