//! Saves, loads, commits and damage of checkpoints, in one program: what links Burn takes long to build.

#[path = "../support/mod.rs"]
mod support;

mod aliases;
#[cfg(feature = "object-store")]
mod bucket;
#[cfg(feature = "object-store")]
mod bucket_damage;
mod classes;
mod commit;
mod contract;
#[cfg(feature = "object-store")]
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
