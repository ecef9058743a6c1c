//! What it costs to construct a model unlit.
//!
//! `cargo bench --bench record` prints one figure to a line.

mod llama;

use std::time::Instant;

use peak_alloc::PeakAlloc;
use tinderbox::Deferred;

use llama::LlamaConfig;

/// Counts what the process allocates: exact where resident memory comes in pages.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const RUNS: usize = 21;
const MIB: f64 = (1 << 20) as f64;

fn main() {
    let config = LlamaConfig::llama_3_70b();
    let (mut milliseconds, mut mib) = (Vec::new(), Vec::new());
    let mut described = String::new();
    for _ in 0..RUNS {
        let config = config.clone();
        let before = HEAP.current_usage();
        HEAP.reset_peak_usage();
        let started = Instant::now();
        let model = Deferred::new(move |device| config.init(device)).expect("it is recorded");
        milliseconds.push(started.elapsed().as_secs_f64() * 1e3);
        mib.push((HEAP.peak_usage() - before) as f64 / MIB);
        let table = model.parameters();
        described = format!(
            "{} parameters of {} elements, {:.1} GiB when lit",
            table.len(),
            table.elements(),
            table.bytes() as f64 / (1u64 << 30) as f64,
        );
    }
    println!("Llama-3-70B: {described}; medians of {RUNS} constructions");
    println!("figure record.llama70b_ms {:.3} ms", median(milliseconds));
    println!("figure record.llama70b_mib {:.3} MiB", median(mib));
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
