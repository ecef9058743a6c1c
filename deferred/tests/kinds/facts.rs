//! The observable state of a module.

use burn::module::{Flag, Module, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use tinderbox_deferred::parameter_values;
use tinderbox_fake::DynTensor;

/// How a module is used.
pub struct Use<M> {
    /// Values that no visitor sees.
    pub fields: fn(&M) -> Vec<DynTensor>,
    /// The output computed from everything in the module. The device is the module's.
    pub forward: fn(&M, &Device) -> Tensor<2>,
}

impl<M> Copy for Use<M> {}

impl<M> Clone for Use<M> {
    fn clone(&self) -> Self {
        *self
    }
}

/// Path, autodiff context and elements of a parameter, in visiting order.
type Values = Vec<(String, String, TensorData)>;

/// The observable state of a module, bit for bit. Two modules with equal facts are indistinguishable.
#[derive(Debug, PartialEq)]
pub struct Facts {
    pub values: Values,
    state: State,
    elements: usize,
    pub fields: Vec<TensorData>,
    /// Twice, because running statistics affect only the second call.
    pub forward: [TensorData; 2],
    after_forward: Values,
    merged: Values,
    validating: State,
    training_again: State,
    /// After two optimizer steps.
    trained: Values,
    /// Its record, loaded into a module that was just constructed.
    reloaded: Result<Values, String>,
    /// The record of a module that was just constructed, loaded into this one.
    loaded: Result<Values, String>,
}

/// The declarations of a module's parameters, without their values.
#[derive(Debug, Default, PartialEq)]
struct State {
    path: Vec<String>,
    /// For each parameter, the first one with its id.
    firsts: Vec<usize>,
    ids: Vec<ParamId>,
    trainable: Vec<String>,
    enabled: Vec<(String, bool)>,
}

impl State {
    fn of<M: Module>(module: &M) -> Self {
        let mut state = Self::default();
        module.visit(&mut state);
        let first = |id| state.ids.iter().position(|other| other == id).unwrap();
        state.firsts = state.ids.iter().map(first).collect();
        // Ids are new at every construction.
        state.ids.clear();
        state
    }
}

impl ModuleVisitor for State {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.ids.push(param.id);
        if param.base().is_require_grad() {
            self.trainable.push(self.path.join("."));
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.ids.push(param.id);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.ids.push(param.id);
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        let path = self.path.join(".");
        self.enabled.push((path, flag.is_enabled()));
    }
}

/// Returns the values of a module's parameters, without adapters.
pub fn values<M: Module>(module: &M) -> Values {
    let values = parameter_values(module).into_iter();
    let values = values.map(|(path, value)| {
        let strategy = value.device().gradient_checkpointing_strategy();
        let data = value.to_data().unwrap();
        (path.to_string(), format!("{strategy:?}"), data)
    });
    values.collect()
}

impl<M: Module> Use<M> {
    /// Returns the facts of a module on `device`; `fresh` creates another one like it there. The caller
    /// holds the backend's generator.
    pub fn facts(&self, module: &M, device: &Device, fresh: &dyn Fn() -> M) -> Facts {
        // Dropout, and parameters in skipped fields, draw from the backend's generator.
        device.seed(1);
        let mut facts = Facts {
            values: values(module),
            state: State::of(module),
            elements: module.num_params(),
            fields: self.fields(module),
            forward: [(); 2].map(|()| (self.forward)(module, device).into_data()),
            after_forward: values(module),
            merged: values(&module.clone().materialize()),
            validating: State::of(&module.valid()),
            training_again: State::of(&module.valid().train()),
            trained: Vec::new(),
            reloaded: reload(fresh(), module),
            loaded: Err(String::new()),
        };
        facts.trained = values(&self.train(module.clone(), device));
        // Last, because clones of a running state share the loaded value.
        facts.loaded = reload(module.clone(), &fresh());
        facts
    }

    pub fn fields(&self, module: &M) -> Vec<TensorData> {
        let fields = (self.fields)(module).into_iter();
        fields.map(|field| field.to_data().unwrap()).collect()
    }

    /// Runs two steps of an optimizer, if the module is trainable.
    pub fn train(&self, mut module: M, device: &Device) -> M {
        let mut optimizer = SgdConfig::new().init();
        for _ in 0..2 {
            if State::of(&module).trainable.is_empty() {
                break;
            }
            let loss = (self.forward)(&module, device).powi_scalar(2).sum();
            let gradients = GradientsParams::from_grads(loss.backward(), &module);
            assert!(!gradients.is_empty());
            module = optimizer.step(0.5, module, gradients);
        }
        module
    }
}

fn reload<M: Module>(into: M, from: &M) -> Result<Values, String> {
    let loaded = into.try_load_record(from.clone().into_record());
    let loaded = loaded.map(|module| values(&module));
    loaded.map_err(|error| error.to_string())
}
