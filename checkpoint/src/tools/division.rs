//! The division of tensors and scalars over ranks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use tinderbox_fake::Region;

use crate::{RankSave, Role, SaveTensor, Scalar};

/// Splits the name of optimizer state, `optimizer.<path of a parameter>.<field>`, into the path and the field. If the path of
/// a parameter begins with the path of another one, the longest path counts. Returns `None` for the state of no parameter.
pub fn split_state_name(name: &str, is_parameter: impl Fn(&str) -> bool) -> Option<(&str, &str)> {
    let path = name.strip_prefix("optimizer.")?;
    let mut dots = path.rmatch_indices('.').map(|(at, _)| at);
    let end = dots.find(|end| is_parameter(&path[..*end]))?;
    Some((&path[..end], &path[end + 1..]))
}

/// Tensors and scalars that stay on one rank: a parameter and its optimizer state, under the parameter's
/// name, or state of no known parameter, under its own name.
type Group<'a> = (Role, &'a str);

/// The parameters that optimizer state can belong to, by all their names: the name of optimizer state can contain any path of
/// a weight.
struct Owners<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Owners<'a> {
    fn of(parameters: impl Iterator<Item = (&'a str, &'a [String])>) -> Self {
        let names = parameters.flat_map(|(name, tied)| {
            let tied = tied.iter().map(move |path| (&**path, name));
            std::iter::once((name, name)).chain(tied)
        });
        Self(names.collect())
    }

    /// Returns the parameter with the longest path that is a prefix of a state name.
    fn owner(&self, state_name: &str) -> Option<&'a str> {
        let (path, _) = split_state_name(state_name, |path| self.0.contains_key(path))?;
        self.0.get(path).copied()
    }

    /// Returns the group of a tensor.
    fn group(&self, role: Role, name: &'a str) -> Group<'a> {
        let owner = self.owner(name).filter(|_| role == Role::State);
        owner.map_or((role, name), |parameter| (Role::Model, parameter))
    }
}

/// The division of tensors over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TensorSplit {
    /// Every tensor is whole on one rank; ranks have approximately equal numbers of bytes.
    #[default]
    Whole,
    /// A tensor with at least as many rows (indices of its first dimension) as ranks is cut into one box of
    /// rows per rank; the boxes differ by at most one row. Other tensors, and tensors in memory, stay whole.
    Rows,
}

/// The assignment of tensors and scalars to ranks.
pub(super) struct Division<'a> {
    tensors: &'a [SaveTensor],
    scalars: &'a BTreeMap<String, Scalar>,
    world_size: u32,
    owners: Owners<'a>,
    ranks: BTreeMap<Group<'a>, u32>,
    /// Indices of the tensors that are cut: every rank has rows of each.
    cut: Vec<usize>,
    /// Indices of the other tensors, for each rank that has any.
    whole: BTreeMap<u32, Vec<usize>>,
}

impl<'a> Division<'a> {
    pub(super) fn of(
        tensors: &'a [SaveTensor],
        scalars: &'a BTreeMap<String, Scalar>,
        world_size: u32,
        split: TensorSplit,
    ) -> Self {
        let parameters = tensors.iter().filter(|tensor| tensor.role == Role::Model);
        let owners = Owners::of(parameters.map(|tensor| (&*tensor.name, &*tensor.tied)));
        let group = |at: usize| owners.group(tensors[at].role, &tensors[at].name);
        let (cut, others): (Vec<usize>, Vec<usize>) =
            (0..tensors.len()).partition(|at| is_cut(&tensors[*at], world_size, split));
        let mut groups: BTreeMap<Group<'_>, u64> = BTreeMap::new();
        for at in &others {
            *groups.entry(group(*at)).or_default() += tensors[*at].bytes();
        }
        let bytes: Vec<u64> = groups.values().copied().collect();
        let assigned = balance(&bytes, world_size);
        let ranks: BTreeMap<Group<'_>, u32> = groups.into_keys().zip(assigned).collect();
        let mut whole: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for at in others {
            whole.entry(ranks[&group(at)]).or_default().push(at);
        }
        Self {
            tensors,
            scalars,
            world_size,
            owners,
            ranks,
            cut,
            whole,
        }
    }

