//! Losses over alignments of sequences.

use burn::nn::loss::{CTCLoss, CTCLossConfig, RNNTLoss, RNNTLossConfig, Reduction};
use burn::tensor::activation::log_softmax;
use burn::tensor::module::ctc_loss;

use super::loss::data_read;
use super::{Family, family};
use crate::inputs::{floats, ints, these};
use crate::row::{Outcome, Tracing, row};

/// The error of `CTCLoss` during recording: in builds with debug assertions it reads the lengths.
const CTC: Tracing = match cfg!(debug_assertions) {
    true => Tracing::Refused(data_read!(
        " in builds with debug assertions; call `burn::tensor::module::ctc_loss` in its place"
    )),
    false => Tracing::Equal,
};

pub fn rows() -> Family {
    family![
        row(
            "",
            |_| CTCLossConfig::new().init(),
            |device| {
                (
                    floats([6, 2, 4], 1, device),
                    ints([1, 4], [2, 3], 2, device),
                    these([6, 5], device),
                    these([3, 2], device),
                )
            },
            |loss: &CTCLoss, (x, targets, input_lengths, target_lengths)| {
                let x = log_softmax(x, 2);
                Outcome::of(loss.forward(x, targets, input_lengths, target_lengths))
            },
        )
        .tracing(CTC),
        row(
            "its function, which the error names",
            |_| CTCLossConfig::new().init(),
            |device| {
                (
                    floats([6, 2, 4], 9, device),
                    ints([1, 4], [2, 3], 10, device),
                    these([6, 5], device),
                    these([3, 2], device),
                )
            },
            |_: &CTCLoss, (x, targets, input_lengths, target_lengths)| {
                let x = log_softmax(x, 2);
                Outcome::of(ctc_loss(x, targets, input_lengths, target_lengths, 0))
            },
        ),
        row(
            "infinity is zero, reduced",
            |_| CTCLossConfig::new().with_zero_infinity(true).init(),
            |device| {
                (
                    floats([6, 2, 4], 3, device),
                    ints([1, 4], [2, 3], 4, device),
                    these([6, 5], device),
                    these([3, 2], device),
                )
            },
            |loss: &CTCLoss, (x, targets, input_lengths, target_lengths)| {
                let x = log_softmax(x, 2);
                let mean = Reduction::Mean;
                let loss =
                    loss.forward_with_reduction(x, targets, input_lengths, target_lengths, mean);
                Outcome::of(loss)
            },
        )
        .tracing(CTC),
        row(
            "",
            |_| RNNTLossConfig::new().init(),
            |device| {
                (
                    floats([2, 4, 3, 5], 5, device),
                    ints([1, 5], [2, 2], 6, device),
                    these([4, 3], device),
                    these([2, 1], device),
                )
            },
            |loss: &RNNTLoss, (logits, targets, logit_lengths, target_lengths)| {
                Outcome::of(loss.forward(logits, targets, logit_lengths, target_lengths))
            },
        ),
        row(
            "logarithms, reduced",
            |_| RNNTLossConfig::new().with_logits(false).init(),
            |device| {
                (
                    floats([2, 4, 3, 5], 7, device),
                    ints([1, 5], [2, 2], 8, device),
                    these([4, 3], device),
                    these([2, 1], device),
                )
            },
            |loss: &RNNTLoss, (x, targets, logit_lengths, target_lengths)| {
                let sum = Reduction::Sum;
                let x = log_softmax(x, 3);
                let loss =
                    loss.forward_with_reduction(x, targets, logit_lengths, target_lengths, sum);
                Outcome::of(loss)
            },
        ),
    ]
}
