//! Generators: the compute actions of the known schedules.
//!
//! One stage per rank. Zero stages or micro-batches give empty lists, which
//! [`verify`](super::verify) refuses, so a generator cannot fail.

use super::action::{Action, Compute};
use super::index::{MicroBatchIndex, RankIndex, StageIndex};
use super::lists::{Form, Mode, Schedule};

/// GPipe: every rank runs all forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965).
///
/// Bubble (p-1)(F+B), and m activations on every rank.
#[must_use]
pub fn gpipe(stages: usize, micro_batches: usize) -> Schedule {
    build("gpipe", Mode::Training, stages, micro_batches, |_| {
        let forwards = (0..micro_batches).map(|k| (Compute::Forward, k));
        let backwards = (0..micro_batches).map(|k| (Compute::Backward, k));
        forwards.chain(backwards).collect()
    })
}

/// 1F1B: after a warm-up of min(m, p - rank) forwards, a rank alternates one backward and one
/// forward (PipeDream-Flush, Narayanan et al. 2021, arXiv 2006.09503).
///
/// The bubble is GPipe's for m >= p, with only min(m, p - rank) activations. Fewer micro-batches
/// than stages work too.
#[must_use]
pub fn one_f_one_b(stages: usize, micro_batches: usize) -> Schedule {
    build("1f1b", Mode::Training, stages, micro_batches, |rank| {
        let warm_up = micro_batches.min(stages - rank);
        let mut list: Vec<_> = (0..warm_up).map(|k| (Compute::Forward, k)).collect();
        for backward in 0..micro_batches {
            list.push((Compute::Backward, backward));
            let forward = warm_up + backward;
            if forward < micro_batches {
                list.push((Compute::Forward, forward));
            }
        }
        list
    })
}

/// Forward passes alone, for evaluation.
#[must_use]
pub fn forward_only(stages: usize, micro_batches: usize) -> Schedule {
    build(
        "forward-only",
        Mode::ForwardOnly,
        stages,
        micro_batches,
        |_| (0..micro_batches).map(|k| (Compute::Forward, k)).collect(),
    )
}

/// One stage per rank, each with the programs that `list` gives for its rank.
fn build(
    name: &str,
    mode: Mode,
    stages: usize,
    micro_batches: usize,
    list: impl Fn(usize) -> Vec<(Compute, usize)>,
) -> Schedule {
    let actions = |rank: usize| {
        let stage = StageIndex::new(rank);
        let programs = list(rank).into_iter();
        programs
            .map(|(c, k)| Action::compute(stage, c, MicroBatchIndex::new(k)))
            .collect()
    };
    Schedule {
        name: name.to_owned(),
        mode,
        form: Form::ComputeOnly,
        stages,
        micro_batches,
        stage_to_rank: (0..stages).map(RankIndex::new).collect(),
        ranks: (0..stages).map(actions).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpipe_4_4() {
        insta::assert_snapshot!(gpipe(4, 4), @r"
        0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3
        1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3
        2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3
        3F0 3F1 3F2 3F3 3B0 3B1 3B2 3B3
        ");
    }

    #[test]
    fn one_f_one_b_4_8() {
        insta::assert_snapshot!(one_f_one_b(4, 8), @r"
        0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0F6 0B3 0F7 0B4 0B5 0B6 0B7
        1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1F6 1B4 1F7 1B5 1B6 1B7
        2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2F6 2B5 2F7 2B6 2B7
        3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7
        ");
    }

    #[test]
    fn one_f_one_b_with_fewer_micro_batches_than_stages() {
        insta::assert_snapshot!(one_f_one_b(4, 2), @r"
        0F0 0F1 0B0 0B1
        1F0 1F1 1B0 1B1
        2F0 2F1 2B0 2B1
        3F0 3B0 3F1 3B1
        ");
    }

    #[test]
    fn forward_only_2_3() {
        insta::assert_snapshot!(forward_only(2, 3), @r"
        0F0 0F1 0F2
        1F0 1F1 1F2
        ");
    }

    #[test]
    fn nothing_to_do_gives_empty_lists() {
        assert_eq!(one_f_one_b(0, 4).ranks.len(), 0);
        assert_eq!(gpipe(3, 0).action_count(), 0);
    }
}
