//! The programs of a batch shape on all stages.

use crate::certify::CertifiedPrograms;
use crate::trace::LossOver;

use super::bytes::CutBytes;
use super::carried::CarriedTensors;
use super::count::CountProgram;
use super::indices::IndexPlaces;

/// A joint graph cut into the programs of every stage, shared by all ranks.
#[derive(Debug)]
pub(crate) struct CutProgram {
    /// Its number among the programs of the pipeline.
    pub(crate) number: u64,
    pub(crate) programs: CertifiedPrograms,
    /// What the loss of a micro-batch is a mean or a sum over.
    pub(crate) loss_over: LossOver<CountProgram>,
    /// What its programs hold beside parameters.
    pub(crate) bytes: CutBytes,
    /// The places of its operations that read by index.
    pub(crate) indices: IndexPlaces,
    /// The carried tensors of the batch.
    pub(crate) carried: CarriedTensors,
}
