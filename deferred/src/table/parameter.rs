//! The description of one parameter.

use burn::tensor::DType;
use serde::{Deserialize, Serialize};
use tinderbox_fake::{TensorKind, ValueId};

use crate::ParameterPath;

/// When a module initializes a parameter.
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
    /// When the module initializes it.
    pub origin: Origin,
    /// Whether Burn's own records contain its value transposed, as for a `Linear` in column layout.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub saved_transposed: bool,
    /// The first parameter with the same id, if that is another one: clones of one `Param`.
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

/// Whether values of a dtype can be cast to another.
pub(crate) fn can_cast(from: DType, to: DType) -> bool {
    let is_float = |dtype| matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16);
    is_float(from) && is_float(to)
}
