//! Values that stay on the ranks from one evaluation to the next.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};

use tinderbox_fake::dtype_name;

use crate::CarryError;
use crate::batch::Leaf;
use crate::runtime::program::RoundCarry;
use crate::runtime::round::MicroInput;
use crate::schedule::StageIndex;

/// The carried values of a sequence of evaluations, such as the caches of a text that is generated token by token.
///
/// [`Pipeline::carry`](crate::Pipeline::carry) creates it without values,
/// [`Pipeline::evaluate_with`](crate::Pipeline::evaluate_with) uses it. Its values are on the ranks: the values of a dropped
/// carry are freed there in the next step or evaluation, or with the pipeline.
pub struct Carry {
    /// Its number in the pipeline.
    number: u64,
    /// The pipeline frees its values when this is dropped.
    _life: Arc<()>,
    /// The identity of its pipeline.
    pipeline: Arc<()>,
    /// The values of each micro-batch, in the order of the batch; empty before the first evaluation.
    held: Vec<Vec<Held>>,
}

/// A value on the ranks.
#[derive(Clone, Debug)]
struct Held {
    leaf: Leaf,
    stages: BTreeSet<StageIndex>,
}

impl Carry {
    /// Returns whether it has values: an evaluation has completed with it.
    pub fn has_values(&self) -> bool {
        !self.held.is_empty()
    }

    /// Checks that the programs of a batch can read its values. Changes nothing.
    pub(crate) fn check(&self, micro_batches: &[MicroInput]) -> Result<RoundCarry, CarryError> {
        if micro_batches.iter().any(|m| m.cut.carried.is_empty()) {
            return Err(CarryError::NothingCarried);
        }
        if self.has_values() && self.held.len() != micro_batches.len() {
            return Err(CarryError::MicroBatches {
                expected: self.held.len(),
                found: micro_batches.len(),
            });
        }
        for (micro_batch, (held, micro)) in self.held.iter().zip(micro_batches).enumerate() {
            let tensors = &micro.cut.carried.tensors;
            for index in 0..held.len().max(tensors.len()) {
                let (held, tensor) = (held.get(index), tensors.get(index));
                let (known, found) = (held.map(|h| &h.leaf), tensor.map(|t| &t.leaf));
                if known != found {
                    let text = |leaf: Option<&Leaf>| leaf.map_or("nothing".into(), described);
                    let (expected, found) = (text(known), text(found));
                    return Err(CarryError::Tensor {
                        micro_batch,
                        expected,
                        found,
                    });
                }
                if let (Some(held), Some(tensor)) = (held, tensor)
                    && let Some(reader) = tensor.readers.difference(&held.stages).next()
                {
                    return Err(CarryError::Apart {
                        name: held.leaf.name.clone(),
                        holders: held.stages.iter().copied().collect(),
                        reader: *reader,
                    });
                }
            }
        }
        Ok(RoundCarry {
            number: self.number,
            is_first: !self.has_values(),
        })
    }

    /// Notes which stages have the values after an evaluation.
    fn advance(&mut self, micro_batches: &[MicroInput]) {
        let held = micro_batches.iter().map(|micro| {
            let tensors = micro.cut.carried.tensors.iter().map(|tensor| Held {
                leaf: tensor.leaf.clone(),
                stages: tensor.keepers.clone(),
            });
            tensors.collect()
        });
        self.held = held.collect();
    }
}

fn described(leaf: &Leaf) -> String {
    let dtype = dtype_name(leaf.dtype);
    format!("`{}` {dtype}{:?}", leaf.name, leaf.shape)
}

impl fmt::Debug for Carry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Carry")
            .field("number", &self.number)
            .field("micro_batches", &self.held.len())
            .finish_non_exhaustive()
    }
}

/// The carries of a pipeline.
#[derive(Debug, Default)]
pub(crate) struct Carries {
    pipeline: Arc<()>,
    created: u64,
    lives: Vec<Life>,
}

/// A carry that was created.
#[derive(Debug)]
struct Life {
    number: u64,
    exists: Weak<()>,
    /// Bytes of its values.
    bytes: u64,
}

impl Carries {
    pub(crate) fn create(&mut self) -> Carry {
        let (number, life) = (self.created, Arc::default());
        self.created += 1;
        self.lives.push(Life {
            number,
            exists: Arc::downgrade(&life),
            bytes: 0,
        });
        Carry {
            number,
            _life: life,
            pipeline: self.pipeline.clone(),
            held: Vec::new(),
        }
    }

    /// Whether it created a carry.
    pub(crate) fn check(&self, carry: &Carry) -> Result<(), CarryError> {
        match Arc::ptr_eq(&self.pipeline, &carry.pipeline) {
            true => Ok(()),
            false => Err(CarryError::OtherPipeline),
        }
    }

    /// The numbers of the carries that still exist.
    pub(crate) fn existing(&mut self) -> BTreeSet<u64> {
        self.lives.retain(|life| life.exists.strong_count() > 0);
        self.lives.iter().map(|life| life.number).collect()
    }

    /// Notes what a carry holds after an evaluation.
    pub(crate) fn advance(&mut self, carry: &mut Carry, micro_batches: &[MicroInput]) {
        carry.advance(micro_batches);
        let held = carry.held.iter().flatten();
        let bytes = held.map(|held| held.leaf.bytes() * held.stages.len() as u64);
        let life = self
            .lives
            .iter_mut()
            .find(|life| life.number == carry.number);
        if let Some(life) = life {
            life.bytes = bytes.sum();
        }
    }

    /// The bytes of the values of all carries that exist, but for one.
    pub(crate) fn bytes_besides(&self, number: Option<u64>) -> u64 {
        let lives = self.lives.iter().filter(|life| Some(life.number) != number);
        let existing = lives.filter(|life| life.exists.strong_count() > 0);
        existing.map(|life| life.bytes).sum()
    }
}
