//! Weights saved by other programs.

mod files;
mod parts;
mod weights;

pub use weights::Pretrained;
