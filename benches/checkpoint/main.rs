//! Cost of saving and loading, compared with the limits of the machine and other libraries.
//!
//! `cargo bench --workspace --bench checkpoint` prints one figure per line. 4 GiB of f32 in 64 tensors, with digests, on
//! the disk of the build directory (`TINDERBOX_BENCH_DIR` sets another directory, `TINDERBOX_BENCH_MIB`
//! another size). The compared operations alternate in one run, and each figure is computed from medians.
//! Every save ends when its files and their names are durable.
//!
//! - *raw* writes the same bytes to the same number of files, with `write` and `fsync` on 1 and 2 threads in
//!   pieces of 1 and 8 MiB, and reads the same files from the page cache into fresh memory, by `read` and by
//!   a copy from a mapping. The fastest variant is reported.
//! - *burnpack* is Burn's own store; its output is synced as well. *safetensors* is the crate of this name,
//!   which locates the tensors, one read for each, and Burn's constructor for bytes.
//! - After a load, one byte of every page of every tensor is read, so that no work is deferred.
//! - All loads use memory that is new to the process, except the loads of the *again* figures, which run after
//!   the tensors of an earlier load were freed.

mod background;
mod memory;
mod model;
mod open;
mod peers;
mod raw;
mod training;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::tensor::Device;
use tinderbox::Deferred;
use tinderbox::deferred::random::Seed;
use tinderbox_checkpoint::{Checkpoint, CheckpointMeta, Role, Run, SaveTensor};
use tinderbox_fake::DynTensor;

use memory::Peak;
use model::{TENSORS, Weights, host_bytes, touch};
use raw::Way;

const RUNS: usize = 5;
const WAIT: std::time::Duration = std::time::Duration::from_secs(600);

fn main() {
    if open::in_child() {
        return;
    }
    let mib: usize = std::env::var("TINDERBOX_BENCH_MIB").map_or(4096, |mib| mib.parse().unwrap());
    let place = std::env::var("TINDERBOX_BENCH_DIR").unwrap_or(env!("CARGO_TARGET_TMPDIR").into());
    let dir = tempfile::tempdir_in(place).unwrap();
    let bytes = (mib << 20) as f64;
    let model = Deferred::new(move |device| Weights::init(mib, device)).unwrap();
    let device = Device::flex();
    let weights: Weights = model
        .materialize(&device, &model.initializer(Seed::new(1)))
        .unwrap();
    let tensors = weights.tensors();
    println!("2 threads at most; {mib} MiB of f32 in {TENSORS} tensors; medians of {RUNS} turns");

    let ours_dir = dir.path().join("ours");
    let files = save(&tensors, &ours_dir);
    let contents = raw_contents(&tensors, &files);
    let [mut ours, mut pack] = [Vec::new(), Vec::new()];
    let (mut raw, ways) = (vec![Vec::new(); 4], write_ways());
    let (mut peak, mut pack_peak) = (0, 0);
    for _ in 0..RUNS {
        for (times, way) in raw.iter_mut().zip(&ways) {
            let target = dir.path().join("raw");
            times.push(time(|| raw::write(&target, &contents, *way)));
            remove(&target);
        }
        remove(&ours_dir);
        let before = Peak::begin();
        ours.push(time(|| drop(save(&tensors, &ours_dir))));
        peak = peak.max(before.mib());
        let target = dir.path().join("weights.bpk");
        let before = Peak::begin();
        pack.push(time(|| peers::save_burnpack(&weights, &target)));
        pack_peak = pack_peak.max(before.mib());
        fs::remove_file(&target).unwrap();
    }
    let (raw, way) = best(raw, &ways);
    let (ours, pack) = (median(ours), median(pack));
    let gbs = |seconds: f64| bytes / 1e9 / seconds;
    println!("raw write: {} files, best {way:?}", contents.len());
    println!("figure checkpoint.raw_write {:.2} GB/s", gbs(raw));
    println!("figure checkpoint.save {:.2} GB/s", gbs(ours));
    println!("figure checkpoint.save_vs_raw {:.2} ratio", raw / ours);
    println!(
        "figure checkpoint.save_vs_burnpack {:.2} ratio",
        pack / ours
    );
    println!("figure checkpoint.save_peak {peak} MiB");
    println!("figure checkpoint.save_burnpack_peak {pack_peak} MiB");
    drop(contents);
    remove(&ours_dir);
    open::figures(dir.path());
    background::reshard_4_to_3(&tensors, dir.path());
    background::background(&tensors, dir.path());
    background::digests(&tensors);
    save(&tensors, &ours_dir);
    drop(tensors);

    loads(dir.path(), &ours_dir, &model, weights, bytes);
    training::figures(dir.path());
}

