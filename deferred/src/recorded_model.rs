//! A recorded model without its type, and its file.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use serde::{Deserialize, Serialize};
use tinderbox_fake::{Graph, GraphFileError, Region, seal, unseal};

use crate::ParameterTable;

/// The name of the format in the file.
const FORMAT: &str = "tinderbox-model";
/// Version of the format that this build writes and reads.
const VERSION: u32 = 1;

/// A model without its code: the table of its parameters, and the recorded initialization. The commands
/// `tinderbox model init` and `model estimate` read its file.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
/// use tinderbox_deferred::{Deferred, RecordedModel};
///
/// let model = Deferred::new(|device: &Device| LinearConfig::new(4, 8).init(device))?;
/// let bytes = model.recorded_model().to_bytes();
/// let recorded = RecordedModel::from_bytes(&bytes)?;
/// assert_eq!(recorded.parameters(), model.parameters());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RecordedModel {
    pub(crate) parameters: Arc<ParameterTable>,
    pub(crate) graph: Arc<Graph>,
}

#[derive(Serialize, Deserialize)]
struct Body<P, G> {
    parameters: P,
    graph: G,
}

impl RecordedModel {
    /// Returns the parameters, in the order in which the module visits them.
    pub fn parameters(&self) -> &Arc<ParameterTable> {
        &self.parameters
    }

    /// Serializes it as CBOR. Equal models have equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (parameters, graph) = (&*self.parameters, &*self.graph);
        seal(FORMAT, VERSION, &Body { parameters, graph })
    }

    /// Reads it from the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    ///
    /// When the bytes are damaged, of another version or release of Burn, or contradict themselves.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GraphFileError> {
        let body: Body<ParameterTable, Graph> = unseal(FORMAT, VERSION, bytes)?;
        let model = Self {
            parameters: Arc::new(body.parameters),
            graph: Arc::new(body.graph),
        };
        match model.contradiction() {
            Some(reason) => Err(GraphFileError::Inconsistent { reason }),
            None => Ok(model),
        }
    }

    /// Writes it to a file.
    ///
    /// # Errors
    ///
    /// When the file system fails.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), GraphFileError> {
        let path = path.as_ref();
        fs::write(path, self.to_bytes()).map_err(failed("writing", path))
    }

    /// Reads it from a file.
    ///
    /// # Errors
    ///
    /// When the file can't be read, and the errors of [`from_bytes`](Self::from_bytes).
    pub fn load(path: impl AsRef<Path>) -> Result<Self, GraphFileError> {
        let path = path.as_ref();
        Self::from_bytes(&fs::read(path).map_err(failed("reading", path))?)
    }

    /// Returns the contradiction in a file, if there is one.
    fn contradiction(&self) -> Option<&'static str> {
        let mut paths = BTreeSet::new();
        for parameter in self.parameters.iter() {
            let Some(value) = self.graph.values().get(parameter.value.index()) else {
                return Some("a parameter has a value that is not in the graph");
            };
            let whole = Region::of_shape(&value.shape);
            if whole.size() != parameter.shape || value.dtype != parameter.dtype {
                return Some("a parameter has another shape or dtype than its value");
            }
            if parameter.bytes != value.bytes() {
                return Some("a parameter has another size than its value");
            }
            if !paths.insert(&parameter.path) {
                return Some("two parameters have one path");
            }
        }
        let clones = self.parameters.iter();
        let mut originals = clones.filter_map(|parameter| parameter.clone_of.as_ref());
        match originals.all(|path| paths.contains(path)) {
            true => None,
            false => Some("a parameter is a clone of one that does not exist"),
        }
    }
}

/// Returns the error of writing or reading a file.
fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> GraphFileError {
    move |source| GraphFileError::Io {
        action,
        path: path.into(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Device;

    use super::*;
    use crate::{Deferred, Parameter, ParameterPath};

    type Change = fn(&mut Vec<Parameter>);

    #[test]
    fn a_contradiction_is_found() {
        let model = Deferred::new(|device: &Device| -> Vec<Linear> {
            vec![LinearConfig::new(4, 8).init(device)]
        });
        let model = model.unwrap().recorded_model();
        let changed = |change: Change| {
            let mut parameters = model.parameters.iter().cloned().collect();
            change(&mut parameters);
            let changed = RecordedModel {
                parameters: Arc::new(ParameterTable::new(parameters)),
                graph: model.graph.clone(),
            };
            let read = RecordedModel::from_bytes(&changed.to_bytes());
            read.map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(changed(|_| ()), Ok(()));
        let cases: [(Change, &str); 5] = [
            (|all| all[0].shape[0] = 5, "another shape"),
            (|all| all[0].bytes += 1, "another size"),
            (|all| all[1].path = all[0].path.clone(), "one path"),
            (
                |all| all[1].clone_of = Some(ParameterPath::new("x")),
                "does not exist",
            ),
            (|all| all[0].value = all[1].value, "another shape"),
        ];
        for (change, expected) in cases {
            let error = changed(change).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let mut bytes = model.to_bytes();
        *bytes.last_mut().unwrap() ^= 1;
        assert!(RecordedModel::from_bytes(&bytes).is_err());
    }
}
