//! What a process does as a rank.

use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tinderbox::checkpoint::{Retention, Run};
use tinderbox::error::PipelineError;
use tinderbox::world::with_causes;
use tinderbox::{Checkpoints, StepOutput, World};

use crate::inject::{Fault, Injector};
use crate::model::{Batch, Training, batch, start};

/// The variable that makes this program a rank: a [`Program`] as JSON.
pub const PROGRAM: &str = "TINDERBOX_TEST_PROGRAM";

const LR: f64 = 1e-3;

/// What all ranks of a run do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Program {
    pub over_mpi: bool,
    /// The number of replicas; 0 for one.
    pub replicas: usize,
    /// The number of micro-batches, a power of two; 0 for two.
    pub micro_batches: usize,
    pub steps: u64,
    pub fault: Option<Fault>,
    /// The seed of random delays before some actions.
    pub delays: Option<u64>,
    /// A directory: a checkpoint is saved after every step, and the newest is resumed at the start.
    pub saves: Option<PathBuf>,
    /// Whether the others continue when a process is lost.
    pub recovers: bool,
    /// How many processes wait until others are lost.
    pub spares: usize,
    /// Whether the last batch has fewer samples than the others.
    pub is_uneven: bool,
    /// Whether every step is reported.
    pub is_verbose: bool,
    /// Each rank writes what it sees to a file in this directory.
    pub reports: PathBuf,
}

/// Writes lines for the parent, each with the time in milliseconds.
pub struct Report(PathBuf);

impl Report {
    pub fn path(directory: &Path, rank: usize) -> PathBuf {
        directory.join(format!("rank-{rank}"))
    }

    pub fn line(&self, text: &str) {
        let file = OpenOptions::new().create(true).append(true).open(&self.0);
        let line = format!("{} {}\n", now_ms(), text.replace('\n', " "));
        file.unwrap().write_all(line.as_bytes()).unwrap();
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_millis() as u64
}

/// What a process of the tests does as a rank; in the tests themselves, nothing.
#[test]
fn rank() {
    let Ok(text) = std::env::var(PROGRAM) else {
        return;
    };
    let program: Program = serde_json::from_str(&text).unwrap();
    let world = join(program.over_mpi).unwrap_or_else(|error| {
        let report = Report(program.reports.join("join"));
        report.line(&with_causes(&*error));
        panic!("{error}");
    });
    let report = || Report(Report::path(&program.reports, world.rank().index()));
    let (own, rank) = (report(), world.rank().index());
    own.line(&format!("pid {}", std::process::id()));
    Injector::new(report(), rank, &program).install();
    let result = run(&program, &world, &own);
    drop(world);
    match result {
        Ok(()) => own.line("end"),
        Err(error) => {
            own.line(&format!("error: {}", with_causes(&*error)));
            std::process::exit(1);
        }
    }
}

fn join(over_mpi: bool) -> Result<World, Box<dyn Error>> {
    match over_mpi {
        false => Ok(World::from_env()?),
        #[cfg(feature = "mpi")]
        true => Ok(tinderbox::mpi::world()?),
        #[cfg(not(feature = "mpi"))]
        true => Err("this program does not link MPI".into()),
    }
}

fn run(program: &Program, world: &World, report: &Report) -> Result<(), Box<dyn Error>> {
    let mut pipeline = start(program, world.size() - program.spares, world)?;
    let saves = program.saves.as_ref().map(|directory| {
        let saves = Checkpoints::in_world(Run::local(directory), world)?;
        Ok::<_, Box<dyn Error>>(saves.every(1).keep(Retention::newest(2)))
    });
    let saves = saves.transpose()?;
    if let Some(saves) = &saves {
        saves.resume(&mut pipeline)?;
    }
    let mut digest = Digest::default();
    report.line("ready");
    while pipeline.steps() < program.steps {
        let step = pipeline.steps();
        let stepped = pipeline.step(LR, program.batch(step));
        let saved = stepped.map_err(Box::<dyn Error>::from).and_then(|output| {
            digest.add(&output);
            if program.is_verbose {
                report.line(&format!("step {step} {}", Digest::of(&output)));
            }
            if let Some(saves) = &saves {
                saves.after_step(&mut pipeline, step)?;
            }
            Ok(())
        });
        match (saved, &saves) {
            (Err(error), Some(saves)) if pipeline.awaits_restore() => {
                report.line(&format!("lost: {}", with_causes(&*error)));
                saves.resume(&mut pipeline)?;
            }
            (saved, _) => saved?,
        }
    }
    report.line(&format!("seen {}", digest.0));
    report.line(&format!("holds {}", held(&mut pipeline)?));
    for recovered in pipeline.recovered() {
        report.line(&format!(
            "recovered {} {} {recovered}",
            recovered.repeated,
            recovered.took.as_millis()
        ));
    }
    Ok(())
}

/// A digest of all parameters and of the state of the optimizer.
fn held(pipeline: &mut Training) -> Result<u64, PipelineError> {
    Ok(pipeline.digest()?.value())
}

impl Program {
    fn batch(&self, step: u64) -> Batch {
        let (x, y) = batch(step);
        match self.is_uneven && step + 1 == self.steps {
            true => (x.narrow(0, 0, 3), y.narrow(0, 0, 3)),
            false => (x, y),
        }
    }
}

/// A digest of all losses and norms of a run, bit by bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    pub fn add(&mut self, output: &StepOutput) {
        let numbers = output.micro_batch_losses.iter().chain([&output.loss]);
        let numbers = numbers.chain(&output.gradient_norm);
        for number in numbers {
            // FNV-1a, over words.
            self.0 = (self.0 ^ number.to_bits()).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn of(output: &StepOutput) -> u64 {
        let mut digest = Self::default();
        digest.add(output);
        digest.0
    }

    /// Trains with threads of one replica, and returns the digest of all steps and of each.
    pub fn of_threads(ranks: usize, program: &Program) -> (Self, Vec<u64>) {
        let (whole, each, _) = Self::and_state(ranks, program);
        (whole, each)
    }

    /// The same, with a digest of parameters and state at the end.
    pub fn and_state(ranks: usize, program: &Program) -> (Self, Vec<u64>, u64) {
        let program = Program {
            replicas: 1,
            ..program.clone()
        };
        let mut pipeline = start(&program, ranks, &World::alone()).unwrap();
        let (mut whole, mut each) = (Self::default(), Vec::new());
        for step in 0..program.steps {
            let output = pipeline.step(LR, program.batch(step)).unwrap();
            whole.add(&output);
            each.push(Self::of(&output));
        }
        let held = held(&mut pipeline).unwrap();
        (whole, each, held)
    }

    /// The digest as it is reported.
    pub const fn number(self) -> u64 {
        self.0
    }
}
