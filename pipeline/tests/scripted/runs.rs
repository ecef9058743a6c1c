//! Runs seeds, and checks what each process computed.

use std::ops::Range;
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use tinderbox_deferred::{Values, parameter_values};
use tinderbox_engines::Simulated;
use tinderbox_pipeline::testing::at_points;
use tinderbox_simulation::{Random, Report, Simulation};
use tinderbox_world::{RankIndex, WorldOptions};

use crate::faults::{Faults, Passed, SCRIPTED};
use crate::model::{Models, SHAPES};
use crate::program::{self, Ended, Seen};
use crate::table::Table;

/// Larger than a start of a pipeline needs.
const STACK_BYTES: usize = 8 << 20;

/// What all runs share.
pub struct Runs {
    models: Models,
    initial: Values,
    expected: Seen,
    passed: Passed,
}

/// The results of a seed.
struct Ran {
    seed: u64,
    shape: usize,
    faults: Arc<Faults>,
    ended: Vec<Ended>,
    report: Report,
}

/// Heartbeats of 100 ms. A process that shows none for five of them is lost.
fn options() -> WorldOptions {
    let mut options = WorldOptions::default();
    options.heartbeat = Duration::from_millis(100);
    options.heartbeats_until_lost = 5;
    options.call_timeout = Duration::from_secs(10);
    options
}

impl Runs {
    pub fn new() -> Self {
        hide_scripted_panics();
        let models = Models::new();
        let mut pipeline = models.undisturbed().start().unwrap();
        let initial = pipeline.gather(&burn::tensor::Device::flex()).unwrap();
        let initial = parameter_values(&initial).into_iter().collect();
        let passed = Passed::new(|shape, faults| {
            let (_, _, faults) = run(&models, &initial, shape, faults, (0, Duration::ZERO));
            Arc::into_inner(faults).unwrap()
        });
        Self {
            expected: Seen::undisturbed(models.undisturbed()),
            passed,
            initial,
            models,
        }
    }

    fn run(&self, seed: u64) -> Ran {
        let mut random = Random::new(seed);
        let (shape, faults) = self.passed.plan(&mut random);
        let most = [0, 500, 5_000, 40_000][random.below(4) as usize];
        let delays = (seed, Duration::from_micros(most));
        let (ended, report, faults) = run(&self.models, &self.initial, shape, faults, delays);
        Ran {
            seed,
            shape,
            faults,
            ended,
            report,
        }
    }

    /// Runs a seed twice.
    pub fn check_is_one_run(&self, seed: u64) {
        let (first, second) = (self.run(seed), self.run(seed));
        assert_eq!(first.ended, second.ended);
        assert_eq!(first.report, second.report);
    }

    /// Runs a seed, and checks what its processes have computed.
    pub fn check(&self, seed: u64) -> Counts {
        let ran = self.run(seed);
        ran.check(&self.expected);
        let mut table = Table::default();
        table.add(&ran.faults.happened());
        let ended = ran.ended.iter();
        Counts {
            runs: 1,
            recovered: ended.clone().map(|ended| ended.recovered as u64).sum(),
            restored: u64::from(ended.clone().any(|ended| ended.restored > 0)),
            steps: ran.report.steps,
            table,
        }
    }
}

/// Runs the processes of a shape in a simulation.
fn run(
    models: &Models,
    initial: &Values,
    shape: usize,
    faults: Faults,
    (seed, most): (u64, Duration),
) -> (Vec<Ended>, Report, Arc<Faults>) {
    let (faults, size) = (Arc::new(faults), SHAPES[shape].size());
    let results: Vec<Mutex<Option<Ended>>> = (0..size).map(|_| Mutex::default()).collect();
    let mut simulation = Simulation::new(seed).stack_bytes(STACK_BYTES);
    let (engines, net) = Simulated::world(&simulation.handle(), size, most);
    for (rank, (engine, result)) in engines.into_iter().zip(&results).enumerate() {
        let faults = faults.clone();
        let process = net.process(RankIndex::new(rank));
        simulation.start(process, format!("process {rank}"), move || {
            let world = engine.join(options()).unwrap();
            let ended = program::run(models.builder(shape), initial, world, &faults);
            *result.lock().unwrap() = Some(ended);
        });
    }
    let reached = faults.clone();
    let reach = move |point| reached.reach(point, &net);
    let report = at_points(reach, || simulation.run());
    let report = report.unwrap_or_else(|error| panic!("{error}\n{faults:?}"));
    let ended = results.into_iter().map(|one| one.into_inner().unwrap());
    (ended.map(Option::unwrap).collect(), report, faults)
}

