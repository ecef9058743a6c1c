//! Configurations of optimizers, including their clipping.

use std::sync::Arc;

use burn::optim::grad_clipping::{GradientClipping, GradientClippingConfig};
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, DynOptimizer, LambConfig,
    LionConfig, MuonConfig, RmsPropConfig, SgdConfig,
};

/// The configuration of an optimizer: one of Burn's, or a custom one.
///
/// The runtime needs the configuration, since an optimizer from its `build` has lost the clipping.
pub trait OptimizerConfig {
    /// Returns the optimizer of one parameter.
    fn optimizer(&self) -> Arc<dyn DynOptimizer>;

    /// Returns the clipping of each gradient before it is passed to the optimizer; `None` for no
    /// clipping.
    fn clipping(&self) -> Option<GradientClippingConfig>;

    /// Returns whether the optimizer updates each element of a parameter by itself: from its own value, gradient and state.
    /// [Replicas](crate::Plan::replicas) can then divide a large parameter; otherwise one of them updates all of it.
    /// Default: false.
    fn is_by_element(&self) -> bool {
        false
    }

    /// Returns the configuration as text, which must be the same in all processes of a world. Default: the name of the
    /// type.
    fn describe(&self) -> String {
        std::any::type_name::<Self>().to_owned()
    }
}

macro_rules! optimizer_configs {
    ($($config:ident $by_element:literal)*) => {
        $(impl OptimizerConfig for $config {
            fn is_by_element(&self) -> bool {
                $by_element
            }

            fn optimizer(&self) -> Arc<dyn DynOptimizer> {
                Arc::new(self.build())
            }

            fn clipping(&self) -> Option<GradientClippingConfig> {
                // The configuration's field is private; the optimizer of a whole module exposes it.
                Some(match *self.init().grad_clipping()? {
                    GradientClipping::Value(threshold) => GradientClippingConfig::Value(threshold),
                    GradientClipping::Norm(threshold) => GradientClippingConfig::Norm(threshold),
                })
            }

            fn describe(&self) -> String {
                // Burn's text of a configuration has a line for each field.
                let fields = self.to_string();
                let fields: Vec<&str> = fields.split_whitespace().collect();
                format!("{} {}", stringify!($config), fields.join(" "))
            }
        })*
    };
}

optimizer_configs!(
    AdaGradConfig true
    AdafactorConfig false
    AdamConfig true
    AdamWConfig true
    AdanConfig true
    LambConfig false
    LionConfig true
    MuonConfig false
    RmsPropConfig true
    SgdConfig true
);
