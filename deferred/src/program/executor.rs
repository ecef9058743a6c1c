//! Runs programs on a device, through Burn's own interpreter of recorded operations.

use std::collections::HashMap;
use std::sync::Arc;

use burn::tensor::{DType, Device, Shape};
use burn_dispatch::DispatchDevice;
use burn_flex::Flex;
use burn_ir::{BackendIr, HandleKind, OperationIr, TensorId, TensorIr, TensorStatus};
use burn_router::TensorInterpreter;
use rayon::prelude::*;
use tinderbox_fake::{DynTensor, ValueId, change_tensors, dtype_on, is_host};

use super::operation::{self, summed_elements, tensor_id};
use super::rows::{self, ProgramInput, Rows};
use super::stack::StackDepth;
use super::sums::{is_divided, with_ordered_sums};
use super::{Program, RandomKey, Step, indices};
use crate::device::DeviceBackend;
use crate::random::{Seed, Stream, generate_on_device};
use crate::{ProgramError, check_device};

/// The values that, together with the key of a random operation, determine its random values.
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
    /// Returns the context of an initialization with a seed.
    pub fn initialization(seed: Seed) -> Self {
        Self {
            seed,
            step: 0,
            micro_batch: 0,
        }
    }

    /// Returns the stream of random values of an operation.
    fn stream(&self, key: &RandomKey) -> Stream {
        Stream::new(self.seed, key.domain, &key.owner, key.draw).at(self.step, self.micro_batch)
    }
}

/// A closure that receives each value that an operation of a program computes.
pub type ValueObserver<'a> = dyn FnMut(ValueId, DynTensor) + 'a;

/// Loads programs onto one device, to run them there.
#[derive(Clone, Debug)]
pub struct Executor {
    device: Device,
    checks_indices: bool,
}

impl Executor {
    /// Creates an executor on a device. Autodiff of the device is removed: the operations of a program already include its
    /// backward pass.
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

    /// Sets whether programs check indices before each gather, selection, embedding and scatter. The default is `false`.
    /// Without the check, the effect of an index out of range depends on the backend; on the CPU it is a panic.
    ///
    /// Cost of the check: one pass over the indices. On a GPU, each such operation also waits for all work that was queued
    /// before it.
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

    /// Copies the constants of a program to the device once, for any number of runs. A program in an `Arc` is shared, not
    /// copied.
    pub fn load(&self, program: impl Into<Arc<Program>>) -> Executable {
        let program: Arc<Program> = program.into();
        let constants = program.constants.iter();
        let constants = constants.map(|(_, data)| DynTensor::from_data(data.clone(), &self.device));
        Executable {
            constants: constants.collect(),
            program,
            executor: self.clone(),
            stack: Arc::default(),
        }
    }
}

/// A program with its constants on a device. It can run many times.
#[derive(Clone, Debug)]
pub struct Executable {
    program: Arc<Program>,
    constants: Vec<DynTensor>,
    executor: Executor,
    /// Finds the depth of the stack at which runs on the CPU are faster. All clones share it.
    stack: Arc<StackDepth>,
}

impl Executable {
    /// Returns the program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Runs the program and returns its outputs in order.
    ///
    /// The memory of an input is freed or reused at its last use, unless another handle shares it.
    ///
    /// # Errors
    ///
    /// When the number of inputs is wrong, or an input has the wrong shape, dtype or backend; when random values can't be
    /// generated; when [checked](Executor::checking_indices) indices are out of range.
    ///
    /// # Panics
    ///
    /// When an operation of Burn panics.
    pub fn run(
        &self,
        inputs: Vec<DynTensor>,
        context: &RunContext,
    ) -> Result<Vec<DynTensor>, ProgramError> {
        let inputs = inputs.into_iter().map(Into::into);
        self.run_with(inputs, context, &|| false, None)
    }

