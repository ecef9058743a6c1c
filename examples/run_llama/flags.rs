//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tinderbox::MemoryBudget;

/// Runs a Llama model that does not fit in memory.
#[derive(Parser, Debug)]
#[command(name = "run_llama")]
pub struct Flags {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Continue tokens, with the parameters read in every pass as far as they do not fit
    #[command(after_help = "Exit codes: 0 on success, 1 on failure, 2 for invalid arguments.")]
    Run(Run),
    /// Write a directory in Hugging Face's form with a model of random values, to try `run` with
    Make(Make),
}

#[derive(Args, Debug)]
pub struct Run {
    /// Directory with config.json and model.safetensors (or its parts), in Hugging Face's form
    pub dir: PathBuf,
    /// Memory of the whole process, such as 600MiB or 4GiB. Default: nine tenths of what is free
    #[arg(long, value_name = "SIZE", conflicts_with = "in_memory")]
    pub memory: Option<MemoryBudget>,
    /// Hold all parameters in memory, with plain Burn
    #[arg(long)]
    pub in_memory: bool,
    /// Tokens to continue
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,450,4996,338", value_parser = clap::value_parser!(i32).range(0..))]
    pub tokens: Vec<i32>,
    /// Number of tokens to generate
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub length: u16,
}

#[derive(Args, Debug)]
pub struct Make {
    /// Directory to create
    pub dir: PathBuf,
    /// Number of parameters
    #[arg(long, value_enum, default_value_t = Size::Small)]
    pub size: Size,
    /// Seed of the values
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Size {
    /// 25 million parameters, 50 MB
    Small,
    /// 1.1 billion parameters, 2.2 GB, with the sizes of TinyLlama
    #[value(name = "1b")]
    OneBillion,
}
