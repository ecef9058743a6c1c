//! Results of a module in plain Burn, and their comparison.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use tinderbox::DynTensor;

use crate::row::Outcome;

/// Tensors by name, in order.
pub type Named = Vec<(String, TensorData)>;

/// The parameters and results of a module.
#[derive(Default)]
pub struct Eager {
    /// The device.
    pub device: Device,
    /// The parameters before the forward, with a note on those that require gradients.
    pub parameters: Named,
    /// The same as tensors: equal tensors can have different layouts, for which some operations differ in the
    /// last bits.
    pub values: Vec<DynTensor>,
    /// The outputs of the forward, and the loss.
    pub outputs: Named,
    /// On an autodiff device, the gradients of the parameters that have one.
    pub gradients: Named,
}

/// Runs a forward, and on an autodiff device Burn's backward from its loss.
pub fn run<M: Module>(module: &M, device: &Device, forward: impl FnOnce() -> Outcome) -> Eager {
    let mut values = Vec::new();
    // Initializes lazy parameters, in the order of the fields.
    let parameters = read(module, &mut |parameter| {
        let value = parameter.value();
        let note = match parameter.requires_gradient() {
            true => " (requires gradients)",
            false => "",
        };
        values.push(value.clone());
        Some((note, value.to_data().expect("the parameter is real")))
    });
    let outcome = forward();
    let loss = outcome.loss();
    let mut outputs: Named = outcome
        .named()
        .map(|(name, tensor)| (name, tensor.into_data()))
        .collect();
    outputs.push(("loss".into(), loss.clone().into_data()));
    let gradients = device.is_autodiff().then(|| {
        let gradients = loss.backward();
        read(module, &mut |parameter| {
            Some(("", parameter.gradient(&gradients)?))
        })
    });
    Eager {
        device: device.clone(),
        parameters,
        values,
        outputs,
        gradients: gradients.unwrap_or_default(),
    }
}

/// Returns a float parameter's value, of any rank.
trait FloatValue {
    fn value(&self) -> DynTensor;
    fn requires_gradient(&self) -> bool;
    fn gradient(&self, gradients: &burn::tensor::Gradients) -> Option<TensorData>;
}

impl<const D: usize> FloatValue for Tensor<D> {
    fn value(&self) -> DynTensor {
        DynTensor::from(self.clone()).without_autodiff()
    }

    fn requires_gradient(&self) -> bool {
        self.is_require_grad()
    }

    fn gradient(&self, gradients: &burn::tensor::Gradients) -> Option<TensorData> {
        self.grad(gradients).map(Tensor::into_data)
    }
}

/// The data read from a parameter, with a suffix for its path.
type Read<'a> = dyn FnMut(&dyn FloatValue) -> Option<(&'static str, TensorData)> + 'a;

fn read<M: Module>(module: &M, read: &mut Read<'_>) -> Named {
    let mut reader = Reader {
        path: Vec::new(),
        read,
        found: Named::new(),
    };
    module.visit(&mut reader);
    reader.found
}

/// Reads data of every parameter of a module.
struct Reader<'a, 'b> {
    path: Vec<String>,
    read: &'a mut Read<'b>,
    found: Named,
}

impl ModuleVisitor for Reader<'_, '_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.path.join(".");
        let found = (self.read)(&param.val());
        self.found
            .extend(found.map(|(note, data)| (path + note, data)));
    }

    fn visit_int<const D: usize>(&mut self, _: &Param<Tensor<D, Int>>) {
        panic!("no module of burn::nn had an int parameter: read it here");
    }

    fn visit_bool<const D: usize>(&mut self, _: &Param<Tensor<D, Bool>>) {
        panic!("no module of burn::nn had a bool parameter: read it here");
    }
}

/// Returns the number of tensors if all of them are equal in name, dtype, shape and every bit.
pub fn compare(what: &str, expected: &Named, found: &Named) -> Result<usize, String> {
    let names = |named: &Named| -> Vec<String> { named.iter().map(|(n, _)| n.clone()).collect() };
    let (expected_names, found_names) = (names(expected), names(found));
    if expected_names != found_names {
        return Err(format!(
            "{what}: expected {expected_names:?}, found {found_names:?}"
        ));
    }
    for ((name, expected), (_, found)) in expected.iter().zip(found) {
        let kind = |data: &TensorData| format!("{:?}{:?}", data.dtype(), data.shape().as_slice());
        if kind(expected) != kind(found) {
            let (expected, found) = (kind(expected), kind(found));
            return Err(format!("{what}: {name} is {found}, not {expected}"));
        }
        if expected.as_bytes() != found.as_bytes() {
            let mut pairs = expected.iter::<f32>().zip(found.iter::<f32>()).enumerate();
            let first = pairs.find(|(_, (a, b))| a.to_bits() != b.to_bits());
            let (index, (expected, found)) = first.expect("the bytes of floats differ");
            return Err(format!(
                "{what}: {name} has {found} at {index}, not {expected}"
            ));
        }
    }
    Ok(expected.len())
}
