//! Checks of every kind of module.

use std::sync::{Mutex, MutexGuard};

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{
    Deferred, Initializer, MaterializeError, MaterializeOptions, Origin, ParameterTable, Rng,
    check_materialized, parameter_values,
};
use tinderbox_fake::{DynTensor, dtype_name};

use crate::facts::{Facts, Use, values};

pub const SEED: u64 = 7;

/// The backend's generator is global, and tests run concurrently.
static GENERATOR: Mutex<()> = Mutex::new(());

pub fn hold() -> MutexGuard<'static, ()> {
    GENERATOR
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub fn flex() -> Device {
    Device::flex()
}

/// A plain device, one with gradients, and one that recomputes activations.
pub fn devices() -> [Device; 3] {
    [
        flex(),
        flex().autodiff(),
        flex().autodiff().gradient_checkpointing(),
    ]
}

/// Distinct numbers, for a forward.
pub fn input(shape: [usize; 2], device: &Device) -> Tensor<2> {
    let elements = (shape[0] * shape[1]) as i64;
    let numbers = Tensor::<1, Int>::arange(0..elements, device).float();
    (numbers.reshape(shape) + 0.5) / elements as f64
}

/// The texts of an error and of all its sources.
pub fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

/// A line for each parameter.
pub fn listing(table: &ParameterTable) -> Vec<String> {
    let line = |p: &tinderbox_deferred::Parameter| {
        let kind = format!("{:?}", p.kind).to_lowercase();
        let trainable = if p.trainable { "trainable" } else { "fixed" };
        let origin = match p.origin {
            Origin::Lazy => "lazy",
            Origin::Eager => "eager",
        };
        let of = p.clone_of.as_ref();
        let of = of.map_or(String::new(), |of| format!(", clone of {of}"));
        let dtype = dtype_name(p.dtype);
        format!(
            "{}: {kind} {dtype} {:?}, {trainable}, {origin}{of}",
            p.path, p.shape
        )
    };
    table.iter().map(line).collect()
}

/// One kind of module.
pub struct Kind<M> {
    pub make: fn(&Device) -> M,
    /// The lines of the table.
    pub table: &'static [&'static str],
    pub with: Use<M>,
}

/// A kind whose values are all in its parameters.
pub fn kind<M>(
    make: fn(&Device) -> M,
    table: &'static [&'static str],
    forward: fn(&M, &Device) -> Tensor<2>,
) -> Kind<M> {
    let fields = |_: &M| Vec::new();
    let with = Use { fields, forward };
    Kind { make, table, with }
}

impl<M: Module + 'static> Kind<M> {
    /// Adds values that no visitor sees.
    pub fn with_fields(mut self, fields: fn(&M) -> Vec<DynTensor>) -> Self {
        self.with.fields = fields;
        self
    }

    /// Checks all properties.
    pub fn check(self) -> Deferred<M> {
        let _held = hold();
        let model = self.listed();
        let initializer = model.initializer(Seed::new(SEED));
        for device in devices() {
            self.equals_plain_burn(&model, &device);
            let first = self.made(&model, &device, &initializer);
            // Draws of others in between change nothing.
            flex().seed(SEED + 1);
            assert_eq!(self.made(&model, &device, &initializer), first);
        }
        let backend = initializer.clone().with_rng(Rng::Backend);
        for initializer in [initializer, backend] {
            for part in model.parameters().distinct() {
                parts(&model, &initializer, part.path.as_str());
            }
        }
        model
    }

    /// Returns the model, after checking its table.
    pub fn listed(&self) -> Deferred<M> {
        let model = Deferred::new(self.make).unwrap();
        assert_eq!(listing(model.parameters()), self.table);
        model
    }

    /// In backend mode, a seed has the same values as in plain Burn. The caller holds the backend's generator.
    pub fn equals_plain_burn(&self, model: &Deferred<M>, device: &Device) {
        let eager = self.eager(device);
        let eager = self.with.facts(&eager, device, &|| (self.make)(device));
        let backend = model.initializer(Seed::new(SEED)).with_rng(Rng::Backend);
        assert_eq!(self.made(model, device, &backend), eager);
    }

    /// Plain Burn: seeded, constructed, and its parameters visited in order.
    pub fn eager(&self, device: &Device) -> M {
        device.seed(SEED);
        let eager = (self.make)(device);
        parameter_values(&eager);
        eager
    }

    fn made(&self, model: &Deferred<M>, device: &Device, initializer: &Initializer) -> Facts {
        let made = model.materialize(device, initializer).unwrap();
        check_materialized(&made).unwrap();
        self.with.facts(&made, device, &|| (self.make)(device))
    }
}

/// One parameter alone, and all others without it.
fn parts<M: Module>(model: &Deferred<M>, initializer: &Initializer, one: &str) {
    let whole = values(&model.materialize(&flex(), initializer).unwrap());
    let bits = |path: &str| &whole.iter().find(|(p, ..)| p == path).unwrap().2;
    let alone = MaterializeOptions::on(&flex()).only(|p| p.path.as_str() == one);
    let alone = model.materialize_parameters(alone, initializer);
    let alone = values(&alone.unwrap());
    assert_eq!(alone.len(), 1);
    assert_eq!(alone[0].2, *bits(one), "{one}");
    let others = MaterializeOptions::on(&flex()).only(|p| p.path.as_str() != one);
    let others = model.materialize(others, initializer).unwrap();
    let error = check_materialized(&others).unwrap_err();
    let MaterializeError::NotMaterialized { paths } = error else {
        panic!("{error}");
    };
    assert_eq!(paths.len(), 1);
    assert_eq!(paths[0].as_str(), one);
    for (path, value) in parameter_values(&others) {
        assert_eq!(value.is_fake(), path.as_str() == one, "{path}");
        if !value.is_fake() {
            assert_eq!(value.to_data().unwrap(), *bits(path.as_str()), "{path}");
        }
    }
}
