//! One test per attack on a reader: somebody who means harm writes a checkpoint, or parts of one, with
//! digests that are right. The reader in Python must refuse each as well.

#[path = "../support/mod.rs"]
mod support;

mod files;
mod forge;
mod header;
mod manifest;
mod manifest_sizes;
mod part;
#[cfg(unix)]
mod pretrained;
mod python;
