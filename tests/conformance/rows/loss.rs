//! Losses, reduced and not.

use burn::nn::loss::{
    BinaryCrossEntropyLoss, BinaryCrossEntropyLossConfig, CosineEmbeddingLoss,
    CosineEmbeddingLossConfig, CrossEntropyLoss, CrossEntropyLossConfig, GaussianNLLLoss,
    GaussianNLLLossConfig, HingeEmbeddingLoss, HingeEmbeddingLossConfig, HuberLoss,
    HuberLossConfig, KLDivLoss, KLDivLossConfig, LpLoss, LpLossConfig, MarginRankingLoss,
    MarginRankingLossConfig, MseLoss, MultiMarginLoss, MultiMarginLossConfig, PoissonNllLoss,
    PoissonNllLossConfig, Reduction, SmoothL1Loss, SmoothL1LossConfig, SoftMarginLoss,
    TripletMarginLoss, TripletMarginLossConfig,
};

use super::{Family, family};
use crate::inputs::{between, floats, ints, signs, these};
use crate::row::{Outcome, Tracing, row};

/// The error of a loss that reads its inputs.
macro_rules! data_read {
    ($instead:literal) => {
        concat!(
            "the forward could not be recorded: the recorded code read the data of a fake tensor; a fake \
             tensor has a shape and no data: this loss reads its arguments to check them",
            $instead
        )
    };
}
pub(super) use data_read;

const POISSON: Tracing = Tracing::Refused(data_read!("; write it with tensor operations"));

pub fn rows() -> Family {
    let mut rows = entropies();
    rows.extend(distances());
    rows.extend(margins());
    rows.extend(likelihoods());
    rows
}

fn entropies() -> Family {
    family![
        row(
            "logits, weighted, smoothed",
            |device| {
                BinaryCrossEntropyLossConfig::new()
                    .with_weights(Some(vec![0.5, 1.0, 2.0]))
                    .with_smoothing(Some(0.1))
                    .with_logits(true)
                    .init(device)
            },
            |device| (floats([4, 3], 1, device), ints([0, 2], [4, 3], 2, device)),
            |loss: &BinaryCrossEntropyLoss, (logits, y)| Outcome::of(loss.forward(logits, y)),
        ),
        row(
            "probabilities",
            |device| BinaryCrossEntropyLossConfig::new().init(device),
            |device| {
                (
                    between([0.1, 0.9], [4, 3], 3, device),
                    ints([0, 2], [4, 3], 4, device),
                )
            },
            |loss: &BinaryCrossEntropyLoss, (x, y)| Outcome::of(loss.forward(x, y)),
        ),
        row(
            "",
            |device| CrossEntropyLossConfig::new().init(device),
            |device| (floats([5, 4], 5, device), ints([0, 4], [5], 6, device)),
            |loss: &CrossEntropyLoss, (logits, y)| Outcome::of(loss.forward(logits, y)),
        ),
        row(
            "padded, weighted, smoothed",
            |device| {
                CrossEntropyLossConfig::new()
                    .with_pad_tokens(Some(vec![1, 3]))
                    .with_weights(Some(vec![1.0, 2.0, 0.5, 1.5]))
                    .with_smoothing(Some(0.1))
                    .init(device)
            },
            |device| (floats([5, 4], 7, device), these([0, 1, 2, 3, 2], device)),
            |loss: &CrossEntropyLoss, (logits, y)| Outcome::of(loss.forward(logits, y)),
        ),
        row(
            "probabilities, padded",
            |device| {
                CrossEntropyLossConfig::new()
                    .with_pad_tokens(Some(vec![1]))
                    .with_logits(false)
                    .init(device)
            },
            |device| {
                (
                    between([0.1, 0.9], [5, 4], 8, device),
                    these([0, 1, 2, 3, 2], device),
                )
            },
            |loss: &CrossEntropyLoss, (x, y)| Outcome::of(loss.forward(x, y)),
        ),
        row(
            "",
            |_| KLDivLossConfig::new().init(),
            |device| {
                (
                    between([-3.0, -0.1], [4, 3], 9, device),
                    between([0.1, 0.9], [4, 3], 10, device),
                )
            },
            |loss: &KLDivLoss, (x, y)| {
                let reduced = loss.forward(x.clone(), y.clone(), Reduction::BatchMean);
                Outcome::of(reduced).and(loss.forward_no_reduction(x, y))
            },
        ),
        row(
            "targets in logarithms",
            |_| KLDivLossConfig::new().with_log_target(true).init(),
            |device| {
                (
                    between([-3.0, -0.1], [4, 3], 11, device),
                    between([-3.0, -0.1], [4, 3], 12, device),
                )
            },
            |loss: &KLDivLoss, (x, y)| Outcome::of(loss.forward(x, y, Reduction::Sum)),
        ),
    ]
}

