//! `tinderbox calibrate`: measures the throughput of ranks, as threads of this process or as the processes of a launcher.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::bail;
use burn::tensor::Device;
use clap::Args;
use tinderbox_checkpoint::tools::read_rate;
use tinderbox_pipeline::{Machine, calibrate, calibrate_world};
use tinderbox_planner::DiskRate;
use tinderbox_world::World;

use crate::{outcome::Outcome, terminal::Output};

/// Arguments of `calibrate`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Ranks that share the machine, each a thread with its own thread pool; started by a launcher as several processes, each
    /// process is a rank [default: 1, or the number of processes]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: Option<u16>,
    /// Threads of each rank [default: the threads of the machine divided by its ranks]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Measure the disk of this directory too, for models that are streamed from it: writes 512 MiB to it, reads them, and
    /// removes them
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
}

/// Measures and prints the result.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let world = World::from_env()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = |ranks: usize| flags.threads.map_or((cores / ranks).max(1), usize::from);
    let (mut machine, threads) = match world.size() {
        1 => {
            let ranks = flags.ranks.map_or(1, usize::from);
            let threads = threads(ranks);
            (calibrate(&Device::flex(), ranks, threads)?, threads)
        }
        size => {
            if flags.ranks.is_some_and(|ranks| usize::from(ranks) != size) {
                bail!(
                    "--ranks: a launcher has started {size} processes, and each is a rank: leave it out"
                );
            }
            let threads = threads(world.local().size);
            (calibrate_world(&world, &Device::flex(), threads)?, threads)
        }
    };
    if let Some(dir) = &flags.disk {
        let rate = read_rate(dir)?;
        machine.disk = Some(DiskRate {
            bytes_per_s: rate.bytes_per_s,
            busy_permille: rate.busy_permille,
        });
    }
    match world.is_first() {
        true => out.answer(&machine, |out| show(&machine, threads, out))?,
        false => out.withhold(),
    }
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
    let mut rows = vec![
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
            "disk",
            machine.disk.map_or_else(
                || " not measured: --disk DIR".to_owned(),
                |disk| {
                    format!(
                        "{:>8.1} GB/s, with {} % of the cores",
                        giga(disk.bytes_per_s),
                        disk.busy_permille / 10
                    )
                },
            ),
        ),
        (
            "free memory",
            memory.map_or_else(|| " unknown".to_owned(), mib),
        ),
    ];
    if let Some(network) = &machine.network {
        let machines = network.machine_of.iter().max().map_or(1, |last| last + 1);
        rows.push(("machines", format!("{machines:>8}")));
        let link = network.link;
        rows.push(("a message to another", format!("{:>8} ns", link.latency)));
        rows.push(("1 MiB of it", format!("{:>8} ns", link.ticks_per_mib)));
    }
    let speeds = machine.rank_models().iter().map(|rank| rank.speed_permille);
    if let (Some(least), Some(most)) = (speeds.clone().min(), speeds.max())
        && least != most
    {
        let percent = |permille: u64| permille as f64 / 10.0;
        let speed = format!(
            "{:>8.1} to {:.1} % of the first",
            percent(least),
            percent(most)
        );
        rows.push(("speed", speed));
    }
    for (name, value) in rows {
        writeln!(out, "  {name:<20}  {value}")?;
    }
    Ok(())
}
