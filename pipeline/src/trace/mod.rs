//! The recorded forward and backward of a model, per mode and batch shapes.

mod joint;
mod outputs;
mod roles;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::tensor::Device;
use tinderbox_deferred::{Deferred, ParameterPath, ParameterTable, parameter_values};
use tinderbox_fake::{DynTensor, Mode, RecordOptions};

pub use joint::{JointGraph, TracedInput};
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
    example: B,
    programs: Arc<Mutex<BTreeMap<String, Arc<JointGraph>>>>,
}

impl<B: Clone> Clone for Trace<B> {
    fn clone(&self) -> Self {
        Self {
            run: self.run.clone(),
            table: self.table.clone(),
            options: self.options.clone(),
            example: self.example.clone(),
            programs: self.programs.clone(),
        }
    }
}

/// Traces a deferred model.
pub trait Traceable<M> {
    /// Records `forward` in training mode for batches like `example`, whose values are not looked at.
    ///
    /// `forward` gets the model and a batch and returns the loss and named outputs. It is called
    /// again whenever another shape or mode is asked for, so it must depend on nothing else.
    ///
    /// # Errors
    ///
    /// When the forward panics or reads data; when it moves tensors between devices (batch norm
    /// does); when no parameter gets a gradient.
    fn trace<B: Batch>(
        &self,
        example: &B,
        forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
    ) -> Result<Trace<B>, TraceError>;
}

impl<M: Module + Sync + 'static> Traceable<M> for Deferred<M> {
    fn trace<B: Batch>(
        &self,
        example: &B,
        forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
    ) -> Result<Trace<B>, TraceError> {
        let model = self.clone();
        let trace = Trace {
            run: Arc::new(move |device, make_batch| {
                let module = model.construct(device);
                let parameters = parameter_values(&module);
                (parameters, forward(&module, make_batch()))
            }),
            table: self.parameters().clone(),
            options: self.options().clone(),
            example: example.clone(),
            programs: Arc::default(),
        };
        let joint = trace.program(Mode::Training, example)?;
        if joint.loss().is_none() {
            return Err(TraceError::NoLoss);
        }
        Ok(trace)
    }
}

impl<B: Batch> Trace<B> {
    /// The parameters of the model.
    pub fn parameters(&self) -> &Arc<ParameterTable> {
        &self.table
    }

    /// The training program of the example.
    ///
    /// # Errors
    ///
    /// Never after the trace was made: the program is at hand.
    pub fn training(&self) -> Result<Arc<JointGraph>, TraceError> {
        self.program(Mode::Training, &self.example)
    }

    /// The program for a mode and batches like `example`; recorded when it is asked for first.
    ///
    /// # Errors
    ///
    /// As [`Traceable::trace`].
    pub fn program(&self, mode: Mode, example: &B) -> Result<Arc<JointGraph>, TraceError> {
        let key = ProgramKey {
            mode,
            leaves: signature(example),
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
        write!(
            f,
            "{}",
            if self.mode == Mode::Training {
                "training"
            } else {
                "inference"
            }
        )?;
        for leaf in &self.leaves {
            write!(f, " {}:{:?}{:?}", leaf.name, leaf.dtype, leaf.shape)?;
        }
        Ok(())
    }
}
