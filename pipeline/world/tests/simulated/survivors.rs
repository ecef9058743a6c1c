//! The remaining processes agree on who is left, and on every value.

use std::iter::StepBy;
use std::ops::Range;
use std::time::{Duration, Instant};

use tinderbox_engines::{Delays, Simulated};
use tinderbox_simulation::{Random, Report};
use tinderbox_world::WorldOptions;

use crate::faults::{Faults, Kind, Phase, Table};
use crate::program::{self, Ended, Run};

/// Heartbeats of 100 ms. A process without a heartbeat for five of them is lost.
pub fn options() -> WorldOptions {
    let mut options = WorldOptions::default();
    options.heartbeat = Duration::from_millis(100);
    options.heartbeats_until_lost = 5;
    options.call_timeout = Duration::from_secs(10);
    options
}

/// Returns the number of processes of a seed, and its delays.
pub fn world(seed: u64, random: &mut Random) -> (usize, Delays) {
    let size = 2 + random.below(4) as usize;
    let most = Duration::from_micros([0, 500, 5_000, 40_000][random.below(4) as usize]);
    (size, Delays { seed, most })
}

/// Returns the seeds of a test; `SEEDS=0..20000` sets others.
pub fn seeds(count: u64) -> Range<u64> {
    let seeds = std::env::var("SEEDS").ok();
    let seeds = seeds.as_deref().and_then(|seeds| seeds.split_once(".."));
    seeds.map_or(0..count, |(first, end)| {
        first.parse().unwrap()..end.parse().unwrap()
    })
}

/// Divides seeds among all cores. Returns the result of each.
pub fn on_all_cores<R: Send>(
    seeds: &Range<u64>,
    run: impl Fn(StepBy<Range<u64>>) -> R + Sync,
) -> Vec<R> {
    let (cores, run) = (std::thread::available_parallelism(), &run);
    let cores = cores.map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores)
            .map(|core| {
                let own = (seeds.start + core as u64..seeds.end).step_by(cores);
                scope.spawn(move || run(own))
            })
            .collect();
        let results = threads.into_iter().map(|thread| {
            let result = thread.join();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        results.collect()
    })
}

/// The results of a seed.
struct Ran {
    seed: u64,
    ended: Vec<Ended>,
    report: Report,
    run: Run,
}

impl Ran {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (size, delays) = world(seed, &mut random);
        let run = Run::new(Faults::plan(
            size,
            Duration::from_secs(3),
            Phase::Regroup,
            &mut random,
        ));
        let ran = Simulated::run(size, delays, &options(), |world, net| {
            program::run(world, net, &run)
        });
        let (ended, report) = ran.unwrap_or_else(|error| panic!("{error}"));
        Self {
            seed,
            ended,
            report,
            run,
        }
    }

    fn describe(&self) -> String {
        let ended = self.ended.iter().enumerate();
        let ended = ended.map(|(one, ended)| format!("\n{one}: {ended:?}"));
        let (ended, history) = (ended.collect::<String>(), self.run.faults.history());
        format!(
            "seed {}, {:?}\n  {}{ended}",
            self.seed,
            self.report,
            history.join("\n  ")
        )
    }

    /// Checks who is left. Returns whether every process without a fault is.
    fn check(&self) -> bool {
        let (size, harms) = (self.ended.len(), self.run.faults.harms());
        for (one, (end, harm)) in self.ended.iter().zip(&harms).enumerate() {
            let Ok(with) = &end.with else {
                continue;
            };
            if harm.is_killed {
                // Of two processes, each is half: the killed one continues without the other.
                assert!(
                    *with == [one] && !end.errors.is_empty(),
                    "{}",
                    self.describe()
                );
                continue;
            }
            let same = (0..size).filter(|other| self.ended[*other].with.as_ref() == Ok(with));
            assert_eq!(same.collect::<Vec<_>>(), *with, "{}", self.describe());
        }
        let healthy =
            (0..size).filter(|one| !harms[*one].is_killed && !harms[*one].may_be_given_up);
        let healthy: Vec<_> = healthy.map(|one| &self.ended[one].with).collect();
        let all_continue = healthy
            .iter()
            .all(|with| with.is_ok() && *with == healthy[0]);
        // Of two that have lost each other, the lower one continues, also if only the other one is healthy.
        let is_disputed = harms
            .iter()
            .any(|harm| harm.may_be_given_up && !harm.is_killed);
        // Frames of an older generation cause no failure in a later one.
        let left = self.ended.iter().zip(&harms);
        let left = left.filter(|(_, harm)| !harm.is_killed);
        let failed = left.clone().map(|(end, _)| end.errors.len());
        let failed = failed.max().unwrap_or(0);
        let killed = harms.iter().filter(|harm| harm.is_killed).count();
        let faults = 2 * self.run.faults.history().len();
        let most = if is_disputed { faults } else { killed };
        assert!(failed <= most, "{}", self.describe());
        // No process waits for longer than the heartbeats allow.
        let mut took = left.map(|(end, _)| end.regrouped_for);
        let is_soon = took.all(|took| took < Duration::from_secs(5));
        assert!(is_soon || is_disputed, "{}", self.describe());
        let are_too_few = healthy.len() * 2 < size;
        assert!(
            all_continue || are_too_few || is_disputed,
            "{}",
            self.describe()
        );
        assert!(
            self.report.elapsed < Duration::from_secs(40),
            "{}",
            self.describe()
        );
        all_continue || are_too_few
    }
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..20 {
        let (first, second) = (Ran::new(seed), Ran::new(seed));
        assert_eq!((first.ended, first.report), (second.ended, second.report));
    }
}

#[test]
fn remaining_processes_agree() {
    let (seeds, began) = (seeds(2500), Instant::now());
    let count = seeds.end - seeds.start;
    let results = on_all_cores(&seeds, |seeds| {
        let (mut table, mut left_out, mut steps) = (Table::default(), 0, 0);
        for seed in seeds {
            let ran = Ran::new(seed);
            left_out += u64::from(!ran.check());
            ran.run.faults.count(&mut table);
            steps += ran.report.steps;
        }
        (table, left_out, steps)
    });
    let (mut table, mut left_out, mut steps) = (Table::default(), 0, 0);
    for (of_core, left_out_of_core, steps_of_core) in results {
        table.add(&of_core);
        left_out += left_out_of_core;
        steps += steps_of_core;
    }
    let per_second = count as f64 / began.elapsed().as_secs_f64();
    println!("{table}{per_second:.0} runs/s of {} steps", steps / count);
    println!("a healthy process was left out in {left_out} of {count} runs");
    if count >= 2500 {
        assert!(left_out * 50 < count, "{left_out} of {count}");
        let kinds = [Kind::Kill, Kind::Pause, Kind::Slow, Kind::Cut];
        table.check(&kinds, &[Phase::Work, Phase::Call, Phase::Regroup]);
    }
}
