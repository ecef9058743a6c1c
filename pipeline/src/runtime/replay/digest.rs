//! Digests of what replayed programs read and computed, and where two replays differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use tinderbox_fake::{DynTensor, FakeError, NodeId, ValueId, dtype_name};
use twox_hash::XxHash3_64;

use crate::runtime::indices::{module, named};
use crate::schedule::{Compute, StageIndex};
use crate::trace::JointGraph;

/// Digests of what a program read and computed, which do not depend on stages, replicas and schedules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramDigest {
    /// The number of training steps done before.
    pub step: u64,
    /// The micro-batch, among those of all replicas.
    pub micro_batch: usize,
    /// The stage.
    pub stage: StageIndex,
    /// The program.
    pub compute: Compute,
    /// What it read and no program computed: parameters, tensors of the batch, and the weight of the loss.
    pub inputs: Vec<(String, u64)>,
    /// Its operations, in the order in which they ran.
    pub operations: Vec<ReplayedOperation>,
}

/// An operation that was run again, and the digest of one of its results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayedOperation {
    /// Its position among all operations of constructor, forward and backward, in the order in which they were recorded.
    pub position: usize,
    /// Its name, such as `Float.Matmul`.
    pub name: String,
    /// Where it is, such as ``in `layers.3` ``; none in a model without parameters before it.
    pub place: Option<String>,
    /// Which of its results, if it has several.
    pub result: usize,
    /// The digest of the result: 64 bits, of shape, type and bytes.
    pub digest: u64,
}

impl ReplayedOperation {
    pub(super) fn of(
        joint: &JointGraph,
        value: ValueId,
        data: &DynTensor,
    ) -> Result<Option<Self>, FakeError> {
        let Some(node) = joint.graph().value(value).producer else {
            return Ok(None);
        };
        let results = joint.graph().node(node).outputs();
        Ok(Some(Self {
            position: node.index(),
            name: joint.graph().node(node).name(),
            place: place(joint, node),
            result: results.iter().position(|one| *one == value).unwrap_or(0),
            digest: digest_of(data)?,
        }))
    }
}

impl fmt::Display for ReplayedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = described(&self.name, self.place.as_deref(), self.position);
        f.write_str(&text)
    }
}

/// Where an operation is, as far as modules are known.
pub(super) fn place(joint: &JointGraph, node: NodeId) -> Option<String> {
    // One that reads nothing, such as a random mask, is in no module.
    let before = || Some(format!("after {}", named(joint.module_before(node)?)));
    module(joint, node).or_else(before)
}

/// An operation in words.
pub(super) fn described(name: &str, place: Option<&str>, position: usize) -> String {
    let place = place.map_or_else(String::new, |place| format!(" {place}"));
    format!("`{name}`{place} (operation {position})")
}

/// The digest of a value: of its shape, type and bytes.
pub(super) fn digest_of(value: &DynTensor) -> Result<u64, FakeError> {
    let bytes = match value.host_bytes() {
        Some(bytes) => XxHash3_64::oneshot(bytes),
        None => XxHash3_64::oneshot(value.to_data()?.as_bytes()),
    };
    let mut hasher = XxHash3_64::with_seed(bytes);
    hasher.write(dtype_name(value.dtype()).as_bytes());
    value
        .shape()
        .iter()
        .for_each(|size| hasher.write_usize(*size));
    Ok(hasher.finish())
}

/// The first difference between the replays of a micro-batch in two runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplayDifference {
    /// The number of training steps done before.
    pub step: u64,
    /// The micro-batch.
    pub micro_batch: usize,
    /// The parameters and tensors of the batch that differ.
    pub inputs: Vec<String>,
    /// The first operation whose result differs, in the order in which operations were recorded; in each of the runs, if both have
    /// it.
    pub operations: [Option<ReplayedOperation>; 2],
}

/// The programs of one micro-batch.
#[derive(Default)]
struct OfMicroBatch<'a> {
    inputs: BTreeMap<&'a str, u64>,
    /// By position and result. A stage that computes its forward again has some of them twice, with the same result.
    operations: BTreeMap<(usize, usize), &'a ReplayedOperation>,
}

/// Finds the first micro-batch of two replays that differs, of those that both have, and the first operation. Stages may differ.
/// Returns how many micro-batches both have as well.
pub fn first_replay_difference(
    one: &[ProgramDigest],
    other: &[ProgramDigest],
) -> (usize, Option<ReplayDifference>) {
    let (one, other) = (by_micro_batch(one), by_micro_batch(other));
    let common = one
        .iter()
        .filter_map(|(at, one)| Some((at, one, other.get(at)?)));
    let different = common.clone().find_map(|(at, one, other)| {
        let names: BTreeSet<&str> = one
            .inputs
            .keys()
            .chain(other.inputs.keys())
            .copied()
            .collect();
        let inputs = names
            .into_iter()
            .filter(|name| one.inputs.get(name) != other.inputs.get(name));
        let places = one.operations.keys().chain(other.operations.keys());
        let places: BTreeSet<(usize, usize)> = places.copied().collect();
        let mut operations = places
            .into_iter()
            .map(|place| [&one.operations, &other.operations].map(|all| all.get(&place).copied()));
        let found = ReplayDifference {
            step: at.0,
            micro_batch: at.1,
            inputs: inputs.map(str::to_owned).collect(),
            operations: operations
                .find(|[one, other]| one != other)
                .map_or([None, None], |pair| pair.map(Option::<&_>::cloned)),
        };
        let is_equal = found.inputs.is_empty() && found.operations == [None, None];
        (!is_equal).then_some(found)
    });
    (common.count(), different)
}

fn by_micro_batch(programs: &[ProgramDigest]) -> BTreeMap<(u64, usize), OfMicroBatch<'_>> {
    let mut all: BTreeMap<(u64, usize), OfMicroBatch<'_>> = BTreeMap::new();
    for program in programs {
        let of = all.entry((program.step, program.micro_batch)).or_default();
        let inputs = program.inputs.iter();
        of.inputs
            .extend(inputs.map(|(name, digest)| (name.as_str(), *digest)));
        for operation in &program.operations {
            let place = (operation.position, operation.result);
            of.operations.entry(place).or_insert(operation);
        }
    }
    all
}