    /// Runs the program as [`run`](Self::run) does. Calls `is_stopped` before each step, and returns
    /// [`ProgramError::Stopped`] once it is true.
    ///
    /// An input may be a [table](ProgramInput::Rows). When an operation reads rows of the table, only these rows are read
    /// from it. The outputs are the same as with the whole table in memory.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run), [`ProgramError::Stopped`], and [`ProgramError::Rows`] if rows can't be read. The
    /// indices of rows are always checked.
    ///
    /// # Panics
    ///
    /// When an operation of Burn panics.
    pub fn run_until(
        &self,
        inputs: Vec<ProgramInput>,
        context: &RunContext,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Vec<DynTensor>, ProgramError> {
        self.run_with(inputs, context, is_stopped, None)
    }

    /// Runs the program as [`run`](Self::run) does, and passes every computed value to an observer, in the order in which
    /// the values are computed.
    ///
    /// With an observer, operations run one at a time. An operation does not reuse the memory of a value that the observer
    /// keeps. The values are the same as without an observer.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run).
    ///
    /// # Panics
    ///
    /// When an operation of Burn panics.
    pub fn run_observed(
        &self,
        inputs: Vec<DynTensor>,
        context: &RunContext,
        observer: &mut ValueObserver<'_>,
    ) -> Result<Vec<DynTensor>, ProgramError> {
        let inputs = inputs.into_iter().map(Into::into);
        self.run_with(inputs, context, &|| false, Some(observer))
    }

    /// Checks the inputs, and runs the program on the backend of the device.
    fn run_with(
        &self,
        inputs: impl IntoIterator<Item = ProgramInput>,
        context: &RunContext,
        is_stopped: &dyn Fn() -> bool,
        observer: Option<&mut ValueObserver<'_>>,
    ) -> Result<Vec<DynTensor>, ProgramError> {
        let mut inputs: Vec<ProgramInput> = inputs.into_iter().collect();
        let device = self.executor.device();
        self.program.check_input_count(inputs.len())?;
        let expected = self.program.inputs.iter().zip(&self.program.input_types);
        for ((value, (shape, dtype)), input) in expected.zip(&mut inputs) {
            let ProgramInput::Value(input) = input else {
                continue;
            };
            let dtype = dtype_on(*dtype, device);
            // A boolean tensor from another device may have another representation. It is converted.
            if let (DType::Bool(expected), DType::Bool(found)) = (dtype, input.dtype())
                && expected != found
            {
                let data = input.to_data()?.convert_dtype(dtype);
                *input = DynTensor::from_data(data, device);
            }
            if input.shape() != *shape || input.dtype() != dtype {
                let describe = |dtype: DType, shape: &Shape| {
                    format!("{dtype:?}{:?}", shape.as_slice()).to_lowercase()
                };
                return Err(ProgramError::InputType {
                    value: *value,
                    expected: describe(dtype, shape),
                    found: describe(input.dtype(), &input.shape()),
                });
            }
        }
        match device.as_dispatch() {
            DispatchDevice::Flex(device) => {
                let run = Run::<Flex>::of(self, device, context, observer);
                self.stack.run(|| run.run_program(inputs, is_stopped))
            }
            #[cfg(feature = "cubecl")]
            DispatchDevice::Cube(device) => {
                let run = Run::<burn_cubecl::Cube>::of(self, device, context, observer);
                run.run_program(inputs, is_stopped)
            }
            _ => unreachable!("an executor is only created on these devices"),
        }
    }
}

/// One run of a program, on Burn's interpreter.
struct Run<'a, 'b, B: BackendIr> {
    executable: &'a Executable,
    context: &'a RunContext,
    interpreter: TensorInterpreter<B>,
    /// The inputs that are tables. The interpreter does not have them.
    tables: HashMap<TensorId, Arc<dyn Rows>>,
    observer: Option<&'a mut ValueObserver<'b>>,
}

impl<'a, 'b, B: DeviceBackend> Run<'a, 'b, B> {
    fn of(
        executable: &'a Executable,
        device: &B::Device,
        context: &'a RunContext,
        observer: Option<&'a mut ValueObserver<'b>>,
    ) -> Self {
        Self {
            executable,
            context,
            interpreter: TensorInterpreter::new(device.clone()),
            tables: HashMap::new(),
            observer,
        }
    }

