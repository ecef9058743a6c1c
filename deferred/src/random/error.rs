//! What can be wrong with a request for random values.

use crate::DeviceError;

/// Why no random values were made. Nothing is written when one of these is returned.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RandomError {
    /// The device can't be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A parameter is NaN or infinite.
    #[error("{parameter} of the random distribution is {value}, it must be finite")]
    NotFinite {
        /// Which parameter: "low", "high", "mean" or "standard deviation".
        parameter: &'static str,
        /// What it is.
        value: f64,
    },
    /// A probability is NaN or outside of 0 to 1.
    #[error("probability {probability} of the bernoulli distribution is not within 0 to 1")]
    Probability {
        /// The probability given.
        probability: f64,
    },
    /// A standard deviation is below zero.
    #[error("standard deviation {std} of the normal distribution is negative")]
    NegativeStd {
        /// The standard deviation given.
        std: f64,
    },
    /// The bounds of a uniform distribution are the wrong way round.
    #[error("low {low} of the uniform distribution is above high {high}")]
    ReversedBounds {
        /// The lower bound given.
        low: f64,
        /// The upper bound given.
        high: f64,
    },
    /// A parameter lies outside of the values that the element type can hold.
    #[error("{parameter} {value} of the random distribution is out of the range of {element}")]
    OutOfRange {
        /// Which parameter: "low", "high", "mean" or "standard deviation".
        parameter: &'static str,
        /// What it is.
        value: f64,
        /// The element type, as Rust names it.
        element: &'static str,
    },
    /// Both bounds are finite, but the distance between them is not.
    #[error(
        "the distance from low {low} to high {high} overflows {arithmetic}, split the range in two"
    )]
    WidthOverflow {
        /// The lower bound given.
        low: f64,
        /// The upper bound given.
        high: f64,
        /// The type in which the values are computed.
        arithmetic: &'static str,
    },
    /// The region ends after the last element that a stream has.
    #[error("{elements} elements from element {first_element} on end after element 2^64 - 1")]
    RegionTooLong {
        /// The first element asked for.
        first_element: u64,
        /// How many elements were asked for.
        elements: u64,
    },
    /// The region asked for is not one of the tensor.
    #[error("there are no random values of a region that is not inside its tensor")]
    Region {
        /// What is wrong with it.
        source: tinderbox_fake::RegionError,
    },
    /// There are no random values of this dtype.
    #[error("there are no random values of dtype {dtype:?}")]
    Unsupported {
        /// The dtype asked for.
        dtype: burn::tensor::DType,
    },
}
