//! Errors of generating random values.

use burn::tensor::Distribution;

use crate::DeviceError;

/// An error of generating random values. Nothing is written when one of these is returned.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RandomError {
    /// The device can't be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The distribution has invalid parameters.
    #[error("no values can be drawn from {distribution:?}: {reason}")]
    Parameters {
        /// The distribution.
        distribution: Distribution,
        /// The rule that they violate.
        reason: &'static str,
    },
    /// A parameter is outside of the range of the element type.
    #[error("{parameter} {value} of the random distribution is out of the range of {element}")]
    OutOfRange {
        /// The parameter: "low", "high", "mean" or "standard deviation".
        parameter: &'static str,
        /// Its value.
        value: f64,
        /// The Rust name of the element type.
        element: &'static str,
    },
    /// Both bounds are finite, but the distance between them is not.
    #[error(
        "the distance from low {low} to high {high} overflows {arithmetic}, split the range in two"
    )]
    WidthOverflow {
        /// The given lower bound.
        low: f64,
        /// The given upper bound.
        high: f64,
        /// The type in which the values are computed.
        arithmetic: &'static str,
    },
    /// The region ends after the last element of a stream.
    #[error("{elements} elements from element {first_element} on end after element 2^64 - 1")]
    RegionTooLong {
        /// The first requested element.
        first_element: u64,
        /// The number of requested elements.
        elements: u64,
    },
    /// The requested region is not inside the tensor.
    #[error("there are no random values of a region that is not inside its tensor")]
    Region {
        /// The error of the region.
        source: tinderbox_fake::RegionError,
    },
    /// Random values of this dtype are not supported.
    #[error("there are no random values of dtype {dtype:?}")]
    Unsupported {
        /// The requested dtype.
        dtype: burn::tensor::DType,
    },
}
