//! Values that stay on the ranks from one evaluation to the next.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Weak};

use tinderbox_fake::{DynTensor, dtype_name};

use super::round::MicroInput;
use crate::CarryError;
use crate::batch::Leaf;
use crate::cut::{Binding, StagePrograms};
use crate::schedule::{Compute, StageIndex};
use crate::trace::{Given, JointGraph};

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
    pub(super) fn check(&self, micro_batches: &[MicroInput]) -> Result<RoundCarry, CarryError> {
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
pub(super) struct Carries {
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
    pub(super) fn create(&mut self) -> Carry {
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
    pub(super) fn check(&self, carry: &Carry) -> Result<(), CarryError> {
        match Arc::ptr_eq(&self.pipeline, &carry.pipeline) {
            true => Ok(()),
            false => Err(CarryError::OtherPipeline),
        }
    }

    /// The numbers of the carries that still exist.
    pub(super) fn existing(&mut self) -> BTreeSet<u64> {
        self.lives.retain(|life| life.exists.strong_count() > 0);
        self.lives.iter().map(|life| life.number).collect()
    }

    /// Notes what a carry holds after an evaluation.
    pub(super) fn advance(&mut self, carry: &mut Carry, micro_batches: &[MicroInput]) {
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
    pub(super) fn bytes_besides(&self, number: Option<u64>) -> u64 {
        let lives = self.lives.iter().filter(|life| Some(life.number) != number);
        let existing = lives.filter(|life| life.exists.strong_count() > 0);
        existing.map(|life| life.bytes).sum()
    }
}

/// The carry of a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundCarry {
    pub(super) number: u64,
    /// Whether the values are the batch's.
    pub(super) is_first: bool,
}

/// The carried tensors of a program, in the order of the batch.
#[derive(Clone, Debug, Default)]
pub(super) struct CarriedTensors {
    tensors: Vec<CarriedTensor>,
}

#[derive(Clone, Debug)]
struct CarriedTensor {
    /// Its position in the batch.
    position: usize,
    leaf: Leaf,
    /// The stages that read it.
    readers: BTreeSet<StageIndex>,
    /// The stages that have its new value.
    keepers: BTreeSet<StageIndex>,
}

impl CarriedTensors {
    pub(super) fn of(joint: &JointGraph, stages: &[StagePrograms]) -> Self {
        let tensors = joint.carried().keys().map(|position| {
            let (mut readers, mut keepers) = (BTreeSet::new(), BTreeSet::new());
            for (index, programs) in stages.iter().enumerate() {
                let Some(phase) = programs.phase(Compute::Forward) else {
                    continue;
                };
                let input = Binding::Given(Given::Input(*position));
                if phase.inputs.contains(&input) {
                    readers.insert(StageIndex::new(index));
                }
                if phase.carried.contains(position) {
                    keepers.insert(StageIndex::new(index));
                }
            }
            CarriedTensor {
                position: *position,
                leaf: joint.inputs()[*position].leaf.clone(),
                readers,
                keepers,
            }
        });
        Self {
            tensors: tensors.collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The index among the carried tensors of the one at a position of the batch.
    pub(super) fn index_of(&self, position: usize) -> Option<usize> {
        let known = self.tensors.binary_search_by_key(&position, |t| t.position);
        known.ok()
    }
}

/// The micro-batch and the index of a carried tensor.
type Place = (usize, usize);

/// The carried values that a stage holds, by carry.
#[derive(Debug, Default)]
pub(super) struct CarriedValues(BTreeMap<u64, HashMap<Place, DynTensor>>);

impl CarriedValues {
    /// Drops the values of carries that no longer exist.
    pub(super) fn retain(&mut self, existing: &BTreeSet<u64>) {
        self.0.retain(|carry, _| existing.contains(carry));
    }

    pub(super) fn put(&mut self, carry: u64, at: Place, value: DynTensor) {
        self.0.entry(carry).or_default().insert(at, value);
    }

    /// Removes a value, so that the program that gets it has the only handle and may work in place.
    pub(super) fn take(&mut self, carry: u64, at: Place) -> Option<DynTensor> {
        self.0.get_mut(&carry)?.remove(&at)
    }

    pub(super) fn bytes(&self) -> u64 {
        let values = self.0.values().flat_map(HashMap::values);
        values.map(DynTensor::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor};
    use tinderbox_deferred::Deferred;

    use super::*;
    use crate::{Carried, Machine, Outputs, Pipeline, Plan, Traceable, Whole};

    type Step = (Tensor<2>, Whole<Tensor<1, Int>>, Carried<Whole<Tensor<2>>>);

    fn step(place: i32) -> Step {
        let device = Device::flex();
        let rows = Tensor::zeros([64, 4], &device);
        let place = Tensor::from_ints([place], &device);
        let x = Tensor::ones([1, 4], &device);
        (x, Whole(place), Carried(Whole(rows)))
    }

    fn forward(net: &Linear, (x, Whole(place), Carried(Whole(rows))): Step) -> Outputs {
        let row = net.forward(x);
        let rows = rows.select_assign(0, place, row, IndexingUpdateOp::Assign);
        Outputs::none().with("sum", rows.clone().sum()).carry(rows)
    }

    /// Its stage has the only handle of a value: Burn writes a row of it in place.
    #[test]
    fn a_value_is_written_in_place() {
        let model = Deferred::new(|device: &Device| LinearConfig::new(4, 4).init(device)).unwrap();
        let trace = model.trace_forward(&step(0), forward).unwrap();
        let plan = Plan::auto(&trace, &Machine::local(1).unwrap()).unwrap();
        let mut pipeline = Pipeline::new(&model, &trace, &plan).start().unwrap();
        let mut carry = pipeline.carry();
        let mut addresses = Vec::new();
        for place in 0..4 {
            pipeline.evaluate_with(&mut carry, step(place)).unwrap();
            let address = pipeline.on_ranks(|_, stages| {
                let values = stages[0].carried.0.values().flat_map(HashMap::values);
                let bytes = values.map(|value| value.host_bytes().unwrap().as_ptr() as usize);
                bytes.collect::<Vec<_>>()
            });
            addresses.extend(address.unwrap().concat());
        }
        assert_eq!(addresses.len(), 4);
        // The first is a copy of the value of the batch.
        let first = addresses[0];
        assert!(addresses.iter().all(|address| *address == first));
    }
}
