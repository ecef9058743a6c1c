//! The parts of a checkpoint besides the values of the ranks: scalars, and the settings of the training, which are compared
//! with the settings of a training that continues.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::Module;
use burn_pack::Scalar as BurnScalar;
use tinderbox_checkpoint::{Checkpoint, CheckpointMeta, ModuleTypes, Scalar};
use tinderbox_deferred::{NumericFingerprint, ParameterPath};
use tinderbox_pipeline::{Batch, Pipeline, Plan, StepRates};

use crate::error::{CheckpointsError, SettingDifference};

/// Names of the scalars of a loss scale.
const SCALE_FACTOR: &str = "loss_scale.factor";
const SCALE_STEPS: &str = "loss_scale.steps";

/// The number of micro-batches of a step.
const MICRO_BATCHES: &str = "micro_batches";

/// The learning rate of the last step, and the prefix of the rates of parameters that have another rate.
pub(super) const LEARNING_RATE: &str = "learning_rate";
const LEARNING_RATE_OF: &str = "learning_rate.";

/// Whether the parameters are averages.
pub(super) const AVERAGED: &str = "averaged";

/// Whether a streamed model has saved the checkpoint during its training.
pub(super) const WORKING_DIR: &str = "working_dir";

/// Scalars with their names.
type Scalars = Vec<(String, Scalar)>;

/// Returns the scalars of a run that belong to no rank.
pub(super) fn of_run<M: Module + Sync + 'static, B: Batch>(pipeline: &Pipeline<M, B>) -> Scalars {
    let mut scalars = vec![of_micro_batches(pipeline.micro_batches())];
    if let Some(scale) = pipeline.loss_scale() {
        scalars.push((SCALE_FACTOR.into(), Scalar::Float(scale.factor())));
        scalars.push((SCALE_STEPS.into(), Scalar::Uint(scale.steps())));
    }
    if pipeline.is_averaged() {
        scalars.push((AVERAGED.into(), Scalar::Bool(true)));
    }
    if let Some(rates) = pipeline.last_learning_rates() {
        scalars.extend(of_rates(rates));
    }
    scalars
}

/// Returns the scalars of learning rates.
pub(super) fn of_rates(StepRates { base, others }: StepRates) -> Scalars {
    let others = others.into_iter();
    let named = others.map(|(path, rate)| (format!("{LEARNING_RATE_OF}{path}"), rate));
    let all = [(LEARNING_RATE.to_owned(), base)].into_iter().chain(named);
    all.map(|(name, rate)| (name, Scalar::Float(rate)))
        .collect()
}

/// Returns the learning rates of the last step, if the checkpoint has them.
pub(super) fn rates_of(checkpoint: &Checkpoint) -> Option<StepRates> {
    let others = checkpoint.scalars().iter().filter_map(|(name, rate)| {
        let path = name.strip_prefix(LEARNING_RATE_OF)?;
        Some((ParameterPath::new(path), f64::try_from(*rate).ok()?))
    });
    Some(StepRates {
        base: scalar(checkpoint, LEARNING_RATE)?,
        others: others.collect(),
    })
}

/// Returns the scalar of the number of micro-batches.
pub(super) fn of_micro_batches(count: usize) -> (String, Scalar) {
    (MICRO_BATCHES.to_owned(), Scalar::Uint(count as u64))
}

/// Returns the number of micro-batches of a step, if the checkpoint has it.
pub(super) fn micro_batches_of(checkpoint: &Checkpoint) -> Option<u64> {
    scalar(checkpoint, MICRO_BATCHES)
}

/// Returns whether a flag of a checkpoint is set.
pub(super) fn is_set(checkpoint: &Checkpoint, flag: &str) -> bool {
    scalar(checkpoint, flag).unwrap_or(false)
}

/// Returns factor and step count of the loss scale, if the checkpoint has them.
pub(super) fn scale_of(checkpoint: &Checkpoint) -> Option<(f64, u64)> {
    let factor = scalar(checkpoint, SCALE_FACTOR)?;
    Some((factor, scalar(checkpoint, SCALE_STEPS)?))
}

