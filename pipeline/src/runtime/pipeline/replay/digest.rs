//! Digests of the inputs and results of replayed programs, and the first difference of two replays.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use tinderbox_deferred::NumericFingerprint;
use tinderbox_fake::{DynTensor, FakeError, NodeId, ValueId, dtype_name};
use twox_hash::XxHash3_64;

use crate::runtime::digest::of_value;
use crate::runtime::program::{module, named};
use crate::schedule::{Compute, MicroBatchIndex, StageIndex};
use crate::trace::JointGraph;

/// Digests of the inputs and results of a program, which do not depend on stages, replicas and schedules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramDigest {
    /// The number of training steps done with this one.
    pub step: u64,
    /// The micro-batch, among the micro-batches of all replicas.
    pub micro_batch: MicroBatchIndex,
    /// The stage.
    pub stage: StageIndex,
    /// The program.
    pub compute: Compute,
    /// The inputs that no program of the step computed: parameters by their paths, tensors of the batch, the weight of the
    /// loss, and constants.
    pub inputs: Vec<(String, u64)>,
    /// Its operations, in the order in which they ran.
    pub operations: Vec<ReplayedOperation>,
    /// The numeric fingerprint of the CPU of the process; empty in a digest of an earlier version.
    #[serde(default, skip_serializing_if = "NumericFingerprint::is_empty")]
    pub numerics: NumericFingerprint,
}

/// An operation that was run again, and the digest of one of its results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("{}", described(name, place.as_deref(), *position))]
pub struct ReplayedOperation {
    /// Its position among all operations of constructor, forward and backward, in the order in which they were recorded.
    pub position: usize,
    /// Its name, such as `Float.Matmul`.
    pub name: String,
    /// Its place, for example ``in `layers.3` ``; `None` if no parameter is read before it.
    pub place: Option<String>,
    /// The index of the result.
    pub result: usize,
    /// The digest of shape, dtype and bytes of the result.
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

/// The place of an operation, by the modules that are known.
pub(super) fn place(joint: &JointGraph, node: NodeId) -> Option<String> {
    // An operation that reads nothing, for example a random mask, is in no module.
    let before = || Some(format!("after {}", named(joint.module_before(node)?)));
    module(joint, node).or_else(before)
}

/// A text of an operation.
pub(super) fn described(name: &str, place: Option<&str>, position: usize) -> String {
    let place = place.map_or_else(String::new, |place| format!(" {place}"));
    format!("`{name}`{place} (operation {position})")
}

/// The digest of the shape, dtype and bytes of a value.
pub(super) fn digest_of(value: &DynTensor) -> Result<u64, FakeError> {
    let mut hasher = XxHash3_64::with_seed(of_value(value)?);
    hasher.write(dtype_name(value.dtype()).as_bytes());
    let shape = value.shape();
    shape.iter().for_each(|size| hasher.write_u64(*size as u64));
    Ok(hasher.finish())
}

/// The common micro-batches of two replays, and their first difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplayComparison {
    /// The number of micro-batches that both replays have.
    pub micro_batches: usize,
    /// The number of micro-batches that only one replay has.
    pub only_in_one: usize,
    /// The first difference.
    pub difference: Option<ReplayDifference>,
    /// The classes of operations in which the CPUs of the replays round differently.
    pub numerics: Vec<String>,
}

/// The first difference between two replays, in one micro-batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplayDifference {
    /// The number of training steps done with this one.
    pub step: u64,
    /// The micro-batch.
    pub micro_batch: MicroBatchIndex,
    /// The parameters, tensors of the batch and constants that differ.
    pub inputs: Vec<String>,
    /// The first operation whose result differs, in the order in which operations were recorded, in each replay that has it.
    pub operations: [Option<ReplayedOperation>; 2],
}

/// The digests of a micro-batch in one replay. Several programs may read the same value, and a stage that recomputes its
/// forward has some operations twice, so each place may have several digests. All of them are compared.
#[derive(Default)]
struct OfMicroBatch<'a> {
    inputs: BTreeMap<&'a str, BTreeSet<u64>>,
    /// The operations by position and result.
    operations: BTreeMap<(usize, usize), Results<'a>>,
}

/// Operations at one place, by the digests of their results.
type Results<'a> = BTreeMap<u64, &'a ReplayedOperation>;

impl ReplayComparison {
    /// Compares the micro-batches that two replays have. Their plans may differ.
    pub fn of(one: &[ProgramDigest], other: &[ProgramDigest]) -> Self {
        let numerics = match (one.first(), other.first()) {
            (Some(one), Some(other)) => one.numerics.differences(&other.numerics),
            _ => Vec::new(),
        };
        let numerics = numerics.into_iter().map(str::to_owned).collect();
        let (one, other) = (by_micro_batch(one), by_micro_batch(other));
        let common = one.iter();
        let mut common = common.filter_map(|(at, one)| Some((*at, one, other.get(at)?)));
        let micro_batches = common.clone().count();
        let difference = common.find_map(|(at, one, other)| ReplayDifference::of(at, one, other));
        Self {
            micro_batches,
            only_in_one: one.len() + other.len() - 2 * micro_batches,
            difference,
            numerics,
        }
    }
}

impl ReplayDifference {
    fn of(
        (step, micro_batch): (u64, MicroBatchIndex),
        one: &OfMicroBatch<'_>,
        other: &OfMicroBatch<'_>,
    ) -> Option<Self> {
        let inputs = different(&one.inputs, &other.inputs);
        let mut places = different(&one.operations, &other.operations);
        let operations = places.next().map(|place| {
            let [one, other] = [one, other].map(|of| of.operations.get(&place).cloned());
            let [one, other] = [one, other].map(Option::unwrap_or_default);
            // An operation whose result the other replay does not have, if there is one.
            let odd = |own: &Results<'_>, other: &Results<'_>| {
                let odd = own.iter().find(|(digest, _)| !other.contains_key(digest));
                let (_, operation) = odd.or(own.first_key_value())?;
                Some((*operation).clone())
            };
            [odd(&one, &other), odd(&other, &one)]
        });
        let found = Self {
            step,
            micro_batch,
            inputs: inputs.map(str::to_owned).collect(),
            operations: operations.unwrap_or([None, None]),
        };
        let is_equal = found.inputs.is_empty() && found.operations == [None, None];
        (!is_equal).then_some(found)
    }
}

/// The keys of two maps that do not have the same value in both.
fn different<K: Ord + Copy, V: PartialEq>(
    one: &BTreeMap<K, V>,
    other: &BTreeMap<K, V>,
) -> impl Iterator<Item = K> {
    let keys: BTreeSet<K> = one.keys().chain(other.keys()).copied().collect();
    let keys = keys.into_iter();
    keys.filter(|key| one.get(key) != other.get(key))
}

fn by_micro_batch(digests: &[ProgramDigest]) -> BTreeMap<(u64, MicroBatchIndex), OfMicroBatch<'_>> {
    let mut all: BTreeMap<_, OfMicroBatch<'_>> = BTreeMap::new();
    for program in digests {
        let of = all.entry((program.step, program.micro_batch)).or_default();
        for (name, digest) in &program.inputs {
            of.inputs.entry(name).or_default().insert(*digest);
        }
        for operation in &program.operations {
            let place = (operation.position, operation.result);
            let results = of.operations.entry(place).or_default();
            results.insert(operation.digest, operation);
        }
    }
    all
}
