//! Scalars of a run in a checkpoint.

use std::collections::BTreeMap;

use burn_pack::Scalar as BurnScalar;
use tinderbox_checkpoint::{Checkpoint, Scalar};
use tinderbox_deferred::ParameterPath;
use tinderbox_pipeline::{LossScale, StepRates};

/// Names of the scalars of a loss scale.
const SCALE_FACTOR: &str = "loss_scale.factor";
const SCALE_STEPS: &str = "loss_scale.steps";

/// The number of micro-batches of a step.
const MICRO_BATCHES: &str = "micro_batches";

/// The learning rate of the last step, and the prefix of the rates of parameters that have another one.
const LEARNING_RATE: &str = "learning_rate";
const LEARNING_RATE_OF: &str = "learning_rate.";

/// Whether the parameters are averages.
const AVERAGED: &str = "averaged";

/// Whether a streamed model has saved it while it was trained.
const WORKING_DIR: &str = "working_dir";

/// Returns what is saved of a run besides the values of its ranks.
pub(super) fn of_run(
    scale: Option<LossScale>,
    micro_batches: usize,
    is_averaged: bool,
    rates: Option<StepRates>,
) -> Vec<(String, Scalar)> {
    let scale = scale.into_iter().flat_map(|scale| {
        [
            (SCALE_FACTOR.into(), Scalar::Float(scale.factor())),
            (SCALE_STEPS.into(), Scalar::Uint(scale.steps())),
        ]
    });
    let averaged = is_averaged.then(|| (AVERAGED.into(), Scalar::Bool(true)));
    let micro_batches = (MICRO_BATCHES.into(), Scalar::Uint(micro_batches as u64));
    let of_run = scale.chain(averaged).chain([micro_batches]);
    let rates = rates.into_iter().flat_map(|StepRates { base, others }| {
        let base = [of_base_rate(base)].into_iter();
        base.chain(of_other_rates(others))
    });
    of_run.chain(rates).collect()
}

/// Returns what is saved of the base of the learning rates.
pub(super) fn of_base_rate(rate: f64) -> (String, Scalar) {
    (LEARNING_RATE.to_owned(), Scalar::Float(rate))
}

/// Returns what is saved of the learning rates that differ from the base.
pub(super) fn of_other_rates(
    rates: BTreeMap<ParameterPath, f64>,
) -> impl Iterator<Item = (String, Scalar)> {
    rates.into_iter().map(|(path, rate)| {
        let name = format!("{LEARNING_RATE_OF}{path}");
        (name, Scalar::Float(rate))
    })
}

/// Returns the learning rates of the last step, if the checkpoint has them.
pub(super) fn rates_of(checkpoint: &Checkpoint) -> Option<StepRates> {
    let rates = checkpoint.scalars().iter().filter_map(|(name, scalar)| {
        let name = name.strip_prefix(LEARNING_RATE)?;
        match scalar {
            Scalar::Float(rate) => Some((name, *rate)),
            _ => None,
        }
    });
    let (mut base, mut others) = (None, BTreeMap::new());
    for (name, rate) in rates {
        match name.strip_prefix('.') {
            Some(path) => drop(others.insert(ParameterPath::new(path), rate)),
            None => base = Some(rate),
        }
    }
    base.map(|base| StepRates { base, others })
}

/// Returns the number of micro-batches of a step, if the checkpoint has it.
pub(super) fn micro_batches_of(checkpoint: &Checkpoint) -> Option<u64> {
    match checkpoint.scalars().get(MICRO_BATCHES)? {
        Scalar::Uint(count) => Some(*count),
        _ => None,
    }
}

/// Returns what a streamed model saves in addition.
pub(super) fn of_working_dir() -> (String, Scalar) {
    (WORKING_DIR.into(), Scalar::Bool(true))
}

/// Returns whether a streamed model has saved the checkpoint while it was trained.
pub(super) fn is_of_working_dir(checkpoint: &Checkpoint) -> bool {
    checkpoint.scalars().get(WORKING_DIR) == Some(&Scalar::Bool(true))
}

/// Returns whether a checkpoint has averages in place of the parameters.
pub(super) fn is_averaged(checkpoint: &Checkpoint) -> bool {
    checkpoint.scalars().get(AVERAGED) == Some(&Scalar::Bool(true))
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
