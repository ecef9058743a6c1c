//! The recorded forward and backward of a model, per mode and batch shapes.

mod carried;
mod checks;
mod forward;
mod joint;
mod layers;
mod mixed;
mod outputs;
mod roles;
mod states;
mod twice;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::module::Module;
use burn::tensor::{DType, Device, FloatDType};
use tinderbox_deferred::{
    Deferred, ParameterPath, ParameterTable, PlainStates, TrainingLayer, pending_states,
    random::Domain, skipped_parameters, tensor_fields, training_layers,
};
use tinderbox_fake::{Difference, DynTensor, Graph, Mode, RecordError, RecordOptions};
use twox_hash::XxHash3_128;

pub(crate) use forward::ForwardOperations;
use joint::Fields;
pub(crate) use joint::Given;
pub use joint::{JointGraph, TracedInput};
pub use mixed::MixedPrecision;
pub use outputs::{LossOver, Outputs};
pub(crate) use roles::Role;

use crate::batch::{
    Batch, Leaf, check_dtypes, samples_of, signature, with_samples, without_skipped,
};
use crate::recent::Recent;
use crate::{BatchError, StateFault, TraceError};

/// The default number of programs that are kept.
pub(crate) const KEPT_PROGRAMS: usize = 16;

/// The key of a model's program: training or forward only, and the batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProgramKey {
    /// Training, or forward only.
    pub mode: Mode,
    /// Name, shape and dtype of every tensor of the batch.
    pub leaves: Vec<Leaf>,
    /// Its parts without a tensor: options that are `None`, lists that are empty.
    pub empty: Vec<String>,
}

/// Constructs the model on a device, replaces its parameters by placeholders, and runs the user's
/// forward on requested batches. Operations before the placeholders belong to the initialization. The
/// error is the path of a parameter that the constructor computes differently than before.
type ForwardFn<B> = dyn Fn(&Device, Calls<'_>, &mut dyn FnMut() -> B) -> Result<joint::ForwardRun, ParameterPath>
    + Send
    + Sync;

/// How a forward is recorded.
#[derive(Clone, Copy, Debug)]
struct Calls<'a> {
    /// Whether it is called twice, and the last result is returned. Batch norms train in the first call only.
    is_twice: bool,
    /// Whether integers and booleans of the batch and all running states are outside of autodiff, where Burn
    /// moves recorded tensors to the device that they are on.
    is_moving: bool,
    /// The layer that does not act.
    without: Option<&'a TrainingLayer>,
}

/// A model's forward, recorded for every mode and batch shape that is used.
///
/// The programs share one table of parameters, so a stage's parameters are valid for training,
/// evaluation and every batch size. A further shape costs milliseconds. The program of the example and
/// the 16 most recently used are kept; others are recorded again on demand, and must be equal to their
/// earlier recording.
#[derive(Clone)]
pub struct Trace<B> {
    run: Arc<ForwardFn<B>>,
    /// The recorded constructor.
    constructor: Arc<Graph>,
    table: Arc<ParameterTable>,
    options: RecordOptions,
    /// The 16-bit dtype of a forward in mixed precision.
    compute: Option<FloatDType>,
    example: B,
    mode: Mode,
    /// The program of the example.
    first: Option<Arc<JointGraph>>,
    programs: Arc<Mutex<Recent<String, Arc<JointGraph>>>>,
    /// Whether the forward moves tensors to the device that they are on.
    is_moving: Arc<AtomicBool>,
    /// The digest of every recorded program by the digest of its name: 32 bytes for each shape, even if the
    /// program is no longer kept.
    digests: Arc<Mutex<HashMap<u128, u128>>>,
}

/// Traces a deferred model.
///
/// `forward` receives the model and a batch and returns the loss and named outputs. It is called again
/// for every further shape or mode, so it must depend on nothing else. The values of `example` are not
/// read.
pub trait Traceable<M> {
    /// Records `forward` in a mode: training for [`trace`](Self::trace), inference for
    /// [`trace_forward`](Self::trace_forward).
    ///
    /// # Errors
    ///
    /// As for [`trace`](Self::trace) and [`trace_forward`](Self::trace_forward).
    fn trace_in<B: Batch>(
        &self,
        mode: Mode,
        example: &B,
        forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
    ) -> Result<Trace<B>, TraceError>;

