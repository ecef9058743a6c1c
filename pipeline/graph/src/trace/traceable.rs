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
use super::checks::{check_layers, check_twice};
use super::record::record_joint;
use super::{JointGraph, Outputs, ProgramKey};
use crate::batch::{
    Batch, Leaf, samples_of_shapes, signature, size_of_part, with_samples, without_skipped,
};
use crate::recent::Recent;
use crate::{BatchError, TraceError};

/// The default number of programs that are kept.
pub const KEPT_PROGRAMS: usize = 16;

/// A model's forward, recorded for the micro-batches of a step, and for every other mode and batch shape that is used.
///
/// The programs share one table of parameters, so a stage's parameters are valid for training,
/// evaluation and every batch size. A further shape costs milliseconds. The program of the largest micro-batch of the step and
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
    step: TracedStep,
    /// The largest micro-batch of the step.
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

/// The step that a trace is for.
#[derive(Clone, Copy, Debug)]
struct TracedStep {
    /// At least 1, and at most the samples.
    micro_batches: usize,
    /// `None` of a batch without samples.
    samples: Option<usize>,
}

impl TracedStep {
    /// The step over a batch.
    fn of<B: Batch>(batch: &B, micro_batches: usize) -> Result<Self, TraceError> {
        let samples = match samples_of_shapes(batch) {
            Ok(samples) => Some(samples),
            Err(BatchError::NoSamples) => None,
            // One that is not split may have any shapes.
            Err(BatchError::SampleCount { .. }) if micro_batches <= 1 => None,
            Err(source) => return Err(TraceError::Batch { source }),
        };
        Self::new(samples, micro_batches)
    }

    fn new(samples: Option<usize>, micro_batches: usize) -> Result<Self, TraceError> {
        match (1..=samples.unwrap_or(1)).contains(&micro_batches) {
            true => Ok(Self {
                micro_batches,
                samples,
            }),
            false => Err(TraceError::MicroBatches {
                micro_batches,
                samples,
            }),
        }
    }

    /// The samples of the largest micro-batch.
    fn largest(self) -> Option<usize> {
        Some(size_of_part(self.samples?, self.micro_batches, 0))
    }

    /// The samples of the smallest micro-batch, if it has fewer than the largest one.
    fn smaller(self) -> Option<usize> {
        let smallest = size_of_part(self.samples?, self.micro_batches, self.micro_batches - 1);
        Some(smallest).filter(|smallest| Some(*smallest) != self.largest())
    }

    /// The largest micro-batch of a step, given the batch of the step or another micro-batch.
    fn largest_of<B: Batch>(self, batch: &B) -> B {
        match self
            .largest()
            .filter(|samples| samples_of_shapes(batch).ok() != Some(*samples))
        {
            Some(samples) => with_samples(batch, samples),
            None => batch.clone(),
        }
    }
}

/// Traces a deferred model.
///
/// `batch` is the batch of one step, the largest that a step has, of all replicas; a step splits it into `micro_batches`
/// micro-batches, at least 1 and at most its samples. The values of `batch` are not read. `forward` receives the model and a
/// micro-batch and returns the loss and named outputs. It is called again for every further shape or mode, so it must depend
/// on nothing else.
///
/// The recorded program is the program of the largest micro-batch. If the samples can't be divided equally, the first
/// micro-batches have one sample more than the others. A batch without samples, all of whose tensors are
/// [`Whole`](crate::Whole), is one micro-batch.
pub trait Traceable<M: Module + Sync + 'static> {
    /// Returns the model, and the 16-bit dtype of its forward in mixed precision.
    #[doc(hidden)]
    fn traced(&self) -> (&Deferred<M>, Option<FloatDType>);

    /// Records `forward` in a mode: training for [`trace`](Self::trace), inference for
    /// [`trace_forward`](Self::trace_forward).
    ///
    /// # Errors
    ///
    /// As for [`trace`](Self::trace) and [`trace_forward`](Self::trace_forward).
    fn trace_in<B: Batch>(
        &self,
        mode: Mode,
        batch: &B,
        micro_batches: usize,
        forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
    ) -> Result<Trace<B>, TraceError> {
        let (model, compute) = self.traced();
        Trace::new(model, (batch, micro_batches), mode, compute, forward)
    }

    /// Records `forward` with its backward, for training and evaluation.
    ///
    /// # Errors
    ///
    /// [`TraceError::MicroBatches`] when the batch can't be split into so many micro-batches; [`TraceError::Batch`] when it has no
    /// samples, or its tensors have different numbers of them. When the forward panics or reads data; when it moves float
    /// tensors between devices; when it returns no loss of one element, or no parameter gets a gradient from the loss; when constructor or forward
    /// differ between two calls; when the forward reads a tensor field that is random or that passes a
    /// gradient on to the constructor, initializes a parameter in a field with `#[module(skip)]`,
    /// updates a running state in a way that can't be recorded, has a dropout or another layer of Burn that does not act
    /// because the forward moves integers or booleans of the batch, or returns no new value of a
    /// [carried](crate::Carried) tensor that has its shape and dtype.
    fn trace<B: Batch>(
        &self,
        batch: &B,
        micro_batches: usize,
        forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
    ) -> Result<Trace<B>, TraceError> {
        self.trace_in(Mode::Training, batch, micro_batches, forward)
    }

    /// Records `forward` only, for evaluation of whole batches as one micro-batch; it needs no loss. For more micro-batches, see
    /// [`trace_in`](Self::trace_in).
    ///
    /// # Errors
    ///
    /// [`TraceError::Batch`] when the batch has a dimension of 0 samples. When the forward panics, reads data or moves tensors
    /// between devices, or returns no new value of a
    /// [carried](crate::Carried) tensor that has its shape and dtype.
    fn trace_forward<B: Batch>(
        &self,
        batch: &B,
        forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
    ) -> Result<Trace<B>, TraceError> {
        self.trace_in(Mode::Inference, batch, 1, forward)
    }
}

