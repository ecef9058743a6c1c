//! A source that combines the values of one source with the construction of another.

use burn::tensor::Device;
use tinderbox_fake::DynTensor;

use super::forward;
use crate::{Observer, ParameterTable, Request, Source, SourceError};

/// The values of one source, in models that are constructed for another one; see
/// [`constructed_by`](Source::constructed_by).
#[derive(Clone, Debug)]
pub struct ConstructedBy<S, C> {
    values: S,
    constructor: C,
}

impl<S: Source, C: Source> ConstructedBy<S, C> {
    pub(crate) fn new(values: S, constructor: C) -> Self {
        Self {
            values,
            constructor,
        }
    }
}

impl<S: Source, C: Source> Source for ConstructedBy<S, C> {
    forward!(self => self.values; load load_uncached check working_bytes describe);
    forward!(self => self.constructor; construct);
}
