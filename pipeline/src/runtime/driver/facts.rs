//! The settings that must be equal in all processes of a world, and the settings that decide the losses of a training.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::FloatDType;
use tinderbox_deferred::{NumericFingerprint, ParameterPath};
use twox_hash::XxHash3_64;

use super::driver::Driver;
use crate::error::Result;
use crate::runtime::ranks::To;
use crate::schedule::RankIndex;
use crate::{LossScale, ProcessError, ScheduleChoice};

/// The maximum number of paths in a text. A longer list ends with its length and a digest.
const PATHS_IN_TEXT: usize = 4;

impl Driver {
    /// Compares the settings of this process with the settings of all other processes of a world.
    pub(super) fn compare(&mut self) -> Result<()> {
        if self.ranks.own().is_none() {
            return Ok(());
        }
        let own = NumericFingerprint::of_process();
        let facts = (self.facts(), own.clone());
        let all = self.ranks.exchange(To::All, facts, Vec::new())?;
        let expected = &all[0].0.0;
        for (rank, ((found, numerics), _)) in all.iter().enumerate() {
            let classes = own.differences(numerics);
            if !classes.is_empty() {
                tracing::warn!(
                    rank,
                    classes = classes.join(", "),
                    "the processor or the C library of another rank rounds differently: the bits of a step depend on which rank \
                     computes what"
                );
            }
            let mut pairs = expected.iter().zip(found);
            if let Some(((field, expected), (_, found))) = pairs.find(|(a, b)| a != b) {
                // Each process reports the same pair.
                return Err(self.ranks.notified(ProcessError::OtherSettings {
                    rank: RankIndex::new(rank),
                    field: field.clone(),
                    expected: expected.clone(),
                    found: found.clone(),
                }));
            }
        }
        Ok(())
    }

    /// The name of each fact and its value, or a digest of it.
    fn facts(&self) -> Vec<(String, String)> {
        let (programs, options) = (&self.programs, &self.options);
        let digest = |text: &str| format!("{:016x}", XxHash3_64::oneshot(text.as_bytes()));
        let schedule = match &programs.choice {
            ScheduleChoice::Named(kind) => kind.to_string(),
            lists => digest(&format!("{lists:?}")),
        };
        let model = programs.example.graph().digest();
        let samples = options.samples;
        let samples = samples.map_or("none".to_owned(), |samples| samples.to_string());
        let facts = [
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("model and forward", format!("{model:032x}")),
            // Before the plan, which differs too if the number differs.
            ("number of micro-batches", options.micro_batches.to_string()),
            ("number of samples of a step", samples),
            ("plan", digest(&self.plan.to_json())),
            ("schedule", schedule),
            ("seed", format!("{:?}", self.settings.seed)),
            ("loss scale", format!("{:?}", options.loss_scale)),
            (
                "detection of damage",
                format!("{:?}", options.detect_damage),
            ),
        ];
        let training = self.run_settings().into_iter();
        let training = training.filter(|(name, _)| name != "micro_batches");
        let training = training.map(|(name, value)| (name.replace('_', " "), value));
        let facts = facts.map(|(name, value)| (name.to_owned(), value));
        facts.into_iter().chain(training).collect()
    }

    /// The value of each setting that decides the losses of a training, and is neither in the plan nor in the model, by its
    /// name.
    pub(crate) fn run_settings(&self) -> BTreeMap<String, String> {
        let (settings, table, state) = (&self.settings, &self.table, &self.state);
        let all: Vec<&ParameterPath> = table.distinct().map(|p| &p.path).collect();
        let fixed = table.distinct().filter(|p| !p.trainable);
        let frozen = state.frozen.iter().map(|at| &table.iter().as_slice()[*at]);
        let frozen: BTreeSet<_> = fixed.chain(frozen).map(|p| &p.path).collect();
        let frozen: Vec<&ParameterPath> = frozen.into_iter().collect();
        let optimizers = settings.optimizers.as_ref();
        let optimizer = optimizers.map(|optimizers| optimizers.describe(&all, paths_in_text));
        let clipping = settings.clipping.as_ref().map(|c| format!("{c:?}"));
        let average = settings.average_decay.map(|decay| decay.to_string());
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "none".to_owned());
        let has_hook = settings.gradient_hook.is_some();
        let stops = settings.stop_on_non_finite;
        let named = [
            ("optimizer", or_none(optimizer)),
            ("clipping", or_none(clipping)),
            ("gradient_sum", settings.sum.to_string()),
            ("micro_batches", self.options.micro_batches.to_string()),
            ("precision", precision_in_text(self.options.compute)),
            ("frozen", paths_in_text(&frozen)),
            ("loss_scale", or_none(state.loss_scale.map(LossScale::rule))),
            ("average_decay", or_none(average)),
            ("gradient_hook", has_hook.to_string()),
            ("stop_on_non_finite", stops.to_string()),
        ];
        named.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// Whether an optimizer keeps a state for a parameter that trains.
    pub(crate) fn keeps_optimizer_state(&self) -> bool {
        let optimizers = self.settings.optimizers.as_ref();
        optimizers.is_some_and(|optimizers| {
            let mut trained = self.table.iter().filter(|parameter| parameter.trainable);
            trained.any(|parameter| optimizers.keeps_state(parameter))
        })
    }
}

/// Describes the dtype in which a forward computes.
pub(crate) fn precision_in_text(compute: Option<FloatDType>) -> String {
    match compute {
        None => "the parameters' own".to_owned(),
        Some(dtype) => format!("{dtype:?} in the forward").to_lowercase(),
    }
}

/// Lists paths. A long list ends with its length and a digest.
fn paths_in_text(paths: &[&ParameterPath]) -> String {
    let names: Vec<&str> = paths.iter().map(|path| path.as_str()).collect();
    match names.len() {
        0 => "none".to_owned(),
        1..=PATHS_IN_TEXT => names.join(", "),
        count => {
            let digest = XxHash3_64::oneshot(names.join("\n").as_bytes());
            let first = names[..PATHS_IN_TEXT - 1].join(", ");
            format!("{first} and others, {count} in all, with digest {digest:016x}")
        }
    }
}