    /// Runs all steps and returns the outputs.
    fn run_program(
        mut self,
        inputs: Vec<ProgramInput>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Vec<DynTensor>, ProgramError> {
        let program = &self.executable.program;
        let values = program.constants.iter().map(|(value, _)| value);
        let constants = self.executable.constants.iter().cloned();
        let constants = constants.map(ProgramInput::Value);
        for (value, input) in values.chain(&program.inputs).zip(constants.chain(inputs)) {
            let id = tensor_id(*value);
            match input {
                ProgramInput::Value(tensor) => self.put(id, B::of_dyn(tensor)?),
                ProgramInput::Rows(rows) => drop(self.tables.insert(id, rows)),
            }
        }
        for step in &program.steps {
            if is_stopped() {
                return Err(ProgramError::Stopped);
            }
            match step {
                Step::Operation { node, last_uses } => {
                    let mut operation = program.operation(*node, last_uses);
                    self.prepare(&mut operation)?;
                    self.run_operation(operation);
                }
                Step::Together(together) => {
                    let operations = together.operations.iter();
                    let operations = operations.map(|(node, uses)| program.operation(*node, uses));
                    let mut operations: Vec<OperationIr> = operations.collect();
                    operations
                        .iter_mut()
                        .try_for_each(|one| self.prepare(one))?;
                    self.run_together(operations);
                }
                // A table is not in the interpreter, so there is nothing to free.
                Step::Free(value) if self.tables.contains_key(&value.id) => {}
                Step::Free(value) => {
                    let value = (**value).clone();
                    self.interpreter.register_op(OperationIr::Drop(value));
                }
                Step::Random(random) => {
                    let (out, draw) = (&random.out, &random.draw);
                    let value = generate_on_device(
                        self.executable.executor.device(),
                        &self.context.stream(&draw.key),
                        random.distribution,
                        &draw.whole,
                        &draw.region,
                        out.dtype,
                    )?;
                    self.put(out.id, B::of_dyn(value)?);
                    self.observe(out.clone());
                }
            }
        }
        let mut get = |out| B::to_dyn(self.interpreter.get_tensor(out));
        Ok(program.outputs.iter().map(&mut get).collect())
    }

    /// Prepares an operation to run: sets the dtypes that the device uses, checks indices, and reads the required rows of
    /// tables.
    fn prepare(&mut self, operation: &mut OperationIr) -> Result<(), ProgramError> {
        let executor = &self.executable.executor;
        let device = &executor.device;
        if !is_host(device) {
            change_tensors(operation, |tensor| {
                tensor.dtype = dtype_on(tensor.dtype, device)
            });
        }
        if executor.checks_indices {
            indices::check(&mut self.interpreter, operation)?;
        }
        if !self.tables.is_empty() {
            rows::read(&mut self.interpreter, operation, &self.tables, device)?;
        }
        Ok(())
    }

    /// Runs an operation. A large sum on the CPU runs on one thread, so that its order is fixed.
    fn run_operation(&mut self, operation: OperationIr) {
        let outputs: Vec<TensorIr> = match self.observer {
            Some(_) => operation.outputs().cloned().collect(),
            None => Vec::new(),
        };
        match summed_elements(&operation).filter(|elements| is_divided(*elements)) {
            None => operation::run(&mut self.interpreter, operation),
            Some(elements) => {
                let detached = self.detach(operation);
                let device = self.executable.executor.device();
                self.put_all(with_ordered_sums(device, elements, || detached.run()));
            }
        }
        outputs.into_iter().for_each(|out| self.observe(out));
    }

    /// Runs operations that do not depend on each other. On the CPU, runs several at the same time if the pool has threads
    /// for them.
    fn run_together(&mut self, operations: Vec<OperationIr>) {
        let operations = operations.into_iter();
        // A device other than the CPU has its own queue, so threads here gain nothing. An observer gets the values in
        // order.
        let is_host = is_host(self.executable.executor.device());
        if !is_host || rayon::current_num_threads() == 1 || self.observer.is_some() {
            return operations.for_each(|operation| self.run_operation(operation));
        }
        let detached: Vec<Detached<B>> = operations.map(|one| self.detach(one)).collect();
        let outputs: Vec<_> = detached.into_par_iter().map(Detached::run).collect();
        self.put_all(outputs.into_iter().flatten());
    }

    /// Passes a computed value to the observer.
    fn observe(&mut self, mut output: TensorIr) {
        // The interpreter keeps a tensor that is read with this status, for later operations.
        output.status = TensorStatus::ReadOnly;
        if let (Some(observer), Some(value)) = (&mut self.observer, ValueId::of_tensor(&output)) {
            observer(value, B::to_dyn(self.interpreter.get_tensor(&output)));
        }
    }

    /// Returns an operation with its inputs, to run it outside of this interpreter. An input that is read for the last time
    /// is removed from the interpreter.
    fn detach(&mut self, operation: OperationIr) -> Detached<B> {
        let inputs = operation.inputs();
        let inputs = inputs.map(|input| (input.id, self.interpreter.get_tensor(input)));
        Detached {
            inputs: inputs.collect(),
            device: self.interpreter.device(),
            operation,
        }
    }

    fn put(&mut self, id: TensorId, value: HandleKind<B>) {
        self.interpreter.register_tensor_to_device(id, value);
    }

    fn put_all(&mut self, values: impl IntoIterator<Item = (TensorId, HandleKind<B>)>) {
        values
            .into_iter()
            .for_each(|(id, value)| self.put(id, value));
    }
}

/// Values with their ids.
type Handles<B> = Vec<(TensorId, HandleKind<B>)>;

/// An operation with its inputs. Any thread can run it, in an interpreter of its own.
struct Detached<B: BackendIr> {
    device: B::Device,
    operation: OperationIr,
    inputs: Handles<B>,
}

impl<B: BackendIr> Detached<B> {
    /// Runs the operation and returns its outputs.
    fn run(self) -> Handles<B> {
        let mut own = TensorInterpreter::<B>::new(self.device);
        for (id, value) in self.inputs {
            own.register_tensor_to_device(id, value);
        }
        let outputs: Vec<TensorIr> = self.operation.outputs().cloned().collect();
        operation::run(&mut own, self.operation);
        let outputs = outputs.into_iter().map(|mut output| {
            // With this status, the value is removed from the interpreter. A second handle would prevent reuse of its
            // memory.
            output.status = TensorStatus::ReadWrite;
            (output.id, own.get_tensor(&output))
        });
        outputs.collect()
    }
}
