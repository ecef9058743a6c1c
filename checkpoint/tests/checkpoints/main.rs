//! Saves, loads, commits and damage of checkpoints, in one program, because a program that links Burn takes long to build.

mod aliases;
mod bucket;
mod bucket_damage;
mod classes;
mod commit;
mod contract;
mod copy;
mod crash;
mod damage;
mod export;
mod golden;
#[cfg(unix)]
mod kill;
#[cfg(target_os = "linux")]
mod links;
mod options;
mod progress;
mod round_trip;
mod sequences;
mod shards;
mod shared;
mod trouble;
