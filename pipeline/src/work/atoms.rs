//! Which operations of a forward are never separated.

use tinderbox_deferred::ParameterTable;

use crate::partition::Chain;
use crate::trace::JointGraph;

/// How many operations two parameters of one module may be apart to stay together: a weight and its
/// bias, with what broadcasts the bias between them.
const NEAR: usize = 3;

/// Runs of operations of a chain, each of which is one block of its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Atoms {
    /// The block of each position.
    block_of: Vec<usize>,
    /// The first position of each block.
    starts: Vec<usize>,
}

impl Atoms {
    /// One operation each, with two exceptions. A module's parameters that are read one after another
    /// within a few operations are not separated: no stage gets a weight without its bias. And what reads
    /// nothing but parameters, a transposed weight say, stays with what reads it, if that is as near.
    pub(crate) fn new(joint: &JointGraph, chain: &Chain, table: &ParameterTable) -> Self {
        let reads = table.distinct();
        let reads = reads.filter_map(|parameter| {
            let first = chain.first_read(&parameter.path)?;
            Some((first, parameter.path.module()))
        });
        let mut reads: Vec<(usize, &str)> = reads.collect();
        reads.sort_unstable();
        let mut joined = vec![false; chain.nodes().len()];
        for pair in reads.windows(2) {
            let ((before, module), (after, other)) = (pair[0], pair[1]);
            if module == other && after - before <= NEAR {
                joined[before + 1..=after].fill(true);
            }
        }
        for (position, reader) in chain.sources(joint) {
            if reader - position <= NEAR {
                joined[position + 1..=reader].fill(true);
            }
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

    /// Number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    /// The block of a position.
    pub(crate) fn of(&self, position: usize) -> usize {
        self.block_of.get(position).copied().unwrap_or(0)
    }

    /// The first position of each block.
    pub(crate) fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// Something of every block as something of every position.
    pub(crate) fn spread<T: Copy>(&self, of_blocks: &[T]) -> Vec<T> {
        let blocks = self.block_of.iter();
        blocks.map(|block| of_blocks[*block]).collect()
    }
}
