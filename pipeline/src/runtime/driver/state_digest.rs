//! Digests of the parameters and the optimizer's state of all ranks, to compare runs.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use tinderbox_deferred::{NumericFingerprint, ParameterPath, ParameterTable};
use tinderbox_fake::dtype_name;
use twox_hash::XxHash3_64;

use super::driver::Driver;
use crate::error::Result;
use crate::runtime::clip::rows_per_sum;
use crate::runtime::digest::{AnyError, with_bytes};
use crate::runtime::ranks::To;
use crate::runtime::snapshots::{Name, Snapshot};
use crate::runtime::stage::Stage;

/// Digests of every parameter and of the optimizer's state: 64 bits each, of the bytes of the values.
///
/// They do not depend on the number of ranks, stages and replicas. So two runs can be compared step by step, to find the first
/// difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateDigest {
    /// The number of training steps done.
    pub step: u64,
    /// Every parameter in the order of the table, without clones.
    pub parameters: Vec<(ParameterPath, u64)>,
    /// Every tensor and number of the optimizer's state, sorted by its name, `optimizer.<path>.<field>`.
    pub state: Vec<(String, u64)>,
    /// The numeric fingerprint of the reporting process; empty in a digest of an earlier version. It is not part of
    /// [`value`](Self::value) or of the differences.
    #[serde(default, skip_serializing_if = "NumericFingerprint::is_empty")]
    pub numerics: NumericFingerprint,
}

impl StateDigest {
    /// Returns a digest of all digests.
    pub fn value(&self) -> u64 {
        let mut hasher = XxHash3_64::with_seed(self.step);
        let digests = self.all().into_iter();
        digests.for_each(|(_, digest)| hasher.write_u64(digest));
        hasher.finish()
    }

    /// Returns the names with a difference from another digest: parameters in the order of the table, then parts of the
    /// optimizer's state, then names of the other digest only.
    pub fn differences<'a>(&'a self, other: &'a Self) -> Vec<&'a str> {
        let (own, others) = (self.all(), other.all());
        let known: BTreeMap<&str, u64> = others.iter().copied().collect();
        let names: BTreeSet<&str> = own.iter().map(|(name, _)| *name).collect();
        let changed = own.iter();
        let changed = changed.filter(|(name, digest)| known.get(name) != Some(digest));
        let added = others.iter().filter(|(name, _)| !names.contains(name));
        changed.chain(added).map(|(name, _)| *name).collect()
    }

    /// All names, with their digests.
    fn all(&self) -> Vec<(&str, u64)> {
        let parameters = self.parameters.iter();
        let parameters = parameters.map(|(path, digest)| (path.as_str(), *digest));
        let state = self.state.iter();
        let state = state.map(|(name, digest)| (name.as_str(), *digest));
        parameters.chain(state).collect()
    }
}

/// The digests of some rows of a tensor. Replicas divide a tensor only between the rows of two digests.
#[derive(Serialize, Deserialize)]
struct Rows {
    name: Name,
    first_row: u64,
    shape: Vec<u64>,
    dtype: String,
    digests: Vec<u64>,
}

impl Rows {
    /// The rows of parameters and of the optimizer's state that a stage updates. A digest is of whole rows, at most a few MiB.
    fn of(stage: &Stage, table: &ParameterTable) -> Result<Vec<Self>, AnyError> {
        let snapshot = Snapshot::of(std::slice::from_ref(stage));
        let (contents, values) = snapshot.read(table, |_, _| true)?;
        let tensors = contents.items.into_iter().zip(values).map(|(item, value)| {
            let shape: Vec<u64> = value.shape().iter().map(|size| *size as u64).collect();
            let digests = with_bytes(&value, |bytes| {
                let row = bytes.len() as u64 / shape.first().copied().unwrap_or(1).max(1);
                let length = (rows_per_sum(&shape) * row).max(1) as usize;
                bytes.chunks(length).map(XxHash3_64::oneshot).collect()
            })?;
            Ok(Self {
                name: item.name,
                first_row: item.first_row,
                shape,
                dtype: dtype_name(value.dtype()).to_owned(),
                digests,
            })
        });
        let numbers = contents.scalars.into_iter();
        let numbers = numbers.map(|(position, name, number)| {
            let state = Some(name);
            Ok(Self {
                name: Name { position, state },
                first_row: 0,
                shape: Vec::new(),
                dtype: "number".to_owned(),
                digests: vec![XxHash3_64::oneshot(format!("{number:?}").as_bytes())],
            })
        });
        tensors.chain(numbers).collect()
    }
}

/// The digest of a tensor, from the digests of its parts by the first row of each.
fn joined(parts: &BTreeMap<u64, Rows>) -> u64 {
    let mut hasher = XxHash3_64::with_seed(0);
    if let Some(first) = parts.get(&0) {
        hasher.write(first.dtype.as_bytes());
        let mut whole = first.shape.clone();
        if let Some(rows) = whole.first_mut() {
            *rows = parts.values().filter_map(|part| part.shape.first()).sum();
        }
        whole.into_iter().for_each(|size| hasher.write_u64(size));
    }
    let digests = parts.values().flat_map(|part| &part.digests);
    digests.for_each(|digest| hasher.write_u64(*digest));
    hasher.finish()
}

impl Driver {
    /// Returns digests of all parameters and of the optimizer's state.
    pub(crate) fn digest(&mut self) -> Result<StateDigest> {
        let table = self.table.clone();
        let own = self.read_on_ranks("a value to digest", move |_, stages| {
            let stages = stages.iter().map(|stage| Rows::of(stage, &table));
            stages.collect::<Result<Vec<_>, AnyError>>()
        })?;
        let all = self.ranks.exchange(To::All, own, Vec::new())?;
        let of_stages = all.into_iter().flat_map(|(of_ranks, _)| of_ranks).flatten();
        let mut tensors: BTreeMap<Name, BTreeMap<u64, Rows>> = BTreeMap::new();
        for rows in of_stages.flatten() {
            let parts = tensors.entry(rows.name.clone()).or_default();
            parts.insert(rows.first_row, rows);
        }
        let (mut parameters, mut state) = (Vec::new(), BTreeMap::new());
        for (name, parts) in tensors {
            let digest = joined(&parts);
            match name.state {
                None => parameters.push((self.path_of(name.position), digest)),
                Some(name) => {
                    state.insert(name, digest);
                }
            }
        }
        Ok(StateDigest {
            step: self.state.step,
            parameters,
            state: state.into_iter().collect(),
            numerics: NumericFingerprint::of_process().clone(),
        })
    }
}
