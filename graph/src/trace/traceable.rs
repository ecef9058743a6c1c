//! Recordings of a model's forward, kept by batch shape.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn::module::Module;
use burn::tensor::{DType, FloatDType};
use parking_lot::Mutex;
use tinderbox_deferred::{Deferred, ParameterTable};
use tinderbox_fake::{Difference, DynTensor, Graph, Mode, RecordOptions};
use twox_hash::XxHash3_128;

use super::call::{ForwardFn, Recorder, forward_fn};
use super::layers::check_layers;
use super::record::record_joint;
use super::twice::check_twice;
use super::{JointGraph, Outputs, ProgramKey};
use crate::batch::{Batch, check_dtypes, samples_of, signature, with_samples, without_skipped};
use crate::recent::Recent;
use crate::{BatchError, TraceError};

/// The default number of programs that are kept.
pub const KEPT_PROGRAMS: usize = 16;

/// A model's forward, recorded for every mode and batch shape that is used.
///
/// The programs share one table of parameters, so a stage's parameters are valid for training,
/// evaluation and every batch size. A further shape costs milliseconds. The program of the example and
/// the 16 most recently used are kept; others are recorded again on demand, and must be equal to their
/// earlier recording.
#[derive(Clone, derive_more::Debug)]
#[debug("Trace {{ parameters: {}, .. }}", table.len())]
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
    pub(super) fn new<M: Module + Sync + 'static>(
        model: &Deferred<M>,
        example: &B,
        mode: Mode,
        compute: Option<FloatDType>,
        forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
    ) -> Result<Self, TraceError> {
        let unstable = |source| TraceError::Constructor { source };
        model.check_stable().map_err(unstable)?;
        let mut options = model.options().clone();
        let mut recorded = model.parameters().clone();
        if let Some(compute) = compute {
            options.defaults.float = compute;
            recorded = Arc::new(model.parameters_with(&options).map_err(unstable)?);
        }
        let mut trace = Self {
            run: forward_fn(model.clone(), recorded, forward),
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

    fn recorder<'a>(&'a self, mode: Mode, example: &'a B) -> Recorder<'a, B> {
        Recorder {
            run: &*self.run,
            options: self.options.clone().in_mode(mode),
            compute: self.compute.map(DType::from),
            example,
            is_moving: &self.is_moving,
        }
    }

    /// Returns the trace with its own cache of `programs` programs, which shares only the program of
    /// the example.
    pub fn keeping(self, programs: usize) -> Self {
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
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the 16-bit dtype of a forward in [mixed precision](crate::MixedPrecision); `None` if the
    /// forward has the dtypes of the parameters.
    pub fn compute_dtype(&self) -> Option<FloatDType> {
        self.compute
    }

    /// Checks that the tensors of a batch have the dtypes of the example.
    pub fn check_batch(&self, batch: &B) -> Result<(), BatchError> {
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
    pub fn samples(&self) -> Option<usize> {
        samples_of(&self.example).ok()
    }

    /// Returns the program of batches like the example with another number of samples, in the mode in which it was traced.
    ///
    /// # Errors
    ///
    /// As [`Traceable::trace`].
    pub fn program_of_samples(&self, samples: usize) -> Result<Arc<JointGraph>, TraceError> {
        self.program(self.mode, &with_samples(&self.example, samples))
    }

    /// The key of the program for a batch, and the tensors of the batch.
    pub fn key(mode: Mode, batch: &B) -> (ProgramKey, Vec<DynTensor>) {
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
        if let Some(program) = self.programs.lock().get(&name) {
            return Ok(program.clone());
        }
        let program = self.record(&key, example)?;
        // A forward that differs from call to call is not a program.
        let digest = XxHash3_128::oneshot(name.as_bytes());
        let known = self.digests.lock().get(&digest).copied();
        match known {
            Some(known) if known == program.digest() => {}
            Some(_) => return Err(TraceError::ChangedForward { program: name }),
            None => {
                self.check_same(&program, example)?;
                let recorder = self.recorder(mode, example);
                check_twice(&program, &recorder)?;
                check_layers(&program, &recorder)?;
                self.digests.lock().insert(digest, program.digest());
            }
        }
        let program = Arc::new(program);
        let mut programs = self.programs.lock();
        programs.insert(name, program.clone());
        programs.trim(1);
        drop(programs);
        Ok(program)
    }

    /// Records a program again and compares.
    fn again(&self, program: &JointGraph, example: &B) -> Result<(), TraceError> {
        program.check_same(&self.record(program.key(), example)?)
    }

    /// Records a program again and compares: with the defaults of the batch's skipped fields, if it has any.
    fn check_same(&self, program: &JointGraph, example: &B) -> Result<(), TraceError> {
        let Some(without) = without_skipped(example) else {
            return self.again(program, example);
        };
        self.again(program, &without).or_else(|error| {
            self.again(program, example)?;
            Err(skipped(error))
        })
    }

    /// Records a program with the skipped fields of another batch, if it has any: the skipped fields of the example
    /// may have had their defaults.
    pub fn check_skipped(&self, program: &JointGraph, batch: &B) -> Result<(), TraceError> {
        match without_skipped(batch) {
            Some(_) => self.again(program, batch).map_err(skipped),
            None => Ok(()),
        }
    }

    /// Records the example's program once more and compares.
    ///
    /// # Errors
    ///
    /// When the forward, or the constructor, differs from the first recording.
    pub fn check_stable(&self) -> Result<(), TraceError> {
        self.again(&*self.example_program()?, &self.example)
    }

    fn record(&self, key: &ProgramKey, example: &B) -> Result<JointGraph, TraceError> {
        record_joint(&self.recorder(key.mode, example), &self.table, key)
    }

    /// Returns how a constructor differs from the traced one: the trace contains the values besides
    /// parameters that the forward reads of it.
    pub fn constructor_difference(&self, constructor: &Arc<Graph>) -> Option<Difference> {
        match Arc::ptr_eq(&self.constructor, constructor) {
            true => None,
            false => self.constructor.difference(constructor),
        }
    }
}

/// The error of a forward that depends on skipped fields.
fn skipped(error: TraceError) -> TraceError {
    let source = Box::new(error);
    TraceError::SkippedField { source }
}
