//! Runs a program on values other than tensors, with the same liveness as on tensors.

use burn::tensor::{Distribution, Shape, TensorData};
use burn_ir::{OperationIr, TensorId, TensorIr};
use tinderbox_fake::{Region, ValueId, operation_name};

use super::{Program, RandomKey, Step};
use crate::ProgramError;

/// Random values that a program generates with the counter-based generator.
#[derive(Clone, Copy, Debug)]
pub struct RandomValues<'a> {
    /// The output tensor.
    pub out: &'a TensorIr,
    /// The distribution of its elements.
    pub distribution: Distribution,
    /// The key of its stream.
    pub key: &'a RandomKey,
    /// Shape of the whole random tensor.
    pub whole: &'a Shape,
    /// The part of it that is generated.
    pub region: &'a Region,
}

/// The semantics of a program's steps for values that are not tensors, such as hashes.
pub trait Interpreter {
    /// The value of a tensor.
    type Value: Clone;
    /// The error of a rejected program.
    type Error: From<ProgramError>;

    /// Returns the value of a constant of the program.
    ///
    /// # Errors
    ///
    /// When the constant is rejected.
    fn constant(&mut self, value: ValueId, data: &TensorData) -> Result<Self::Value, Self::Error>;

    /// Runs an operation: pushes one value per output, in the order of `operation.outputs()`. The inputs are in the
    /// order of `operation.inputs()`.
    ///
    /// # Errors
    ///
    /// When the operation is rejected.
    fn operation(
        &mut self,
        operation: &OperationIr,
        inputs: &[Self::Value],
        outputs: &mut Vec<Self::Value>,
    ) -> Result<(), Self::Error>;

    /// Returns the value of a random tensor.
    ///
    /// # Errors
    ///
    /// When it is rejected.
    fn random(&mut self, random: RandomValues<'_>) -> Result<Self::Value, Self::Error>;
}

impl Program {
    /// Runs the program on values of an interpreter and returns its outputs in order.
    ///
    /// A value is removed where the program on tensors frees it or reuses its memory: after its last use, or by a drop.
    /// Cost: linear in the program.
    ///
    /// # Errors
    ///
    /// When the number of inputs is wrong, when a value is read that does not exist or no longer exists, and the errors
    /// of the interpreter.
    pub fn interpret<I: Interpreter>(
        &self,
        interpreter: &mut I,
        inputs: Vec<I::Value>,
    ) -> Result<Vec<I::Value>, I::Error> {
        self.check_input_count(inputs.len())?;
        let mut values = Held(Vec::new());
        for (id, value) in self.inputs.iter().zip(inputs) {
            values.put(id.index(), value);
        }
        for (id, data) in &self.constants {
            values.put(id.index(), interpreter.constant(*id, data)?);
        }
        let (mut operands, mut made) = (Vec::new(), Vec::new());
        for step in &self.steps {
            match step {
                Step::Operation { .. } | Step::Together(_) => {
                    // All have read their inputs before any has a result.
                    for (node, last_uses) in step.operations() {
                        let operation = &self.nodes[node.index()].operation;
                        values.take_all(operation, self.last_uses(last_uses), &mut operands)?;
                    }
                    let mut rest = operands.as_slice();
                    for (node, _) in step.operations() {
                        let node = &self.nodes[node.index()];
                        let (inputs, others) = rest.split_at(node.inputs().len());
                        interpreter.operation(&node.operation, inputs, &mut made)?;
                        values.put_all(&node.operation, made.drain(..));
                        rest = others;
                    }
                    operands.clear();
                }
                Step::Free(value) => values.free(value)?,
                Step::Random(random) => {
                    let value = interpreter.random(RandomValues {
                        out: &random.out,
                        distribution: random.distribution,
                        key: &random.draw.key,
                        whole: &random.draw.whole,
                        region: &random.draw.region,
                    })?;
                    values.put(random.out.id.value() as usize, value);
                }
            }
        }
        let outputs = self.outputs.iter();
        let outputs = outputs.map(|out| values.read(out, || "the program's output".into()));
        Ok(outputs.collect::<Result<_, _>>()?)
    }
}

/// One value of a running program.
#[derive(Clone)]
enum Slot<V> {
    Empty,
    Held(V),
    Freed,
}

/// The values of a running program, by id.
struct Held<V>(Vec<Slot<V>>);

impl<V: Clone> Held<V> {
    fn put(&mut self, id: usize, value: V) {
        if self.0.len() <= id {
            self.0.resize(id + 1, Slot::Empty);
        }
        self.0[id] = Slot::Held(value);
    }

    /// Keeps the results of an operation.
    fn put_all(&mut self, operation: &OperationIr, results: impl Iterator<Item = V>) {
        for (out, value) in operation.outputs().zip(results) {
            self.put(out.id.value() as usize, value);
        }
    }

    /// Reads a value.
    fn read(&self, tensor: &TensorIr, reader: impl FnOnce() -> String) -> Result<V, ProgramError> {
        let value = ValueId::of_tensor(tensor).expect("the ids of a program are ids of a graph");
        let slot = self.0.get(value.index());
        if let Some(Slot::Held(held)) = slot {
            return Ok(held.clone());
        }
        let reader = reader();
        Err(match slot {
            Some(Slot::Freed) => ProgramError::Freed { value, reader },
            _ => ProgramError::NotAtHand { value, reader },
        })
    }

    /// Frees a value that no operation uses last.
    fn free(&mut self, tensor: &TensorIr) -> Result<(), ProgramError> {
        self.read(tensor, || "a drop".into())?;
        self.0[tensor.id.value() as usize] = Slot::Freed;
        Ok(())
    }

    /// Reads the inputs of an operation, and frees those that it uses last.
    ///
    /// The interpreter of tensors may fetch operands in another order than they are listed, so an operation that reads
    /// a value twice must not free it.
    fn take_all(
        &mut self,
        operation: &OperationIr,
        last_uses: &[TensorId],
        into: &mut Vec<V>,
    ) -> Result<(), ProgramError> {
        for input in operation.inputs() {
            into.push(self.read(input, || operation_name(operation))?);
        }
        for last in last_uses {
            let mut reads = operation.inputs().filter(|input| input.id == *last);
            if let (Some(input), Some(_)) = (reads.next(), reads.next()) {
                return Err(ProgramError::Freed {
                    value: ValueId::of_tensor(input).expect("its id was valid when it was read"),
                    reader: operation_name(operation),
                });
            }
            self.0[last.value() as usize] = Slot::Freed;
        }
        Ok(())
    }
}
