//! Configurations of optimizers, including their clipping, and the optimizer of each parameter.

use std::sync::Arc;

use burn::module::{ParamGroup, ParamId};
use burn::optim::grad_clipping::{GradientClipping, GradientClippingConfig};
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, DynOptimizer, LambConfig,
    LionConfig, MuonConfig, RmsPropConfig, SgdConfig,
};
use tinderbox_deferred::{Parameter, ParameterPath, ParameterTable};
use twox_hash::XxHash3_64;

use super::average::Averaging;
use super::probe::keeps_state;
use crate::GroupError;

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

    /// Returns the configuration as text, which must be the same in all processes of a world, and at a resume. Default: the
    /// name of the type, so two configurations of one type are equal.
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

/// The maximum number of groups that a text describes in full.
const GROUPS_IN_TEXT: usize = 16;

/// The optimizer of a parameter, with its clipping.
#[derive(Clone, derive_more::Debug)]
#[debug("Rule {{ description: {description:?}, clipping: {clipping:?}, .. }}")]
pub(crate) struct Rule {
    pub(crate) optimizer: Arc<dyn DynOptimizer>,
    /// The clipping of the optimizer's configuration.
    pub(crate) clipping: Option<GradientClippingConfig>,
    /// Whether each element is updated by itself.
    pub(crate) is_by_element: bool,
    /// The configuration as text.
    pub(crate) description: String,
}

impl Rule {
    pub(crate) fn of(config: &impl OptimizerConfig) -> Self {
        Self {
            optimizer: config.optimizer(),
            clipping: config.clipping(),
            is_by_element: config.is_by_element(),
            description: config.describe(),
        }
    }
}

/// The optimizers of a pipeline.
#[derive(Clone, Debug)]
pub(crate) struct Optimizers {
    base: Rule,
    groups: Vec<(ParamGroup, Rule)>,
}

/// Whether a group contains a parameter. Ids are random per construction, so groups match by path.
pub(crate) fn contains(group: &ParamGroup, path: &ParameterPath) -> bool {
    group.matches(&ParamId::new(), Some(path.as_str()))
}

/// Refuses a group that includes or excludes parameters by ids. `number` is its number among the groups with an optimizer.
pub(crate) fn check_group(group: &ParamGroup, number: Option<usize>) -> Result<(), GroupError> {
    // Only the debug text of a group shows what it matches.
    let has_ids = format!("{group:?}").contains("Explicit([");
    (!has_ids).then_some(()).ok_or(GroupError::Ids { number })
}

impl Optimizers {
    /// Returns the configurations of all groups as text, each group with the parameters that it contains. If there are many
    /// groups, the text has a digest of the later ones.
    pub(crate) fn describe(
        &self,
        parameters: &[&ParameterPath],
        name: impl Fn(&[&ParameterPath]) -> String,
    ) -> String {
        let groups = self.groups.iter().map(|(group, rule)| {
            let contained = parameters.iter().filter(|path| contains(group, path));
            let contained: Vec<&ParameterPath> = contained.copied().collect();
            format!("; {} of {}", rule.description, name(&contained))
        });
        let groups: Vec<String> = groups.collect();
        let (first, others) = groups.split_at(groups.len().min(GROUPS_IN_TEXT));
        let others = match others.len() {
            0 => String::new(),
            count => {
                let digest = XxHash3_64::oneshot(others.concat().as_bytes());
                format!("; {count} other groups with digest {digest:016x}")
            }
        };
        format!("{}{}{others}", self.base.description, first.concat())
    }

    /// Creates the optimizers: `base`, and the optimizers of groups. The last group that contains a parameter updates it; the
    /// base updates parameters without a group. With a decay, all optimizers keep averages.
    pub(crate) fn new(base: Rule, groups: Vec<(ParamGroup, Rule)>, decay: Option<f64>) -> Self {
        let mut all = Self { base, groups };
        if let Some(decay) = decay {
            let rules = all.groups.iter_mut().map(|(_, rule)| rule);
            for rule in rules.chain([&mut all.base]) {
                let inner = rule.optimizer.clone();
                rule.optimizer = Arc::new(Averaging { inner, decay });
            }
        }
        all
    }

    /// Returns the optimizer of a parameter.
    pub(crate) fn of(&self, path: &ParameterPath) -> &Rule {
        let mut groups = self.groups.iter().rev();
        let found = groups.find(|(group, _)| contains(group, path));
        found.map_or(&self.base, |(_, rule)| rule)
    }

    /// Whether the optimizer of a parameter keeps a state.
    pub(crate) fn keeps_state(&self, parameter: &Parameter) -> bool {
        let optimizer = &*self.of(&parameter.path).optimizer;
        keeps_state(optimizer, parameter.shape.len())
    }

    /// Whether an optimizer's configuration clips gradients.
    pub(crate) fn clips(&self) -> bool {
        let mut rules = self.groups.iter().map(|(_, rule)| rule).chain([&self.base]);
        rules.any(|rule| rule.clipping.is_some())
    }

    /// Refuses a group that has ids, or no parameter that trains.
    pub(crate) fn check(&self, table: &ParameterTable) -> Result<(), GroupError> {
        for ((group, _), number) in self.groups.iter().zip(1..) {
            check_group(group, Some(number))?;
            let mut trained = table.iter().filter(|parameter| parameter.trainable);
            if !trained.any(|parameter| contains(group, &parameter.path)) {
                return Err(GroupError::Empty { number });
            }
        }
        Ok(())
    }
}
