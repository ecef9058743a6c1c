//! Digests of the parameters and the optimizer's state of all ranks, to compare runs.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;

use burn::tensor::DType;
use serde::{Deserialize, Serialize};
use tinderbox_deferred::{NumericFingerprint, ParameterPath};
use tinderbox_fake::dtype_name;
use twox_hash::XxHash3_64;

use super::driver::Driver;
use crate::error::Result;
use crate::runtime::clip::rows_per_sum;
use crate::runtime::digest::{ReadError, with_bytes};
use crate::runtime::ranks::To;
use crate::runtime::stage::Stage;

/// Digests of every parameter and of the optimizer's state: 64 bits each, of the bytes of the values.
///
/// They do not depend on the number of ranks, stages and replicas, so two runs can be compared step by step, to find where
/// they differ first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateDigest {
    /// The number of training steps done.
    pub step: u64,
    /// Every parameter in the order of the table, clones left out.
    pub parameters: Vec<(ParameterPath, u64)>,
    /// Every tensor and number of the optimizer's state, sorted by its name, `optimizer.<path>.<field>`.
    pub state: Vec<(String, u64)>,
    /// What the CPU of the process that reports it computes; empty in a digest of an earlier version. It is no part of
    /// [`value`](Self::value) and of the differences.
    #[serde(default, skip_serializing_if = "NumericFingerprint::is_empty")]
    pub numerics: NumericFingerprint,
}

impl StateDigest {
    /// Returns a digest of all.
    pub fn value(&self) -> u64 {
        let mut hasher = XxHash3_64::with_seed(self.step);
        let digests = self.all().into_iter();
        digests.for_each(|(_, digest)| hasher.write_u64(digest));
        hasher.finish()
    }

    /// Returns the names of what differs from another digest: parameters in the order of the table, then parts of the
    /// optimizer's state, then what the other one has alone.
    pub fn differences<'a>(&'a self, other: &'a Self) -> Vec<&'a str> {
        let (own, others) = (self.all(), other.all());
        let known: BTreeMap<&str, u64> = others.iter().copied().collect();
        let names: BTreeSet<&str> = own.iter().map(|(name, _)| *name).collect();
        let changed = own
            .iter()
            .filter(|(name, digest)| known.get(name) != Some(digest));
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

/// The digests of some rows of a tensor. The rows of a replica are divided where the rows of a digest are.
#[derive(Serialize, Deserialize)]
struct Rows {
    name: String,
    first_row: u64,
    /// Of the whole tensor.
    shape: Vec<u64>,
    dtype: String,
    digests: Vec<u64>,
}

impl Rows {
    /// Digests whole rows of a tensor, at most a few MiB each; `shape` is the shape of all of its rows.
    fn of(
        name: &str,
        dtype: DType,
        shape: Vec<u64>,
        (first_row, rows): (u64, u64),
        bytes: &[u8],
    ) -> Self {
        let row = bytes.len() as u64 / rows.max(1);
        let length = (rows_per_sum(&shape) * row).max(1) as usize;
        Self {
            name: name.to_owned(),
            first_row,
            shape,
            dtype: dtype_name(dtype).to_owned(),
            digests: bytes.chunks(length).map(XxHash3_64::oneshot).collect(),
        }
    }

    /// The rows of the parameters that a stage owns, of the first replica, and of the optimizer's state on any.
    fn of_stage(stage: &Stage) -> Result<(Vec<Self>, Vec<Self>), ReadError> {
        let owned = stage.parameters().values();
        let owned = owned.filter(|_| stage.is_of_first_replica());
        let parameters = owned.map(|(path, value)| {
            let (shape, dtype) = (sizes(value.shape().iter()), value.dtype());
            let rows = shape.first().copied().unwrap_or(1);
            let of = |bytes: &[u8]| Self::of(path.as_str(), dtype, shape, (0, rows), bytes);
            with_bytes(&value, of)
        });
        let parameters = parameters.collect::<Result<Vec<_>, _>>()?;
        let saved = stage.optimizer_snapshot().to_host()?;
        let tensors = saved.tensors.iter().map(|(name, data)| {
            let own = sizes(data.shape().iter());
            let rows = own.first().copied().unwrap_or(1);
            let (shape, first_row) = match saved.parts.get(name) {
                Some(part) => (part.shape.clone(), part.first_row),
                None => (own, 0),
            };
            Self::of(
                name,
                data.dtype(),
                shape,
                (first_row, rows),
                data.as_bytes(),
            )
        });
        let numbers = saved.scalars.iter().map(|(name, number)| Self {
            name: name.clone(),
            first_row: 0,
            shape: Vec::new(),
            dtype: "number".to_owned(),
            digests: vec![XxHash3_64::oneshot(format!("{number:?}").as_bytes())],
        });
        Ok((parameters, tensors.chain(numbers).collect()))
    }
}

fn sizes<'a>(shape: impl Iterator<Item = &'a usize>) -> Vec<u64> {
    shape.map(|size| *size as u64).collect()
}

/// The digest of each tensor, from the digests of its rows on all ranks.
fn joined(all: impl Iterator<Item = Rows>) -> BTreeMap<String, u64> {
    let mut by_name: BTreeMap<String, BTreeMap<u64, Rows>> = BTreeMap::new();
    for rows in all {
        by_name
            .entry(rows.name.clone())
            .or_default()
            .insert(rows.first_row, rows);
    }
    let digest = |parts: BTreeMap<u64, Rows>| {
        let mut hasher = XxHash3_64::with_seed(0);
        for (first_row, rows) in parts {
            if first_row == 0 {
                hasher.write(rows.dtype.as_bytes());
                rows.shape.iter().for_each(|size| hasher.write_u64(*size));
            }
            rows.digests
                .iter()
                .for_each(|digest| hasher.write_u64(*digest));
        }
        hasher.finish()
    };
    let named = by_name.into_iter();
    named.map(|(name, parts)| (name, digest(parts))).collect()
}

impl Driver {
    /// Returns digests of all parameters and of the optimizer's state.
    pub(crate) fn digest(&mut self) -> Result<StateDigest> {
        let own = self.read_on_ranks("a value to digest", |_, stages| {
            let stages = stages.iter().map(Rows::of_stage);
            stages.collect::<Result<Vec<_>, ReadError>>()
        })?;
        let all = self.ranks.exchange(To::All, own, Vec::new())?;
        let of_stages = all.into_iter().flat_map(|(of_ranks, _)| of_ranks).flatten();
        let (parameters, state): (Vec<_>, Vec<_>) = of_stages.unzip();
        let of_paths = joined(parameters.into_iter().flatten());
        let parameters = self.table.distinct().filter_map(|parameter| {
            let digest = of_paths.get(parameter.path.as_str())?;
            Some((parameter.path.clone(), *digest))
        });
        Ok(StateDigest {
            step: self.state.step,
            parameters: parameters.collect(),
            state: joined(state.into_iter().flatten()).into_iter().collect(),
            numerics: NumericFingerprint::of_process().clone(),
        })
    }
}
