//! The recorded forward and backward of a model, per mode and batch shapes.

mod checks;
mod joint;
mod mixed;
mod outputs;
mod roles;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::module::Module;
use burn::tensor::{DType, Device, FloatDType};
use tinderbox_deferred::{
    Deferred, ParameterPath, ParameterTable, random::Domain, skipped_parameters, tensor_fields,
};
use tinderbox_fake::{Difference, Graph, Mode, RecordOptions};
use twox_hash::XxHash3_128;

use joint::Fields;
pub use joint::{JointGraph, TracedInput};
pub use mixed::MixedPrecision;
pub use outputs::{LossOver, Outputs};
pub use roles::{Role, Roles};

use crate::batch::{Batch, Leaf, check_dtypes, signature};
use crate::recent::Recent;
use crate::{BatchError, TraceError};

/// Programs that are kept where no number was asked for.
pub(crate) const KEPT_PROGRAMS: usize = 16;

/// Which of a model's programs: training or forward only, and for which batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProgramKey {
    /// Training, or forward only.
    pub mode: Mode,
    /// Name, shape and dtype of every tensor of the batch.
    pub leaves: Vec<Leaf>,
    /// Its parts without a tensor: which optional part is `None`, which list is empty.
    pub empty: Vec<String>,
}

/// Constructs the model on a device, replaces its parameters by placeholders, and, as often as it is asked to, asks for a
/// batch and runs the user's forward, the last result of which counts. What is recorded before the placeholders belongs
/// to the initialization. The error is the path of a parameter that the constructor makes in another way than before.
type Run<B> = dyn Fn(&Device, usize, &mut dyn FnMut() -> B) -> Result<joint::Forward, ParameterPath>
    + Send
    + Sync;

/// A model's forward, recorded for every mode and batch shape that was asked for.
///
/// The programs share one table of parameters, so that a stage's parameters serve training,
/// evaluation and every batch size. A further shape costs milliseconds. Kept are the program of the example and the 16
/// that were used last; another is recorded again when it is asked for, and must be what it was.
pub struct Trace<B> {
    run: Arc<Run<B>>,
    /// What the constructor records.
    constructor: Arc<Graph>,
    table: Arc<ParameterTable>,
    options: RecordOptions,
    /// The 16-bit type of a forward in mixed precision.
    compute: Option<FloatDType>,
    example: B,
    mode: Mode,
    /// The program of the example.
    first: Option<Arc<JointGraph>>,
    programs: Arc<Mutex<Recent<String, Arc<JointGraph>>>>,
    /// The digest of every program that was recorded, by that of its name: 32 bytes for each shape, also where the
    /// program is no longer kept.
    digests: Arc<Mutex<HashMap<u128, u128>>>,
}

impl<B: Clone> Clone for Trace<B> {
    fn clone(&self) -> Self {
        Self {
            run: self.run.clone(),
            constructor: self.constructor.clone(),
            table: self.table.clone(),
            options: self.options.clone(),
            compute: self.compute,
            example: self.example.clone(),
            mode: self.mode,
            first: self.first.clone(),
            programs: self.programs.clone(),
            digests: self.digests.clone(),
        }
    }
}

/// Traces a deferred model.
///
/// `forward` gets the model and a batch and returns the loss and named outputs. It is called again
/// whenever another shape or mode is asked for, so it must depend on nothing else. The values of
/// `example` are not looked at.
pub trait Traceable<M> {
    /// Records `forward` in a mode: [`trace`](Self::trace) is this in training,
    /// [`trace_forward`](Self::trace_forward) in inference.
    ///
    /// # Errors
    ///
    /// As these.
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
    /// When the forward panics or reads data; when it moves tensors between devices (batch norm
    /// does); when it gives no loss of one element, or no parameter gets a gradient from it; when constructor or forward
    /// differ between two calls; when the forward reads a tensor field that is random or that passes a gradient on to the
    /// constructor, or a parameter in a field with `#[module(skip)]` that is made at random, or updates a running state.
    fn trace<B: Batch>(
        &self,
        example: &B,
        forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
    ) -> Result<Trace<B>, TraceError> {
        self.trace_in(Mode::Training, example, forward)
    }

