//! The reference: plain Burn, and how its results are compared.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, Device, Gradients, Int, Tensor, TensorData};

use crate::row::Outcome;

/// Tensors by name, in order.
pub type Named = Vec<(String, TensorData)>;

/// What a forward gave, and a backward where there was one.
#[derive(Default)]
pub struct Eager {
    /// The outputs, and the loss where there is a backward.
    pub outputs: Named,
    /// The gradients of the parameters that have one.
    pub gradients: Named,
}

/// The model as Burn makes it on a device: seeded, constructed, and every parameter initialized in
/// the order of the fields.
pub fn construct<M: Module>(init: &impl Fn(&Device) -> M, device: &Device, seed: u64) -> M {
    device.seed(seed);
    init(device).materialize()
}

impl Eager {
    /// Runs a forward.
    pub fn forward<M, I>(forward: &impl Fn(&M, I) -> Outcome, module: &M, inputs: I) -> Self {
        Self {
            outputs: outputs(&forward(module, inputs)),
            gradients: Named::new(),
        }
    }

    /// Runs a forward, and Burn's autodiff on its loss.
    pub fn training<M: Module, I>(
        forward: &impl Fn(&M, I) -> Outcome,
        module: &M,
        inputs: I,
    ) -> Self {
        let outcome = forward(module, inputs);
        let loss = outcome.loss();
        let mut outputs = outputs(&outcome);
        outputs.push(("loss".into(), loss.clone().into_data()));
        let gradients = loss.backward();
        let mut reader = Reader::of(|param: &dyn Differentiable| param.gradient(&gradients));
        module.visit(&mut reader);
        Self {
            outputs,
            gradients: reader.found,
        }
    }
}

fn outputs(outcome: &Outcome) -> Named {
    let named = outcome.named();
    named
        .map(|(name, tensor)| (name, tensor.into_data()))
        .collect()
}

/// Path and value of every parameter, with a note on those that require gradients.
pub fn parameters<M: Module>(module: &M) -> Named {
    let mut reader = Reader::of(|param: &dyn Differentiable| Some(param.value()));
    module.visit(&mut reader);
    reader.found
}

/// A float parameter of any rank.
trait Differentiable {
    fn gradient(&self, gradients: &Gradients) -> Option<Read>;
    fn value(&self) -> Read;
}

/// What is read of a parameter: a note that goes after its path, and data.
type Read = (&'static str, TensorData);

impl<const D: usize> Differentiable for Tensor<D> {
    fn gradient(&self, gradients: &Gradients) -> Option<Read> {
        Some(("", self.grad(gradients)?.into_data()))
    }

    fn value(&self) -> Read {
        let note = match self.is_require_grad() {
            true => " (requires gradients)",
            false => "",
        };
        (note, self.to_data())
    }
}

/// Reads something of every parameter of a module.
struct Reader<F> {
    path: Vec<String>,
    read: F,
    found: Named,
}

impl<F: Fn(&dyn Differentiable) -> Option<Read>> Reader<F> {
    fn of(read: F) -> Self {
        Self {
            path: Vec::new(),
            read,
            found: Named::new(),
        }
    }
}

impl<F: Fn(&dyn Differentiable) -> Option<Read>> ModuleVisitor for Reader<F> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let found = (self.read)(&param.val());
        let path = self.path.join(".");
        self.found.extend(found.map(|(note, data)| (path + note, data)));
    }

    fn visit_int<const D: usize>(&mut self, _: &Param<Tensor<D, Int>>) {
        panic!("no module of burn::nn had an int parameter: read it here");
    }

    fn visit_bool<const D: usize>(&mut self, _: &Param<Tensor<D, Bool>>) {
        panic!("no module of burn::nn had a bool parameter: read it here");
    }
}

/// The number of tensors, when all of them are equal: name, shape, dtype and every bit.
pub fn compare(what: &str, expected: &Named, found: &Named) -> Result<usize, String> {
    let names = |named: &Named| named.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    if names(expected) != names(found) {
        return Err(format!(
            "{what}: expected {:?}, found {:?}",
            names(expected),
            names(found)
        ));
    }
    for ((name, expected), (_, found)) in expected.iter().zip(found) {
        let same_type = expected.dtype() == found.dtype() && expected.shape() == found.shape();
        if !same_type || expected.as_bytes() != found.as_bytes() {
            let mut pairs = expected.iter::<f32>().zip(found.iter::<f32>()).enumerate();
            let first = pairs.find(|(_, (a, b))| a.to_bits() != b.to_bits());
            return Err(format!(
                "{what}: {name} differs: {:?} {:?} and {:?} {:?}, first (element, (expected, \
                 found)): {first:?}",
                expected.dtype(),
                expected.shape(),
                found.dtype(),
                found.shape(),
            ));
        }
    }
    Ok(expected.len())
}
