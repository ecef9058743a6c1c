//! The file form of a graph: CBOR, because JSON has no infinities and no NaN.
//!
//! Two items follow each other: the header, and the graph, whose digest stands in the header.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use burn::tensor::TensorData;
use burn_ir::OperationIr;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::GraphFileError;
use crate::graph::{Constant, Graph, Node, Value, ValueId};

/// Names the format in the file.
const FORMAT: &str = "tinderbox-graph";
/// Version of the format that this build writes and reads.
const VERSION: u32 = 1;
/// The recorded operations are Burn's own types, so a file belongs to one release of Burn.
const BURN: &str = "0.22.1";
/// A constant of more bytes than this stands beside the graph, in a file named by its digest.
const INLINE_BYTES: usize = 4096;

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
    burn: String,
    /// XXH3-128 of all bytes after the header, in hexadecimal digits.
    digest: String,
}

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
        self.encode(usize::MAX).map(|(bytes, _)| bytes)
    }

    /// A graph from the bytes of [`Graph::to_bytes`].
    ///
    /// # Errors
    ///
    /// When the bytes are damaged, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GraphFileError> {
        Self::decode(bytes, |_, _| None)
    }

    /// Writes the graph to `path`, and each constant above 4 KiB beside it as `<digest>.const`, so
    /// that graphs that share a constant share its file.
    ///
    /// # Errors
    ///
    /// When the file system fails.
    pub fn save(&self, path: &Path) -> Result<(), GraphFileError> {
        let (bytes, large) = self.encode(INLINE_BYTES)?;
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
        Self::decode(&bytes, |digest, value: &Value| {
            let bytes = fs::read(path.with_file_name(format!("{digest}.const"))).ok()?;
            if hex_digest(&bytes) != digest {
                return None;
            }
            TensorData::try_from_bytes_vec(bytes, value.shape.clone(), value.dtype).ok()
        })
    }

    fn encode(&self, inline_bytes: usize) -> Result<(Vec<u8>, Large<'_>), GraphFileError> {
        let mut large = Large::new();
        let mut constants = BTreeMap::new();
        for (id, constant) in self.constants() {
            let stored = if constant.0.as_bytes().len() > inline_bytes {
                let digest = hex_digest(constant.0.as_bytes());
                large.insert(digest.clone(), &constant.0);
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
        let failed = |e: ciborium::ser::Error<std::io::Error>| GraphFileError::Encode {
            reason: e.to_string(),
        };
        let mut encoded = Vec::new();
        ciborium::into_writer(&body, &mut encoded).map_err(failed)?;
        let header = Header {
            format: FORMAT.into(),
            version: VERSION,
            burn: BURN.into(),
            digest: hex_digest(&encoded),
        };
        let mut bytes = Vec::new();
        ciborium::into_writer(&header, &mut bytes).map_err(failed)?;
        bytes.append(&mut encoded);
        Ok((bytes, large))
    }

    fn decode(
        mut bytes: &[u8],
        beside: impl Fn(&str, &Value) -> Option<TensorData>,
    ) -> Result<Self, GraphFileError> {
        let failed = |e: ciborium::de::Error<std::io::Error>| GraphFileError::Decode {
            reason: e.to_string(),
        };
        let header: Header = ciborium::from_reader(&mut bytes).map_err(failed)?;
        for (field, expected, found) in [
            ("format", FORMAT.to_owned(), header.format),
            ("version", VERSION.to_string(), header.version.to_string()),
            ("Burn version", BURN.to_owned(), header.burn),
        ] {
            if expected != found {
                return Err(GraphFileError::Version {
                    field,
                    expected,
                    found,
                });
            }
        }
        let found = hex_digest(bytes);
        if found != header.digest {
            return Err(GraphFileError::Damaged {
                expected: header.digest,
                found,
            });
        }
        let body: OwnedBody = ciborium::from_reader(&mut bytes).map_err(failed)?;
        if !bytes.is_empty() {
            return Err(GraphFileError::Inconsistent {
                reason: "bytes follow the graph",
            });
        }
        let mut constants = BTreeMap::new();
        for (id, stored) in body.constants {
            let constant = match stored {
                Stored::Inline(constant) => constant,
                Stored::Beside(digest) => {
                    let value = body.values.get(id.index());
                    match value.and_then(|value| beside(&digest, value)) {
                        Some(data) => Constant(data),
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

fn hex_digest(bytes: &[u8]) -> String {
    format!("{:032x}", xxh3_128(bytes))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), GraphFileError> {
    fs::write(path, bytes).map_err(|source| GraphFileError::Io {
        action: "writing",
        path: path.into(),
        source,
    })
}
