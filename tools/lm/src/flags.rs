//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum, error::ErrorKind};
use tinderbox::ScheduleKind;
use tinderbox::planner::Partitioner;
use tinderbox::schedule::{ChunkCounts, Placement};
use tinderbox::session::EndSignal;

const EXIT_CODES: &str = "Exit codes: 0 on success, 1 on failure, 2 for invalid arguments, 3 if a device \
                          is not available. Ctrl-C and SIGTERM end it after the running step, which --save saves, \
                          with 130 and 143; a second signal ends it immediately. Other signals of --save-on-signal do \
                          the same, with 128 and their number.";

/// The type in which forward and backward are computed.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    F32,
    Bf16,
    F16,
}

/// Trains a character-level language model in pipeline stages and replicas, as threads or as the processes of a launcher.
#[derive(Parser, Debug, Clone)]
#[command(name = "lm", after_help = EXIT_CODES)]
pub struct Flags {
    /// Pipeline stages of each replica in parallel, each on a rank with its own thread
    #[arg(long, default_value_t = 4, value_parser = at_least_one)]
    pub stages: usize,
    /// Micro-batches that each batch is split into; auto chooses the number with the shortest predicted step
    #[arg(long, value_name = "COUNT", default_value = "8", value_parser = micro_batches)]
    pub micro_batches: usize,
    /// Replicas of all stages, a power of two, each with its share of the micro-batches
    #[arg(long, default_value_t = 1, value_parser = at_least_one)]
    pub replicas: usize,
    /// Groups of micro-batches in which gradients are added, a power of two; every number of replicas that divides it has the
    /// same bits; by default no groups for one replica, 8 groups for 2 to 8 replicas, and one group per replica for more
    #[arg(long, value_name = "GROUPS", value_parser = at_least_one)]
    pub sum_groups: Option<usize>,
    /// Stages on each rank, for schedules with several; 2 by default for schedules with two
    #[arg(long, value_parser = at_least_one)]
    pub chunks: Option<usize>,
    /// Schedule of a training step, such as 1f1b, zb-h1 or zbv; see `tinderbox schedule list`
    #[arg(long, default_value_t = ScheduleKind::OneFOneB)]
    pub schedule: ScheduleKind,
    /// Partitioner: mixed, chain, metis or auto
    #[arg(long, value_name = "NAME", default_value_t = Partitioner::Chain)]
    pub partitioner: Partitioner,
    /// Measure each block of the model first, and plan with the measured times; kept in target/profiles
    #[arg(long)]
    pub profile: bool,
    /// Machine file written by `tinderbox calibrate --json -o FILE`, instead of default figures
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Devices of the ranks, assigned in turn: flex (the CPU); with the feature cuda: cuda, cuda:1, or a list
    /// such as cuda:0,1; with the feature cpu: cpu (GPU kernels, compiled for the CPU)
    #[arg(long, value_name = "LIST", default_value = "flex")]
    pub device: String,
    /// Type in which forward and backward are computed: f32, bf16 or f16 (with a scaled loss); parameters and
    /// optimizer state have f32
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub precision: Precision,
    /// Total number of training steps, including the steps before a resume
    #[arg(long, default_value_t = 600)]
    pub steps: u64,
    /// Text to train on; by default Shakespeare's, which is in the program
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// Seed of initial values, dropout and the order of the samples
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Probability that an activation is dropped in training
    #[arg(long, default_value_t = 0.1, value_parser = probability)]
    pub dropout: f64,
    /// File for the digests of all parameters and of the optimizer's state after every step, with a line of JSON for each step:
    /// `tinderbox run diff` finds the first step in which two runs differ; not with --recover
    #[arg(long, value_name = "FILE", conflicts_with = "recover")]
    pub digests: Option<PathBuf>,
    /// Instead of training, replay the step after the checkpoint: run its programs again, one after the other, and write the
    /// digests of the results of all operations to this file, with a line of JSON for each program; `tinderbox run diff` finds
    /// the first operation in which two replays differ
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "digests", "recover", "trace", "compare"])]
    pub replay: Option<PathBuf>,
    /// With --resume: replay the step after the checkpoint of this step, instead of the newest
    #[arg(long, value_name = "STEP", requires_all = ["replay", "resume"])]
    pub replay_after: Option<u64>,
    /// If a process is lost, continue with the others from the last completed step; start the processes with
    /// `tinderbox launch --survive`
    #[arg(long)]
    pub recover: bool,
    /// Directory to save checkpoints in
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Save every K steps; without it, --save saves once, at the end
    #[arg(long, value_name = "K", requires = "save", value_parser = clap::value_parser!(u64).range(1..))]
    pub save_every: Option<u64>,
    /// Signals after which the program saves and ends, in addition to Ctrl-C and SIGTERM, such as USR1, which Slurm can send
    /// before it ends a job; a list, or several flags
    #[arg(long, value_name = "SIGNAL", value_delimiter = ',', requires = "save")]
    pub save_on_signal: Vec<EndSignal>,
    /// Resume from the newest checkpoint in this directory, saved by any number of stages
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
    /// Settings that may differ from the settings of the resumed checkpoint, such as micro_batches,clipping; a difference in
    /// another setting is an error
    #[arg(long, value_name = "NAMES", requires = "resume", value_delimiter = ',')]
    pub allow_changes: Vec<String>,
    /// Also train the same model in plain Burn on one device, without dropout, and compare each loss
    #[arg(long)]
    pub compare: bool,
    /// File for the plan as JSON
    #[arg(long, value_name = "FILE", default_value = "target/train_lm.plan.json")]
    pub plan: PathBuf,
    /// Clip the gradients by their global norm
    #[arg(long, value_name = "NORM", value_parser = positive)]
    pub clip: Option<f64>,
    /// Measure the steps, and write the last one with its prediction: as SVG if the file name ends in .svg,
    /// otherwise as a trace for Perfetto
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Print the loss of every step with full precision
    #[arg(long)]
    pub print_losses: bool,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(_) => Err("it must be a whole number".into()),
    }
}

