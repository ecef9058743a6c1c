//! Scalars of a run in a checkpoint.

use burn_pack::Scalar as BurnScalar;
use tinderbox_checkpoint::{Checkpoint, Scalar};
use tinderbox_pipeline::LossScale;

/// Names of the scalars of a loss scale.
const SCALE_FACTOR: &str = "loss_scale.factor";
const SCALE_STEPS: &str = "loss_scale.steps";

pub(super) fn saved_scale(scale: LossScale) -> [(String, Scalar); 2] {
    [
        (SCALE_FACTOR.into(), Scalar::Float(scale.factor())),
        (SCALE_STEPS.into(), Scalar::Uint(scale.steps())),
    ]
}

/// Returns factor and step count of the loss scale, if the checkpoint has them.
pub(super) fn scale_of(checkpoint: &Checkpoint) -> Option<(f64, u64)> {
    let scalars = checkpoint.scalars();
    match (scalars.get(SCALE_FACTOR)?, scalars.get(SCALE_STEPS)?) {
        (Scalar::Float(factor), Scalar::Uint(steps)) => Some((*factor, *steps)),
        _ => None,
    }
}

pub(super) fn to_saved(value: BurnScalar) -> Scalar {
    match value {
        BurnScalar::Int(value) => Scalar::Int(value),
        BurnScalar::UInt(value) => Scalar::Uint(value),
        BurnScalar::Float(value) => Scalar::Float(value),
        BurnScalar::Bool(value) => Scalar::Bool(value),
    }
}

pub(super) fn from_saved(value: Scalar) -> BurnScalar {
    match value {
        Scalar::Int(value) => BurnScalar::Int(value),
        Scalar::Uint(value) => BurnScalar::UInt(value),
        Scalar::Float(value) => BurnScalar::Float(value),
        Scalar::Bool(value) => BurnScalar::Bool(value),
    }
}
