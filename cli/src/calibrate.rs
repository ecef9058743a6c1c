//! `tinderbox calibrate`: measures the throughput of this machine's ranks.

use std::io::{self, Write};

use burn::tensor::Device;
use clap::Args;
use tinderbox_pipeline::{Machine, calibrate};

use crate::{outcome::Outcome, terminal::Output};

/// Arguments of `calibrate`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Ranks that share the machine, each a thread with its own thread pool
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: u16,
    /// Threads of each rank [default: the threads of the machine divided by the ranks]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

/// Measures and prints the result.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let ranks = usize::from(flags.ranks);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = flags.threads.map_or((cores / ranks).max(1), usize::from);
    let machine = calibrate(&Device::flex(), ranks, threads)?;
    out.answer(&machine, |out| show(&machine, threads, out))?;
    Ok(Outcome::Done)
}

fn show(machine: &Machine, threads: usize, out: &mut Output) -> io::Result<()> {
    let ranks = machine.ranks();
    let rates = machine.rates;
    writeln!(
        out,
        "{ranks} rank(s) of {threads} thread(s), all running at once, each:"
    )?;
    let memory = machine
        .rank_models()
        .first()
        .and_then(|rank| rank.memory_bytes);
    let giga = |rate: u64| rate as f64 / 1e9;
    let mib = |bytes: u64| format!("{:>8.0} MiB", bytes as f64 / (1 << 20) as f64);
    let rows = [
        (
            "matrix products",
            format!("{:>8.1} GFLOP/s", giga(rates.flops_per_s)),
        ),
        ("memory", format!("{:>8.1} GB/s", giga(rates.bytes_per_s))),
        (
            "an operation",
            format!("{:>8} ns at least", rates.operation_ns),
        ),
        (
            "an action",
            format!("{:>8} ns in addition to its program", machine.action_ns),
        ),
        ("a message", format!("{:>8} ns", machine.link.latency)),
        (
            "1 MiB of a message",
            format!("{:>8} ns", machine.link.ticks_per_mib),
        ),
        (
            "free memory",
            memory.map_or_else(|| " unknown".to_owned(), mib),
        ),
    ];
    for (name, value) in rows {
        writeln!(out, "  {name:<20}  {value}")?;
    }
    Ok(())
}
