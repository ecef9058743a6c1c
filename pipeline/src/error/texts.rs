//! Longer texts of errors.

use tinderbox_deferred::ParameterPath;
pub(super) use tinderbox_graph::{joined, quoted};

use crate::schedule::{MicroBatchIndex, RankIndex, StageIndex};

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

pub(super) fn ordinal(number: usize) -> String {
    match number {
        1 => "first".to_owned(),
        2 => "second".to_owned(),
        3 => "third".to_owned(),
        _ => format!("{number}th"),
    }
}

/// The first few names, and the number of the others.
fn first_of<T: ToString>(names: impl ExactSizeIterator<Item = T>) -> String {
    const NAMED: usize = 3;
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    joined(names.take(NAMED)) + &more
}

pub(super) fn locate(
    rank: RankIndex,
    stage: Option<StageIndex>,
    micro_batch: Option<MicroBatchIndex>,
    action: &str,
) -> String {
    let stage = stage.map(|stage| format!(", stage {stage}"));
    let micro_batch = micro_batch.map(|micro_batch| format!(", micro-batch {micro_batch}"));
    let [stage, micro_batch] = [stage, micro_batch].map(Option::unwrap_or_default);
    format!("rank {rank}{stage}{micro_batch}, action {action} failed")
}

/// Returns `rank 1` or `ranks 1, 2`.
pub(crate) fn numbered(ranks: &[RankIndex]) -> String {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", joined(ranks))
}
