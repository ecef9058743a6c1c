//! The recorded forward and backward of a model, per mode and batch shapes.

mod joint;
mod mixed;
mod outputs;
mod roles;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::tensor::{DType, Device, FloatDType};
use tinderbox_deferred::{Deferred, ParameterPath, ParameterTable, parameter_values};
use tinderbox_fake::{DynTensor, Mode, RecordOptions};

pub use joint::{JointGraph, TracedInput};
pub use mixed::MixedPrecision;
pub use outputs::Outputs;
pub use roles::{Role, Roles};

use crate::TraceError;
use crate::batch::{Batch, Leaf, signature};

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

/// Constructs the model on a device, asks for a batch, and runs the user's forward: the parameters'
/// values, and the outputs. The batch comes after the model, so that what is recorded before it
/// belongs to the initialization.
type Run<B> = dyn Fn(&Device, &mut dyn FnMut() -> B) -> (Vec<(ParameterPath, DynTensor)>, Outputs)
    + Send
    + Sync;

/// A model's forward, recorded for every mode and batch shape that was asked for.
///
/// The programs share one table of parameters, so that a stage's parameters serve training,
/// evaluation and every batch size. A further shape costs milliseconds.
pub struct Trace<B> {
    run: Arc<Run<B>>,
    table: Arc<ParameterTable>,
    options: RecordOptions,
    /// The 16-bit type of a forward in mixed precision.
    compute: Option<FloatDType>,
    example: B,
    mode: Mode,
    programs: Arc<Mutex<BTreeMap<String, Arc<JointGraph>>>>,
}

impl<B: Clone> Clone for Trace<B> {
    fn clone(&self) -> Self {
        Self {
            run: self.run.clone(),
            table: self.table.clone(),
            options: self.options.clone(),
            compute: self.compute,
            example: self.example.clone(),
            mode: self.mode,
            programs: self.programs.clone(),
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
    /// does); when it gives no loss of one element, or no parameter gets a gradient from it.
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
        let constructed = model.clone();
        let mut options = model.options().clone();
        if let Some(compute) = compute {
            options.defaults.float = compute;
        }
        let trace = Self {
            run: Arc::new(move |device, make_batch| {
                let module = constructed.construct(device);
                let parameters = parameter_values(&module);
                (parameters, forward(&module, make_batch()))
            }),
            table: model.parameters().clone(),
            options,
            compute,
            example: example.clone(),
            mode,
            programs: Arc::default(),
        };
        trace.example_program()?;
        Ok(trace)
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

    /// The program of the example, in the mode that it was traced in: what plans are made from.
    ///
    /// # Errors
    ///
    /// Never after the trace was made: the program is at hand.
    pub fn example_program(&self) -> Result<Arc<JointGraph>, TraceError> {
        self.program(self.mode, &self.example)
    }

    /// The program for a mode and batches like `example`; recorded when it is asked for first.
    ///
    /// # Errors
    ///
    /// As [`Traceable::trace`].
    pub fn program(&self, mode: Mode, example: &B) -> Result<Arc<JointGraph>, TraceError> {
        let (leaves, empty) = signature(example);
        let key = ProgramKey {
            mode,
            leaves,
            empty,
        };
        let name = key.to_string();
        let known = self.programs();
        if let Some(program) = known.get(&name) {
            return Ok(program.clone());
        }
        drop(known);
        let program = Arc::new(joint::record_joint(
            &*self.run,
            &self.table,
            self.options.clone().in_mode(mode),
            self.compute.map(DType::from),
            key,
            example,
        )?);
        self.programs().insert(name, program.clone());
        Ok(program)
    }

    fn programs(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<JointGraph>>> {
        // An insertion that panicked leaves the map whole.
        self.programs
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
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
