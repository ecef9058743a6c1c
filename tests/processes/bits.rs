//! Processes compute what threads compute, bit by bit.

use crate::alone;
#[cfg(feature = "mpi")]
use crate::not_run;
use crate::program::{Digest, Program};
use crate::ranks::Ranks;
#[cfg(feature = "mpi")]
use crate::ranks::mpirun;

/// Steps of the long run: the value of `TINDERBOX_TEST_STEPS`, or 1,000. In 1,000 steps, any action of one rank and any action
/// of the other are late in the same step about 15 times.
fn long() -> u64 {
    let set = std::env::var("TINDERBOX_TEST_STEPS");
    set.map_or(1000, |steps| steps.parse().unwrap())
}

fn check(ranks: usize, program: &Program) {
    let (expected, _) = Digest::of_threads(ranks, program);
    for (rank, reported) in Ranks::start(ranks, program).succeed().iter().enumerate() {
        let expected = expected.number().to_string();
        assert_eq!(
            reported.text("seen "),
            Some(&*expected),
            "rank {rank} of {ranks}"
        );
    }
}

#[test]
fn processes_see_what_threads_see() {
    let _alone = alone();
    for ranks in [2, 3, 4] {
        let steps = 3;
        check(
            ranks,
            &Program {
                steps,
                ..Program::default()
            },
        );
    }
}

/// As one rank does, and as threads do.
#[test]
fn replicas_see_what_one_rank_sees() {
    let _alone = alone();
    for (size, replicas, micro_batches) in [(2, 2, 2), (4, 2, 4), (4, 4, 4)] {
        let program = Program {
            replicas,
            micro_batches,
            steps: 5,
            ..Program::default()
        };
        let (expected, _) = Digest::of_threads(1, &program);
        for (rank, reported) in Ranks::start(size, &program).succeed().iter().enumerate() {
            let expected = expected.number().to_string();
            let seen = reported.text("seen ");
            assert_eq!(
                seen,
                Some(&*expected),
                "rank {rank} of {size}, {replicas} replicas"
            );
        }
    }
}

#[test]
fn many_steps_with_random_delays_change_no_bit() {
    let _alone = alone();
    check(
        2,
        &Program {
            steps: long(),
            delays: Some(1),
            ..Program::default()
        },
    );
}

#[cfg(feature = "mpi")]
#[test]
fn processes_over_mpi_see_what_threads_see() {
    let _alone = alone();
    if let Err(reason) = mpirun() {
        return not_run("bits over MPI", reason);
    }
    check(
        2,
        &Program {
            over_mpi: true,
            replicas: 2,
            steps: 20,
            ..Program::default()
        },
    );
    for (ranks, steps, delays) in [(2, 200, Some(1)), (3, 20, None)] {
        let over_mpi = true;
        check(
            ranks,
            &Program {
                over_mpi,
                steps,
                delays,
                ..Program::default()
            },
        );
    }
}
