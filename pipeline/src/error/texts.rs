//! Longer texts of errors.

use tinderbox_deferred::ParameterPath;

use crate::schedule::{MicroBatchIndex, RankIndex, StageIndex};

pub(super) fn not_finite(
    step: u64,
    losses: &[(MicroBatchIndex, f64)],
    gradients: &[ParameterPath],
) -> String {
    let mut found = Vec::new();
    match losses {
        [] => {}
        [(micro_batch, loss)] => {
            found.push(format!("the loss of micro-batch {micro_batch} is {loss}"))
        }
        several => {
            let named = first_of(
                several
                    .iter()
                    .map(|(micro_batch, _)| micro_batch.to_string()),
            );
            found.push(format!(
                "the losses of micro-batches {named} are not finite"
            ));
        }
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
fn first_of(names: impl ExactSizeIterator<Item = String>) -> String {
    const NAMED: usize = 3;
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    names.take(NAMED).collect::<Vec<_>>().join(", ") + &more
}

pub(super) fn locate(
    rank: RankIndex,
    stage: Option<StageIndex>,
    micro_batch: Option<MicroBatchIndex>,
    action: &str,
) -> String {
    let mut text = format!("rank {rank}");
    if let Some(stage) = stage {
        text.push_str(&format!(", stage {stage}"));
    }
    if let Some(micro_batch) = micro_batch {
        text.push_str(&format!(", micro-batch {micro_batch}"));
    }
    text.push_str(&format!(", action {action} failed"));
    text
}

/// Returns `rank 1` or `ranks 1, 2`.
pub(crate) fn numbered(ranks: &[RankIndex]) -> String {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    let ranks: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    format!("{noun} {}", ranks.join(", "))
}
