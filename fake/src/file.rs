//! The file form of a graph.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use burn::tensor::TensorData;
use burn_ir::OperationIr;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::GraphFileError;
use crate::graph::{Constant, Graph, Node, Value, ValueId};
use crate::sealed::{hex_digest, seal, unseal};

/// Names the format in the file.
const FORMAT: &str = "tinderbox-graph";
/// Version of the format that this build writes and reads.
const VERSION: u32 = 1;
/// A constant of more bytes than this stands beside the graph, in a file named by its digest.
const INLINE_BYTES: usize = 4096;

/// What a node reads and makes stands in its operation, and nowhere else.
#[derive(Serialize)]
struct Body<'a> {
    operations: Vec<&'a OperationIr>,
    values: &'a [Value],
    constants: BTreeMap<ValueId, Stored>,
}

#[derive(Deserialize)]
#[serde(rename = "Body")]
struct OwnedBody {
    operations: Vec<OperationIr>,
    values: Vec<Value>,
    constants: BTreeMap<ValueId, Stored>,
}

#[derive(Serialize, Deserialize)]
enum Stored {
    Inline(Constant),
    /// XXH3-128 of the bytes, in hexadecimal digits.
    Beside(String),
}

/// Large constants of a graph, by digest.
type Large<'a> = BTreeMap<String, &'a TensorData>;

impl Graph {
    /// The graph as bytes, all constants included. Equal graphs have equal bytes.
    ///
    /// # Errors
    ///
    /// When the encoder refuses a value.
    pub fn to_bytes(&self) -> Result<Vec<u8>, GraphFileError> {
        seal(FORMAT, VERSION, self)
    }

    /// A graph from the bytes of [`Graph::to_bytes`].
    ///
    /// # Errors
    ///
    /// When the bytes are damaged, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GraphFileError> {
        Self::of_body(unseal(FORMAT, VERSION, bytes)?, |_, _| None)
    }

    /// Writes the graph to `path`, and each constant above 4 KiB beside it as `<digest>.const`, so
    /// that graphs that share a constant share its file.
    ///
    /// # Errors
    ///
    /// When the file system fails.
    pub fn save(&self, path: &Path) -> Result<(), GraphFileError> {
        let (body, large) = self.body(INLINE_BYTES);
        let bytes = seal(FORMAT, VERSION, &body)?;
        for (digest, data) in large {
            write(
                &path.with_file_name(format!("{digest}.const")),
                data.as_bytes(),
            )?;
        }
        write(path, &bytes)
    }

    /// Reads a graph and its constants back.
    ///
    /// # Errors
    ///
    /// When a file is missing or damaged, or of another version.
    pub fn load(path: &Path) -> Result<Self, GraphFileError> {
        let bytes = fs::read(path).map_err(|source| GraphFileError::Io {
            action: "reading",
            path: path.into(),
            source,
        })?;
        let body = unseal(FORMAT, VERSION, &bytes)?;
        Self::of_body(body, |digest, value: &Value| {
            let bytes = fs::read(path.with_file_name(format!("{digest}.const"))).ok()?;
            if hex_digest(&bytes) != digest {
                return None;
            }
            TensorData::try_from_bytes_vec(bytes, value.shape.clone(), value.dtype).ok()
        })
    }

    /// What is written; constants of more bytes stand beside it.
    fn body(&self, inline_bytes: usize) -> (Body<'_>, Large<'_>) {
        let mut large = Large::new();
        let mut constants = BTreeMap::new();
        for (id, constant) in self.constants() {
            let stored = if constant.data().as_bytes().len() > inline_bytes {
                let digest = hex_digest(constant.data().as_bytes());
                large.insert(digest.clone(), constant.data());
                Stored::Beside(digest)
            } else {
                Stored::Inline(constant.clone())
            };
            constants.insert(*id, stored);
        }
        let body = Body {
            operations: self.nodes().iter().map(|node| &node.operation).collect(),
            values: self.values(),
            constants,
        };
        (body, large)
    }

    fn of_body(
        body: OwnedBody,
        beside: impl Fn(&str, &Value) -> Option<TensorData>,
    ) -> Result<Self, GraphFileError> {
        let mut constants = BTreeMap::new();
        for (id, stored) in body.constants {
            let constant = match stored {
                Stored::Inline(constant) => constant,
                Stored::Beside(digest) => {
                    let value = body.values.get(id.index());
                    match value.and_then(|value| beside(&digest, value)) {
                        Some(data) => data.into(),
                        None => return Err(GraphFileError::Constant { value: id, digest }),
                    }
                }
            };
            constants.insert(id, constant);
        }
        let nodes = body.operations.into_iter().map(Node::new);
        let nodes = nodes
            .collect::<Option<_>>()
            .ok_or(GraphFileError::Inconsistent {
                reason: "an operation names a value that the graph can't have",
            })?;
        Self::new(nodes, body.values, constants)
    }
}

/// All constants included.
impl Serialize for Graph {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.body(usize::MAX).0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Graph {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let body = OwnedBody::deserialize(deserializer)?;
        Self::of_body(body, |_, _| None).map_err(serde::de::Error::custom)
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), GraphFileError> {
    fs::write(path, bytes).map_err(|source| GraphFileError::Io {
        action: "writing",
        path: path.into(),
        source,
    })
}
