//! The parameters of a model, and their table.

use std::collections::HashMap;
use std::sync::OnceLock;

use burn::module::ParamGroup;
use burn::tensor::DType;
use serde::{Deserialize, Serialize};
use tinderbox_fake::{TensorKind, ValueId};

use crate::ParameterPath;

/// The time at which a module initializes a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// At its first use; never, if its value is replaced before.
    Lazy,
    /// While the module is constructed (`Param::from_tensor`, running statistics).
    Eager,
}

/// One parameter of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// Its path in the module.
    pub path: ParameterPath,
    /// Types of the modules around it, the outermost first, one for each component of the path:
    /// `Gpt.Vec.Block.Linear` for `blocks.0.query.weight`.
    pub modules: String,
    /// Float, int or bool.
    pub kind: TensorKind,
    /// Size per dimension, as seen by the forward.
    pub shape: Vec<u64>,
    /// Type of an element.
    #[serde(with = "tinderbox_fake::dtype_names")]
    pub dtype: DType,
    /// Bytes of the elements.
    pub bytes: u64,
    /// Whether it has gradients; buffers do not.
    pub trainable: bool,
    /// The time at which the module initializes it.
    pub origin: Origin,
    /// Whether Burn's own records contain its value transposed, as for a `Linear` in column layout.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub saved_transposed: bool,
    /// The first parameter with the same id, if this parameter is a clone of it.
    pub clone_of: Option<ParameterPath>,
    /// Its initial value in the graph of the model.
    pub value: ValueId,
}

impl Parameter {
    /// Returns the type of the module that owns it, such as `Linear`.
    pub fn owner(&self) -> &str {
        self.modules.rsplit('.').next().unwrap_or("")
    }

    /// Returns the path under which its value is loaded and saved: the path of the first of its clones, or its own.
    pub fn original(&self) -> &ParameterPath {
        self.clone_of.as_ref().unwrap_or(&self.path)
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// Returns whether values of a dtype can be cast to another dtype.
pub(crate) fn can_cast(from: DType, to: DType) -> bool {
    let is_float = |dtype| matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16);
    is_float(from) && is_float(to)
}

/// Every parameter of a model, in the order in which the module visits them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ParameterTable {
    parameters: Vec<Parameter>,
    /// Created at the first lookup, because a recording needs no lookup.
    #[serde(skip)]
    index: OnceLock<Index>,
}

#[derive(Clone, Debug, Default)]
struct Index {
    by_path: HashMap<String, usize>,
    /// The paths of the clones of each parameter that has some.
    clones: HashMap<ParameterPath, Vec<ParameterPath>>,
}

impl PartialEq for ParameterTable {
    fn eq(&self, other: &Self) -> bool {
        self.parameters == other.parameters
    }
}

impl ParameterTable {
    pub(crate) fn new(parameters: Vec<Parameter>) -> Self {
        Self {
            parameters,
            ..Self::default()
        }
    }

    /// Returns the parameters in visiting order.
    pub fn iter(&self) -> std::slice::Iter<'_, Parameter> {
        self.parameters.iter()
    }

    /// Returns the number of parameters, clones included.
    pub fn len(&self) -> usize {
        self.parameters.len()
    }

    /// Returns whether the model has no parameters.
    pub fn is_empty(&self) -> bool {
        self.parameters.is_empty()
    }

    /// Returns the parameter at a path. Cost: a lookup in a map, which the first call creates.
    pub fn get(&self, path: &ParameterPath) -> Option<&Parameter> {
        self.at(path.as_str())
    }

    pub(super) fn at(&self, path: &str) -> Option<&Parameter> {
        let at = self.index().by_path.get(path)?;
        self.parameters.get(*at)
    }

    /// Returns the index of a parameter in visiting order. Cost: the cost of [`get`](Self::get).
    pub fn position(&self, path: &ParameterPath) -> Option<usize> {
        self.index().by_path.get(path.as_str()).copied()
    }

    /// Returns Burn's group of the parameters with a property (a rank, a dtype, a type of module), for optimizers and
    /// learning-rate schedulers.
    pub fn group(&self, contains: impl Fn(&Parameter) -> bool) -> ParamGroup {
        let contained = self.iter().filter(|parameter| contains(parameter));
        ParamGroup::from_paths(contained.map(|parameter| parameter.path.as_str()).collect())
    }

    fn index(&self) -> &Index {
        self.index.get_or_init(|| {
            let mut index = Index::default();
            for (at, parameter) in self.iter().enumerate() {
                index.by_path.insert(parameter.path.to_string(), at);
                if let Some(original) = &parameter.clone_of {
                    let clones = index.clones.entry(original.clone()).or_default();
                    clones.push(parameter.path.clone());
                }
            }
            index
        })
    }

    /// Returns the bytes of all parameters, clones counted once.
    pub fn bytes(&self) -> u64 {
        self.distinct().map(|parameter| parameter.bytes).sum()
    }

    /// Returns the elements of all parameters, clones counted once.
    pub fn elements(&self) -> u64 {
        self.distinct().map(Parameter::elements).sum()
    }

    /// Returns the bytes of parameters that constructing the module on a real device allocates at once.
    pub fn eager_bytes(&self) -> u64 {
        let eager = self.distinct().filter(|p| p.origin == Origin::Eager);
        eager.map(|parameter| parameter.bytes).sum()
    }

    /// Returns the paths of the clones of an [`original`](Parameter::original) parameter, in visiting order. Clones share
    /// the value of their original.
    pub fn clones(&self, original: &ParameterPath) -> &[ParameterPath] {
        let clones = self.index().clones.get(original);
        clones.map_or(&[], Vec::as_slice)
    }

    /// Returns the parameters that are not clones of earlier parameters. These are loaded, saved and counted.
    pub fn distinct(&self) -> impl Iterator<Item = &Parameter> {
        self.iter().filter(|parameter| parameter.clone_of.is_none())
    }
}

impl<'a> IntoIterator for &'a ParameterTable {
    type Item = &'a Parameter;
    type IntoIter = std::slice::Iter<'a, Parameter>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
