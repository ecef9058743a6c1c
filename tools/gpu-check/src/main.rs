//! Checks Tinderbox on one GPU and reports the results.
//!
//! | part | check |
//! |---|---|
//! | bits | every kernel produces the bits of the CPU code; a stage has the same values on every device |
//! | memory | a stage uses its own bytes and one tensor |
//! | speed | random values are generated at the speed of memory or integer arithmetic |
//! | checkpoint | values saved from a device are loaded with the same bits, on the device and on the CPU |
//! | parity | a pipeline computes the same as plain Burn on this device |
//! | streamed | a model that does not fit on the device has the same values |
//! | training | a language model trains in the pipeline, with the overhead compared with plain Burn |
//!
//! The library opens the device, so all parts also run on the CPU (`--runtime flex`) with small sizes, as in the
//! tests. No library reports clock rates and used memory, so they are queried from the GPU driver.

mod bench;
mod bits;
mod checkpoint;
mod machine;
mod memory;
mod parity;
mod report;
mod speed;
mod training;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use burn::tensor::Device;
use clap::Parser;

use bench::{Bench, Flags, PartName, Runtime, Size};
use report::{Part, Report};

/// The exit code of clap.
const WRONG_ARGUMENTS: u8 = 2;
/// The exit code for an unavailable device.
const NO_DEVICE: u8 = 3;

fn main() -> ExitCode {
    let flags = Flags::parse();
    let index = flags.index;
    if index != 0 && flags.runtime != Runtime::Cuda {
        eprintln!("error: --index {index}: only --runtime cuda has several devices");
        return ExitCode::from(WRONG_ARGUMENTS);
    }
    let mut devices = match tinderbox::deferred::open_devices(&flags.device()) {
        Ok(devices) => devices,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(NO_DEVICE);
        }
    };
    match run(flags, devices.swap_remove(0)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: Flags, device: Device) -> Result<bool> {
    type Run = fn(&Bench, &mut Part) -> Result<()>;
    let parts: [(PartName, Run); 7] = [
        (PartName::Bits, bits::run),
        (PartName::Memory, memory::run),
        (PartName::Speed, speed::run),
        (PartName::Checkpoint, checkpoint::run),
        (PartName::Parity, parity::run),
        (PartName::Streamed, memory::streamed),
        (PartName::Training, training::run),
    ];
    let bench = Bench {
        size: Size::of(flags.runtime),
        device,
        flags,
    };
    let begun = Instant::now();
    let mut report = Report::default();
    let opened = guarded("Device", |_| {
        report.machine = machine::describe(&bench);
        Ok(())
    });
    if !opened.passed() {
        report.parts.push(opened);
    }
    for (name, run) in parts {
        if bench.flags.wants(name) {
            let title = format!("{name:?}");
            eprintln!("{title} ...");
            let part = guarded(&title, |part| run(&bench, part));
            eprintln!("{title}: {} in {:.1} s", verdict(&part), part.seconds);
            report.parts.push(part);
            report.seconds = begun.elapsed().as_secs_f64();
            // After each part, because a driver may end the program in a later one.
            write(&report, &bench.flags)?;
        }
    }
    write(&report, &bench.flags)?;
    println!("{report}");
    for part in &report.parts {
        for figure in &part.figures {
            let value = report::number(figure.value);
            println!("figure gpu.{} {value} {}", figure.name, figure.unit);
        }
    }
    Ok(report.passed())
}

/// Writes the report to the requested files.
fn write(report: &Report, flags: &Flags) -> Result<()> {
    if let Some(path) = &flags.report {
        let written = std::fs::write(path, report.to_string());
        written.with_context(|| format!("--report {}", path.display()))?;
    }
    if let Some(path) = &flags.json {
        let written = std::fs::write(path, report.to_json()?);
        written.with_context(|| format!("--json {}", path.display()))?;
    }
    Ok(())
}

/// Runs a part; records an error or a panic as a failed check, so that the other parts still run.
fn guarded(title: &str, run: impl FnOnce(&mut Part) -> Result<()>) -> Part {
    let mut part = Part::new(title);
    let begun = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| run(&mut part))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(anyhow!("panicked: {}", text.unwrap_or_default()))
    });
    if let Err(error) = result {
        part.check("the part runs to its end", format!("{error:#}"), false);
    }
    part.seconds = begun.elapsed().as_secs_f64();
    part
}

fn verdict(part: &Part) -> &'static str {
    match (part.checks.is_empty(), part.passed()) {
        (true, _) => "nothing was checked",
        (false, true) => "passed",
        (false, false) => "FAILED",
    }
}
