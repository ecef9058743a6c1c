//! Options of a materialization.

use burn::tensor::{DType, Device};

use crate::{Observer, Parameter};

/// Returns the dtype of a parameter; `None` for its own.
type DTypeOf<'a> = dyn Fn(&Parameter) -> Option<DType> + 'a;

/// Options of a materialization: the device, the parameters, their dtypes, the observer and the memory check. A `&Device`
/// converts into the options of all parameters on it.
///
/// ```
/// use burn::tensor::{DType, Device};
/// use tinderbox_deferred::MaterializeOptions;
///
/// // Every weight of the encoder, as bf16.
/// let options = MaterializeOptions::on(&Device::flex())
///     .only(|p| p.path.is_under("encoder") && p.path.leaf() == "weight")
///     .dtype(|_| Some(DType::BF16));
/// # let _ = options;
/// ```
#[derive(derive_more::Debug)]
#[must_use]
pub struct MaterializeOptions<'a> {
    pub(crate) device: Device,
    #[debug(skip)]
    pub(crate) selects: Box<dyn Fn(&Parameter) -> bool + 'a>,
    #[debug(skip)]
    pub(crate) dtype_of: Box<DTypeOf<'a>>,
    #[debug(skip)]
    pub(crate) observer: &'a dyn Observer,
    pub(crate) memory_check: MemoryCheck,
}

/// The comparison of the needed memory with the available memory, before anything is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MemoryCheck {
    /// Compared with the bytes that the process can still allocate: free memory of the machine and its swap space, limits of
    /// its control group and of its address space.
    #[default]
    Available,
    /// Compared with a number of bytes.
    Bytes(u64),
    /// Not compared.
    Off,
}

impl<'a> MaterializeOptions<'a> {
    /// Materializes on a device: all parameters, each in its own dtype, unless other options are set.
    pub fn on(device: &Device) -> Self {
        Self {
            device: device.clone(),
            selects: Box::new(|_| true),
            dtype_of: Box::new(|_| None),
            observer: &(),
            memory_check: MemoryCheck::default(),
        }
    }

    /// Selects the parameters for which `select` returns true: by path, kind, bytes or stage. Default: all.
    pub fn only(self, select: impl Fn(&Parameter) -> bool + 'a) -> Self {
        let selects = Box::new(select);
        Self { selects, ..self }
    }

    /// Casts float parameters to another float dtype; `None` keeps the parameter's dtype. A parameter is
    /// cast as soon as it is complete, so at most one exists in full precision in addition to its result.
    pub fn dtype(self, dtype: impl Fn(&Parameter) -> Option<DType> + 'a) -> Self {
        let dtype_of = Box::new(dtype);
        Self { dtype_of, ..self }
    }

    /// Reports progress to an observer.
    pub fn observer(self, observer: &'a dyn Observer) -> Self {
        Self { observer, ..self }
    }

    /// Sets the limit that the needed memory is compared with.
    pub fn memory_check(self, memory_check: MemoryCheck) -> Self {
        Self {
            memory_check,
            ..self
        }
    }
}

impl From<&Device> for MaterializeOptions<'_> {
    fn from(device: &Device) -> Self {
        Self::on(device)
    }
}