    /// Returns the contents of a rank.
    pub(super) fn of_rank(&self, rank: u32) -> RankSave {
        let whole = self.whole.get(&rank).into_iter().flatten();
        let whole = whole.map(|at| (*at, self.tensors[*at].clone()));
        let cut = self.cut.iter().map(|at| {
            let tensor = self.tensors[*at].clone();
            let rows = rows_of(&tensor.shape, rank, self.world_size);
            (*at, tensor.in_region(rows))
        });
        // In the order of the tensors.
        let ours: BTreeMap<usize, SaveTensor> = whole.chain(cut).collect();
        let scalars = self.scalars.iter();
        let scalars = scalars.filter(|(name, _)| self.rank_of_scalar(name) == rank);
        let scalars = scalars.map(|(name, value)| (name.clone(), *value));
        RankSave {
            tensors: ours.into_values().collect(),
            scalars: scalars.collect(),
        }
    }

    /// Returns the rank of the scalar's parameter. Returns 0 for a scalar of no parameter, and for a parameter whose tensors
    /// are all cut.
    fn rank_of_scalar(&self, name: &str) -> u32 {
        let owner = self.owners.owner(name);
        let rank = owner.and_then(|parameter| self.ranks.get(&(Role::Model, parameter)));
        rank.copied().unwrap_or(0)
    }
}

/// Returns a rank for each item: the largest item is assigned first, each to the rank with the fewest bytes so far, or the
/// lowest of several. Time: a sort and a heap.
fn balance(bytes: &[u64], ranks: u32) -> Vec<u32> {
    let mut order: Vec<usize> = (0..bytes.len()).collect();
    order.sort_by_key(|at| Reverse(bytes[*at]));
    let mut loads: BinaryHeap<_> = (0..ranks).map(|rank| Reverse((0_u64, rank))).collect();
    let mut assigned = vec![0; bytes.len()];
    for at in order {
        if let Some(Reverse((load, rank))) = loads.pop() {
            assigned[at] = rank;
            loads.push(Reverse((load.saturating_add(bytes[at]), rank)));
        }
    }
    assigned
}

/// Returns whether every rank has rows of a tensor. An empty tensor stays whole.
fn is_cut(tensor: &SaveTensor, ranks: u32, split: TensorSplit) -> bool {
    tensor.is_read() && split == TensorSplit::Rows && has_rows(&tensor.shape, ranks)
}

fn has_rows(shape: &[u64], ranks: u32) -> bool {
    let rows = shape.first().copied().unwrap_or(0);
    ranks > 1 && rows >= u64::from(ranks) && !shape.contains(&0)
}

/// Returns the rows of a rank: the first ranks have one more if they can't be equal.
fn rows_of(shape: &[u64], rank: u32, ranks: u32) -> Region {
    let (rank, ranks) = (u64::from(rank), u64::from(ranks));
    let (each, more) = (shape[0] / ranks, shape[0] % ranks);
    let start = |rank: u64| each * rank + more.min(rank);
    let whole = Region::whole(shape).expect("a listed tensor's elements can be counted");
    whole.with_range(0, start(rank)..start(rank + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check_tiling;

    #[test]
    fn rows_tile_the_tensor() {
        for (shape, ranks) in [
            (&[2u64, 3][..], 2u32),
            (&[7, 2], 3),
            (&[5], 5),
            (&[u64::from(u32::MAX) << 20, 1], 65_536),
        ] {
            assert!(has_rows(shape, ranks), "{shape:?}");
            let rows: Vec<Region> = (0..ranks).map(|rank| rows_of(shape, rank, ranks)).collect();
            check_tiling(shape, &rows.iter().collect::<Vec<_>>()).unwrap();
            let sizes = rows.iter().map(|region| region.size()[0]);
            let (least, most) = (sizes.clone().min(), sizes.max());
            assert!(most.unwrap() - least.unwrap() <= 1, "{shape:?}");
        }
    }

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
            assert_eq!(balance(bytes, ranks), expected, "{bytes:?}");
        };
        check(&[], 2, &[]);
        check(&[1, 1, 1], 2, &[0, 1, 0]);
        check(&[1, 2, 3], 2, &[1, 1, 0]);
        check(&[7, 1, 1, 1, 1], 2, &[0, 1, 1, 1, 1]);
        check(&[u64::MAX, u64::MAX, 0], 1, &[0, 0, 0]);
        check(&[5, 4], 4, &[0, 1]);
    }

    #[test]
    fn a_tensor_with_fewer_rows_than_ranks_stays_whole() {
        for (shape, ranks) in [(&[][..], 2), (&[2, 8], 3), (&[8, 0], 2), (&[8], 1)] {
            assert!(!has_rows(shape, ranks), "{shape:?}");
        }
    }
}
