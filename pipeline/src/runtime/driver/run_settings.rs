//! The settings of a training that decide its losses, as named texts.

use std::collections::BTreeMap;

use burn::tensor::FloatDType;
use tinderbox_deferred::{ParameterPath, ParameterTable};
use twox_hash::XxHash3_64;

use super::driver::Driver;
use crate::runtime::loss_scale::LossScale;
use crate::runtime::optimizer::keeps_state;
use crate::runtime::settings::Settings;

/// Paths that are written out in a text; of more, a number and a digest.
const PATHS_IN_TEXT: usize = 4;

/// What decides the losses, and is neither in the plan nor in the model.
pub(crate) struct Training<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) table: &'a ParameterTable,
    pub(crate) micro_batches: usize,
    pub(crate) loss_scale: Option<LossScale>,
    /// Of mixed precision.
    pub(crate) compute: Option<FloatDType>,
    /// The parameters that do not train now, though they could.
    pub(crate) frozen: Vec<&'a ParameterPath>,
}

impl Training<'_> {
    /// Returns the value of each setting by its name.
    pub(crate) fn named(&self) -> BTreeMap<String, String> {
        let settings = self.settings;
        let all: Vec<&ParameterPath> = self.table.distinct().map(|p| &p.path).collect();
        let fixed = self.table.distinct().filter(|p| !p.trainable);
        let mut frozen: Vec<&ParameterPath> = fixed.map(|p| &p.path).collect();
        frozen.extend(&self.frozen);
        frozen.sort_unstable();
        frozen.dedup();
        let optimizers = settings.optimizers.as_ref();
        let optimizer = optimizers.map(|optimizers| optimizers.describe(&all, paths_in_text));
        let clipping = settings.clipping.as_ref();
        let average = settings.average_decay;
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "none".to_owned());
        [
            ("optimizer", or_none(optimizer)),
            ("clipping", or_none(clipping.map(|c| format!("{c:?}")))),
            ("gradient_sum", settings.sum.to_string()),
            ("micro_batches", self.micro_batches.to_string()),
            ("precision", precision_in_text(self.compute)),
            ("frozen", paths_in_text(&frozen)),
            ("loss_scale", or_none(self.loss_scale.map(LossScale::rule))),
            ("average_decay", or_none(average.map(|d| d.to_string()))),
            (
                "gradient_hook",
                settings.gradient_hook.is_some().to_string(),
            ),
            (
                "stop_on_non_finite",
                settings.stop_on_non_finite.to_string(),
            ),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

impl Driver {
    /// The settings that decide the losses of a training, by name.
    pub(crate) fn run_settings(&self) -> BTreeMap<String, String> {
        let table = &*self.table;
        let frozen = self.state.frozen.iter();
        let training = Training {
            settings: &self.settings,
            table,
            micro_batches: self.options.micro_batches,
            loss_scale: self.state.loss_scale,
            compute: self.options.compute,
            frozen: frozen
                .map(|at| &table.iter().as_slice()[*at].path)
                .collect(),
        };
        training.named()
    }

    /// Whether an optimizer keeps a state for a parameter that trains.
    pub(crate) fn keeps_optimizer_state(&self) -> bool {
        let Some(optimizers) = &self.settings.optimizers else {
            return false;
        };
        let mut trained = self.table.iter().filter(|parameter| parameter.trainable);
        trained.any(|parameter| {
            let optimizer = &*optimizers.of(&parameter.path).optimizer;
            keeps_state(optimizer, parameter.shape.len())
        })
    }
}

/// Says in which dtype a forward computes: the dtype of mixed precision, if there is one.
pub(crate) fn precision_in_text(compute: Option<FloatDType>) -> String {
    match compute {
        None => "the parameters' own".to_owned(),
        Some(dtype) => format!("{dtype:?} in the forward").to_lowercase(),
    }
}

/// Names paths: all of a few, and otherwise their number with a digest.
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
