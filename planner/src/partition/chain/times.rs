//! Times of stages, each worked out once.
//!
//! A search looks at the same blocks in many places and under many limits. Where places are of one kind,
//! what their stages take is the same, so it stands in one table for each kind.

use std::collections::BTreeMap;

use super::search::Layers;
use super::stages::Stages;

/// A stage's part in the maximum, and its part in the sum and one: 0 before they are known, so that what
/// nobody looks at takes no memory.
type Cell = [u64; 2];

/// The tables.
#[derive(Debug)]
pub(super) struct Times {
    /// With activations kept, and with activations made again.
    tables: [Vec<Vec<Cell>>; 2],
    /// The table of each stage, and how wide its rows are.
    of_stage: Vec<(usize, usize)>,
}

impl Times {
    pub(super) fn new(stages: &Stages, layers: &Layers) -> Self {
        let mut known: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        let mut kept: Vec<Vec<Cell>> = Vec::new();
        let mut of_stage = Vec::new();
        for (stage, kind) in stages.kinds().into_iter().enumerate() {
            let [rows, width] = [stage, stage + 1].map(|layer| layers.positions[layer].len());
            let key = (layers.table_of[stage], kind);
            let table = *known.entry(key).or_insert(kept.len());
            if table == kept.len() {
                kept.push(vec![[0; 2]; rows * width]);
            }
            of_stage.push((table, width));
        }
        let again = kept.iter().map(|table| match stages.may_recompute() {
            true => vec![[0; 2]; table.len()],
            false => Vec::new(),
        });
        Self {
            tables: [again.collect(), kept],
            of_stage,
        }
    }

    /// The parts of a stage between two places, with its activations made again or not: what is known
    /// of them, else what is worked out.
    pub(super) fn parts(
        &mut self,
        (stage, recompute): (usize, bool),
        place: usize,
        end: usize,
        work_out: impl FnOnce() -> (u64, u64),
    ) -> (u64, u64) {
        let (table, width) = self.of_stage[stage];
        let cell = &mut self.tables[usize::from(!recompute)][table][place * width + end];
        if cell[1] == 0 {
            let (most, sum) = work_out();
            *cell = [most, sum + 1];
        }
        (cell[0], cell[1] - 1)
    }
}