impl<M: Module + Sync + 'static> Traceable<M> for Deferred<M> {
    fn traced(&self) -> (&Self, Option<FloatDType>) {
        (self, None)
    }
}

/// A model to be traced in mixed precision.
///
/// The forward is recorded as if the model had been constructed on a device whose default float dtype
/// is the 16-bit one: its parameters, its activations and the tensors that it creates have that dtype,
/// and the float tensors of a batch are cast where they are read. The f32 parameters of the ranks are
/// cast once per step; gradients are cast back and added in f32, and the optimizer uses f32 only.
///
/// A stage holds its parameters and their 16-bit copies. What stages add to the gradient of a shared parameter crosses between them
/// in 16 bits, and what a batch adds to a running statistic has 16 bits before it is added in f32.
///
/// Tensors that the model or its forward creates with an explicit dtype keep it. A computed tensor
/// field, such as a table of positions, is computed in 16 bits, unless the model requests more.
///
/// The objective is `loss * weight` in f32. A 16-bit loss has three digits (bf16) or four (f16); for
/// more, cast the scores before the loss, as in `loss.forward(logits.cast(DType::F32), targets)`, which
/// costs nothing in an f32 forward.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{DType, Device, Tensor};
/// use tinderbox_deferred::Deferred;
/// use tinderbox_graph::{MixedPrecision, Outputs, Traceable};
///
/// let model = Deferred::new(|device| LinearConfig::new(8, 8).init(device))?;
/// let batch = Tensor::<2>::zeros([8, 8], &Device::flex());
/// let trace = MixedPrecision::bf16(&model).trace(&batch, 4, |net: &Linear, x| {
///     Outputs::loss(net.forward(x).cast(DType::F32).mean())
/// })?;
/// assert_eq!(trace.parameters().bytes(), 4 * (8 * 8 + 8));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MixedPrecision<'a, M> {
    model: &'a Deferred<M>,
    compute: FloatDType,
}

impl<'a, M> MixedPrecision<'a, M> {
    /// Uses bf16: the range of f32, and eight bits of precision.
    pub fn bf16(model: &'a Deferred<M>) -> Self {
        let compute = FloatDType::BF16;
        Self { model, compute }
    }

    /// Uses f16: eleven bits of precision, and a range in which small gradients underflow, so a
    /// pipeline scales the loss (`LossScale`).
    pub fn f16(model: &'a Deferred<M>) -> Self {
        let compute = FloatDType::F16;
        Self { model, compute }
    }
}

impl<M: Module + Sync + 'static> Traceable<M> for MixedPrecision<'_, M> {
    fn traced(&self) -> (&Deferred<M>, Option<FloatDType>) {
        (self.model, Some(self.compute))
    }
}