impl Ran {
    fn describe(&self) -> String {
        let mut text = format!(
            "seed {}, {:?}, {:?}\n{:#?}",
            self.seed, SHAPES[self.shape], self.report, self.faults
        );
        for (rank, ended) in self.ended.iter().enumerate() {
            text += &format!(
                "\n{rank}: {} steps, digest {:x?}, recovered {}, restored {}, {}",
                ended.seen.steps.len(),
                ended.seen.digest,
                ended.recovered,
                ended.restored,
                ended.error.as_deref().unwrap_or("no error")
            );
        }
        text
    }

    fn check(&self, expected: &Seen) {
        let harms = self.faults.harms();
        let is_disputed = harms.iter().any(|harm| harm.may_be_given_up);
        let harmed = harms
            .iter()
            .filter(|harm| harm.is_killed || harm.may_be_given_up)
            .count();
        let is_lost = |rank: usize| {
            let harm = harms[rank];
            harm.is_killed || harm.may_be_given_up || self.ended[rank].error.is_some()
        };
        // Each process keeps the snapshots of the one before it, and its own.
        let size = harms.len();
        let lost: Vec<usize> = (0..size).filter(|rank| is_lost(*rank)).collect();
        let may_lose_state = lost.len() > 2 || lost.iter().any(|rank| is_lost((rank + 1) % size));
        let left = harms.iter().filter(|harm| !harm.is_killed).count();
        let are_too_few = left * 2 < harms.len();
        for (rank, (ended, harm)) in self.ended.iter().zip(&harms).enumerate() {
            let of = |text: &str| format!("process {rank} {text}\n{}", self.describe());
            // As far as it has come, whoever it is.
            let steps = ended.seen.steps.len();
            assert!(
                ended.seen.steps[..] == expected.steps[..steps],
                "{}",
                of("computed something else")
            );
            if harm.is_killed {
                continue;
            }
            let is_complete = ended.error.is_none();
            if self.faults.has_panicked() {
                let names = ended
                    .error
                    .as_deref()
                    .is_none_or(|error| error.contains(SCRIPTED) || is_disputed || harmed > 0);
                assert!(names, "{}", of("does not name the panic"));
            } else if !(harm.may_be_given_up || is_disputed || are_too_few) {
                assert!(is_complete, "{}", of("did not go on"));
            }
            if is_complete {
                assert!(ended.seen == *expected, "{}", of("ended with other values"));
            }
            assert!(
                ended.restored == 0 || may_lose_state,
                "{}",
                of("lost a state that a process has")
            );
        }
        let limit = Duration::from_secs(120);
        assert!(
            self.report.elapsed < limit,
            "it took too long\n{}",
            self.describe()
        );
    }
}

/// What happened in many runs.
#[derive(Debug, Default)]
pub struct Counts {
    pub runs: u64,
    /// How many times a process continued after a loss.
    pub recovered: u64,
    /// The runs that began again because a state was lost.
    pub restored: u64,
    /// Of the simulation.
    pub steps: u64,
    pub table: Table,
}

impl Counts {
    fn join(mut self, other: Self) -> Self {
        self.runs += other.runs;
        self.recovered += other.recovered;
        self.restored += other.restored;
        self.steps += other.steps;
        self.table.join(other.table);
        self
    }
}

/// The seeds of a test; `SEEDS=0..20000` tries others.
pub fn seeds(count: u64) -> Range<u64> {
    let seeds = std::env::var("SEEDS").ok();
    let seeds = seeds.as_deref().and_then(|seeds| seeds.split_once(".."));
    seeds.map_or(0..count, |(first, end)| {
        first.parse().unwrap()..end.parse().unwrap()
    })
}

/// Lets panics that are a part of a script end without a message.
fn hide_scripted_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.payload_as_str() != Some(SCRIPTED) {
                others(panic);
            }
        }));
    });
}

/// Checks seeds on all cores, and prints what happened.
pub fn check_all(seeds: Range<u64>) -> Counts {
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let began = Instant::now();
    let counts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                let own = (seeds.start + thread..seeds.end).step_by(threads as usize);
                scope.spawn(move || {
                    let runs = Runs::new();
                    let counts = own.map(|seed| runs.check(seed));
                    counts.fold(Counts::default(), Counts::join)
                })
            })
            .collect();
        let counts = threads.into_iter().map(|thread| {
            let counts = thread.join();
            counts.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        counts.fold(Counts::default(), Counts::join)
    });
    let took = began.elapsed().as_secs_f64();
    println!(
        "{}{} runs of {} steps in {took:.0} s: {} processes went on after a loss, {} runs began again",
        counts.table,
        counts.runs,
        counts.steps / counts.runs.max(1),
        counts.recovered,
        counts.restored
    );
    counts
}
