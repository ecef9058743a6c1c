//! Resharding of a checkpoint for another number of ranks.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use tinderbox_deferred::Observer;
use tinderbox_fake::Region;

use super::{
    ToolError,
    assign::{Group, Owners, balance},
    save::save,
};
use crate::{
    Checkpoint, CheckpointMeta, RankSave, Role, Run, SaveData, SaveError, SaveSize, SaveTensor,
    TensorEntry, format::MAX_WORLD_SIZE,
};

/// The division of tensors over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cut {
    /// Every tensor is whole on one rank; ranks have approximately equal numbers of bytes.
    #[default]
    Whole,
    /// A tensor with at least as many rows (indices of its first dimension) as ranks is cut into one box of
    /// rows per rank; the boxes differ by at most one row. Other tensors stay whole.
    Rows,
}

/// Options of a reshard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReshardOptions {
    /// The division of tensors over ranks.
    pub cut: Cut,
    /// Whether an existing checkpoint of the step is replaced, atomically.
    pub replace: bool,
}

/// Saves a checkpoint again as if `world_size` ranks had saved it, to a run, which may be its own; returns
/// the directory. Keeps values, step, seed, data position, metadata, plan, types of modules, scalars, tied names and
/// block size.
///
/// Tensors of optimizer state named `optimizer.<path>.<field>` are assigned to the rank of the parameter with
/// this path; they are balanced as one group, the largest first to the rank with the fewest bytes. Scalars
/// with such a name are assigned to the same rank, all others to rank 0.
///
/// Time: one pass over the values to read and one to write. Memory: a few pieces of 8 MiB for each of up to 4
/// threads, and a copy of the manifest.
///
/// # Errors
///
/// Returns an error if the step exists and is not to be replaced, the number of ranks is invalid, a block is
/// damaged, or an I/O operation fails. Nothing is published then.
pub fn reshard(
    checkpoint: &Checkpoint,
    to: &Run,
    world_size: u32,
    options: &ReshardOptions,
    progress: &dyn Observer,
) -> Result<PathBuf, ToolError> {
    let manifest = checkpoint.manifest();
    let shared = Arc::new(checkpoint.clone());
    let division = Division::of(&shared, world_size, options.cut);
    let mut size = SaveSize::default();
    // An invalid number of ranks is rejected when the attempt begins.
    for rank in 0..world_size.min(MAX_WORLD_SIZE) {
        size.add_rank(&division.of_rank(rank));
    }
    let meta = CheckpointMeta {
        seed: manifest.seed,
        data_position: manifest.data_position,
        metadata: manifest.metadata(),
        plan: checkpoint.plan()?.unwrap_or_default(),
        modules: manifest.modules(),
        block_size: Some(manifest.block_bytes),
        size: Some(size),
        replace: options.replace,
        unknown_fields: manifest.unknown_fields().clone(),
        ..CheckpointMeta::new(manifest.step, world_size)
    };
    let attempt = match to.begin(meta.clone()) {
        // More chunks may require larger blocks.
        Err(SaveError::ManifestSize { .. }) => to.begin(CheckpointMeta {
            block_size: None,
            ..meta
        }),
        begun => begun,
    }?;
    let bytes: u64 = manifest.tensors.iter().map(TensorEntry::bytes).sum();
    let size = (manifest.tensors.len(), bytes);
    let saved = save(attempt, size, |rank| division.of_rank(rank), progress);
    Ok(saved?)
}

/// The assignment of tensors and scalars to ranks.
struct Division<'a> {
    checkpoint: &'a Arc<Checkpoint>,
    world_size: u32,
    cut: Cut,
    owners: Owners<'a>,
    ranks: BTreeMap<Group<'a>, u32>,
}

