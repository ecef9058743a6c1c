//! The division of tensors and scalars over ranks.

use std::collections::BTreeMap;

use tinderbox_fake::Region;

use super::assign::{Group, Owners, balance};
use crate::{RankSave, Role, SaveTensor, Scalar};

/// The division of tensors over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cut {
    /// Every tensor is whole on one rank; ranks have approximately equal numbers of bytes.
    #[default]
    Whole,
    /// A tensor with at least as many rows (indices of its first dimension) as ranks is cut into one box of
    /// rows per rank; the boxes differ by at most one row. Other tensors, and those in memory, stay whole.
    Rows,
}

/// The assignment of tensors and scalars to ranks.
pub(super) struct Division<'a> {
    tensors: &'a [SaveTensor],
    scalars: &'a BTreeMap<String, Scalar>,
    world_size: u32,
    owners: Owners<'a>,
    ranks: BTreeMap<Group<'a>, u32>,
    /// The tensors of which every rank has rows.
    cut: Vec<usize>,
    /// The other tensors of each rank that has any.
    whole: BTreeMap<u32, Vec<usize>>,
}

impl<'a> Division<'a> {
    pub(super) fn of(
        tensors: &'a [SaveTensor],
        scalars: &'a BTreeMap<String, Scalar>,
        world_size: u32,
        cut: Cut,
    ) -> Self {
        let parameters = tensors.iter().filter(|tensor| tensor.role == Role::Model);
        let owners = Owners::of(parameters.map(|tensor| (&*tensor.name, &*tensor.tied)));
        let mut groups: BTreeMap<Group<'_>, u64> = BTreeMap::new();
        let (cut, others): (Vec<usize>, Vec<usize>) =
            (0..tensors.len()).partition(|at| is_cut(&tensors[*at], world_size, cut));
        for tensor in others.iter().map(|at| &tensors[*at]) {
            let group = owners.group(tensor.role, &tensor.name);
            *groups.entry(group).or_default() += tensor.bytes();
        }
        let ranks = balance(&groups, world_size);
        let mut whole: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for at in others {
            let group = owners.group(tensors[at].role, &tensors[at].name);
            whole.entry(ranks[&group]).or_default().push(at);
        }
        Self {
            ranks,
            tensors,
            scalars,
            world_size,
            owners,
            cut,
            whole,
        }
    }

    pub(super) fn of_rank(&self, rank: u32) -> RankSave {
        let mut ours = RankSave::default();
        let whole = self.whole.get(&rank).into_iter().flatten();
        let mut positions: Vec<usize> = whole.chain(&self.cut).copied().collect();
        positions.sort_unstable();
        for at in positions {
            let tensor = self.tensors[at].clone();
            ours.tensors.push(match self.cut.binary_search(&at) {
                Ok(_) => {
                    let rows = rows_of(&tensor.shape, rank, self.world_size);
                    tensor.in_region(rows)
                }
                Err(_) => tensor,
            });
        }
        let scalars = self.scalars.iter();
        let scalars = scalars.filter(|(name, _)| self.rank_of_scalar(name) == rank);
        ours.scalars = scalars
            .map(|(name, value)| (name.clone(), *value))
            .collect();
        ours
    }

    /// Returns the rank of the scalar's parameter; 0 without one, or if all of the parameter's tensors are
    /// cut.
    fn rank_of_scalar(&self, name: &str) -> u32 {
        let owner = self.owners.owner(name);
        let rank = owner.and_then(|parameter| self.ranks.get(&(Role::Model, parameter)));
        rank.copied().unwrap_or(0)
    }
}

/// Returns whether every rank has rows of a tensor. An empty tensor stays whole.
fn is_cut(tensor: &SaveTensor, ranks: u32, cut: Cut) -> bool {
    tensor.is_read() && cut == Cut::Rows && has_rows(&tensor.shape, ranks)
}

fn has_rows(shape: &[u64], ranks: u32) -> bool {
    let rows = shape.first().copied().unwrap_or(0);
    ranks > 1 && rows >= u64::from(ranks) && !shape.contains(&0)
}

/// Returns the rows of a rank: the first ranks have one more if they can't be equal.
fn rows_of(shape: &[u64], rank: u32, ranks: u32) -> Region {
    let (rank, ranks) = (u64::from(rank), u64::from(ranks));
    let (mut offset, mut size) = (vec![0; shape.len()], shape.to_vec());
    let (each, more) = (shape[0] / ranks, shape[0] % ranks);
    offset[0] = each * rank + more.min(rank);
    size[0] = each + u64::from(rank < more);
    Region::new(offset, size).expect("rows of a tensor are a region")
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
    fn what_has_fewer_rows_than_ranks_stays_whole() {
        for (shape, ranks) in [(&[][..], 2), (&[2, 8], 3), (&[8, 0], 2), (&[8], 1)] {
            assert!(!has_rows(shape, ranks), "{shape:?}");
        }
    }
}
