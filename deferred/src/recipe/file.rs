//! The file form of a recipe.

use std::path::Path;
use std::{fs, io};

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
    ///
    /// # Errors
    ///
    /// When the encoder rejects a value.
    pub fn to_bytes(&self) -> Result<Vec<u8>, RecipeError> {
        Ok(seal(FORMAT, VERSION, &self.0)?)
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

    /// Writes the recipe to a file.
    ///
    /// # Errors
    ///
    /// When the file system fails.
    pub fn save(&self, path: &Path) -> Result<(), RecipeError> {
        Ok(fs::write(path, self.to_bytes()?).map_err(failed("writing", path))?)
    }

    /// Reads a recipe back.
    ///
    /// # Errors
    ///
    /// When the file is missing, damaged, or of another version or release of Burn.
    pub fn load(path: &Path) -> Result<Self, RecipeError> {
        Self::from_bytes(&fs::read(path).map_err(failed("reading", path))?)
    }
}

impl Contents {
    /// Returns the contradiction in a file, if there is one: a program of it would panic.
    fn contradiction(&self) -> Option<&'static str> {
        let (graph, draws) = (&self.graph, &self.draws);
        if self.output.index() >= graph.values().len() {
            return Some("the output is no value of the graph");
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
                return Some("a random operation makes a region of another shape");
            }
        }
        let last = draws.keys().next_back();
        if last.is_some_and(|id| id.index() >= graph.nodes().len()) {
            return Some("a key belongs to no operation");
        }
        None
    }
}

/// Returns the error of writing or reading a file of recorded operations.
pub(crate) fn failed(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> GraphFileError {
    move |source| GraphFileError::Io {
        action,
        path: path.into(),
        source,
    }
}
