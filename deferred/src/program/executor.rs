//! Runs programs on a device, through Burn's own interpreter of recorded operations.

use std::collections::HashMap;
use std::sync::Arc;

use burn::tensor::{DType, Device, Shape};
use burn_dispatch::{DispatchDevice, DispatchKindConversion, DispatchTensor};
use burn_flex::Flex;
use burn_ir::{BackendIr, HandleKind, OperationIr, TensorId, TensorIr, TensorStatus};
use burn_router::TensorInterpreter;
use rayon::prelude::*;
use tinderbox_fake::{DynTensor, ValueId, is_host};

use super::handle::handle;
use super::rows::{self, ProgramInput, Rows};
use super::stack::StackDepth;
use super::sums::{divided_sum, with_ordered_sums};
use super::{Dtypes, Program, RandomKey, RandomStep, Step, indices, operation, tensor_id};
use crate::random::{RandomBackend, Seed, Stream, Wanted, tensor};
use crate::{ProgramError, check_device};

/// The inputs of random operations in addition to their key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunContext {
    /// Seed of the model or run.
    pub seed: Seed,
    /// Training step; 0 for initialization.
    pub step: u32,
    /// Micro-batch; 0 for initialization.
    pub micro_batch: u32,
}

impl RunContext {
    /// Returns the context of initialization.
    pub fn initialization(seed: Seed) -> Self {
        Self {
            seed,
            step: 0,
            micro_batch: 0,
        }
    }

    fn stream(&self, key: &RandomKey) -> Stream {
        Stream::new(self.seed, key.domain, &key.owner, key.draw).at(self.step, self.micro_batch)
    }
}

/// Gets the values that a program's operations compute.
pub type ValueObserver<'a> = dyn FnMut(ValueId, DynTensor) + 'a;

/// Runs programs on one device.
#[derive(Clone, Debug)]
pub struct Executor {
    device: Device,
    checks_indices: bool,
}

impl Executor {
    /// Creates an executor on a plain (not autodiff) device.
    ///
    /// # Errors
    ///
    /// When the device is fake, or the machine does not have it.
    pub fn new(device: &Device) -> Result<Self, ProgramError> {
        let device = device.clone().without_autodiff();
        check_device(&device)?;
        Ok(Self {
            device,
            checks_indices: false,
        })
    }

    /// Sets whether programs check indices before each gather, selection, embedding and scatter. By default they
    /// don't: the effect of an index out of range then depends on the backend, on the CPU it is a panic. Costs one
    /// pass over the indices; on a GPU, each such operation waits for all work that was queued before it.
    #[must_use]
    pub fn checking_indices(self, checks: bool) -> Self {
        Self {
            checks_indices: checks,
            ..self
        }
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Copies the constants of a program to the device, so that it can run many times. On the CPU a program in an
    /// `Arc` is shared, not copied.
    pub fn load(&self, program: impl Into<Arc<Program>>) -> Executable {
        let program: Arc<Program> = program.into();
        let constants = program
            .constants
            .iter()
            .map(|(_, data)| DynTensor::from_data(data.clone(), &self.device))
            .collect();
        Executable {
            program: program.for_device(&self.device),
            constants,
            device: self.device.clone(),
            checks_indices: self.checks_indices,
            stack: Arc::default(),
        }
    }
}

/// A program with its constants on a device.
#[derive(Clone, Debug)]
pub struct Executable {
    program: Arc<Program>,
    constants: Vec<DynTensor>,
    device: Device,
    checks_indices: bool,
    /// Shared by all copies.
    stack: Arc<StackDepth>,
}

impl Executable {
    /// Returns the program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Runs the program and returns its outputs in order.
    ///
    /// An input whose data is not shared is freed or reused at its last use.
    ///
    /// # Errors
    ///
    /// When there are more or fewer inputs than the program has, or one is of another shape, dtype
    /// or backend; when random values can't be generated; when an index is out of range and indices are
    /// [checked](Executor::checking_indices).
    ///
    /// # Panics
    ///
    /// When Burn's operation panics.
    pub fn run(
        &self,
        inputs: Vec<DynTensor>,
        context: &RunContext,
    ) -> Result<Vec<DynTensor>, ProgramError> {
        self.run_with(given(inputs), context, &|| false, None)
    }

