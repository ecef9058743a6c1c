//! The file form of a recipe.

use tinderbox_fake::{GraphFileError, Region, seal, unseal};

use super::Recipe;
use super::push::Contents;
use crate::RecipeError;
use crate::program::is_random;

/// The name of the format in the file.
const FORMAT: &str = "tinderbox-recipe";
/// Version of the format that this build writes and reads.
const VERSION: u32 = 1;

impl Recipe {
    /// Serializes the recipe as CBOR, so that every float keeps its bits. Equal recipes have equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        seal(FORMAT, VERSION, &self.0)
    }

    /// Reads a recipe from the bytes of [`Recipe::to_bytes`].
    ///
    /// # Errors
    ///
    /// When the bytes are damaged, of another version or release of Burn, or contradict themselves.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecipeError> {
        let contents: Contents = unseal(FORMAT, VERSION, bytes)?;
        match contents.contradiction() {
            Some(reason) => Err(GraphFileError::Inconsistent { reason }.into()),
            None => Ok(Self(contents)),
        }
    }
}

impl Contents {
    /// Returns the contradiction in a file, with which a program would panic; `None` if there is none.
    fn contradiction(&self) -> Option<&'static str> {
        let (graph, draws) = (&self.graph, &self.draws);
        if self.output.index() >= graph.values().len() {
            return Some("the output is not a value of the graph");
        }
        for id in graph.node_ids() {
            let node = graph.node(id);
            let draw = draws.get(&id);
            if is_random(node) != draw.is_some() {
                return Some("a random operation has no key, or another has one");
            }
            let Some(draw) = draw else { continue };
            let [whole, out] = [&draw.whole, &graph.value(node.outputs()[0]).shape]
                .map(|shape| Region::of_shape(shape));
            if draw.region.check_inside(whole.size()).is_err() || draw.region.size() != out.size() {
                return Some("a random operation generates a region of another shape");
            }
        }
        let last = draws.keys().next_back();
        if last.is_some_and(|id| id.index() >= graph.nodes().len()) {
            return Some("a key belongs to no operation");
        }
        None
    }
}
