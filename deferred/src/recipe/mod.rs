//! Recipes: how one tensor is computed.

mod cover;
mod file;
mod plan;
mod push;
mod rules;

use burn::tensor::{DType, Device};
use tinderbox_fake::{DynTensor, Graph, NodeId, Recording, Region, ValueId};

pub use plan::{NotSliceable, RecipePlan};

use crate::program::{Draw, Executor, Program, RandomKeys, RunContext};
use crate::random::Seed;
use crate::table::can_cast;
use crate::{ProgramError, RecipeError, initialization_keys};
use push::Contents;

/// The recipe of one tensor, or of a region of it: its operations, and the keys of its random values.
///
/// It needs neither the model nor its code: written to a file and read in another process, it computes
/// the same bits. It contains no values except the constants of the operations.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe(Contents);

impl Recipe {
    /// Creates the recipe of a region of a value of a graph; of the whole, if no region is given.
    pub(crate) fn of_region(
        name: String,
        seed: Seed,
        graph: &Graph,
        value: ValueId,
        region: Option<&Region>,
        keys: &RandomKeys,
    ) -> Result<Self, RecipeError> {
        let draw = |node| Draw::of_node(graph, node, keys);
        let whole = Region::of_shape(&graph.value(value).shape);
        let region = region.unwrap_or(&whole);
        push::push((name, seed), graph, value, region, &draw).map(Self)
    }

    /// Creates the recipe of a fake tensor that belongs to no module, created under
    /// [`record`](tinderbox_fake::record).
    ///
    /// Random operations of the recording are numbered in recorded order, so two tensors of one
    /// recording share the values that they share in the recording.
    ///
    /// # Errors
    ///
    /// When the tensor does not belong to this recording.
    pub fn of_tensor(
        recording: &Recording,
        tensor: &DynTensor,
        seed: Seed,
    ) -> Result<Self, RecipeError> {
        let value = recording.value(tensor);
        let value = value.ok_or_else(|| RecipeError::Foreign {
            tensor: tensor.meta().to_string(),
        })?;
        let (name, graph) = (value.to_string(), recording.graph());
        let keys = initialization_keys(graph, []);
        Self::of_region(name, seed, graph, value, None, &keys)
    }

    /// Returns the path of the parameter, or the tensor's name in its recording.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the seed of its random values.
    pub fn seed(&self) -> Seed {
        self.0.seed
    }

    /// Returns the size per dimension of the result.
    pub fn shape(&self) -> Vec<u64> {
        let shape = &self.0.graph.value(self.0.output).shape;
        shape.iter().map(|d| *d as u64).collect()
    }

    /// Returns the type of an element of the result.
    pub fn dtype(&self) -> DType {
        self.0.graph.value(self.0.output).dtype
    }

    /// Returns the operations.
    pub fn graph(&self) -> &Graph {
        &self.0.graph
    }

    /// Returns the recipe of a region of the result, with the same bits.
    ///
    /// The region is propagated back through elementwise operations, shape operations and joins, to random values, constants
    /// and fills. Only the needed part of these is computed. An operation that is not sliceable (a matrix product, a
    /// reduction, the QR decomposition of an orthogonal initialization) runs whole, on all that it needs:
    /// [`Recipe::plan`] names each.
    ///
    /// # Errors
    ///
    /// When the region is not inside the result.
    pub fn region(&self, region: &Region) -> Result<Self, RecipeError> {
        let made = &self.0;
        let name = made.name.clone();
        if let Err(source) = region.check_inside(&self.shape()) {
            return Err(RecipeError::Region { name, source });
        }
        let draw = |node: NodeId| made.draws.get(&node).cloned();
        push::push((name, made.seed), &made.graph, made.output, region, &draw).map(Self)
    }

    /// Returns the recipe of the result in another float dtype; a result of another kind is unchanged.
    ///
    /// # Errors
    ///
    /// Never for a recipe of this build; a graph that contradicts itself is rejected.
    pub fn cast(self, dtype: DType) -> Result<Self, RecipeError> {
        match can_cast(self.dtype(), dtype) {
            true => push::cast(self.0, dtype).map(Self),
            false => Ok(self),
        }
    }

    /// Returns the operations and memory that the tensor needs.
    pub fn plan(&self) -> RecipePlan {
        let made = &self.0;
        RecipePlan::of(&made.graph, made.output, &made.not_sliceable)
    }

    /// Computes the tensor on a device, without autodiff.
    ///
    /// # Errors
    ///
    /// When an operation can't run there.
    pub fn materialize(&self, device: &Device) -> Result<DynTensor, ProgramError> {
        let made = &self.0;
        let draw = |node: NodeId| made.draws.get(&node).cloned();
        let (nodes, outputs) = (made.graph.node_ids(), [made.output]);
        let program = Program::with_draws(&made.graph, nodes, &[], &outputs, Some(&draw))?;
        let context = RunContext::initialization(made.seed);
        let executable = Executor::new(device)?.load(program);
        let mut outputs = executable.run(Vec::new(), &context)?;
        let tensor = outputs.pop().expect("the program has one output");
        match made.is_view {
            true => Ok(tensor.compact()?),
            false => Ok(tensor),
        }
    }
}
