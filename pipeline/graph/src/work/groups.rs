//! Groups of forward operations that are never separated.

use crate::trace::JointGraph;

/// The maximum distance in operations of two parameters of one module that stay together: a weight and
/// its bias, with the operations that broadcast the bias between them.
const NEAR: usize = 3;

/// Indivisible groups of consecutive operations of a chain. Each group is one block of its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationGroups {
    /// The block of each position.
    block_of: Vec<usize>,
    /// The first position of each block.
    starts: Vec<usize>,
}

impl OperationGroups {
    /// Creates groups of one operation each, with three exceptions. Parameters of a module that are read
    /// within a few operations of each other are not separated, so that a weight stays with its bias.
    /// An operation that reads only parameters, such as a transpose of a weight, stays with its reader,
    /// within the same distance. Operations that read and update a running state or a carried tensor are not separated.
    pub fn new(joint: &JointGraph) -> Self {
        let reads = joint.table().iter().enumerate();
        let reads = reads.filter_map(|(position, parameter)| {
            let first = joint.forward().first_read(position)?;
            Some((first, parameter.path.module()))
        });
        let mut reads: Vec<(usize, &str)> = reads.collect();
        reads.sort_unstable();
        let mut joined = vec![false; joint.forward().nodes().len()];
        for pair in reads.windows(2) {
            let ((before, module), (after, other)) = (pair[0], pair[1]);
            if module == other && after - before <= NEAR {
                joined[before + 1..=after].fill(true);
            }
        }
        for (position, reader) in sources(joint) {
            if reader - position <= NEAR {
                joined[position + 1..=reader].fill(true);
            }
        }
        for (first, last) in joint.inseparable() {
            joined[first + 1..=last].fill(true);
        }
        let mut starts = Vec::new();
        let block_of = joined.into_iter().enumerate().map(|(position, joined)| {
            if !joined {
                starts.push(position);
            }
            starts.len().saturating_sub(1)
        });
        let block_of = block_of.collect();
        Self { block_of, starts }
    }

    /// The block of a position.
    pub fn of(&self, position: usize) -> usize {
        self.block_of.get(position).copied().unwrap_or(0)
    }

    /// The first position of each block.
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// Expands a value per block to a value per position.
    pub fn spread<T: Copy>(&self, of_blocks: &[T]) -> Vec<T> {
        let blocks = self.block_of.iter();
        blocks.map(|block| of_blocks[*block]).collect()
    }
}

/// The positions of operations that read no value of another forward operation, each with the position of
/// the first operation that reads its values.
fn sources(joint: &JointGraph) -> impl Iterator<Item = (usize, usize)> {
    let (graph, forward) = (joint.graph(), joint.forward());
    let positions = forward.nodes().iter().enumerate();
    positions.filter_map(|(position, id)| {
        let mut inputs = graph.node(*id).inputs().iter();
        if inputs.any(|value| joint.position_of(*value).is_some()) {
            return None;
        }
        let readers = graph.readers(*id);
        let reader = readers.filter_map(|user| forward.position(user)).min()?;
        Some((position, reader))
    })
}
