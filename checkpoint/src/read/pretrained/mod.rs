//! Weights saved by other programs.

mod file;
mod files;
mod parts;
mod weights;

pub use weights::Pretrained;