    /// Records `forward` alone, for evaluation; it needs no loss.
    ///
    /// # Errors
    ///
    /// When the forward panics, reads data or moves tensors between devices.
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
        let mut options = model.options().clone();
        let mut recorded = model.parameters().clone();
        if let Some(compute) = compute {
            options.defaults.float = compute;
            recorded = Arc::new(model.parameters_with(&options).map_err(unstable)?);
        }
        let mut trace = Self {
            run: Arc::new(move |device, calls, make_batch| {
                let model = constructed.construct_with_placeholders(device, &recorded)?;
                for _ in 1..calls {
                    forward(&model.module, make_batch());
                }
                let outputs = forward(&model.module, make_batch());
                Ok(joint::Forward {
                    updated: model.updated_states(),
                    running_states: model.running,
                    parameters: model.values,
                    constructed: model.constructed,
                    outputs,
                    fields: Box::new(move || Fields {
                        tensors: tensor_fields(&model.module),
                        skipped: skipped_parameters(&model.module),
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
            digests: Arc::default(),
        };
        trace.first = Some(trace.example_program()?);
        Ok(trace)
    }

    /// Refuses a forward whose second call on one module does something else than the first, which a program can't:
    ///
    /// - it makes the value of a parameter that no visitor of the module sees, as in a field with `#[module(skip)]`. A
    ///   module does so once, and each run of a program would draw another value;
    /// - it updates a running state, whose new value a pipeline would lose.
    fn check_twice(&self, joint: &JointGraph, example: &B) -> Result<(), TraceError> {
        let keys = joint.keys().iter();
        let of_forward =
            keys.filter(|(node, key)| key.domain == Domain::Forward && !joint.is_backward(**node));
        let random = of_forward.count();
        if random == 0 && joint.running_states().is_empty() {
            return Ok(());
        }
        let options = self.options.clone().in_mode(joint.key().mode);
        let compute = self.compute.map(DType::from);
        let twice = joint::record_twice(&*self.run, &options, compute, example);
        let state = |position: &usize| self.table.iter().nth(*position).map(|p| p.path.clone());
        match (twice, joint.running_states()) {
            // A first forward can be recorded: a second can't read what the first has left.
            (Err(TraceError::Record { source }), [first, ..]) => Err(match state(first) {
                Some(path) => TraceError::RunningState {
                    path,
                    source: Some(source),
                },
                None => TraceError::Record { source },
            }),
            (twice, _) => {
                let twice = twice?;
                if twice.random != 2 * random {
                    let fields = (twice.skipped)();
                    return Err(TraceError::SkippedParameter { fields });
                }
                let updated = twice.updated.first().and_then(state);
                updated.map_or(Ok(()), |path| {
                    Err(TraceError::RunningState { path, source: None })
                })
            }
        }
    }

    /// The same trace, which shares the program of the example alone, and keeps so many others.
    pub(crate) fn keeping(self, programs: usize) -> Self {
        Self {
            programs: Arc::new(Mutex::new(Recent::new(programs))),
            ..self
        }
    }

    /// The parameters of the model.
    pub fn parameters(&self) -> &Arc<ParameterTable> {
        &self.table
    }

    /// The 16-bit type of a forward in [mixed precision](MixedPrecision); `None` when the forward has the types
    /// of the parameters.
    pub fn compute_dtype(&self) -> Option<FloatDType> {
        self.compute
    }

    /// Refuses a batch whose tensors have other dtypes than the example's.
    pub(crate) fn check_batch(&self, batch: &B) -> Result<(), BatchError> {
        check_dtypes(&signature(&self.example).0, &signature(batch).0)
    }

    /// The program of the example, in the mode that it was traced in: what plans are made from.
    ///
    /// # Errors
    ///
    /// Never after the trace was made: the program is available.
    pub fn example_program(&self) -> Result<Arc<JointGraph>, TraceError> {
        self.program(self.mode, &self.example)
    }

    /// Mode and shapes of the program for batches like `example`.
    pub(crate) fn key(mode: Mode, example: &B) -> ProgramKey {
        let (leaves, empty) = signature(example);
        ProgramKey {
            mode,
            leaves,
            empty,
        }
    }

    /// The program for a mode and batches like `example`; recorded when it is asked for first, and again when it is no
    /// longer kept.
    ///
    /// # Errors
    ///
    /// As [`Traceable::trace`].
    pub fn program(&self, mode: Mode, example: &B) -> Result<Arc<JointGraph>, TraceError> {
        let key = Self::key(mode, example);
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
                program.check_same(&self.record(program.key().clone(), example)?)?;
                self.check_twice(&program, example)?;
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

    /// Records the example's program once more.
    ///
    /// # Errors
    ///
    /// When the forward, or the constructor, has come to differ from what was recorded first.
    pub(crate) fn check_stable(&self) -> Result<(), TraceError> {
        let known = self.example_program()?;
        known.check_same(&self.record(known.key().clone(), &self.example)?)
    }

    fn record(&self, key: ProgramKey, example: &B) -> Result<JointGraph, TraceError> {
        joint::record_joint(
            &*self.run,
            &self.table,
            self.options.clone().in_mode(key.mode),
            self.compute.map(DType::from),
            key,
            example,
        )
    }

    fn programs(&self) -> MutexGuard<'_, Recent<String, Arc<JointGraph>>> {
        lock(&self.programs)
    }

    /// How a constructor differs from the one that was traced: what the forward reads of it beside parameters is in the
    /// trace.
    pub(crate) fn constructor_difference(&self, constructor: &Arc<Graph>) -> Option<Difference> {
        match Arc::ptr_eq(&self.constructor, constructor) {
            true => None,
            false => self.constructor.difference(constructor),
        }
    }
}

/// An insertion that panicked leaves a map whole.
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
