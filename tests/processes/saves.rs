//! Processes that save after every step, and are killed at any moment: the run continues from what was saved, with any number of
//! processes, and computes what an uninterrupted one computes.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use tinderbox::checkpoint::Run;

use crate::alone;
use crate::program::{Digest, Program, now_ms};
use crate::ranks::Ranks;

const STEPS: u64 = 300;

/// How many runs are killed.
const KILLS: usize = 48;

#[test]
fn a_run_survives_kills_at_any_moment() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let saves = Run::local(directory.path());
    let program = Program {
        steps: STEPS,
        saves: Some(directory.path().to_owned()),
        is_verbose: true,
        ..Program::default()
    };
    let (_, expected) = Digest::of_threads(1, &program);
    // Whoever has begun a step has seen the checkpoint before it published.
    let mut published = 0;
    for kill in 0..KILLS {
        let size = [2, 3, 1, 4][kill % 4];
        let mut ranks = Ranks::start(size, &program);
        // After some steps, while some process resumes, computes, writes, publishes or removes. The numbers are combined so
        // that every size meets every count, and every rank is killed.
        let (steps, one) = (kill / 4 % 4, kill / 4 % size);
        let has_come = |ranks: &Ranks| {
            let mut all = (0..size).map(|rank| ranks.reported(rank));
            all.all(|reported| {
                let has_begun = reported.time("pid ").is_some();
                has_begun && reported.steps().len() >= steps || reported.time("end").is_some()
            })
        };
        ranks.wait_until("step", has_come);
        std::thread::sleep(Duration::from_micros(1 + 10_007 * kill as u64 % 40_000));
        let killed = if kill % 3 == 0 { 0..size } else { one..one + 1 };
        killed.for_each(|rank| ranks.signal(rank, Signal::KILL));
        let since = now_ms();
        let mut begun = published;
        for rank in 0..size {
            let after = ranks.ended_ms(rank) - since;
            // A disk may take its time for what is being written.
            assert!(after < 5000, "rank {rank} of {size} ended after {after} ms");
            let steps = ranks.reported(rank).steps();
            for (step, digest) in &steps {
                assert_eq!(
                    *digest, expected[*step],
                    "step {step}, rank {rank} of {size}"
                );
            }
            let (first, last) = (steps.first(), steps.last());
            assert!(
                first.is_none_or(|(first, _)| *first >= published),
                "checkpoint {published} was there, and {first:?} was resumed"
            );
            begun = begun.max(last.map_or(0, |(last, _)| *last));
        }
        published = begun;
    }
    assert!(published > 10, "no run gets far: {published} steps");
    // The last run continues for some steps.
    let end = STEPS.min(published as u64 + 20);
    let program = Program {
        steps: end,
        ..program
    };
    for reported in Ranks::start(2, &program).succeed() {
        let last = end as usize - 1;
        assert_eq!(reported.steps().last(), Some(&(last, expected[last])));
    }
    // What was left is removed.
    assert_eq!(saves.steps().unwrap(), [end - 1, end]);
    let entries = fs::read_dir(directory.path()).unwrap().count();
    assert!(entries <= 3, "{entries} entries");
    println!("{KILLS} kills within {published} steps");
}