    /// Records `forward` with its backward, for training and evaluation.
    ///
    /// # Errors
    ///
    /// When the forward panics or reads data; when it moves float tensors between devices; when it returns
    /// no loss of one element, or no parameter gets a gradient from the loss; when constructor or forward
    /// differ between two calls; when the forward reads a tensor field that is random or that passes a
    /// gradient on to the constructor, initializes a parameter in a field with `#[module(skip)]`,
    /// updates a running state in a way that can't be recorded, has a dropout or another layer of Burn that does not act
    /// because the forward moves integers or booleans of the batch, or returns no new value of a
    /// [carried](crate::Carried) tensor that has its shape and dtype.
    fn trace<B: Batch>(
        &self,
        example: &B,
        forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
    ) -> Result<Trace<B>, TraceError> {
        self.trace_in(Mode::Training, example, forward)
    }

    /// Records `forward` only, for evaluation; it needs no loss.
    ///
    /// # Errors
    ///
    /// When the forward panics, reads data or moves tensors between devices, or returns no new value of a
    /// [carried](crate::Carried) tensor that has its shape and dtype.
    fn trace_forward<B: Batch>(
        &self,
        example: &B,
        forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
    ) -> Result<Trace<B>, TraceError> {
        self.trace_in(Mode::Inference, example, forward)
    }
}

impl<M: Module + Sync + 'static> Traceable<M> for Deferred<M> {
    fn trace_in<B: Batch>(
        &self,
        mode: Mode,
        example: &B,
        forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
    ) -> Result<Trace<B>, TraceError> {
        Trace::new(self, example, mode, None, forward)
    }
}

