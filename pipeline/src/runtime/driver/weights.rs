//! The weight of each micro-batch in the loss of its step.

use tinderbox_deferred::RunContext;

use crate::StepError;
use crate::runtime::round::MicroInput;
use crate::trace::LossOver;

/// The samples of each micro-batch, or what it counts; `None` for sums. `first` is the index of the first of them.
pub(crate) fn counts(
    parts: &[MicroInput],
    first: usize,
    context: impl Fn(usize) -> RunContext,
) -> Result<Vec<Option<f64>>, StepError> {
    let counts = parts.iter().enumerate().map(|(index, part)| {
        Ok(match &part.cut.loss_over {
            LossOver::Sum => None,
            LossOver::Samples => Some(part.samples as f64),
            LossOver::Count(count) => {
                let index = first + index;
                let count = count.of(&part.inputs, &context(index));
                let count = count.map_err(|source| StepError::Count {
                    micro_batch: index,
                    source: Box::new(source),
                })?;
                if !(count >= 0.0 && count.is_finite()) {
                    return Err(StepError::BadCount {
                        micro_batch: index,
                        count,
                    });
                }
                Some(count)
            }
        })
    });
    let counts = counts.collect::<Result<Vec<Option<f64>>, StepError>>()?;
    let kind = |part: &MicroInput| std::mem::discriminant(&part.cut.loss_over);
    if let Some(other) = parts.iter().position(|part| kind(part) != kind(&parts[0])) {
        let micro_batch = first + other;
        return Err(StepError::MixedLosses { micro_batch });
    }
    Ok(counts)
}

/// The weight of each micro-batch of a batch: 1 for a sum, otherwise its fraction of the samples or of the count.
pub(crate) fn weights(counts: Vec<Option<f64>>) -> Result<Vec<f64>, StepError> {
    let total: f64 = counts.iter().flatten().sum();
    if total == 0.0 && counts.iter().any(Option::is_some) {
        return Err(StepError::NothingCounts);
    }
    let weight = |count: Option<f64>| count.map_or(1.0, |count| count / total);
    Ok(counts.into_iter().map(weight).collect())
}
