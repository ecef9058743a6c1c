//! The source of initial values: runs the recorded initialization.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use burn::tensor::Device;
use parking_lot::ReentrantMutex;
use serde::{Deserialize, Serialize};
use tinderbox_fake::{NodeId, Region, ValueId};

use crate::in_order::values_in_order;
use crate::program::{RandomKeys, initialization_keys, is_random};
use crate::random::Seed;
use crate::source::{Loaded, check_all};
use crate::{
    Mismatch, Observer, ParameterPath, ProgramError, Recipe, RecipeError, RecordedModel, Request,
    Source, SourceError,
};

/// The generator of the random values of an [`Initializer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rng {
    /// The counter-based generator of [`random`](crate::random): each value depends on the seed, the
    /// parameter's path and its own recipe, so any part is computed alone, in any order, on all cores.
    #[default]
    Counter,
    /// The backend's own generator, in recorded order: the bits of plain Burn after `device.seed(seed)`,
    /// the model's construction, and a visit of its parameters in order. Draws that were not requested
    /// are computed and discarded, one at a time, so a part costs the time of all draws before it.
    ///
    /// The generator is global. Initializers wait for each other; other code that draws or
    /// seeds at the same time changes the values.
    Backend,
}

/// A source that computes parameters as their model's initialization would, from a seed.
///
/// Each value depends on the seed, the parameter's path and its own recipe. It does not depend on which other values are
/// computed, in which order, where, or by how many ranks.
///
/// [`Deferred::initializer`](crate::Deferred::initializer) creates it. Burn's `burn::nn::Initializer`, which computes the
/// values of one tensor, is another type.
#[derive(Clone, Debug)]
pub struct Initializer {
    model: RecordedModel,
    seed: Seed,
    rng: Rng,
    keys: Arc<OnceLock<RandomKeys>>,
}

/// Locked while the backend's generator is seeded and drawn from, because it is global. A closure or an observer that
/// runs meanwhile may load initial values too, so the lock is reentrant on one thread.
pub(crate) static BACKEND_GENERATOR: ReentrantMutex<()> = ReentrantMutex::new(());

impl RecordedModel {
    /// Creates a source of the initial values for a seed, as [`Deferred::initializer`](crate::Deferred::initializer) does.
    pub fn initializer(&self, seed: Seed) -> Initializer {
        Initializer {
            model: self.clone(),
            seed,
            rng: Rng::default(),
            keys: Arc::default(),
        }
    }
}

impl Initializer {
    /// Returns the same initializer with random values of another generator.
    #[must_use]
    pub fn with_rng(self, rng: Rng) -> Self {
        Self { rng, ..self }
    }

    /// Returns the recipe of one parameter.
    ///
    /// # Errors
    ///
    /// When the model has no such parameter, or the values come from the backend's generator.
    pub fn recipe(&self, path: &str) -> Result<Recipe, RecipeError> {
        let parameter = self.model.parameters.find(path)?;
        match self.rng {
            Rng::Counter => self.recipe_of(&parameter.path, parameter.value, None),
            Rng::Backend => Err(RecipeError::Backend),
        }
    }

    fn recipe_of(
        &self,
        path: &ParameterPath,
        value: ValueId,
        region: Option<&Region>,
    ) -> Result<Recipe, RecipeError> {
        let RecordedModel { parameters, graph } = &self.model;
        let keys = self.keys.get_or_init(|| {
            let parameters = parameters.iter().map(|p| (p.path.as_str(), p.value));
            initialization_keys(graph, parameters)
        });
        let name = path.as_str().to_owned();
        Recipe::of_region(name, self.seed, graph, value, region, keys)
    }

    fn recipe_for(&self, request: &Request, value: ValueId) -> Result<Recipe, RecipeError> {
        let recipe = self.recipe_of(&request.path, value, Some(&request.region))?;
        recipe.cast(request.dtype)
    }

    fn check(&self, request: &Request) -> Result<ValueId, Vec<Mismatch>> {
        let Some(parameter) = self.model.parameters.get(&request.path) else {
            let path = request.path.clone();
            return Err(vec![Mismatch::Missing { path }]);
        };
        let mismatches = request.mismatches(&request.path, &parameter.shape, parameter.dtype);
        match mismatches.is_empty() {
            true => Ok(parameter.value),
            false => Err(mismatches),
        }
    }

    /// Returns whether the constructor computes random values that no parameter needs: fields may have them.
    fn makes_random_fields(&self) -> bool {
        let RecordedModel { parameters, graph } = &self.model;
        let values = parameters.iter().map(|parameter| parameter.value);
        let needed = graph.backward_slice(values, |_| false).nodes;
        let needed: HashSet<NodeId> = needed.into_iter().collect();
        let mut random: HashSet<ValueId> = HashSet::new();
        graph.node_ids().any(|id| {
            let node = graph.node(id);
            let depends = is_random(node) || node.inputs().iter().any(|v| random.contains(v));
            if depends {
                random.extend(node.outputs());
            }
            depends && !needed.contains(&id)
        })
    }
}

impl Source for Initializer {
    fn load(&self, requests: &[Request], observer: &dyn Observer) -> Loaded {
        let found = check_all(self, requests, |request| self.check(request))?;
        let made = |(request, value): (&Request, ValueId)| {
            let recipe = self.recipe_for(request, value).map_err(Box::new)?;
            let made = recipe.materialize(&request.device)?;
            observer.completed(&request.path, made.bytes());
            Ok(made)
        };
        let values = match self.rng {
            Rng::Counter => requests.iter().zip(found).map(made).collect(),
            Rng::Backend => {
                let _held = BACKEND_GENERATOR.lock();
                values_in_order(&self.model.graph, self.seed, requests, &found, observer)
            }
        };
        values.map_err(|source: ProgramError| SourceError::Failed {
            described: self.describe(),
            source: Box::new(source),
        })
    }

    fn working_bytes(&self, requests: &[Request]) -> u64 {
        let beside = requests.iter().filter_map(|request| {
            let value = self.check(request).ok()?;
            let recipe = match self.rng {
                Rng::Counter => self.recipe_for(request, value),
                // A part or a cast is computed from the whole.
                Rng::Backend => self.recipe_of(&request.path, value, None),
            };
            let plan = recipe.ok()?.plan();
            let is_of_request = plan.bytes == request.bytes();
            Some(plan.peak_bytes - if is_of_request { plan.bytes } else { 0 })
        });
        beside.max().unwrap_or(0)
    }

    /// Seeds the backend's generator if the closure draws from it: in backend mode, and if the
    /// model draws random values outside of parameters.
    fn construct(&self, device: &Device, construct: &mut dyn FnMut()) {
        if self.rng == Rng::Counter && !self.makes_random_fields() {
            return construct();
        }
        let _held = BACKEND_GENERATOR.lock();
        device.seed(self.seed.value());
        construct();
    }

    fn describe(&self) -> String {
        let generator = match self.rng {
            Rng::Counter => "",
            Rng::Backend => "the backend's generator and ",
        };
        let seed = self.seed;
        format!("initializer with {generator}seed {seed}")
    }
}
