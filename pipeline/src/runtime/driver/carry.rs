//! Values that stay on the ranks from one evaluation to the next.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use tinderbox_fake::typed_shape;

use crate::runtime::program::{CarriedTensors, RoundCarry};
use crate::runtime::round::{MicroInput, RoundCarries};
use crate::{CarryError, Leaf};

/// The carried values of a sequence of evaluations, such as the caches of a text that is generated token by token.
///
/// [`Pipeline::carry`](crate::Pipeline::carry) creates it without values,
/// [`Pipeline::evaluate_carried`](crate::Pipeline::evaluate_carried) uses it. Its values are on the ranks. The ranks free the
/// values of a dropped carry in the next step or evaluation, or with the pipeline.
#[derive(derive_more::Debug)]
#[debug("Carry {{ number: {}, micro_batches: {}, .. }}", life.number, held.len())]
pub struct Carry {
    /// The pipeline frees its values when this is dropped.
    life: Arc<Life>,
    /// The values of each micro-batch, in the order of the batch; empty before the first evaluation.
    held: Vec<CarriedTensors>,
}

impl Carry {
    /// Returns whether it has values: an evaluation has completed with it.
    pub fn has_values(&self) -> bool {
        !self.held.is_empty()
    }

    /// Checks that the programs of a batch can read its values. Changes nothing.
    pub(crate) fn check(&self, micro_batches: &[MicroInput]) -> Result<RoundCarry, CarryError> {
        if micro_batches.iter().any(|m| m.cut.carried.0.is_empty()) {
            return Err(CarryError::NothingCarried);
        }
        let (expected, found) = (self.held.len(), micro_batches.len());
        if self.has_values() && expected != found {
            return Err(CarryError::MicroBatches { expected, found });
        }
        for (micro_batch, (held, micro)) in self.held.iter().zip(micro_batches).enumerate() {
            let (held, tensors) = (&held.0, &micro.cut.carried.0);
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
                    && let Some(reader) = tensor.readers.difference(&held.keepers).next()
                {
                    return Err(CarryError::Apart {
                        name: held.leaf.name.clone(),
                        holders: held.keepers.iter().copied().collect(),
                        reader: *reader,
                    });
                }
            }
        }
        let (number, is_first) = (self.life.number, !self.has_values());
        Ok(RoundCarry { number, is_first })
    }

    /// Takes over the stages that have the values after an evaluation.
    pub(super) fn advance(&mut self, micro_batches: &[MicroInput]) {
        let held = micro_batches.iter().map(|micro| micro.cut.carried.clone());
        self.held = held.collect();
        let held = self.held.iter().flat_map(|held| &held.0);
        let bytes = held.map(|held| held.leaf.bytes() * held.keepers.len() as u64);
        self.life.bytes.store(bytes.sum(), Relaxed);
    }
}

fn described(leaf: &Leaf) -> String {
    format!("`{}` {}", leaf.name, typed_shape(leaf.dtype, &leaf.shape))
}

/// The data of an existing carry that its pipeline needs.
#[derive(Debug)]
struct Life {
    /// Its number in the pipeline.
    number: u64,
    /// Bytes of its values.
    bytes: AtomicU64,
}

/// The carries of a pipeline.
#[derive(Debug, Default)]
pub(crate) struct Carries {
    created: u64,
    lives: Vec<Weak<Life>>,
}

impl Carries {
    pub(crate) fn create(&mut self) -> Carry {
        let (number, bytes) = (self.created, AtomicU64::new(0));
        let life = Arc::new(Life { number, bytes });
        self.created += 1;
        self.lives.push(Arc::downgrade(&life));
        let held = Vec::new();
        Carry { life, held }
    }

    /// Whether it created a carry.
    pub(crate) fn check(&self, carry: &Carry) -> Result<(), CarryError> {
        let mut lives = self.lives.iter();
        let is_own = lives.any(|life| life.as_ptr() == Arc::as_ptr(&carry.life));
        is_own.then_some(()).ok_or(CarryError::OtherPipeline)
    }

    /// Returns the carries of a round, which may use one of them.
    pub(super) fn of_round(&mut self, used: Option<RoundCarry>) -> RoundCarries {
        self.lives.retain(|life| life.strong_count() > 0);
        let lives: Vec<Arc<Life>> = self.lives.iter().filter_map(Weak::upgrade).collect();
        let number = used.map(|carry| carry.number);
        let others = lives.iter().filter(|life| Some(life.number) != number);
        RoundCarries {
            used,
            existing: lives.iter().map(|life| life.number).collect(),
            other_bytes: others.map(|life| life.bytes.load(Relaxed)).sum(),
        }
    }
}
