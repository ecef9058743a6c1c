//! The parameters of a module without their types.

use std::any::Any;
use std::mem;

use burn::module::{Param, ParamId, Parameter};
use burn::tensor::{Device, Shape, Tensor, kind::Basic};
use tinderbox_fake::{DynTensor, FakeError, TensorKind, is_fake};

/// The declaration of a parameter that may not have a value yet. A lazy parameter in column layout
/// declares the shape in which it is saved, not the shape of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) lazy: bool,
    pub(crate) shape: Shape,
    /// Whether it is known to transform values that it loads. Not determined where the shape shows a transpose.
    pub(crate) is_mapped: bool,
}

impl Declared {
    /// Returns whether a record contains the value, of this shape, transposed, as for a linear layer in column layout.
    pub(crate) fn is_transposed(&self, value: &Shape) -> bool {
        self.is_mapped || (self.lazy && self.shape.num_dims() == 2 && self.shape != *value)
    }
}

/// A `Param<Tensor<D, K>>` or a `Param<Flag>`.
pub(super) type BoxedParam = Box<dyn Any + Send + Sync>;

/// The `Param` of a tensor of any rank and kind.
pub(super) trait AnyParam {
    fn id(&self) -> ParamId;
    /// Returns whether the value is created at its first use.
    fn is_lazy(&self) -> bool;
    fn declared(&self) -> Declared;
    /// Returns the device of the value; a lazy parameter is not initialized.
    fn device(&self) -> Device;
    /// Returns the value; a lazy parameter is initialized.
    fn value(&self) -> DynTensor;
    /// Returns whether the value is trainable; a lazy parameter is initialized.
    fn is_trainable(&self) -> bool;
    fn to_any(&self) -> BoxedParam;

    /// Replaces the parameter by another one without mappers.
    ///
    /// # Errors
    ///
    /// When the value has another rank or kind. The parameter is then unchanged.
    fn replace(&mut self, id: ParamId, value: DynTensor) -> Result<(), FakeError>;

    /// Replaces the value of a parameter that has one.
    ///
    /// # Errors
    ///
    /// The errors of [`replace`](Self::replace).
    fn assign(&mut self, value: DynTensor) -> Result<(), FakeError>;

    /// Replaces the value, and the mappers of a lazy parameter, by the ones of a counterpart. Returns whether the counterpart
    /// has the same rank and kind.
    fn reset_to(&mut self, counterpart: &dyn Any) -> bool;

    /// Gives the parameter another id, and a value that is a new leaf. A lazy parameter is not initialized.
    fn renew(&mut self, id: ParamId);

    /// Replaces the value by a copy. In a recording it is another value, because two running states with one id and one value
    /// are clones, and the id can't be changed.
    fn copy_value(&mut self);

    /// Returns the parameter, and replaces it by one whose value has no elements.
    fn take(&mut self) -> BoxedParam;

    /// Replaces the parameter by the one that was taken.
    fn put_back(&mut self, taken: BoxedParam);
}

impl<const D: usize, K: Basic> AnyParam for Param<Tensor<D, K>>
where
    Tensor<D, K>: Parameter + Sync + 'static,
{
    fn id(&self) -> ParamId {
        self.id
    }

    fn is_lazy(&self) -> bool {
        !self.is_initialized()
    }

    fn declared(&self) -> Declared {
        let (lazy, shape) = (self.is_lazy(), self.lazy_shape());
        let is_square = shape.num_dims() == 2 && shape[0] == shape[1];
        let hides_transpose = is_square || (shape.num_dims() == 2 && !lazy);
        Declared {
            // Burn shows the mappers of a parameter in its debug text alone.
            is_mapped: hides_transpose && format!("{self:?}").contains("load: true"),
            lazy,
            shape,
        }
    }

    fn device(&self) -> Device {
        self.lazy_device()
    }

    fn value(&self) -> DynTensor {
        self.base().into()
    }

    fn is_trainable(&self) -> bool {
        self.base().is_require_grad()
    }

    fn to_any(&self) -> BoxedParam {
        Box::new(self.clone())
    }

    fn replace(&mut self, id: ParamId, value: DynTensor) -> Result<(), FakeError> {
        *self = Self::initialized(id, value.typed()?);
        Ok(())
    }

    fn assign(&mut self, value: DynTensor) -> Result<(), FakeError> {
        let value = value.typed()?;
        *self = self.clone().map(|_| value);
        Ok(())
    }

    fn reset_to(&mut self, counterpart: &dyn Any) -> bool {
        let Some(counterpart) = counterpart.downcast_ref::<Self>() else {
            return false;
        };
        let (_, value, mapper) = counterpart.clone().consume();
        // Reading the mappers of a lazy parameter would initialize it, so the mappers of the counterpart are used. A
        // parameter with a value may have its training state from the kind of device that it is on.
        let mapper = match self.is_lazy() {
            true => mapper,
            false => self.clone().consume().2,
        };
        *self = Self::from_mapped_value(self.id, value, mapper);
        true
    }

    fn renew(&mut self, id: ParamId) {
        *self = self.clone().init_mapper(|value| {
            let trains = value.is_require_grad();
            value.set_require_grad(false).set_require_grad(trains)
        });
        self.id = id;
    }

    fn copy_value(&mut self) {
        *self = self.clone().map(|value| {
            if !is_fake(&value) {
                return value;
            }
            let (dims, elements) = (value.dims(), value.shape().num_elements());
            match D {
                1 => value.reshape([1, elements]).reshape(dims),
                _ => value.reshape([elements]).reshape(dims),
            }
        });
    }

    fn take(&mut self) -> BoxedParam {
        let empty = Self::initialized(self.id, Tensor::empty([0; D], &Device::flex()));
        Box::new(mem::replace(self, empty))
    }

    fn put_back(&mut self, taken: BoxedParam) {
        let taken = taken.downcast::<Self>();
        *self = *taken.expect("a module visits the same parameters each time");
    }
}

/// Returns a float tensor of a device with gradients as a leaf that requires its gradient. Tensors of other kinds are
/// unchanged.
pub(super) fn as_leaf(value: DynTensor) -> DynTensor {
    if value.kind() != TensorKind::Float {
        return value;
    }
    // The rank does not matter.
    let value = Tensor::<1>::from_dispatch(value.into());
    Parameter::set_require_grad(value, true).into()
}
