//! Configurations of optimizers, with the clipping that they ask for.

use std::sync::Arc;

use burn::optim::grad_clipping::{GradientClipping, GradientClippingConfig};
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, DynOptimizer, LambConfig,
    LionConfig, MuonConfig, RmsPropConfig, SgdConfig,
};

/// What an optimizer is made from: each of Burn's configurations, or one of your own.
///
/// A configuration and not what its `build` makes, because that has lost the clipping.
pub trait OptimizerConfig {
    /// The optimizer of one parameter.
    fn optimizer(&self) -> Arc<dyn DynOptimizer>;

    /// How each gradient is clipped by itself before the optimizer gets it; `None` where it is not.
    fn clipping(&self) -> Option<GradientClippingConfig>;
}

macro_rules! optimizer_configs {
    ($($config:ident)*) => {
        $(impl OptimizerConfig for $config {
            fn optimizer(&self) -> Arc<dyn DynOptimizer> {
                Arc::new(self.build())
            }

            fn clipping(&self) -> Option<GradientClippingConfig> {
                // The configuration's own field is private; what it makes for a whole module tells.
                Some(match *self.init().grad_clipping()? {
                    GradientClipping::Value(threshold) => GradientClippingConfig::Value(threshold),
                    GradientClipping::Norm(threshold) => GradientClippingConfig::Norm(threshold),
                })
            }
        })*
    };
}

optimizer_configs!(
    AdaGradConfig AdafactorConfig AdamConfig AdamWConfig AdanConfig
    LambConfig LionConfig MuonConfig RmsPropConfig SgdConfig
);