    /// Runs the program as [`run`](Self::run) does, until a condition holds before one of its operations. An input may be a table
    /// whose rows are read when an operation reads them; the values are the same.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), [`ProgramError::Stopped`], and [`ProgramError::Rows`]. Indices of rows are always checked.
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run).
    pub fn run_until(
        &self,
        inputs: Vec<ProgramInput>,
        context: &RunContext,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Vec<DynTensor>, ProgramError> {
        self.run_with(inputs, context, is_stopped, None)
    }

    /// Runs the program as [`run`](Self::run) does, and gives every value that an operation has computed to an observer, in
    /// the order in which they are computed. Each operation runs alone, and none in the memory of its inputs if the observer keeps
    /// them; the values are the same.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run).
    pub fn run_observed(
        &self,
        inputs: Vec<DynTensor>,
        context: &RunContext,
        observer: &mut ValueObserver<'_>,
    ) -> Result<Vec<DynTensor>, ProgramError> {
        self.run_with(given(inputs), context, &|| false, Some(observer))
    }

    fn run_with(
        &self,
        mut inputs: Vec<ProgramInput>,
        context: &RunContext,
        is_stopped: &dyn Fn() -> bool,
        observer: Option<&mut ValueObserver<'_>>,
    ) -> Result<Vec<DynTensor>, ProgramError> {
        if inputs.len() != self.program.inputs.len() {
            return Err(ProgramError::InputCount {
                expected: self.program.inputs.len(),
                found: inputs.len(),
            });
        }
        let takes = self.program.inputs.iter().zip(&self.program.input_types);
        for ((value, (shape, dtype)), input) in takes.zip(&mut inputs) {
            let ProgramInput::Value(input) = input else {
                continue;
            };
            // Booleans from another device may be stored differently.
            if let (DType::Bool(expected), DType::Bool(found)) = (*dtype, input.dtype())
                && expected != found
            {
                let data = input.to_data()?.convert_dtype(*dtype);
                *input = DynTensor::from_data(data, &self.device);
            }
            if input.shape() != *shape || input.dtype() != *dtype {
                let describe = |dtype: DType, shape: &Shape| {
                    format!("{dtype:?}{:?}", shape.as_slice()).to_lowercase()
                };
                return Err(ProgramError::InputType {
                    value: *value,
                    expected: describe(*dtype, shape),
                    found: describe(input.dtype(), &input.shape()),
                });
            }
        }
        match self.device.as_dispatch() {
            DispatchDevice::Flex(device) => {
                let run = || self.interpret::<Flex>(*device, inputs, context, is_stopped, observer);
                self.stack.run(run)
            }
            #[cfg(feature = "cubecl")]
            DispatchDevice::Cube(device) => {
                let device = device.clone();
                self.interpret::<burn_cubecl::Cube>(device, inputs, context, is_stopped, observer)
            }
            _ => unreachable!("an executor refuses other devices when it is made"),
        }
    }

    fn interpret<B>(
        &self,
        device: B::Device,
        inputs: Vec<ProgramInput>,
        context: &RunContext,
        is_stopped: &dyn Fn() -> bool,
        mut observer: Option<&mut ValueObserver<'_>>,
    ) -> Result<Vec<DynTensor>, ProgramError>
    where
        B: RandomBackend,
        DispatchTensor: DispatchKindConversion<B>,
    {
        let mut interpreter = TensorInterpreter::<B>::new(device.clone());
        for ((value, _), tensor) in self.program.constants.iter().zip(&self.constants) {
            let handle = handle::<B>(tensor.clone())?;
            interpreter.register_tensor_to_device(tensor_id(*value), handle);
        }
        let mut tables: HashMap<TensorId, Arc<dyn Rows>> = HashMap::new();
        for (value, input) in self.program.inputs.iter().zip(inputs) {
            let id = tensor_id(*value);
            match input {
                ProgramInput::Value(tensor) => {
                    interpreter.register_tensor_to_device(id, handle::<B>(tensor)?);
                }
                ProgramInput::Rows(rows) => {
                    tables.insert(id, rows);
                }
            }
        }
        let is_host = is_host(&self.device);
        // A device other than the CPU runs its queue in parallel to this thread.
        let has_threads = is_host && observer.is_none() && rayon::current_num_threads() > 1;
        let operation_of = |interpreter: &mut _, node, last_uses| {
            let mut operation = self.program.operation(node, last_uses);
            if !is_host {
                operation.visit_mut(&mut Dtypes(&self.device));
            }
            if self.checks_indices {
                indices::check(interpreter, &operation)?;
            }
            if !tables.is_empty() {
                rows::read(interpreter, &mut operation, &tables, &self.device)?;
            }
            Ok::<_, ProgramError>(operation)
        };
        for step in &self.program.steps {
            if is_stopped() {
                return Err(ProgramError::Stopped);
            }
            match step {
                Step::Operation { node, last_uses } => {
                    let operation = operation_of(&mut interpreter, *node, last_uses)?;
                    run_one(&mut interpreter, &self.device, operation, &mut observer);
                }
                Step::Together(together) => {
                    let operations = together.operations.iter();
                    let operations = operations
                        .map(|(node, last_uses)| operation_of(&mut interpreter, *node, last_uses));
                    let operations = operations.collect::<Result<Vec<_>, _>>()?;
                    match has_threads {
                        true => run_together(&mut interpreter, operations),
                        false => operations.into_iter().for_each(|operation| {
                            run_one(&mut interpreter, &self.device, operation, &mut observer);
                        }),
                    }
                }
                Step::Free(value) if tables.contains_key(&value.id) => {}
                Step::Free(value) => interpreter.register_op(OperationIr::Drop((**value).clone())),
                Step::Random(random) => {
                    let RandomStep {
                        out,
                        distribution,
                        draw,
                    } = &**random;
                    let stream = context.stream(&draw.key);
                    let wanted = Wanted {
                        stream: &stream,
                        distribution: *distribution,
                        whole: &draw.whole,
                        region: &draw.region,
                        dtype: out.dtype,
                    };
                    let made = B::random(&device, &wanted)?;
                    interpreter.register_tensor_to_device(out.id, made);
                    if let Some(observer) = &mut observer {
                        observe(&mut interpreter, out.clone(), observer);
                    }
                }
            }
        }
        let outputs = self.program.outputs.iter();
        Ok(outputs
            .map(|out| tensor::<B>(interpreter.get_tensor(out)))
            .collect())
    }
}

/// Runs an operation, and gives what it computes to an observer.
fn run_one<B: BackendIr>(
    interpreter: &mut TensorInterpreter<B>,
    device: &Device,
    operation: OperationIr,
    observer: &mut Option<&mut ValueObserver<'_>>,
) where
    DispatchTensor: DispatchKindConversion<B>,
{
    let made: Vec<TensorIr> = match observer {
        Some(_) => operation.outputs().cloned().collect(),
        None => Vec::new(),
    };
    match divided_sum(&operation) {
        None => operation::run(interpreter, operation),
        Some(elements) => {
            let apart = Apart::new(interpreter, operation);
            let outputs = with_ordered_sums(device, elements, || apart.run());
            register(interpreter, outputs);
        }
    }
    if let Some(observer) = observer {
        for out in made {
            observe(interpreter, out, observer);
        }
    }
}

/// Gives a value that an operation has computed to an observer.
fn observe<B: BackendIr>(
    interpreter: &mut TensorInterpreter<B>,
    mut made: TensorIr,
    observer: &mut ValueObserver<'_>,
) where
    DispatchTensor: DispatchKindConversion<B>,
{
    made.status = TensorStatus::ReadOnly;
    if let Some(value) = ValueId::of_tensor(&made) {
        observer(value, tensor::<B>(interpreter.get_tensor(&made)));
    }
}

/// Runs operations at the same time.
fn run_together<B: BackendIr>(
    interpreter: &mut TensorInterpreter<B>,
    operations: Vec<OperationIr>,
) {
    let apart = operations.into_iter();
    let apart: Vec<_> = apart
        .map(|operation| Apart::new(interpreter, operation))
        .collect();
    let outputs: Vec<_> = apart.into_par_iter().map(Apart::run).collect();
    register(interpreter, outputs.into_iter().flatten());
}

/// Values by id.
type Handles<B> = Vec<(TensorId, HandleKind<B>)>;

/// An operation with its inputs, which another thread can run in an interpreter of its own.
struct Apart<B: BackendIr> {
    device: B::Device,
    operation: OperationIr,
    inputs: Handles<B>,
}

impl<B: BackendIr> Apart<B> {
    fn new(interpreter: &mut TensorInterpreter<B>, operation: OperationIr) -> Self {
        let inputs = operation.inputs();
        let inputs = inputs.map(|input| (input.id, interpreter.get_tensor(input)));
        Self {
            inputs: inputs.collect(),
            device: interpreter.device(),
            operation,
        }
    }

    fn run(self) -> Handles<B> {
        let mut own = TensorInterpreter::<B>::new(self.device);
        register(&mut own, self.inputs);
        let outputs: Vec<TensorIr> = self.operation.outputs().cloned().collect();
        operation::run(&mut own, self.operation);
        let outputs = outputs.into_iter().map(|mut output| {
            output.status = TensorStatus::ReadWrite;
            (output.id, own.get_tensor(&output))
        });
        outputs.collect()
    }
}

fn register<B: BackendIr>(
    interpreter: &mut TensorInterpreter<B>,
    values: impl IntoIterator<Item = (TensorId, HandleKind<B>)>,
) {
    for (id, value) in values {
        interpreter.register_tensor_to_device(id, value);
    }
}

/// Values as inputs.
fn given(values: Vec<DynTensor>) -> Vec<ProgramInput> {
    values.into_iter().map(ProgramInput::Value).collect()
}
