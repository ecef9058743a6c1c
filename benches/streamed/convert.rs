//! Conversion of a model to a checkpoint, and plain copying of its files.

use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use tinderbox::Pretrained;
use tinderbox::checkpoint::tools::{ConvertOptions, SaveOptions, convert};
use tinderbox::checkpoint::{CheckpointMeta, Run};
use tinderbox_benches::figures::median;

use crate::BENCH;
use crate::{BUDGET, model};

/// Prints the bytes read and written per second of a conversion over the bytes per second of a copy, both durable at the end.
pub fn measure(dir: &Path) {
    let from = dir.join(model::PYTORCH);
    let weights = Pretrained::open(&from).expect("the weights were written");
    let options = ConvertOptions {
        save: SaveOptions {
            memory_bytes: Some(BUDGET),
            ..SaveOptions::default()
        },
        ..ConvertOptions::default()
    };
    let (mut converted, mut copied) = (Vec::new(), Vec::new());
    for turn in 0..=BENCH.turns() {
        let to = dir.join("converted");
        let started = Instant::now();
        let meta = CheckpointMeta::new(0, 1);
        let done = convert(&weights, &Run::local(&to), meta, &options, &());
        done.expect("the weights are converted");
        let seconds = started.elapsed().as_secs_f64();
        fs::remove_dir_all(&to).expect("the checkpoint is removed");

        let to = dir.join("copied");
        let started = Instant::now();
        copy(&from, &to);
        // The first turn is not counted.
        if turn > 0 {
            converted.push(seconds);
            copied.push(started.elapsed().as_secs_f64());
        }
        fs::remove_dir_all(&to).expect("the copy is removed");
    }
    let (converted, copied) = (median(converted), median(copied));
    BENCH.figure("convert_s", converted, "s");
    BENCH.figure("copy_s", copied, "s");
    // Both read and write the same bytes.
    BENCH.figure("convert_vs_raw", copied / converted, "ratio");
    println!("seconds {converted}");
}

/// Copies the files of a directory, and makes them durable.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a directory for the copy");
    for entry in fs::read_dir(from).expect("the directory exists") {
        let path = entry.expect("the directory is listed").path();
        let copy = to.join(path.file_name().expect("a file has a name"));
        fs::copy(&path, &copy).expect("the file is copied");
        let copied = File::open(&copy).and_then(|file| file.sync_all());
        copied.expect("the copy is durable");
    }
    let synced = File::open(to).and_then(|dir| dir.sync_all());
    synced.expect("the directory is durable");
}
