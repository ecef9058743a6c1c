//! `tinderbox calibrate`: what this machine's ranks do per second.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use burn::tensor::Device;
use clap::Args;
use tinderbox_pipeline::calibrate;

use crate::outcome::Outcome;

/// Below the help.
const EXAMPLES: &str = "\
Examples:
  tinderbox calibrate --ranks 2                   print what two ranks of this machine do
  tinderbox calibrate --ranks 2 -o machine.json   write it for `Machine::load`";

/// Arguments of `calibrate`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Ranks that share the machine, each a thread with threads of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: u16,
    /// Threads of each rank; the machine's divided by the ranks if not given
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write JSON to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Measures and prints.
pub(crate) fn run(flags: &Flags, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let ranks = usize::from(flags.ranks);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = flags.threads.map_or((cores / ranks).max(1), usize::from);
    let machine = calibrate(&Device::flex(), ranks, threads)?;
    if let Some(path) = &flags.output {
        fs::write(path, machine.to_json()).with_context(|| path.display().to_string())?;
    }
    if flags.json {
        write!(out, "{}", machine.to_json())?;
        return Ok(Outcome::Fine);
    }
    let rates = machine.rates;
    writeln!(
        out,
        "{ranks} rank(s) of {threads} thread(s), all at work at once, each:"
    )?;
    writeln!(
        out,
        "  products of matrices  {:>8.1} GFLOP/s",
        rates.flops_per_s as f64 / 1e9
    )?;
    writeln!(
        out,
        "  memory                {:>8.1} GB/s",
        rates.bytes_per_s as f64 / 1e9
    )?;
    writeln!(
        out,
        "  an operation          {:>8} ns at least",
        rates.operation_ns
    )?;
    writeln!(
        out,
        "  an action             {:>8} ns beside its program",
        machine.action_ns
    )?;
    writeln!(
        out,
        "  a message             {:>8} ns",
        machine.link.latency
    )?;
    writeln!(
        out,
        "  a message's MiB       {:>8} ns",
        machine.link.ticks_per_mib
    )?;
    let memory = machine
        .rank_models()
        .first()
        .and_then(|rank| rank.memory_bytes);
    match memory {
        Some(bytes) => {
            let mib = bytes as f64 / (1 << 20) as f64;
            writeln!(out, "  free memory           {mib:>8.0} MiB")?;
        }
        None => writeln!(out, "  free memory            unknown")?,
    }
    if let Some(path) = &flags.output {
        writeln!(out, "written to {}", path.display())?;
    }
    Ok(Outcome::Fine)
}
