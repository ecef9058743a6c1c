//! The file form of a graph.

use std::collections::BTreeMap;

use burn_ir::OperationIr;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::GraphFileError;
use crate::graph::{Constant, Graph, Node, Value};
use crate::operation::ValueId;

/// The operands of a node are only stored in its operation.
#[derive(Serialize, Deserialize)]
struct Body<O, V> {
    operations: Vec<O>,
    values: V,
    constants: BTreeMap<ValueId, Stored>,
}

/// Part of the format: a constant is a map with one key.
#[derive(Serialize, Deserialize)]
enum Stored {
    Inline(Constant),
}

/// Includes all constants. Equal graphs have equal bytes.
impl Serialize for Graph {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nodes = self.nodes().iter();
        let constants = self.constants().iter();
        let constants = constants.map(|(id, constant)| (*id, Stored::Inline(constant.clone())));
        let body = Body {
            operations: nodes.map(|node| &node.operation).collect(),
            values: self.values(),
            constants: constants.collect(),
        };
        body.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Graph {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let body: Body<OperationIr, Vec<Value>> = Body::deserialize(deserializer)?;
        let nodes = body.operations.into_iter().map(Node::new);
        let nodes = nodes.collect::<Option<_>>();
        let constants = body.constants.into_iter();
        let constants = constants.map(|(id, Stored::Inline(constant))| (id, constant));
        let reason = "an operation names a value that the graph can't have";
        let inconsistent = GraphFileError::Inconsistent { reason };
        let nodes = nodes.ok_or(inconsistent).map_err(D::Error::custom)?;
        let graph = Self::new(nodes, body.values, constants.collect());
        graph.map_err(D::Error::custom)
    }
}
