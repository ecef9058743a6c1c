//! What a rank and its stages are set up with.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use burn::optim::grad_clipping::GradientClippingConfig;
use burn::tensor::Device;
use tinderbox_deferred::{Parameter, ParameterTable, PartialModule};

use crate::cut::Layout;
use crate::runtime::clip::Clipping;
use crate::runtime::link::Abort;
use crate::runtime::optimizer::works_by_row;
use crate::runtime::pieces::Owned;
use crate::runtime::progress::RankProgress;
use crate::runtime::settings::Settings;
use crate::runtime::streamed::StreamedSetup;
use crate::schedule::RankIndex;

/// What a rank is set up with.
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

impl fmt::Debug for RankSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankSetup")
            .field("rank", &self.rank)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// The parameters that a stage owns, in the order of the table.
pub(crate) fn owned_by(setup: &RankSetup, owned: &PartialModule) -> Vec<Owned> {
    let settings = &setup.settings;
    let reads_whole = settings.gradient_hook.is_some()
        || matches!(
            &settings.clipping,
            Some(Clipping::Each(GradientClippingConfig::Norm(_)))
        );
    let mut tried: HashMap<(usize, usize), bool> = HashMap::new();
    let mut by_row = |parameter: &Parameter| {
        let Some(optimizers) = settings
            .optimizers
            .as_ref()
            .filter(|_| settings.replicas > 1)
        else {
            return false;
        };
        let rule = optimizers.of(&parameter.path);
        let rank = parameter.shape.len();
        let known = (Arc::as_ptr(&rule.optimizer).cast::<()>() as usize, rank);
        let clips = matches!(&rule.clipping, Some(GradientClippingConfig::Norm(_)));
        if reads_whole || clips || !rule.is_by_element {
            return false;
        }
        // What a configuration says is tried, because wrong bits would be silent.
        *tried
            .entry(known)
            .or_insert_with(|| works_by_row(&*rule.optimizer, rank))
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