/// The value of `--micro-batches` if the planner chooses the number.
pub const AUTO: usize = 0;

fn micro_batches(text: &str) -> Result<usize, String> {
    match text {
        "auto" => Ok(AUTO),
        _ => at_least_one(text).map_err(|error| format!("{error}, or auto")),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("it must be a positive number".into()),
    }
}

fn probability(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(p) if (0.0..1.0).contains(&p) => Ok(p),
        _ => Err("it must be a number from 0 to below 1".into()),
    }
}

impl Flags {
    /// Returns the number of stages of each rank, and their placement.
    pub fn chunks(&self) -> (usize, Placement) {
        let of_kind = match self.schedule.chunks() {
            ChunkCounts::Two => 2,
            _ => 1,
        };
        (self.chunks.unwrap_or(of_kind), self.schedule.placement())
    }

    /// Returns the number of ranks of all replicas.
    pub const fn ranks(&self) -> usize {
        self.stages.saturating_mul(self.replicas)
    }

    /// Reads the command line. An invalid value ends the program with a one-line error and exit code 2.
    pub fn read() -> Self {
        let mut flags = Self::try_parse().unwrap_or_else(|error| match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.exit(),
            _ => {
                let text = error.to_string();
                let line = text
                    .lines()
                    .next()
                    .unwrap_or("error: invalid arguments")
                    .to_owned();
                usage(line.strip_prefix("error: ").unwrap_or(&line))
            }
        });
        if flags.compare {
            if flags.resume.is_some() {
                usage("--compare starts from initial values: it can't be used with --resume");
            }
            if flags.precision != Precision::F32 {
                usage("--compare uses plain Burn in f32: it can't be used with --precision");
            }
            flags.dropout = 0.0;
        }
        flags
    }
}

/// Ends the program with an error about an invalid value.
pub fn usage(message: &str) -> ! {
    eprintln!("error: {message} (see --help)");
    std::process::exit(2)
}