/// Measures the loads of files that are in the page cache.
fn loads(dir: &Path, ours_dir: &Path, model: &Deferred<Weights>, weights: Weights, bytes: f64) {
    let device = Device::flex();
    let pack_file = dir.join("weights.bpk");
    peers::save_burnpack(&weights, &pack_file);
    let fresh = weights.empty();
    drop(weights);
    let step = fs::read_dir(ours_dir)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let files = shards(&step);
    let ways = read_ways();
    let mut raw = vec![Vec::new(); ways.len()];
    let [mut ours, mut again, mut pack, mut plain] = [const { Vec::new() }; 4];
    let mut peaks = [0; 3];
    let load = || {
        let checkpoint = Checkpoint::open(&step).unwrap();
        let weights = model.materialize(&device, &checkpoint).unwrap();
        touch(&weights.tensors());
        weights
    };
    for turn in 0..=RUNS {
        for (times, way) in raw.iter_mut().zip(&ways) {
            times.push(time_of(|| raw::read(&files, *way)));
        }
        tinderbox_memory::release_freed_memory();
        let before = Peak::begin();
        ours.push(time_of(load));
        peaks[0] = peaks[0].max(before.mib());
        again.push(time_of(load));
        tinderbox_memory::release_freed_memory();
        let before = Peak::begin();
        pack.push(time_of(|| {
            let weights = peers::load_burnpack(fresh.clone(), &pack_file);
            touch(&weights.tensors());
            weights
        }));
        peaks[1] = peaks[1].max(before.mib());
        let before = Peak::begin();
        plain.push(time_of(|| {
            let tensors = peers::load_safetensors(&files, &device);
            touch(&tensors);
            tensors
        }));
        peaks[2] = peaks[2].max(before.mib());
        if turn == 0 {
            // The first round only loads the files into the page cache.
            raw.iter_mut().for_each(Vec::clear);
            let _ = [&mut ours, &mut again, &mut pack, &mut plain].map(Vec::clear);
        }
    }
    let (raw, way) = best(raw, &ways);
    let [ours, again, pack, plain] = [ours, again, pack, plain].map(median);
    let gbs = |seconds: f64| bytes / 1e9 / seconds;
    let beyond = peaks.map(|mib| mib as i64 - (bytes / 1048576.0) as i64);
    println!("raw read: best {way:?}");
    println!("figure checkpoint.raw_read {:.2} GB/s", gbs(raw));
    println!("figure checkpoint.load {:.2} GB/s", gbs(ours));
    println!(
        "new memory, per thread: {:?}",
        tinderbox_memory::PageChoice::now()
    );
    println!("figure checkpoint.load_again {:.2} GB/s", gbs(again));
    println!("figure checkpoint.load_vs_raw {:.2} ratio", raw / ours);
    println!(
        "figure checkpoint.load_again_vs_raw {:.2} ratio",
        raw / again
    );
    println!(
        "figure checkpoint.load_vs_burnpack {:.2} ratio",
        pack / ours
    );
    println!(
        "figure checkpoint.load_vs_safetensors_crate {:.2} ratio",
        plain / ours
    );
    println!(
        "figure checkpoint.load_peak_beyond_target {} MiB",
        beyond[0]
    );
    println!(
        "figure checkpoint.load_burnpack_peak_beyond_target {} MiB",
        beyond[1]
    );
    println!(
        "figure checkpoint.load_safetensors_peak_beyond_target {} MiB",
        beyond[2]
    );
}

/// Saves as the only rank of a world; returns the files.
fn save(tensors: &[(String, DynTensor)], run_dir: &Path) -> Vec<PathBuf> {
    let attempt = Run::local(run_dir)
        .begin(CheckpointMeta::new(1, 1))
        .unwrap();
    let tensors: Vec<SaveTensor> = tensors
        .iter()
        .map(|(name, tensor)| SaveTensor::whole(name, Role::Model, tensor.clone()))
        .collect();
    attempt
        .handle()
        .write_rank(0, &tensors, &Default::default(), &())
        .unwrap();
    shards(&attempt.publish(WAIT).unwrap())
}

fn shards(step_dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(step_dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_shard = |path: &PathBuf| path.extension().is_some_and(|e| e == "safetensors");
    let mut files: Vec<_> = entries.filter(is_shard).collect();
    files.sort();
    files
}

/// Returns the tensors divided into as many files as the checkpoint has.
fn raw_contents<'a>(tensors: &'a [(String, DynTensor)], files: &[PathBuf]) -> Vec<Vec<&'a [u8]>> {
    let share = tensors.len().div_ceil(files.len());
    let share = tensors.chunks(share);
    share
        .map(|tensors| {
            tensors
                .iter()
                .map(|(_, tensor)| host_bytes(tensor))
                .collect()
        })
        .collect()
}

fn write_ways() -> Vec<Way> {
    let pieces = [1 << 20, 8 << 20];
    let way = |threads| {
        pieces.map(|piece| Way {
            threads,
            piece,
            mapped: false,
        })
    };
    [1, 2].into_iter().flat_map(way).collect()
}

fn read_ways() -> Vec<Way> {
    let mut ways = write_ways();
    let mapped: Vec<Way> = ways
        .iter()
        .map(|way| Way {
            mapped: true,
            ..*way
        })
        .collect();
    ways.extend(mapped);
    ways
}

fn remove(dir: &Path) {
    fs::remove_dir_all(dir).unwrap();
}

/// Returns the fastest variant, by its median.
fn best(times: Vec<Vec<f64>>, ways: &[Way]) -> (f64, Way) {
    let medians = times.into_iter().map(median).zip(ways.iter().copied());
    medians.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

fn time(run: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    run();
    begun.elapsed().as_secs_f64()
}

/// Returns the time to create a value, without the time to drop it.
fn time_of<T>(run: impl FnOnce() -> T) -> f64 {
    let begun = Instant::now();
    let made = run();
    let seconds = begun.elapsed().as_secs_f64();
    drop(made);
    seconds
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
