//! Losses over alignments of sequences.
//!
//! Connectionist temporal classification (Graves et al., ICML 2006, doi:10.1145/1143844.1143891)
//! goes over a lattice of `t` steps, `n` sequences and `2 s + 1` states: labels of `s`, with blanks
//! around them. A state is the log-sum-exp of three before it and a log-probability: two
//! comparisons, three differences, three `exp`, two additions, a `log`, and two additions more, 13
//! in all. Lengths below the longest save nothing here: they are values, and not known.

use burn_ir::{CtcLossBackwardOpIr, CtcLossOpIr, TensorIr};

use super::count::{Count, OperationCost};
use super::size::{elements, length_from_end, product, rows};

/// FLOPs of a state of the lattice, in one direction.
const STEP: u64 = 13;

/// States of the lattice, of log-probabilities `[t, n, classes]` and targets `[n, s]`.
fn lattice(log_probs: &TensorIr, targets: &TensorIr) -> u64 {
    let states = length_from_end(targets, 0)
        .saturating_mul(2)
        .saturating_add(1);
    product([rows(log_probs), states])
}

/// Forward over the lattice. Only the log-probabilities of labels and blanks are read.
impl Count for CtcLossOpIr {
    fn count(&self) -> OperationCost {
        let states = lattice(&self.log_probs, &self.targets);
        let whole = [&self.targets, &self.input_lengths, &self.target_lengths];
        OperationCost::of_flops(states.saturating_mul(STEP))
            .reads_selected(&self.log_probs, states, &whole)
            .writes([&self.out])
    }
}

/// Forward and backward over the lattice, and a gradient from both.
///
/// A state's posterior takes seven FLOPs: three additions, `exp`, a product, a sign and the addition
/// to its class. A class takes three: `exp`, a product and a mask.
impl Count for CtcLossBackwardOpIr {
    fn count(&self) -> OperationCost {
        const POSTERIOR: u64 = 7;
        const CLASS: u64 = 3;
        let states = lattice(&self.log_probs, &self.targets);
        let of_states = states.saturating_mul(2 * STEP + POSTERIOR);
        let of_classes = elements(&self.log_probs).saturating_mul(CLASS);
        OperationCost::of_flops(of_states.saturating_add(of_classes))
            .reads([
                &self.log_probs,
                &self.targets,
                &self.input_lengths,
                &self.target_lengths,
                &self.grad_loss,
            ])
            .writes([&self.out])
    }
}

#[cfg(test)]
mod tests {
    use burn_ir::{ModuleOperationIr as M, OperationIr};

    use super::*;
    use crate::cost::fixture::{check, indices, output, tensor};

    #[test]
    fn alignments_by_states() {
        // 20 steps of 2 sequences and 30 classes; 4 labels, so 9 states.
        let log_probs = tensor(0, &[20, 2, 30]);
        let (targets, lengths) = (indices(1, &[2, 4]), indices(2, &[2]));
        let target_lengths = indices(3, &[2]);
        let states = 20 * 2 * 9;
        let loss = CtcLossOpIr::create(
            log_probs.clone(),
            targets.clone(),
            lengths.clone(),
            target_lengths.clone(),
            0,
            output,
        );
        let expected = (states * 13, states * 4 + (8 + 2 + 2) * 8, 8);
        check(OperationIr::Module(M::CtcLoss(loss)), expected);
        let gradient = tensor(4, &[2]);
        let backward = CtcLossBackwardOpIr::create(
            log_probs,
            targets,
            lengths,
            target_lengths,
            gradient,
            0,
            output,
        );
        let read = 1200 * 4 + (8 + 2 + 2) * 8 + 8;
        let expected = (states * 33 + 1200 * 3, read, 1200 * 4);
        check(OperationIr::Module(M::CtcLossBackward(backward)), expected);
    }
}
