//! The work of a step: what a model's micro-batch runs, holds and hands on, block by block.

use serde::{Deserialize, Serialize};
use tinderbox_schedule::ComputeTimes;

use crate::WorkError;

/// Operations that stay together: the smallest part that a stage can begin or end with.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Block {
    /// What it is called in reports: the module that it stands in, such as `blocks.3.attention`.
    pub name: String,
    /// `F` of one micro-batch on a rank of speed 1, in nanoseconds.
    pub forward: u64,
    /// `B`, in nanoseconds; less than `I` and `W` together where these do work twice.
    pub backward: u64,
    /// `I`, in nanoseconds.
    pub input_gradient: u64,
    /// `W`, in nanoseconds.
    pub weight_gradient: u64,
    /// Bytes that its `I` leaves for its `W`.
    pub weight_gradient_bytes: u64,
    /// The most bytes that one of its programs holds at a time beside what it reads and what it leaves
    /// for others.
    pub transient_bytes: u64,
}

impl Block {
    /// A block by its times alone; `B` takes `I` and `W` together.
    #[must_use]
    pub fn of_times(name: impl Into<String>, times: ComputeTimes) -> Self {
        Self {
            name: name.into(),
            forward: times.forward,
            backward: times.backward(),
            input_gradient: times.input_gradient,
            weight_gradient: times.weight_gradient,
            weight_gradient_bytes: 0,
            transient_bytes: 0,
        }
    }

    /// Nanoseconds of `F` and `B`.
    #[must_use]
    pub const fn time(&self) -> u64 {
        self.forward.saturating_add(self.backward)
    }
}

/// A parameter. The lowest stage that reads it owns it; other stages that read it hold copies, and hand
/// their parts of its gradient down.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Parameter {
    /// Its bytes.
    pub bytes: u64,
    /// Bytes of its copy in another type, which a forward in mixed precision reads; 0 where there is none.
    #[serde(default)]
    pub cast_bytes: u64,
    /// Whether a step makes a gradient of it and updates it.
    pub is_trainable: bool,
    /// The blocks that read it, ascending, at least one.
    pub readers: Vec<usize>,
}

impl Parameter {
    /// What every stage that reads it holds.
    pub fn held_bytes(&self) -> u64 {
        self.bytes.saturating_add(self.cast_bytes)
    }

    /// What crosses for its gradient: that of the copy, where there is one.
    pub fn gradient_bytes(&self) -> u64 {
        match self.cast_bytes {
            0 => self.bytes,
            cast => cast,
        }
    }
}

/// A value that the forward of one block makes and other blocks need, or that waits for a backward.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Value {
    /// Its bytes, per micro-batch.
    pub bytes: u64,
    /// The block whose forward makes it.
    pub maker: usize,
    /// Later blocks whose forward reads it, ascending.
    pub readers: Vec<usize>,
    /// Blocks whose backward reads it, ascending, none before the maker.
    pub keepers: Vec<usize>,
    /// Bytes of its gradient, to which every stage that reads the value adds its part, from the last
    /// reader down to the maker; none where no gradient flows.
    pub gradient_bytes: u64,
}

/// What one micro-batch runs and what a step holds: blocks in an order in which they can run.
///
/// A value that is made on one stage and read on another is sent there once, straight from its maker's
/// stage, whatever lies between.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Work {
    /// The blocks; an index into them is how the rest names them.
    pub blocks: Vec<Block>,
    /// The parameters.
    pub parameters: Vec<Parameter>,
    /// The values.
    pub values: Vec<Value>,
}

impl Work {
    /// Refuses what no graph can be: readers before makers, blocks that do not exist.
    ///
    /// # Errors
    ///
    /// Names the first value or parameter that is wrong.
    pub fn check(&self) -> Result<(), WorkError> {
        let blocks = self.blocks.len();
        let ascends = |list: &[usize]| list.is_sorted_by(|a, b| a < b);
        let inside = |list: &[usize]| list.last().is_none_or(|last| *last < blocks);
        for (index, parameter) in self.parameters.iter().enumerate() {
            let readers = &parameter.readers;
            if readers.is_empty() || !ascends(readers) || !inside(readers) {
                return Err(WorkError::Parameter { index });
            }
        }
        for (index, value) in self.values.iter().enumerate() {
            let later = value
                .readers
                .first()
                .is_none_or(|first| *first > value.maker);
            let kept = value
                .keepers
                .first()
                .is_none_or(|first| *first >= value.maker);
            let lists = [&value.readers, &value.keepers];
            let are_lists = lists.iter().all(|list| ascends(list) && inside(list));
            if value.maker >= blocks || !later || !kept || !are_lists {
                return Err(WorkError::Value { index });
            }
        }
        Ok(())
    }

    /// Nanoseconds of `F` and `B` of all blocks, on a rank of speed 1.
    #[must_use]
    pub fn time(&self) -> u64 {
        self.blocks
            .iter()
            .map(Block::time)
            .fold(0, u64::saturating_add)
    }
}
