//! Options of a materialization.

use burn::tensor::DType;

use crate::{Observer, Parameter};

/// Options of a materialization: the parameters, their dtypes, the observer and the memory check.
///
/// ```
/// use burn::tensor::DType;
/// use tinderbox_deferred::MaterializeOptions;
///
/// // Every weight of the encoder, as bf16.
/// let options = MaterializeOptions::only(|p| p.path.is_under("encoder") && p.path.leaf() == "weight")
///     .dtype(|_| Some(DType::BF16));
/// # let _ = options;
/// ```
#[derive(derive_more::Debug)]
#[must_use]
pub struct MaterializeOptions<'a> {
    #[debug("{}", select.is_some())]
    select: Option<Select<'a>>,
    #[debug("{}", dtype.is_some())]
    dtype: Option<Dtypes<'a>>,
    #[debug(skip)]
    pub(crate) observer: &'a dyn Observer,
    pub(crate) memory: MemoryCheck,
}

type Select<'a> = Box<dyn Fn(&Parameter) -> bool + 'a>;
type Dtypes<'a> = Box<dyn Fn(&Parameter) -> Option<DType> + 'a>;

/// Whether the needed memory is compared with the available memory before anything is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MemoryCheck {
    /// Compared with what the process can still allocate: free memory of the machine and its swap space, limits of
    /// its control group and of its address space.
    #[default]
    Available,
    /// Compared with a number of bytes.
    Bytes(u64),
    /// Not compared.
    Off,
}

impl<'a> MaterializeOptions<'a> {
    /// Selects all parameters, each in its own dtype.
    pub fn new() -> Self {
        Self {
            select: None,
            dtype: None,
            observer: &(),
            memory: MemoryCheck::default(),
        }
    }

    /// Selects the parameters for which `select` returns true: by path, kind, bytes or stage.
    pub fn only(select: impl Fn(&Parameter) -> bool + 'a) -> Self {
        Self {
            select: Some(Box::new(select)),
            ..Self::new()
        }
    }

    /// Casts float parameters to another float dtype; `None` keeps the parameter's own. A parameter is
    /// cast as soon as it is complete, so at most one exists in full precision in addition to its result.
    pub fn dtype(self, dtype: impl Fn(&Parameter) -> Option<DType> + 'a) -> Self {
        Self {
            dtype: Some(Box::new(dtype)),
            ..self
        }
    }

    /// Reports progress to an observer.
    pub fn observer(self, observer: &'a dyn Observer) -> Self {
        Self { observer, ..self }
    }

    /// Sets what the needed memory is compared with.
    pub fn memory(self, memory: MemoryCheck) -> Self {
        Self { memory, ..self }
    }

    pub(crate) fn selects(&self, parameter: &Parameter) -> bool {
        self.select.as_ref().is_none_or(|select| select(parameter))
    }

    pub(crate) fn dtype_of(&self, parameter: &Parameter) -> DType {
        let chosen = self.dtype.as_ref().and_then(|dtype| dtype(parameter));
        chosen.unwrap_or(parameter.dtype)
    }
}

impl Default for MaterializeOptions<'_> {
    fn default() -> Self {
        Self::new()
    }
}
