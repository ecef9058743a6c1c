//! One test per attack on a reader: an attacker writes a checkpoint, or parts of one, with correct digests.
//! The Python reader must reject each of them as well.

mod files;
mod forge;
mod header;
mod manifest;
mod manifest_sizes;
mod part;
#[cfg(unix)]
mod pretrained;
mod python;