fn distances() -> Family {
    family![
        row(
            "",
            |_| MseLoss::new(),
            |device| (floats([4, 3], 13, device), floats([4, 3], 14, device)),
            |loss: &MseLoss, (x, y)| {
                let reduced = loss.forward(x.clone(), y.clone(), Reduction::Auto);
                Outcome::of(reduced).and(loss.forward_no_reduction(x, y))
            },
        ),
        row(
            "",
            |_| HuberLossConfig::new(0.5).init(),
            |device| (floats([4, 3], 15, device), floats([4, 3], 16, device)),
            |loss: &HuberLoss, (x, y)| {
                let reduced = loss.forward(x.clone(), y.clone(), Reduction::Mean);
                Outcome::of(reduced).and(loss.forward_no_reduction(x, y))
            },
        ),
        row(
            "p = 1.5",
            |_| LpLossConfig::new(1.5).init(),
            |device| (floats([4, 3], 17, device), floats([4, 3], 18, device)),
            |loss: &LpLoss, (x, y)| {
                let reduced = loss.forward(x.clone(), y.clone(), Reduction::Sum);
                Outcome::of(reduced).and(loss.forward_reduce_dims(x, y, &[1]))
            },
        ),
        row(
            "p = 1",
            |_| LpLossConfig::l1(),
            |device| (floats([4, 3], 19, device), floats([4, 3], 20, device)),
            |loss: &LpLoss, (x, y)| Outcome::of(loss.forward(x, y, Reduction::Mean)),
        ),
        row(
            "p = 2",
            |_| LpLossConfig::l2(),
            |device| (floats([4, 3], 21, device), floats([4, 3], 22, device)),
            |loss: &LpLoss, (x, y)| Outcome::of(loss.forward_no_reduction(x, y)),
        ),
        row(
            "",
            |_| SmoothL1LossConfig::new().with_beta(0.5).init(),
            |device| (floats([4, 3], 23, device), floats([4, 3], 24, device)),
            |loss: &SmoothL1Loss, (x, y)| {
                let reduced = loss.forward_with_reduction(x.clone(), y.clone(), Reduction::Mean);
                let outcome = Outcome::of(reduced).and(loss.forward(x.clone(), y.clone()));
                outcome.and(loss.forward_reduce_dims(x, y, &[0]))
            },
        ),
    ]
}

fn margins() -> Family {
    family![
        row(
            "",
            |_| CosineEmbeddingLossConfig::new().with_margin(0.1).init(),
            |device| {
                (
                    floats([4, 3], 25, device),
                    floats([4, 3], 26, device),
                    these([1, -1, -1, 1], device),
                )
            },
            |loss: &CosineEmbeddingLoss, (x, y, target)| {
                let reduced = loss.forward(x.clone(), y.clone(), target.clone());
                Outcome::of(reduced).and(loss.forward_no_reduction(x, y, target))
            },
        ),
        row(
            "",
            |_| HingeEmbeddingLossConfig::new().init(),
            |device| (floats([4, 3], 27, device), signs([4, 3], 28, device)),
            |loss: &HingeEmbeddingLoss, (x, y)| {
                let reduced = loss.forward(x.clone(), y.clone(), Reduction::Mean);
                Outcome::of(reduced).and(loss.forward_no_reduction(x, y))
            },
        ),
        row(
            "",
            |_| MarginRankingLossConfig::new().with_margin(0.2).init(),
            |device| {
                (
                    floats([6], 29, device),
                    floats([6], 30, device),
                    signs([6], 31, device),
                )
            },
            |loss: &MarginRankingLoss, (x, y, target)| {
                let reduced = loss.forward(x.clone(), y.clone(), target.clone(), Reduction::Sum);
                Outcome::of(reduced).and(loss.forward_no_reduction(x, y, target))
            },
        ),
        row(
            "p = 2",
            |_| MultiMarginLossConfig::new().with_p(2).init(),
            |device| (floats([4, 3], 32, device), ints([0, 3], [4], 33, device)),
            |loss: &MultiMarginLoss, (x, y)| {
                let reduced = loss.forward(x.clone(), y.clone(), Reduction::Mean);
                Outcome::of(reduced).and(loss.forward_no_reduction(x, y))
            },
        ),
        row(
            "",
            |_| SoftMarginLoss::new(),
            |device| (floats([4, 3], 34, device), signs([4, 3], 35, device)),
            |loss: &SoftMarginLoss, (x, y)| {
                let reduced = loss.forward(x.clone(), y.clone(), Reduction::Mean);
                Outcome::of(reduced).and(loss.forward_no_reduction(x, y))
            },
        ),
        row(
            "",
            |_| TripletMarginLossConfig::new().init(),
            |device| {
                (
                    floats([4, 3], 36, device),
                    floats([4, 3], 37, device),
                    floats([4, 3], 38, device),
                )
            },
            |loss: &TripletMarginLoss, (anchor, near, far)| {
                let near_and_far = (near.clone(), far.clone());
                let reduced = loss.forward(anchor.clone(), near, far, Reduction::Mean);
                let (near, far) = near_and_far;
                Outcome::of(reduced).and(loss.forward_no_reduction(anchor, near, far))
            },
        ),
    ]
}

fn likelihoods() -> Family {
    family![
        row(
            "full",
            |_| GaussianNLLLossConfig::new().with_full(true).init(),
            |device| {
                (
                    floats([4, 3], 39, device),
                    floats([4, 3], 40, device),
                    between([0.5, 2.0], [4, 3], 41, device),
                )
            },
            |loss: &GaussianNLLLoss, (x, y, variance)| {
                let all = loss.forward_no_reduction(x.clone(), y.clone(), variance.clone());
                Outcome::of(loss.forward(x, y, variance, Reduction::Mean)).and(all)
            },
        ),
        row(
            "",
            |_| PoissonNllLossConfig::new().init(),
            |device| {
                (
                    floats([4, 3], 42, device),
                    between([0.0, 4.0], [4, 3], 43, device),
                )
            },
            |loss: &PoissonNllLoss, (x, y)| Outcome::of(loss.forward(x, y, Reduction::Mean)),
        )
        .tracing(POISSON),
        row(
            "full, predictions not in logarithms",
            |_| {
                PoissonNllLossConfig::new()
                    .with_full(true)
                    .with_log_input(false)
                    .init()
            },
            |device| {
                (
                    between([0.1, 3.0], [4, 3], 44, device),
                    between([0.0, 4.0], [4, 3], 45, device),
                )
            },
            |loss: &PoissonNllLoss, (x, y)| Outcome::of(loss.forward_no_reduction(x, y)),
        )
        .tracing(POISSON),
    ]
}