/// Returns a scalar of a checkpoint, if it has one of this name and type.
fn scalar<T: TryFrom<Scalar>>(checkpoint: &Checkpoint, name: &str) -> Option<T> {
    T::try_from(*checkpoint.scalars().get(name)?).ok()
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

/// The name of the caller's description of the learning rates.
const LEARNING_RATES: &str = "learning_rates";

/// The caller's statements about the settings of a training.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    /// The names of the settings that may differ.
    pub(super) allowed: BTreeSet<String>,
    /// A description of the learning rates.
    pub(super) learning_rates: Option<String>,
}

impl Expected {
    /// Returns the description of a checkpoint, without its step, seed and size.
    pub(super) fn meta(
        &self,
        plan: &Plan,
        modules: ModuleTypes,
        settings: BTreeMap<String, String>,
    ) -> CheckpointMeta {
        let json = serde_json::to_value(plan.without_programs());
        CheckpointMeta {
            plan: Some(json.expect("a plan has string keys and no floats")),
            modules,
            settings: self.of(settings),
            numerics: NumericFingerprint::of_process().classes().clone(),
            ..CheckpointMeta::new(0, plan.world_size() as u32)
        }
    }

    /// Returns the settings with the description of the learning rates.
    fn of(&self, mut settings: BTreeMap<String, String>) -> BTreeMap<String, String> {
        let described = self.learning_rates.clone();
        settings.extend(described.map(|text| (LEARNING_RATES.to_owned(), text)));
        settings
    }

    /// Refuses a checkpoint whose settings differ from the given settings, except for settings that may differ.
    pub(super) fn check(
        &self,
        checkpoint: &Checkpoint,
        given: BTreeMap<String, String>,
    ) -> Result<(), CheckpointsError> {
        let given = self.of(given);
        let mut saved = checkpoint.manifest().settings();
        let known = given.keys().chain(saved.keys()).cloned();
        let known: BTreeSet<String> = known.chain([LEARNING_RATES.to_owned()]).collect();
        if let Some(name) = self.allowed.iter().find(|name| !known.contains(*name)) {
            let (name, known) = (name.clone(), known.into_iter().collect());
            return Err(CheckpointsError::UnknownSetting { name, known });
        }
        let path = checkpoint.dir();
        if saved.is_empty() {
            let count = micro_batches_of(checkpoint);
            saved.extend(count.map(|count| (MICRO_BATCHES.to_owned(), count.to_string())));
        }
        let ours = given.keys().filter(|name| !saved.contains_key(*name));
        let theirs = saved.keys().filter(|name| !given.contains_key(*name));
        let alone: Vec<&str> = ours.chain(theirs).map(String::as_str).collect();
        if !alone.is_empty() {
            tracing::warn!(
                path = %path.display(),
                settings = alone.join(", "),
                "only the checkpoint or only this run has these settings, so they are not compared: if they differ, the losses \
                 differ from a training without the interruption"
            );
        }
        let differences = given.into_iter().filter_map(|(name, given)| {
            let saved = saved.get(&name).filter(|saved| **saved != given)?.clone();
            Some(SettingDifference { name, saved, given })
        });
        let is_allowed = |one: &SettingDifference| self.allowed.contains(&one.name);
        let (allowed, differences): (Vec<_>, Vec<_>) = differences.partition(is_allowed);
        for SettingDifference { name, saved, given } in allowed {
            tracing::info!(name, saved, given, "a setting changes, as allowed");
        }
        if !differences.is_empty() {
            let path = path.to_owned();
            return Err(CheckpointsError::OtherSettings { path, differences });
        }
        Ok(())
    }
}

/// Warns if a checkpoint was saved by a process whose CPU rounds differently.
pub(super) fn warn_of_numerics(checkpoint: &Checkpoint) {
    let saved = NumericFingerprint::from(checkpoint.manifest().numerics());
    let classes = NumericFingerprint::of_process().differences(&saved);
    if !classes.is_empty() {
        tracing::warn!(
            path = %checkpoint.dir().display(),
            classes = classes.join(", "),
            "the processor or the C library rounds differently from the ones that the checkpoint was saved with: from here on, \
             losses and parameters have other bits"
        );
    }
}