impl<'a> Division<'a> {
    fn of(checkpoint: &'a Arc<Checkpoint>, world_size: u32, cut: Cut) -> Self {
        let parameters = checkpoint.tensors(Role::Model);
        let owners = Owners::of(parameters.map(|tensor| (&*tensor.name, &*tensor.tied)));
        let mut groups: BTreeMap<Group<'_>, u64> = BTreeMap::new();
        for tensor in &checkpoint.manifest().tensors {
            if !is_cut(tensor, world_size, cut) {
                let group = owners.group(tensor.role, &tensor.name);
                *groups.entry(group).or_default() += tensor.bytes();
            }
        }
        Self {
            ranks: balance(&groups, world_size),
            checkpoint,
            world_size,
            cut,
            owners,
        }
    }

    fn of_rank(&self, rank: u32) -> RankSave {
        let mut ours = RankSave::default();
        for tensor in &self.checkpoint.manifest().tensors {
            let region = if is_cut(tensor, self.world_size, self.cut) {
                rows_of(tensor, rank, self.world_size)
            } else {
                let group = self.owners.group(tensor.role, &tensor.name);
                if self.ranks.get(&group) != Some(&rank) {
                    continue;
                }
                tensor.region()
            };
            ours.tensors.push(SaveTensor {
                name: tensor.name.clone(),
                tied: tensor.tied.clone(),
                role: tensor.role,
                shape: tensor.shape.clone(),
                region: region.clone(),
                data: SaveData::Saved(self.checkpoint.clone(), Box::new(tensor.clone()), region),
            });
        }
        let scalars = self.checkpoint.scalars().iter();
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
fn is_cut(tensor: &TensorEntry, ranks: u32, cut: Cut) -> bool {
    let rows = tensor.shape.first().copied().unwrap_or(0);
    cut == Cut::Rows && ranks > 1 && rows >= u64::from(ranks) && !tensor.shape.contains(&0)
}

/// Returns the rows of a rank: the first ranks have one more if they can't be equal.
fn rows_of(tensor: &TensorEntry, rank: u32, ranks: u32) -> Region {
    let (rank, ranks) = (u64::from(rank), u64::from(ranks));
    let (mut offset, mut size) = (vec![0; tensor.shape.len()], tensor.shape.clone());
    let (each, more) = (tensor.shape[0] / ranks, tensor.shape[0] % ranks);
    offset[0] = each * rank + more.min(rank);
    size[0] = each + u64::from(rank < more);
    Region::new(offset, size).expect("rows of a tensor are a region")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StoredDType, check_tiling};

    #[test]
    fn rows_tile_the_tensor() {
        for (shape, ranks) in [
            (&[2u64, 3][..], 2u32),
            (&[7, 2], 3),
            (&[5], 5),
            (&[u64::from(u32::MAX) << 20, 1], 65_536),
        ] {
            let tensor = tensor(shape);
            assert!(is_cut(&tensor, ranks, Cut::Rows), "{shape:?}");
            let rows: Vec<Region> = (0..ranks)
                .map(|rank| rows_of(&tensor, rank, ranks))
                .collect();
            check_tiling(shape, &rows.iter().collect::<Vec<_>>()).unwrap();
            let sizes = rows.iter().map(|region| region.size()[0]);
            let (least, most) = (sizes.clone().min(), sizes.max());
            assert!(most.unwrap() - least.unwrap() <= 1, "{shape:?}");
        }
    }

    #[test]
    fn what_has_fewer_rows_than_ranks_stays_whole() {
        for (shape, ranks) in [(&[][..], 2), (&[2, 8], 3), (&[8, 0], 2), (&[8], 1)] {
            assert!(!is_cut(&tensor(shape), ranks, Cut::Rows), "{shape:?}");
        }
        assert!(!is_cut(&tensor(&[8]), 2, Cut::Whole));
    }

    fn tensor(shape: &[u64]) -> TensorEntry {
        TensorEntry {
            name: "w".to_owned(),
            tied: Vec::new(),
            role: Role::Model,
            dtype: StoredDType::F32,
            shape: shape.to_vec(),
            chunks: Vec::new(),
        }
    }
}