impl<B: Batch> Trace<B> {
    fn new<M: Module + Sync + 'static>(
        model: &Deferred<M>,
        (batch, micro_batches): (&B, usize),
        mode: Mode,
        compute: Option<FloatDType>,
        forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
    ) -> Result<Self, TraceError> {
        let step = TracedStep::of(batch, micro_batches)?;
        let unstable = |source| TraceError::Constructor { source };
        model.check_stable().map_err(unstable)?;
        let mut options = model.options().clone();
        let mut recorded = model.parameters().clone();
        if let Some(compute) = compute {
            options.defaults.float_dtype = compute;
            recorded = model.parameters_with(&options).map_err(unstable)?;
        }
        let mut trace = Self {
            run: forward_fn(model.clone(), recorded, forward),
            constructor: model.graph().clone(),
            table: model.parameters().clone(),
            options,
            compute,
            step,
            example: step.largest_of(batch),
            mode,
            first: None,
            programs: Arc::new(Mutex::new(Recent::new(KEPT_PROGRAMS))),
            is_moving: Arc::default(),
            digests: Arc::default(),
        };
        let first = trace.example_program();
        let of_clones = |error: TraceError| error.of_clones(model.shared_id(), &trace.table);
        trace.first = Some(first.map_err(of_clones)?);
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

    /// Returns a trace of the same step in another number of micro-batches, at least 1 and at most its samples. Cost: a recording,
    /// if no program of such micro-batches is kept.
    ///
    /// # Errors
    ///
    /// As [`Traceable::trace`].
    pub fn with_micro_batches(&self, micro_batches: usize) -> Result<Self, TraceError> {
        let step = TracedStep::new(self.step.samples, micro_batches)?;
        let example = step.largest_of(&self.example);
        let first = Some(self.program(self.mode, &example)?);
        Ok(Self {
            step,
            example,
            first,
            ..self.clone()
        })
    }

    /// Returns the trace with its own cache of `programs` programs, which shares only the program of
    /// the largest micro-batch.
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

    /// Returns the mode in which the step was recorded.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the 16-bit dtype of a forward in [mixed precision](crate::MixedPrecision); `None` if the
    /// forward has the dtypes of the parameters.
    pub fn compute_dtype(&self) -> Option<FloatDType> {
        self.compute
    }

    /// Checks that the tensors of a batch have the dtypes of the traced batch: with others, the program would be another one, or
    /// Burn would panic.
    pub fn check_batch(&self, batch: &B) -> Result<(), BatchError> {
        let (traced, ..) = signature(&self.example);
        for Leaf { name, dtype, .. } in signature(batch).0 {
            let known = traced.iter().find(|known| known.name == name);
            if let Some(known) = known.filter(|known| known.dtype != dtype) {
                return Err(BatchError::DType {
                    name,
                    expected: known.dtype,
                    found: dtype,
                });
            }
        }
        Ok(())
    }

    /// Returns the program of the largest micro-batch of the step, in the mode in which it was traced, from which plans are
    /// created.
    ///
    /// # Errors
    ///
    /// Never: this program is always kept.
    pub fn example_program(&self) -> Result<Arc<JointGraph>, TraceError> {
        self.program(self.mode, &self.example)
    }

    /// Returns the number of micro-batches of a step, of all replicas.
    pub const fn micro_batches(&self) -> usize {
        self.step.micro_batches
    }

    /// Returns the number of samples of the batch of a step, of all replicas; `None` if it has none.
    pub const fn samples(&self) -> Option<usize> {
        self.step.samples
    }

    /// Returns the number of samples of the largest micro-batch; `None` if it has none.
    pub fn micro_batch_samples(&self) -> Option<usize> {
        self.step.largest()
    }

    /// Returns whether a program is for the micro-batches of the step, in any mode: for the largest ones, or for those with one
    /// sample less if the samples can't be divided equally.
    pub fn is_of_step(&self, key: &ProgramKey) -> bool {
        let has_shapes = |batch: &B| Self::key(key.mode, batch).0 == *key;
        let smaller = || Some(with_samples(&self.example, self.step.smaller()?));
        has_shapes(&self.example) || smaller().is_some_and(|batch| has_shapes(&batch))
    }

    /// Returns whether a program was recorded before, also if it is no longer kept.
    pub fn has_recorded(&self, key: &ProgramKey) -> bool {
        self.digests
            .lock()
            .contains_key(&name_digest(&key.to_string()))
    }

    /// Returns the program of micro-batches with another number of samples, in the mode in which the step was traced.
    ///
    /// # Errors
    ///
    /// As [`Traceable::trace`].
    pub fn program_of_samples(&self, samples: usize) -> Result<Arc<JointGraph>, TraceError> {
        self.program(self.mode, &with_samples(&self.example, samples))
    }

    /// The key of the program for a batch, and the tensors of the batch.
    pub fn key(mode: Mode, batch: &B) -> (ProgramKey, Vec<DynTensor>) {
        let (leaves, empty, tensors) = signature(batch);
        let key = ProgramKey {
            mode,
            leaves,
            empty,
        };
        (key, tensors)
    }

    /// Returns the program for a mode and micro-batches like `example`; recorded on first use, and again when
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
        let digest = name_digest(&name);
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

    /// Records a program with the skipped fields of another batch, if it has any: the skipped fields of the traced batch
    /// may have had their defaults.
    pub fn check_skipped(&self, program: &JointGraph, batch: &B) -> Result<(), TraceError> {
        match without_skipped(batch) {
            Some(_) => self.again(program, batch).map_err(skipped),
            None => Ok(()),
        }
    }

    /// Records the program of the largest micro-batch once more and compares.
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

/// The digest of the name of a program.
fn name_digest(name: &str) -> u128 {
    XxHash3_128::oneshot(name.as_bytes())
}

/// The error of a forward that depends on skipped fields.
fn skipped(error: TraceError) -> TraceError {
    let source = Box::new(error);
    TraceError::SkippedField { source }
}
