//! Runs a program on values other than tensors, with the same liveness as on tensors.

use burn::tensor::{Distribution, Shape, TensorData};
use burn_ir::{OperationIr, TensorId, TensorIr};
use tinderbox_fake::{Operation, Region, ValueId};

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
    /// When the number of inputs is wrong, when a value is read that does not exist or no longer exists, and when the
    /// interpreter fails.
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
                    // All operations read their inputs before the first has a result.
                    for (node, last_uses) in step.operations() {
                        let operation = &self.nodes[node.index()].operation;
                        values.read_inputs(operation, self.last_uses(last_uses), &mut operands)?;
                    }
                    let mut rest = operands.as_slice();
                    for (node, _) in step.operations() {
                        let node = &self.nodes[node.index()];
                        let (inputs, others) = rest.split_at(node.inputs().len());
                        interpreter.operation(&node.operation, inputs, &mut made)?;
                        for (out, value) in node.outputs().iter().zip(made.drain(..)) {
                            values.put(out.index(), value);
                        }
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

/// The values of a running program, by id; `None` for values that are freed or not computed yet.
struct Held<V>(Vec<Option<V>>);

impl<V: Clone> Held<V> {
    fn put(&mut self, id: usize, value: V) {
        if self.0.len() <= id {
            self.0.resize(id + 1, None);
        }
        self.0[id] = Some(value);
    }

    /// Reads a value.
    fn read(&self, tensor: &TensorIr, reader: impl FnOnce() -> String) -> Result<V, ProgramError> {
        let value = ValueId::of_tensor(tensor).expect("the ids of a program are ids of a graph");
        let held = self.0.get(value.index()).and_then(Option::as_ref);
        held.cloned().ok_or_else(|| ProgramError::Unavailable {
            value,
            reader: reader(),
        })
    }

    /// Frees a value that no operation uses last.
    fn free(&mut self, tensor: &TensorIr) -> Result<(), ProgramError> {
        self.read(tensor, || "a drop".into())?;
        self.0[tensor.id.value() as usize] = None;
        Ok(())
    }

    /// Reads the inputs of an operation, and frees the inputs that it uses last.
    ///
    /// The interpreter of tensors may fetch operands in another order than they are listed, so an operation that reads
    /// a value twice must not free it.
    fn read_inputs(
        &mut self,
        operation: &OperationIr,
        last_uses: &[TensorId],
        into: &mut Vec<V>,
    ) -> Result<(), ProgramError> {
        for input in operation.inputs() {
            into.push(self.read(input, || Operation::from(operation).name())?);
        }
        for last in last_uses {
            let mut reads = operation.inputs().filter(|input| input.id == *last);
            if let (Some(input), Some(_)) = (reads.next(), reads.next()) {
                return Err(ProgramError::Unavailable {
                    value: ValueId::of_tensor(input).expect("its id was valid when it was read"),
                    reader: Operation::from(operation).name(),
                });
            }
            self.0[last.value() as usize] = None;
        }
        Ok(())
    }
}
