//! `tinderbox calibrate`: measures the throughput of ranks, which are threads of this process or processes of a launcher.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::ensure;
use burn::tensor::Device;
use clap::Args;
use tinderbox_checkpoint::tools::read_rate;
use tinderbox_ids::text::{count_text, human_bytes};
use tinderbox_pipeline::{Machine, calibrate, calibrate_world};
use tinderbox_planner::DiskRate;
use tinderbox_world::World;

use crate::{outcome::Outcome, terminal::Output};

/// Arguments of `calibrate`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Ranks that share the machine, each a thread with its own thread pool. Under a launcher, each process is a rank
    /// [default: 1, or the number of processes]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: Option<u16>,
    /// Threads of each rank [default: the threads of the machine divided by its ranks]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Measure the disk of this directory too, for models that are streamed from it: writes 512 MiB, reads them, and removes
    /// them
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
}

/// Measures and prints the result.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let world = World::from_env()?;
    let (size, device) = (world.size(), Device::flex());
    ensure!(
        size == 1 || flags.ranks.is_none_or(|ranks| usize::from(ranks) == size),
        "--ranks: a launcher has started {size} processes, and each is a rank: leave it out"
    );
    let ranks_here = match size {
        1 => flags.ranks.map_or(1, usize::from),
        _ => world.local().size,
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let equal_share = (cores / ranks_here).max(1);
    let threads = flags.threads.map_or(equal_share, usize::from);
    let mut machine = match size {
        1 => calibrate(&device, ranks_here, threads)?,
        _ => calibrate_world(&world, &device, threads)?,
    };
    if let Some(dir) = &flags.disk {
        let rate = read_rate(dir)?;
        machine.disk = Some(DiskRate {
            bytes_per_s: rate.bytes_per_s,
            busy_permille: rate.busy_permille,
        });
    }
    if !world.is_first() {
        out.is_withheld = true;
        return Ok(Outcome::DONE);
    }
    out.answer(&machine, |out| show(&machine, threads, out))
}

/// Prints the machine. Times are in microseconds, of which a thousandth is the least that is measured.
fn show(machine: &Machine, threads: usize, out: &mut impl Write) -> io::Result<()> {
    let (rates, link) = (machine.rates, machine.link);
    let ranks = count_text(machine.ranks(), "rank");
    let threads = count_text(threads, "thread");
    writeln!(out, "{ranks} of {threads}, all running at once, each:")?;
    let giga = |rate: u64| match rate as f64 / 1e9 {
        small if small < 0.1 => "   < 0.1".to_owned(),
        rate => format!("{rate:>8.1}"),
    };
    let micro = |ns: u64| match ns {
        0 => " < 0.001 µs".to_owned(),
        ns => format!("{:>8.3} µs", ns as f64 / 1e3),
    };
    // Bytes per nanosecond.
    let rate = |ns_per_mib: u64| match ns_per_mib {
        0 => " < 0.001 µs for 1 MiB".to_owned(),
        ns => format!("{:>8.1} GB/s", f64::from(1_u32 << 20) / ns as f64),
    };
    let mut row = |name: &str, value: String| writeln!(out, "  {name:<20}  {value}");
    let (flops, bytes) = (giga(rates.flops_per_s), giga(rates.bytes_per_s));
    row("matrix products", flops + " GFLOP/s")?;
    row("memory", bytes + " GB/s")?;
    row("an operation", micro(rates.operation_ns) + " at least")?;
    let action = micro(machine.action_ns) + " in addition to its program";
    row("an action", action)?;
    row("a message", micro(link.latency))?;
    row("its bytes", rate(link.ticks_per_mib))?;
    let disk = machine.disk.map(|disk| {
        let (rate, busy) = (giga(disk.bytes_per_s), disk.busy_permille / 10);
        format!("{rate} GB/s, with {busy} % of the cores")
    });
    row("disk", disk.unwrap_or(" not measured: --disk DIR".into()))?;
    let models = machine.rank_models();
    let memory = models.first().and_then(|rank| rank.memory_bytes);
    let memory = memory.map(|bytes| format!("{:>12}", human_bytes(bytes)));
    row("free memory", memory.unwrap_or(" unknown".into()))?;
    if let Some(network) = &machine.network {
        let machines = network.machine_of.iter().max().map_or(1, |last| last + 1);
        row("machines", format!("{machines:>8}"))?;
        row("a message to another", micro(network.link.latency))?;
        row("its bytes", rate(network.link.ticks_per_mib))?;
    }
    let speeds = models.iter().map(|rank| rank.speed_permille as f64 / 10.0);
    let (least, most) = (speeds.clone().reduce(f64::min), speeds.reduce(f64::max));
    match least.zip(most).filter(|(least, most)| least != most) {
        Some((least, most)) => row("speed", format!("{least:>8.1} to {most:.1} % of the first")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_microseconds_and_rates_gigabytes_per_second() {
        let mut machine = Machine::local(2).unwrap();
        let shown = |machine: &Machine| {
            let mut text = Vec::new();
            show(machine, 1, &mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        insta::assert_snapshot!(shown(&machine), @"
        2 ranks of 1 thread, all running at once, each:
          matrix products           50.0 GFLOP/s
          memory                     8.0 GB/s
          an operation             1.500 µs at least
          an action                3.000 µs in addition to its program
          a message                5.000 µs
          its bytes              < 0.001 µs for 1 MiB
          disk                   not measured: --disk DIR
          free memory            unknown
        ");
        machine.link.latency = 0;
        machine.link.ticks_per_mib = 131_072;
        let text = shown(&machine);
        assert!(
            text.contains("a message              < 0.001 µs\n"),
            "{text}"
        );
        assert!(
            text.contains("its bytes                  8.0 GB/s\n"),
            "{text}"
        );
    }
}
