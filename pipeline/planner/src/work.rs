//! The work of a step: the operations, memory and values of a micro-batch, block by block.

use serde::{Deserialize, Serialize};

use crate::WorkError;

/// Operations that stay together: the smallest unit that a stage can begin or end with.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Block {
    /// Its name in reports: the module that contains it, such as `blocks.3.attention`.
    pub name: String,
    /// Nanoseconds of `F` of one micro-batch on a rank of speed 1.
    pub forward: u64,
    /// Nanoseconds of `B`; less than the sum of `I` and `W` where these repeat work.
    pub backward: u64,
    /// Nanoseconds of `I`.
    pub input_gradient: u64,
    /// Nanoseconds of `W`.
    pub weight_gradient: u64,
    /// Bytes that its `I` keeps for its `W`.
    pub weight_gradient_bytes: u64,
    /// The maximum bytes that one of its programs holds at a time besides its inputs and outputs.
    pub transient_bytes: u64,
}

impl Block {
    /// Returns the nanoseconds of `F`, `B`, `I` and `W`.
    pub(crate) const fn times(&self) -> [u64; 4] {
        [
            self.forward,
            self.backward,
            self.input_gradient,
            self.weight_gradient,
        ]
    }
}

/// A parameter. The lowest stage that reads it owns it. Other stages that read it hold copies, and send
/// their parts of its gradient to lower stages.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Parameter {
    /// Its bytes.
    pub bytes: u64,
    /// Bytes of its copy in another dtype, which a forward in mixed precision reads; 0 without a copy.
    #[serde(default)]
    pub cast_bytes: u64,
    /// Whether a step computes its gradient and updates it.
    pub is_trainable: bool,
    /// The blocks that read it, ascending, at least one.
    pub readers: Vec<usize>,
}

impl Parameter {
    /// Returns the bytes that every stage that reads it holds.
    pub fn held_bytes(&self) -> u64 {
        self.bytes.saturating_add(self.cast_bytes)
    }

    /// Returns the bytes of its gradient between stages: the gradient of the copy in another dtype, if there is one.
    pub fn gradient_bytes(&self) -> u64 {
        match self.cast_bytes {
            0 => self.bytes,
            cast => cast,
        }
    }
}

/// A value that the forward of one block computes for other blocks or for a backward.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Value {
    /// Its bytes, per micro-batch.
    pub bytes: u64,
    /// The block whose forward computes it.
    pub maker: usize,
    /// Later blocks whose forward reads it, ascending.
    pub readers: Vec<usize>,
    /// Blocks whose backward reads it, ascending, none before the maker.
    pub keepers: Vec<usize>,
    /// Bytes of its gradient, to which every stage that reads the value adds its part, from the last
    /// reader down to the maker; 0 where no gradient flows.
    pub gradient_bytes: u64,
}

/// The work of one micro-batch: blocks in an order in which they can run.
///
/// A value that one stage computes and another reads is sent once, directly from the stage of its
/// maker.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Work {
    /// The blocks; parameters and values refer to them by index.
    pub blocks: Vec<Block>,
    /// The parameters.
    pub parameters: Vec<Parameter>,
    /// The values.
    pub values: Vec<Value>,
}

impl Work {
    /// Checks that readers come after makers and that all blocks exist.
    ///
    /// # Errors
    ///
    /// [`WorkError`] for the first parameter or value that is invalid.
    pub fn check(&self) -> Result<(), WorkError> {
        let blocks = self.blocks.len();
        let is_list = |list: &[usize], least: usize| {
            let is_inside = list.iter().all(|at| (least..blocks).contains(at));
            is_inside && list.is_sorted_by(|a, b| a < b)
        };
        let is_parameter = |parameter: &Parameter| {
            let readers = &parameter.readers;
            !readers.is_empty() && is_list(readers, 0)
        };
        let is_value = |value: &Value| {
            let Value { maker, readers, .. } = value;
            *maker < blocks && is_list(readers, maker + 1) && is_list(&value.keepers, *maker)
        };
        if let Some(index) = self.parameters.iter().position(|one| !is_parameter(one)) {
            return Err(WorkError::Parameter { index });
        }
        match self.values.iter().position(|one| !is_value(one)) {
            Some(index) => Err(WorkError::Value { index }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
impl Block {
    /// Creates a block from its times; `B` is the sum of `I` and `W`.
    pub(crate) fn of_times(
        name: impl Into<String>,
        times: tinderbox_schedule::ComputeTimes,
    ) -> Self {
        Self {
            name: name.into(),
            forward: times.forward,
            backward: times.backward(),
            input_gradient: times.input_gradient,
            weight_gradient: times.weight_gradient,
            ..Self::default()
        }
    }
}
