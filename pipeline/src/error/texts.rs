//! Longer texts of errors.

use tinderbox_deferred::ParameterPath;
pub(super) use tinderbox_graph::{joined, quoted};

use crate::schedule::{MicroBatchIndex, RankIndex};

pub(super) fn not_finite(
    step: u64,
    losses: &[(MicroBatchIndex, f64)],
    gradients: &[ParameterPath],
) -> String {
    let mut found = Vec::new();
    let named = first_of(losses.iter().map(|(micro_batch, _)| micro_batch));
    match losses {
        [] => {}
        [(_, loss)] => found.push(format!("the loss of micro-batch {named} is {loss}")),
        _ => found.push(format!(
            "the losses of micro-batches {named} are not finite"
        )),
    }
    let named = first_of(gradients.iter().map(|path| format!("`{path}`")));
    match gradients.len() {
        0 => {}
        1 => found.push(format!("the gradient of {named} is not finite")),
        _ => found.push(format!("the gradients of {named} are not finite")),
    }
    format!(
        "step {step} was stopped before the update, and no parameter has changed: {}; skip the batch, or lower the \
         learning rate and resume from a checkpoint",
        found.join(", and ")
    )
}

/// Lists the first few names, and the number of the others.
fn first_of<T: ToString>(names: impl ExactSizeIterator<Item = T>) -> String {
    const NAMED: usize = 3;
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    joined(names.take(NAMED)) + &more
}

/// Returns `rank 1` or `ranks 1, 2`.
pub(crate) fn numbered(ranks: &[RankIndex]) -> String {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", joined(ranks))
}
