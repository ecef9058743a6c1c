//! Cost of opening a checkpoint of many files, and one with a large manifest.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use burn::tensor::TensorData;
use tinderbox_checkpoint::store::BucketStore;
use tinderbox_checkpoint::{Checkpoint, CheckpointMeta, Role, Run, SaveTensor};
// The tests have it fail, here it counts requests.
use tinderbox_checkpoint_tests::faulty::Faulty;

use crate::memory::Peak;
use crate::{RUNS, WAIT, median, time_of};

const FILES: u32 = 1024;
const RANKS: u32 = 8;
/// The directory of the checkpoint that a child process opens.
const CHILD: &str = "TINDERBOX_BENCH_OPEN";

/// Saves `tensors` tensors of 64 bytes, as many per file as fit into `file_bytes`.
fn save(run: &Run, tensors: u32, file_bytes: u64) {
    let meta = CheckpointMeta {
        file_bytes,
        ..CheckpointMeta::new(1, RANKS)
    };
    let attempt = run.begin(meta).unwrap();
    for rank in 0..RANKS {
        let tensors = (0..tensors / RANKS).map(|number| {
            let data = TensorData::new(vec![number as f32; 16], [16]);
            let name = format!("layers.{rank}.attention.{number}.weight");
            SaveTensor::whole(name, Role::Model, data)
        });
        let tensors: Vec<_> = tensors.collect();
        let handle = attempt.handle();
        handle
            .write_rank(rank, &tensors, &BTreeMap::new(), &())
            .unwrap();
    }
    attempt.publish(WAIT).unwrap();
}

/// Prints the time to open 1,024 files in a directory and in an in-memory bucket, which counts requests, and
/// the memory used to open a manifest of about 60 MiB.
pub fn figures(dir: &Path) {
    let local = Run::local(dir.join("files"));
    save(&local, FILES, 64);
    let bucket = Faulty::default();
    let store = BucketStore::new(Arc::new(bucket.clone()), "run").unwrap();
    let remote = Run::on(Arc::new(store));
    bucket.set_fault(None);
    save(&remote, FILES, 64);
    let per_file = |requests: u64| requests as f64 / f64::from(FILES);
    let of_save = per_file(bucket.requests());
    let open = |run: &Run| {
        let times = (0..RUNS).map(|_| time_of(|| run.open(1).unwrap()));
        median(times.collect()) * 1e3
    };
    let local_ms = open(&local);
    bucket.set_fault(None);
    let remote_ms = open(&remote);
    let of_open = per_file(bucket.requests()) / RUNS as f64;
    println!("figure checkpoint.open_1024_files_ms {local_ms:.2} ms");
    println!("figure checkpoint.open_1024_files_bucket_ms {remote_ms:.2} ms");
    println!("figure checkpoint.requests_per_file_save {of_save:.3} requests");
    println!("figure checkpoint.requests_per_file_open {of_open:.3} requests");

    let many = dir.join("many");
    save(&Run::local(&many), 1 << 18, 1 << 30);
    let step = Run::local(&many).step_place(1);
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.env(CHILD, &step).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    print!("{}", String::from_utf8(output.stdout).unwrap());
    fs::remove_dir_all(&many).unwrap();
}

/// Measures the memory used to open a checkpoint, in a child process. Returns `false` in any other process.
pub fn in_child() -> bool {
    let Some(step) = std::env::var_os(CHILD) else {
        return false;
    };
    let manifest = Path::new(&step).join("manifest.json");
    let bytes = fs::metadata(manifest).unwrap().len();
    let before = Peak::begin();
    let checkpoint = Checkpoint::open(step).unwrap();
    let peak = before.mib();
    assert_eq!(checkpoint.manifest().tensors.len(), 1 << 18);
    println!("a manifest of {} MiB took {peak} MiB to open", bytes >> 20);
    println!(
        "figure checkpoint.manifest_open_peak_ratio {:.2} ratio",
        peak as f64 / (bytes as f64 / f64::from(1 << 20))
    );
    true
}
