//! How one tensor is made.

mod cover;
mod file;
mod layout;
mod plan;
mod push;
mod rules;

use burn::tensor::{DType, Device};
use tinderbox_fake::{DynTensor, Graph, Recording, Region, ValueId};

pub use plan::{MadeWhole, RecipePlan};

use crate::program::{Draw, Executor, Generator, Program, RandomKeys, RunContext};
use crate::random::Seed;
use crate::source::can_cast;
use crate::{ProgramError, RecipeError, initialization_keys};
use push::Pushed;

/// How one tensor, or a region of it, is made: its operations, and the keys of its random values.
///
/// It needs neither the model nor its code: written to a file and read in another process, it makes
/// the same bits. It holds no values but the constants that the tensor is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    name: String,
    seed: Seed,
    made: Pushed,
}

impl Recipe {
    /// The recipe of a value of a graph.
    pub(crate) fn of_value(
        name: String,
        seed: Seed,
        graph: &Graph,
        value: ValueId,
        keys: &RandomKeys,
    ) -> Result<Self, RecipeError> {
        Self::of_region(name, seed, graph, value, None, keys)
    }

    /// The recipe of a region of a value of a graph; of the whole, when no region is given.
    pub(crate) fn of_region(
        name: String,
        seed: Seed,
        graph: &Graph,
        value: ValueId,
        region: Option<&Region>,
        keys: &RandomKeys,
    ) -> Result<Self, RecipeError> {
        let nodes = graph.backward_slice([value], |_| false).nodes;
        let draws = nodes.into_iter().filter_map(|node| {
            let key = keys.get(&node)?.clone();
            let out = graph.node(node).outputs()[0];
            Some((node, Draw::whole(key, &graph.value(out).shape)))
        });
        let draws = draws.collect();
        let whole = Region::of_shape(&graph.value(value).shape);
        let region = region.unwrap_or(&whole);
        let made = push::push(graph, value, region, &draws)?;
        Ok(Self { name, seed, made })
    }

    /// The recipe of a fake tensor that belongs to no module, made under
    /// [`record`](tinderbox_fake::record).
    ///
    /// Random operations of the recording are numbered in recorded order, so two tensors of one
    /// recording share the values that they share in the recording.
    ///
    /// # Errors
    ///
    /// When the tensor is not of this recording.
    pub fn of_tensor(
        recording: &Recording,
        tensor: &DynTensor,
        seed: Seed,
    ) -> Result<Self, RecipeError> {
        let value = tensor.captured_id().and_then(|id| recording.value_of(id));
        let value = value.ok_or_else(|| RecipeError::Foreign {
            tensor: tensor.meta().to_string(),
        })?;
        let keys = initialization_keys(recording.graph(), []);
        Self::of_value(value.to_string(), seed, recording.graph(), value, &keys)
    }

    /// Path of the parameter, or the tensor's name in its recording.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The seed of its random values.
    pub fn seed(&self) -> Seed {
        self.seed
    }

    /// Size per dimension of the result.
    pub fn shape(&self) -> Vec<u64> {
        let shape = &self.made.graph.value(self.made.output).shape;
        shape.iter().map(|d| *d as u64).collect()
    }

    /// Type of an element of the result.
    pub fn dtype(&self) -> DType {
        self.made.graph.value(self.made.output).dtype
    }

    /// The operations.
    pub fn graph(&self) -> &Graph {
        &self.made.graph
    }

    /// The recipe of a region of the result, with the same bits.
    ///
    /// The region is pushed back through operations that work element by element, shape operations
    /// and joins, to random values, constants and fills, of which only the needed part is made. An
    /// operation that can't be made in parts (a matrix product, a reduction, the QR decomposition of
    /// an orthogonal initialization) is run whole, on what it needs: [`Recipe::plan`] names each.
    ///
    /// # Errors
    ///
    /// When the region does not lie inside the result.
    pub fn region(&self, region: &Region) -> Result<Self, RecipeError> {
        region
            .check_inside(&self.shape())
            .map_err(|source| RecipeError::Region {
                name: self.name.clone(),
                source,
            })?;
        let Pushed {
            graph,
            output,
            draws,
            ..
        } = &self.made;
        Ok(Self {
            name: self.name.clone(),
            seed: self.seed,
            made: push::push(graph, *output, region, draws)?,
        })
    }

    /// The recipe of the result in another float dtype; a result of another kind stays as it is.
    ///
    /// # Errors
    ///
    /// Never for a recipe of this build; a graph that contradicts itself is refused.
    pub fn cast(self, dtype: DType) -> Result<Self, RecipeError> {
        if !can_cast(self.dtype(), dtype) {
            return Ok(self);
        }
        let made = push::cast(self.made, dtype)?;
        Ok(Self { made, ..self })
    }

    /// What making it takes.
    pub fn plan(&self) -> RecipePlan {
        let made = &self.made;
        RecipePlan::of(&made.graph, made.output, &made.made_whole)
    }

    /// Makes the tensor on a device, without autodiff.
    ///
    /// # Errors
    ///
    /// When an operation can't run there.
    pub fn materialize(&self, device: &Device) -> Result<DynTensor, ProgramError> {
        let Pushed { graph, draws, .. } = &self.made;
        let program = Program::with_generator(
            graph,
            graph.node_ids(),
            &[],
            &[self.made.output],
            Generator::Draws(draws),
        )?;
        let context = RunContext::initialization(self.seed);
        let executable = Executor::new(device)?.load(program);
        let mut outputs = executable.run(Vec::new(), &context)?;
        let tensor = outputs.pop().expect("the program has one output");
        match self.made.is_view {
            true => Ok(tensor.compact()?),
            false => Ok(tensor),
        }
    }
}
