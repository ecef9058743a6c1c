//! The order in which the gradients of all replicas are summed.

use std::collections::BTreeMap;
use std::ops::Range;

use twox_hash::XxHash3_64;

use super::CertifiedStep;
use super::refused::Result;
use crate::CertifyError;
use crate::sum::TreeSum;

/// A sum of gradients of micro-batches: a hash of its terms and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term(u64);

impl Term {
    pub(super) fn of(micro_batch: usize) -> Self {
        Self(XxHash3_64::oneshot(&(micro_batch as u64).to_le_bytes()))
    }

    pub(super) fn plus(self, other: Self) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        bytes[8..].copy_from_slice(&other.0.to_le_bytes());
        Self(XxHash3_64::oneshot(&bytes))
    }
}

/// Joins the sums of the replicas as the ranks do, and compares each with its definition. Within a group, micro-batches
/// are added one after the other; the groups are joined by a binary tree. `replicas` are the sums of each replica by parameter.
pub(super) fn certify_sums(step: &CertifiedStep<'_>, replicas: &[Vec<Option<Term>>]) -> Result<()> {
    // Most parameters have gradients of the same micro-batches.
    let mut defined: BTreeMap<Vec<usize>, Option<Term>> = BTreeMap::new();
    for (position, parameter) in step.table.iter().enumerate() {
        let programs = step.micro_batches.iter().enumerate();
        let added = programs.filter(|(_, of)| of.gradients.binary_search(&position).is_ok());
        let added: Vec<usize> = added.map(|(k, _)| k).collect();
        let definition = |added: &Vec<usize>| tree(step, 0..step.groups.groups, added);
        let expected = *defined.entry(added).or_insert_with_key(definition);
        let mut sum = TreeSum::default();
        for (replica, sums) in replicas.iter().enumerate() {
            if let Some(term) = sums[position] {
                sum.add(replica, term, Term::plus);
            }
        }
        if sum.finish(Term::plus) != expected {
            return Err(CertifyError::SumOrder {
                path: parameter.path.clone(),
                groups: step.groups.groups,
                replicas: replicas.len(),
            });
        }
    }
    Ok(())
}

/// The sum of a subtree of groups, to which these micro-batches add. The first micro-batch of a group is computed here again,
/// because this is the definition that the ranks are compared with.
fn tree(step: &CertifiedStep<'_>, groups: Range<usize>, added: &[usize]) -> Option<Term> {
    if added.is_empty() || groups.len() == 1 {
        return added.iter().map(|k| Term::of(*k)).reduce(Term::plus);
    }
    let middle = groups.start + groups.len() / 2;
    let count = step.micro_batches.len() as u128;
    let first = middle as u128 * count / step.groups.groups as u128;
    let (low, high) = added.split_at(added.partition_point(|k| (*k as u128) < first));
    let low = tree(step, groups.start..middle, low);
    match (low, tree(step, middle..groups.end, high)) {
        (Some(low), Some(high)) => Some(low.plus(high)),
        (low, high) => low.or(high),
    }
}
