//! Compares the settings of a training with the settings of the checkpoint that it continues.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_checkpoint::Checkpoint;
use tinderbox_deferred::NumericFingerprint;

use super::scalars::micro_batches_of;
use crate::{CheckpointsError, SettingDifference};

/// The name of the caller's description of the learning rates.
const LEARNING_RATES: &str = "learning_rates";
/// The setting that checkpoints without settings have as a number.
const MICRO_BATCHES: &str = "micro_batches";

/// What a caller says of the settings of a training.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    /// The names of the settings that may differ.
    pub(super) allowed: BTreeSet<String>,
    /// A description of the learning rates.
    pub(super) learning_rates: Option<String>,
}

impl Expected {
    /// Returns the settings of a checkpoint.
    pub(super) fn of(&self, mut settings: BTreeMap<String, String>) -> BTreeMap<String, String> {
        let described = self.learning_rates.clone();
        settings.extend(described.map(|text| (LEARNING_RATES.to_owned(), text)));
        settings
    }

    /// Refuses a checkpoint that was saved with other settings than those that are given, unless they may differ.
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
            return Err(CheckpointsError::UnknownSetting {
                name: name.clone(),
                known: known.into_iter().collect(),
            });
        }
        let path = checkpoint.dir();
        if saved.is_empty() {
            let count = micro_batches_of(checkpoint);
            saved.extend(count.map(|count| (MICRO_BATCHES.to_owned(), count.to_string())));
        }
        let alone: Vec<&str> = { given.keys().filter(|name| !saved.contains_key(*name)) }
            .chain(saved.keys().filter(|name| !given.contains_key(*name)))
            .map(String::as_str)
            .collect();
        if !alone.is_empty() {
            tracing::warn!(
                path = %path.display(),
                settings = alone.join(", "),
                "only the checkpoint or only this run has these settings, so they are not compared: with other ones, the losses \
                 are others than without the interruption"
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
        match differences.is_empty() {
            true => Ok(()),
            false => Err(CheckpointsError::OtherSettings {
                path: path.to_owned(),
                differences,
            }),
        }
    }
}

/// Reports that a checkpoint was saved by a process whose CPU rounds differently.
pub(super) fn warn_of_numerics(checkpoint: &Checkpoint) {
    let saved = NumericFingerprint::from(checkpoint.manifest().numerics());
    let classes = NumericFingerprint::of_process().differences(&saved);
    if !classes.is_empty() {
        tracing::warn!(
            path = %checkpoint.dir().display(),
            classes = classes.join(", "),
            "the processor or the C library rounds differently from the ones that the checkpoint was saved with: from here on, the \
             bits of losses and parameters are others than there"
        );
    }
}
