//! What a rank and its stages are set up with.

use std::collections::HashMap;
use std::sync::Arc;

use burn::optim::grad_clipping::GradientClippingConfig;
use burn::tensor::Device;
use tinderbox_deferred::{Parameter, ParameterTable, PartialModule};

use crate::cut::Layout;

use crate::runtime::link::Abort;
use crate::runtime::optimizer::works_by_row;
use crate::runtime::pieces::Owned;
use crate::runtime::progress::RankProgress;
use crate::runtime::settings::Settings;
use crate::runtime::streamed::StreamedSetup;
use crate::schedule::RankIndex;

/// What a rank is set up with.
#[derive(derive_more::Debug)]
#[debug("RankSetup {{ rank: {rank:?}, device: {device:?}, .. }}")]
pub(crate) struct RankSetup {
    /// The index of the rank among all.
    pub(crate) rank: RankIndex,
    /// Its replica.
    pub(crate) replica: usize,
    /// The index of the rank in its replica.
    pub(crate) place: RankIndex,
    pub(crate) layout: Arc<Layout>,
    /// The parameters of the model.
    pub(crate) table: Arc<ParameterTable>,
    /// The device of its stages.
    pub(crate) device: Device,
    pub(crate) settings: Arc<Settings>,
    /// Counts the values that it computes and reads.
    pub(crate) progress: Arc<RankProgress>,
    /// Stops all ranks.
    pub(crate) abort: Abort,
    /// Whether its stages get their parameters only while they run, and what a training step may change then.
    pub(crate) streamed: Option<Arc<StreamedSetup>>,
}

/// The parameters that a stage owns, in the order of the table.
pub(crate) fn owned_by(setup: &RankSetup, owned: &PartialModule) -> Vec<Owned> {
    let settings = &setup.settings;
    let is_norm = |clip: Option<&_>| matches!(clip, Some(GradientClippingConfig::Norm(_)));
    let reads_whole = settings.gradient_hook.is_some() || is_norm(settings.each());
    let mut tried: HashMap<(usize, usize), bool> = HashMap::new();
    let mut by_row = |parameter: &Parameter| {
        let optimizers = settings.optimizers.as_ref();
        let Some(optimizers) = optimizers.filter(|_| settings.replicas > 1) else {
            return false;
        };
        let rule = optimizers.of(&parameter.path);
        let rank = parameter.shape.len();
        let known = (Arc::as_ptr(&rule.optimizer).cast::<()>() as usize, rank);
        if reads_whole || is_norm(rule.clipping.as_ref()) || !rule.is_by_element {
            return false;
        }
        // What a configuration says is tried, because wrong bits would be silent.
        let tried = tried.entry(known);
        *tried.or_insert_with(|| works_by_row(&*rule.optimizer, rank))
    };
    let parameters = setup.table.iter().filter_map(|parameter| {
        Some(Owned {
            place: owned.position(&parameter.path)?,
            shape: parameter.shape.clone(),
            dtype: parameter.dtype,
            trains: parameter.trainable,
            by_row: parameter.trainable && by_row(parameter),
        })
    });
    parameters.collect()
}
