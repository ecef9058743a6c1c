//! The file form of a recipe.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tinderbox_fake::{Graph, GraphFileError, NodeId, ValueId, seal, unseal};

use super::push::Pushed;
use super::{NotSliceable, Recipe};
use crate::RecipeError;
use crate::program::{Draw, is_random};
use crate::random::Seed;

/// The name of the format in the file.
const FORMAT: &str = "tinderbox-recipe";
/// Version of the format that this build writes and reads.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Body<'a> {
    name: Cow<'a, str>,
    seed: Seed,
    output: ValueId,
    draws: Cow<'a, BTreeMap<NodeId, Draw>>,
    #[serde(rename = "made_whole")]
    not_sliceable: Cow<'a, [NotSliceable]>,
    is_view: bool,
    graph: Cow<'a, Graph>,
}

impl Recipe {
    /// Serializes the recipe as CBOR, so that every float keeps its bits. Equal recipes have equal bytes.
    ///
    /// # Errors
    ///
    /// When the encoder rejects a value.
    pub fn to_bytes(&self) -> Result<Vec<u8>, RecipeError> {
        let made = &self.made;
        let body = Body {
            name: Cow::Borrowed(&self.name),
            seed: self.seed,
            output: made.output,
            draws: Cow::Borrowed(&made.draws),
            not_sliceable: Cow::Borrowed(&made.not_sliceable),
            is_view: made.is_view,
            graph: Cow::Borrowed(&made.graph),
        };
        Ok(seal(FORMAT, VERSION, &body)?)
    }

    /// Reads a recipe from the bytes of [`Recipe::to_bytes`].
    ///
    /// # Errors
    ///
    /// When the bytes are damaged, of another version or release of Burn, or contradict themselves.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecipeError> {
        let body: Body<'_> = unseal(FORMAT, VERSION, bytes)?;
        let recipe = Self {
            name: body.name.into_owned(),
            seed: body.seed,
            made: Pushed {
                graph: body.graph.into_owned(),
                output: body.output,
                draws: body.draws.into_owned(),
                not_sliceable: body.not_sliceable.into_owned(),
                is_view: body.is_view,
            },
        };
        match recipe.contradiction() {
            Some(reason) => Err(GraphFileError::Inconsistent { reason }.into()),
            None => Ok(recipe),
        }
    }

    /// Writes the recipe to a file.
    ///
    /// # Errors
    ///
    /// When the file system fails.
    pub fn save(&self, path: &Path) -> Result<(), RecipeError> {
        let bytes = self.to_bytes()?;
        fs::write(path, bytes).map_err(|source| io("writing", path, source))
    }

    /// Reads a recipe back.
    ///
    /// # Errors
    ///
    /// When the file is missing, damaged, or of another version or release of Burn.
    pub fn load(path: &Path) -> Result<Self, RecipeError> {
        let bytes = fs::read(path).map_err(|source| io("reading", path, source))?;
        Self::from_bytes(&bytes)
    }

    /// Returns the contradiction in a file, if there is one: a program of it would panic.
    fn contradiction(&self) -> Option<&'static str> {
        let Pushed { graph, draws, .. } = &self.made;
        if self.made.output.index() >= graph.values().len() {
            return Some("the output is no value of the graph");
        }
        for id in graph.node_ids() {
            let node = graph.node(id);
            let draw = draws.get(&id);
            if is_random(node) != draw.is_some() {
                return Some("a random operation has no key, or another has one");
            }
            let Some(draw) = draw else { continue };
            let whole: Vec<u64> = draw.whole.iter().map(|d| *d as u64).collect();
            let out = &graph.value(node.outputs()[0]).shape;
            let size = draw.region.size().iter().map(|d| *d as usize);
            if draw.region.check_inside(&whole).is_err() || !size.eq(out.iter().copied()) {
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

fn io(action: &'static str, path: &Path, source: std::io::Error) -> RecipeError {
    let path = path.into();
    GraphFileError::Io {
        action,
        path,
        source,
    }
    .into()
}
