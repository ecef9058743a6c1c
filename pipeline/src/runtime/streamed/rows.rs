//! Rows of a parameter that is not in memory, such as an embedding: those that a batch needs are read when its stage runs.

use std::fmt;
use std::sync::Arc;

use tinderbox_deferred::{Observer, Request, Rows, Source, SourceError, read_values};
use tinderbox_fake::DynTensor;

/// Where rows of parameters are read.
#[derive(Clone)]
pub(crate) struct RowSource(pub(crate) Arc<dyn Source>);

impl fmt::Debug for RowSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RowSource")
            .field(&self.0.describe())
            .finish()
    }
}

/// The rows of one parameter.
pub(crate) struct ParameterRows {
    source: RowSource,
    whole: Request,
    observer: Arc<dyn Observer>,
}

impl ParameterRows {
    pub(crate) fn new(source: RowSource, whole: Request, observer: Arc<dyn Observer>) -> Self {
        Self {
            source,
            whole,
            observer,
        }
    }
}

impl Rows for ParameterRows {
    fn read(&self, rows: &[u64]) -> Result<DynTensor, SourceError> {
        let runs = rows.chunk_by(|row, next| row + 1 == *next);
        let requests = runs.map(|run| self.whole.rows(run[0], run[0] + run.len() as u64));
        let requests: Vec<Request> = requests.collect();
        let read = read_values(&requests, &*self.source.0, &*self.observer)?;
        Ok(DynTensor::joined(read))
    }
}
