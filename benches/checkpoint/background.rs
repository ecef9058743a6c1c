//! Background saves, and resharding.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tinderbox_checkpoint::tools::{ReshardOptions, reshard};
use tinderbox_checkpoint::{Checkpoint, CheckpointMeta, Digest, RankSave, Role, Run, SaveTensor};
use tinderbox_fake::DynTensor;

use crate::memory::Peak;
use crate::model::host_bytes;
use crate::raw;
use crate::{RUNS, median, remove, shards, time};

type Tensors = [(String, DynTensor)];

fn describe(tensors: &Tensors) -> Vec<SaveTensor> {
    let tensors = tensors.iter();
    tensors
        .map(|(name, tensor)| SaveTensor::whole(name, Role::Model, tensor.clone()))
        .collect()
}

/// Prints the throughput of one thread that digests blocks of 1 MiB: all tensors, read from memory, and one
/// block repeatedly, which stays in the cache.
pub fn digests(tensors: &Tensors) {
    let blocks: Vec<&[u8]> = tensors
        .iter()
        .flat_map(|(_, tensor)| host_bytes(tensor).chunks(1 << 20))
        .collect();
    let bytes: usize = blocks.iter().map(|block| block.len()).sum();
    let digest = |block: &[u8]| {
        std::hint::black_box(Digest::of(block));
    };
    let (mut memory, mut cache) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        memory.push(time(|| blocks.iter().for_each(|block| digest(block))));
        cache.push(time(|| blocks.iter().for_each(|_| digest(blocks[0]))));
    }
    let gbs = |times| bytes as f64 / 1e9 / median(times);
    println!(
        "figure checkpoint.digest_from_memory {:.1} GB/s",
        gbs(memory)
    );
    println!("figure checkpoint.digest_in_cache {:.1} GB/s", gbs(cache));
}

/// Prints how long a background save blocks its caller, compared with a copy of all tensors to allocated
/// memory on two threads.
pub fn background(tensors: &Tensors, dir: &Path) {
    let mut copies: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, tensor)| vec![1; host_bytes(tensor).len()])
        .collect();
    let [mut blocking, mut copying] = [Vec::new(), Vec::new()];
    let mut peak = 0;
    for _ in 0..RUNS {
        let work = tensors.iter().zip(&mut copies).collect();
        copying.push(time(|| {
            raw::parallel(
                2,
                work,
                |((_, tensor), copy): (&(String, DynTensor), &mut Vec<u8>)| {
                    copy.copy_from_slice(host_bytes(tensor));
                },
            );
        }));
        let run_dir = dir.join("background");
        let before = Peak::begin();
        let begun = Instant::now();
        let attempt = Run::local(&run_dir)
            .begin(CheckpointMeta::new(1, 1))
            .unwrap();
        let tensors = describe(tensors);
        let of_rank = move |_| {
            Ok(RankSave {
                tensors: tensors.clone(),
                ..RankSave::default()
            })
        };
        let saving = attempt.save_in_background(of_rank, Arc::new(())).unwrap();
        blocking.push(begun.elapsed().as_secs_f64());
        saving.wait().unwrap();
        peak = peak.max(before.mib());
        remove(&run_dir);
    }
    let (blocking, copying) = (median(blocking), median(copying));
    println!("figure checkpoint.async_block_ms {:.3} ms", blocking * 1e3);
    println!(
        "figure checkpoint.async_block_fraction {:.5} ratio",
        blocking / copying
    );
    println!("figure checkpoint.async_peak {peak} MiB");
}

/// Prints the time to reshard a checkpoint of four ranks for three, compared with a plain durable copy of the
/// same files.
pub fn reshard_4_to_3(tensors: &Tensors, dir: &Path) {
    let four = dir.join("four");
    let attempt = Run::local(&four).begin(CheckpointMeta::new(1, 4)).unwrap();
    let all = describe(tensors);
    let of_rank = |rank: u32| {
        Ok(RankSave {
            tensors: all.iter().skip(rank as usize).step_by(4).cloned().collect(),
            ..RankSave::default()
        })
    };
    let step_dir = attempt.save_all(of_rank, &()).unwrap();
    let files = shards(&step_dir);
    let [mut ours, mut plain] = [Vec::new(), Vec::new()];
    let mut peak = 0;
    for _ in 0..RUNS {
        let target = dir.join("copy");
        plain.push(time(|| raw::copy(&files, &target)));
        remove(&target);
        let target = dir.join("three");
        let before = Peak::begin();
        ours.push(time(|| {
            let checkpoint = Checkpoint::open(&step_dir).unwrap();
            let options = ReshardOptions::default();
            reshard(&checkpoint, &Run::local(&target), 3, &options, &()).unwrap();
        }));
        peak = peak.max(before.mib());
        remove(&target);
    }
    fs::remove_dir_all(&four).unwrap();
    let (ours, plain) = (median(ours), median(plain));
    println!(
        "figure checkpoint.reshard_4_to_3_vs_raw {:.2} ratio",
        plain / ours
    );
    println!("figure checkpoint.reshard_peak {peak} MiB");
}