impl<B: Batch> Trace<B> {
    fn new<M: Module + Sync + 'static>(
        model: &Deferred<M>,
        example: &B,
        mode: Mode,
        compute: Option<FloatDType>,
        forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
    ) -> Result<Self, TraceError> {
        let unstable = |source| TraceError::Constructor { source };
        model.check_stable().map_err(unstable)?;
        let constructed = model.clone();
        let has_looked = AtomicBool::new(false);
        let mut options = model.options().clone();
        let mut recorded = model.parameters().clone();
        if let Some(compute) = compute {
            options.defaults.float = compute;
            recorded = Arc::new(model.parameters_with(&options).map_err(unstable)?);
        }
        let mut trace = Self {
            run: Arc::new(move |device, calls: Calls<'_>, make_batch| {
                let plain = match calls.is_moving {
                    true => PlainStates::All,
                    false => PlainStates::OfBatchNorms,
                };
                let model = constructed.construct_with_placeholders(device, &recorded, plain)?;
                let pending = || pending_states(&model.module).into_iter().next();
                let constructed_state = match model.running.is_empty() {
                    true => None,
                    false => pending(),
                };
                let mut outputs = match calls.without {
                    None => forward(&model.module, make_batch()),
                    Some(layer) => forward(&model.without_layer(layer), make_batch()),
                };
                if calls.is_twice {
                    outputs = forward(&model.with_fixed_batch_norms(), make_batch());
                }
                let updated = match calls.is_twice {
                    true => Vec::new(),
                    false => model.updated_states(),
                };
                // The text of a large model takes milliseconds, so it is read once.
                let is_first = !calls.is_twice && !has_looked.swap(true, Ordering::Relaxed);
                let hidden_state = if is_first { pending() } else { None };
                Ok(joint::ForwardRun {
                    updated,
                    unknown_state: constructed_state.or(hidden_state),
                    own_states: model.own_states().collect(),
                    running: model.running.clone(),
                    parameters: model.values,
                    constructed: model.constructed,
                    outputs,
                    fields: Box::new(move || Fields {
                        tensors: tensor_fields(&model.module),
                        skipped: skipped_parameters(&model.module),
                        layers: training_layers(&model.module),
                    }),
                })
            }),
            constructor: model.graph().clone(),
            table: model.parameters().clone(),
            options,
            compute,
            example: example.clone(),
            mode,
            first: None,
            programs: Arc::new(Mutex::new(Recent::new(KEPT_PROGRAMS))),
            is_moving: Arc::default(),
            digests: Arc::default(),
        };
        let first = trace.example_program();
        trace.first =
            Some(first.map_err(|error| error.of_clones(model.shared_id(), &trace.table))?);
        Ok(trace)
    }

    /// Records two forwards of one module, and refuses what a program can't repeat:
    ///
    /// - a forward that initializes a parameter that no visitor of the module sees, as in a field with
    ///   `#[module(skip)]`: a module does so once, and each run of a program would draw another value;
    /// - one that reads a running state of its own without the last update.
    fn check_twice(&self, joint: &JointGraph, example: &B) -> Result<(), TraceError> {
        let keys = joint.keys().iter();
        let of_forward =
            keys.filter(|(node, key)| key.domain == Domain::Forward && !joint.is_backward(**node));
        let random = of_forward.count();
        let own_states = joint.own_updates();
        if random == 0 && own_states.is_empty() {
            return Ok(());
        }
        let options = self.options.clone().in_mode(joint.key().mode);
        let compute = self.compute.map(DType::from);
        let twice = self.recording(|is_moving| {
            twice::record_twice(&*self.run, &options, compute, example, is_moving)
        });
        match (twice, own_states.first()) {
            // A first forward was recorded, so the second can't read the new value of a running state.
            (Err(TraceError::Record { source }), Some(state)) => {
                Err(joint.refuse_state(*state, StateFault::Moved { source }))
            }
            (twice, _) => {
                let twice = twice?;
                if twice.random != 2 * random {
                    let fields = (twice.skipped)();
                    return Err(TraceError::SkippedParameter { fields });
                }
                let late = own_states
                    .iter()
                    .find(|state| twice.read_late.contains(state));
                late.map_or(Ok(()), |state| {
                    Err(joint.refuse_state(*state, StateFault::ReadLate))
                })
            }
        }
    }

    /// Refuses a layer that does not act, because the forward moves its input.
    fn check_layers(&self, joint: &JointGraph, example: &B) -> Result<(), TraceError> {
        let mode = joint.key().mode;
        let is_moving = self.is_moving.load(Ordering::Relaxed);
        if !is_moving || mode == Mode::Inference || !joint.converts_batch() {
            return Ok(());
        }
        let options = self.options.clone().in_mode(mode);
        let compute = self.compute.map(DType::from);
        layers::check_layers(&*self.run, &options, compute, example)
    }

    /// Records with all inputs in autodiff, as in plain Burn; if the forward moves them, records with those outside of
    /// autodiff that need none.
    fn recording<T>(
        &self,
        mut record: impl FnMut(bool) -> Result<T, TraceError>,
    ) -> Result<T, TraceError> {
        let known = self.is_moving.load(Ordering::Relaxed);
        let first = record(known);
        let moved = |error: &TraceError| match error {
            TraceError::Record { source } | TraceError::BatchNorm { source, .. } => {
                matches!(source, RecordError::Moved { .. })
            }
            _ => false,
        };
        match first {
            Err(error) if !known && moved(&error) => {
                let recorded = record(true)?;
                self.is_moving.store(true, Ordering::Relaxed);
                Ok(recorded)
            }
            recorded => recorded,
        }
    }

    /// Returns the trace with its own cache of `programs` programs, which shares only the program of
    /// the example.
    pub(crate) fn keeping(self, programs: usize) -> Self {
        Self {
            programs: Arc::new(Mutex::new(Recent::new(programs))),
            ..self
        }
    }

    /// Returns the parameters of the model.
    pub fn parameters(&self) -> &Arc<ParameterTable> {
        &self.table
    }

    /// Returns the mode in which the example was recorded.
    pub(crate) const fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the 16-bit dtype of a forward in [mixed precision](MixedPrecision); `None` if the
    /// forward has the dtypes of the parameters.
    pub fn compute_dtype(&self) -> Option<FloatDType> {
        self.compute
    }

    /// Checks that the tensors of a batch have the dtypes of the example.
    pub(crate) fn check_batch(&self, batch: &B) -> Result<(), BatchError> {
        check_dtypes(&signature(&self.example).leaves, &signature(batch).leaves)
    }

    /// Returns the program of the example, in the mode in which it was traced, from which plans are
    /// created.
    ///
    /// # Errors
    ///
    /// Never: the program of the example is always kept.
    pub fn example_program(&self) -> Result<Arc<JointGraph>, TraceError> {
        self.program(self.mode, &self.example)
    }

    /// Returns the number of samples of the example; `None` if it has none.
    pub(crate) fn samples(&self) -> Option<usize> {
        samples_of(&self.example).ok()
    }

    /// Returns the program of batches like the example with another number of samples, in the mode in which it was traced.
    ///
    /// # Errors
    ///
    /// As [`Traceable::trace`].
    pub(crate) fn program_of_samples(&self, samples: usize) -> Result<Arc<JointGraph>, TraceError> {
        self.program(self.mode, &with_samples(&self.example, samples))
    }

    /// The key of the program for a batch, and the tensors of the batch.
    pub(crate) fn key(mode: Mode, batch: &B) -> (ProgramKey, Vec<DynTensor>) {
        let signature = signature(batch);
        let key = ProgramKey {
            mode,
            leaves: signature.leaves,
            empty: signature.empty,
        };
        (key, signature.tensors)
    }

    /// Returns the program for a mode and batches like `example`; recorded on first use, and again when
    /// it is no longer kept.
    ///
    /// # Errors
    ///
    /// As [`Traceable::trace`].
    pub fn program(&self, mode: Mode, example: &B) -> Result<Arc<JointGraph>, TraceError> {
        let (key, _) = Self::key(mode, example);
        if let Some(first) = self.first.as_ref().filter(|first| *first.key() == key) {
            return Ok(first.clone());
        }
        let name = key.to_string();
        if let Some(program) = self.programs().get(&name) {
            return Ok(program.clone());
        }
        let program = self.record(key, example)?;
        // A forward that differs from call to call is not a program.
        let digest = XxHash3_128::oneshot(name.as_bytes());
        let known = lock(&self.digests).get(&digest).copied();
        match known {
            Some(known) if known == program.digest() => {}
            Some(_) => return Err(TraceError::ChangedForward { program: name }),
            None => {
                self.check_same(&program, example)?;
                self.check_twice(&program, example)?;
                self.check_layers(&program, example)?;
                lock(&self.digests).insert(digest, program.digest());
            }
        }
        let program = Arc::new(program);
        let mut programs = self.programs();
        programs.insert(name, program.clone());
        programs.trim(1);
        drop(programs);
        Ok(program)
    }

    /// Records a program again and compares: with the defaults of the batch's skipped fields, if it has any.
    fn check_same(&self, program: &JointGraph, example: &B) -> Result<(), TraceError> {
        let again = |example: &B| {
            let again = self.record(program.key().clone(), example)?;
            program.check_same(&again)
        };
        let Some(without) = without_skipped(example) else {
            return again(example);
        };
        again(&without).or_else(|error| {
            again(example)?;
            let source = Box::new(error);
            Err(TraceError::SkippedField { source })
        })
    }

    /// Records a program with the skipped fields of another batch, if it has any: the skipped fields of the example
    /// may have had their defaults.
    pub(crate) fn check_skipped(&self, program: &JointGraph, batch: &B) -> Result<(), TraceError> {
        if without_skipped(batch).is_none() {
            return Ok(());
        }
        let again = self.record(program.key().clone(), batch);
        let checked = again.and_then(|again| program.check_same(&again));
        checked.map_err(|error| TraceError::SkippedField {
            source: Box::new(error),
        })
    }

    /// Records the example's program once more and compares.
    ///
    /// # Errors
    ///
    /// When the forward, or the constructor, differs from the first recording.
    pub(crate) fn check_stable(&self) -> Result<(), TraceError> {
        let known = self.example_program()?;
        known.check_same(&self.record(known.key().clone(), &self.example)?)
    }

    fn record(&self, key: ProgramKey, example: &B) -> Result<JointGraph, TraceError> {
        let options = self.options.clone().in_mode(key.mode);
        let compute = self.compute.map(DType::from);
        self.recording(|is_moving| {
            let (key, options) = (key.clone(), options.clone());
            joint::record_joint(
                &*self.run,
                &self.table,
                options,
                compute,
                key,
                example,
                is_moving,
            )
        })
    }

    fn programs(&self) -> MutexGuard<'_, Recent<String, Arc<JointGraph>>> {
        lock(&self.programs)
    }

    /// Returns how a constructor differs from the traced one: the trace contains the values besides
    /// parameters that the forward reads of it.
    pub(crate) fn constructor_difference(&self, constructor: &Arc<Graph>) -> Option<Difference> {
        match Arc::ptr_eq(&self.constructor, constructor) {
            true => None,
            false => self.constructor.difference(constructor),
        }
    }
}

/// A panic during an insertion leaves the map consistent.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B> fmt::Debug for Trace<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("parameters", &self.table.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for ProgramKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.mode {
            Mode::Training => "training",
            Mode::Inference => "inference",
        })?;
        for leaf in &self.leaves {
            write!(f, " {}:{:?}{:?}", leaf.name, leaf.dtype, leaf.shape)?;
        }
        self.empty.iter().try_for_each(|part| write!(f, " {part}"))
    }
}
