//! Constructs a deferred Llama model and prints a summary: milliseconds and a few MiB for hundreds of GiB of
//! parameters.

mod flags;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use peak_alloc::PeakAlloc;
use tinderbox::Deferred;
use tinderbox_models::llama::Llama;

use flags::Flags;

/// Counts the allocations of the process.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

fn main() -> ExitCode {
    let flags = Flags::read();
    match run(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has closed the pipe.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Result<()> {
    let config = flags.model.config();
    HEAP.reset_peak_usage();
    let before = HEAP.current_usage();
    let started = Instant::now();
    let model = Deferred::new(move |device| config.init(device))?;
    let cost = cost(&model, started.elapsed(), HEAP.peak_usage() - before);

    let summary = model.parameters().summary();
    let mut out = io::stdout().lock();
    if flags.json {
        let json = serde_json::to_string_pretty(&summary).context("the summary as JSON")?;
        writeln!(out, "{json}")?;
        eprintln!("{cost}");
        return Ok(());
    }
    let table = match (flags.width, flags.full) {
        (None, false) => format!("{summary}"),
        (None, true) => format!("{summary:#}"),
        (Some(width), false) => format!("{summary:width$}"),
        (Some(width), true) => format!("{summary:#width$}"),
    };
    writeln!(out, "{table}\n{cost}")?;
    Ok(())
}

fn cost(model: &Deferred<Llama>, took: Duration, peak_bytes: usize) -> String {
    format!(
        "constructed deferred in {:.1} ms with {:.1} MiB of memory; materialized, the parameters take {:.1} GiB",
        took.as_secs_f64() * 1e3,
        peak_bytes as f64 / (1 << 20) as f64,
        model.parameters().bytes() as f64 / (1 << 30) as f64,
    )
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
