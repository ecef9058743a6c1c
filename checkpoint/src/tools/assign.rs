//! Assignment of tensors to ranks. Pure.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use crate::Role;

/// The prefix of optimizer state names: `optimizer.<path of the parameter>.<field>`.
const STATE_PREFIX: &str = "optimizer.";

/// Tensors and scalars that stay on one rank: a parameter and its optimizer state, under the parameter's
/// name, or state of no known parameter, under its own name.
pub(super) type Group<'a> = (Role, &'a str);

/// The parameters that optimizer state can belong to.
#[derive(Debug, Default)]
pub(super) struct Owners<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Owners<'a> {
    /// Collects parameters by name, each with its tied names: the name of optimizer state can contain any
    /// path of a weight.
    pub(super) fn of(parameters: impl Iterator<Item = (&'a str, &'a [String])>) -> Self {
        let names = parameters.flat_map(|(name, tied)| {
            let tied = tied.iter().map(move |path| (&**path, name));
            std::iter::once((name, name)).chain(tied)
        });
        Self(names.collect())
    }

    /// Returns the parameter with the longest path that is a prefix of a state name.
    pub(super) fn owner(&self, state_name: &str) -> Option<&'a str> {
        let mut path = state_name.strip_prefix(STATE_PREFIX)?;
        while let Some((head, _)) = path.rsplit_once('.') {
            if let Some(name) = self.0.get(head).copied() {
                return Some(name);
            }
            path = head;
        }
        None
    }

    /// Returns the group of a tensor.
    pub(super) fn group(&self, role: Role, name: &'a str) -> Group<'a> {
        let owner = match role {
            Role::Model => None,
            Role::State => self.owner(name),
        };
        owner.map_or((role, name), |parameter| (Role::Model, parameter))
    }
}

/// Assigns a rank to every group: the largest first, each to the rank with the fewest bytes so far, or the
/// lowest of several. Time: a sort and a heap. `ranks` is at least 1.
pub(super) fn balance<'a>(
    groups: &BTreeMap<Group<'a>, u64>,
    ranks: u32,
) -> BTreeMap<Group<'a>, u32> {
    let mut order: Vec<(Reverse<u64>, Group<'a>)> = groups
        .iter()
        .map(|(group, bytes)| (Reverse(*bytes), *group))
        .collect();
    order.sort_unstable();
    let mut loads: BinaryHeap<Reverse<(u64, u32)>> =
        (0..ranks).map(|rank| Reverse((0, rank))).collect();
    let mut assigned = BTreeMap::new();
    for (Reverse(bytes), group) in order {
        let Some(Reverse((load, rank))) = loads.pop() else {
            break;
        };
        assigned.insert(group, rank);
        loads.push(Reverse((load.saturating_add(bytes), rank)));
    }
    assigned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_belongs_to_the_longest_path() {
        let tied = ["head.weight".to_owned()];
        let parameters: [(&str, &[String]); 3] =
            [("a", &[]), ("a.b", &[]), ("embed.weight", &tied)];
        let owners = Owners::of(parameters.into_iter());
        for (name, expected) in [
            ("optimizer.a.moment", Some("a")),
            ("optimizer.a.b.moment", Some("a.b")),
            ("optimizer.a.moment.1", Some("a")),
            ("optimizer.head.weight.time", Some("embed.weight")),
            ("optimizer.a", None),
            ("optimizer.c.moment", None),
            ("a.moment", None),
            ("", None),
        ] {
            assert_eq!(owners.owner(name), expected, "{name}");
        }
        // A parameter of this name is not optimizer state.
        let model = owners.group(Role::Model, "optimizer.a.moment");
        assert_eq!(model, (Role::Model, "optimizer.a.moment"));
    }

    #[test]
    fn the_largest_goes_first_to_the_least_loaded() {
        let check = |bytes: &[u64], ranks, expected: &[u32]| {
            let names = ["a", "b", "c", "d", "e"];
            let groups = names.iter().map(|name| (Role::Model, *name));
            let groups: BTreeMap<Group<'_>, u64> = groups.zip(bytes.iter().copied()).collect();
            let found: Vec<u32> = balance(&groups, ranks).into_values().collect();
            assert_eq!(found, expected, "{bytes:?}");
        };
        check(&[], 2, &[]);
        check(&[1, 1, 1], 2, &[0, 1, 0]);
        check(&[1, 2, 3], 2, &[1, 1, 0]);
        check(&[7, 1, 1, 1, 1], 2, &[0, 1, 1, 1, 1]);
        check(&[u64::MAX, u64::MAX, 0], 1, &[0, 0, 0]);
        check(&[5, 4], 4, &[0, 1]);
    }
}
