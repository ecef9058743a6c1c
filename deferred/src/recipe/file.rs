//! The file form of a recipe.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tinderbox_fake::{Graph, GraphFileError, NodeId, ValueId, seal, unseal};

use super::{MadeWhole, Recipe};
use crate::RecipeError;
use crate::program::{Draw, is_random};
use crate::random::Seed;

/// Names the format in the file.
const FORMAT: &str = "tinderbox-recipe";
/// Version of the format that this build writes and reads.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Body<'a> {
    name: &'a str,
    seed: Seed,
    output: ValueId,
    draws: &'a BTreeMap<NodeId, Draw>,
    made_whole: &'a [MadeWhole],
    is_view: bool,
    graph: &'a Graph,
}

#[derive(Deserialize)]
#[serde(rename = "Body")]
struct OwnedBody {
    name: String,
    seed: Seed,
    output: ValueId,
    draws: BTreeMap<NodeId, Draw>,
    made_whole: Vec<MadeWhole>,
    is_view: bool,
    graph: Graph,
}

impl Recipe {
    /// The recipe as bytes: CBOR, so that every float keeps its bits. Equal recipes have equal bytes.
    ///
    /// # Errors
    ///
    /// When the encoder refuses a value.
    pub fn to_bytes(&self) -> Result<Vec<u8>, RecipeError> {
        let body = Body {
            name: &self.name,
            seed: self.seed,
            output: self.output,
            draws: &self.draws,
            made_whole: &self.made_whole,
            is_view: self.is_view,
            graph: &self.graph,
        };
        Ok(seal(FORMAT, VERSION, &body)?)
    }

    /// A recipe from the bytes of [`Recipe::to_bytes`].
    ///
    /// # Errors
    ///
    /// When the bytes are damaged, of another version or release of Burn, or contradict themselves.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecipeError> {
        let body: OwnedBody = unseal(FORMAT, VERSION, bytes)?;
        let recipe = Self {
            name: body.name,
            seed: body.seed,
            graph: body.graph,
            output: body.output,
            draws: body.draws,
            made_whole: body.made_whole,
            is_view: body.is_view,
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

    /// What a file says that can't be: a program made of it would panic.
    fn contradiction(&self) -> Option<&'static str> {
        if self.output.index() >= self.graph.values().len() {
            return Some("the output is no value of the graph");
        }
        for id in self.graph.node_ids() {
            let node = self.graph.node(id);
            let draw = self.draws.get(&id);
            if is_random(node) != draw.is_some() {
                return Some("a random operation has no key, or another has one");
            }
            let Some(draw) = draw else { continue };
            let whole: Vec<u64> = draw.whole.iter().map(|d| *d as u64).collect();
            let out = &self.graph.value(node.outputs()[0]).shape;
            let size = draw.region.size().iter().map(|d| *d as usize);
            if draw.region.check_inside(&whole).is_err() || !size.eq(out.iter().copied()) {
                return Some("a random operation makes a region of another shape");
            }
        }
        let last = self.draws.keys().next_back();
        if last.is_some_and(|id| id.index() >= self.graph.nodes().len()) {
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
