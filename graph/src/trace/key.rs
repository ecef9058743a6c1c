//! The key of a program.

use std::fmt;

use tinderbox_fake::Mode;

use crate::batch::Leaf;

/// The key of a model's program: training or forward only, and the batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProgramKey {
    /// Training, or forward only.
    pub mode: Mode,
    /// Name, shape and dtype of every tensor of the batch.
    pub leaves: Vec<Leaf>,
    /// Its parts without a tensor: options that are `None`, lists that are empty.
    pub empty: Vec<String>,
}

impl fmt::Display for ProgramKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.mode {
            Mode::Training => "training",
            Mode::Inference => "inference",
        })?;
        for leaf in &self.leaves {
            write!(f, " {}:{:?}{:?}", leaf.name, leaf.dtype, leaf.shape)?;
        }
        self.empty.iter().try_for_each(|part| write!(f, " {part}"))
    }
}
