//! The work of an operation, from its shapes and dtypes alone.
//!
//! - **FLOPs** are the floating point operations of products, which are nearly all of the arithmetic of a model: matrix
//!   products, linear layers, convolutions and attention, each by its textbook formula. A multiplication and an
//!   addition are two. A bias adds nothing, since it is the initial value of a sum. All other operations have no FLOPs,
//!   only bytes.
//! - **Bytes**: every distinct input once at its own size, broadcast or not, and every output. For a
//!   table, only the selected bytes. Views move nothing; on a backend that copies them, they cost the
//!   copy.
//!
//! Together with a machine's FLOPs and bytes per second they define its roofline (Williams, Waterman
//! and Patterson, doi:10.1145/1498765.1498785). Values are unknown: lengths of sequences, masks and
//! repeated indices do not reduce the cost.
//!
//! | family | FLOPs | source |
//! |---|---|---|
//! | matrix product, `m x k` by `k x n` | `2 m n k` per batch | Golub and Van Loan, *Matrix Computations*, 1.1 |
//! | linear, gradients of its input and weight | `2 rows d_input d_output` | the same |
//! | convolution, its gradients | `2 x` elements of the result `x` input channels / groups `x` kernel | arXiv:1603.07285 |
//! | transposed convolution, its gradients | `2 x` elements of the input `x` output channels / groups `x` kernel | the same |
//! | deformable convolution, its gradients | one convolution; two | Zhu et al., arXiv:1811.11168 |
//! | attention with `s` scores | `2 s d + 2 s d_v` | Vaswani et al., arXiv:1706.03762, 3.2.1 |

use burn::tensor::DType;
use burn_ir::{
    BaseOperationIr as Base, FloatOperationIr, IntOperationIr, ModuleOperationIr as Module,
    OperationIr, TensorIr,
};

use super::Operation;

/// The work of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCost {
    /// Floating point operations.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

impl Operation<'_> {
    /// Returns the work of the operation. Sums saturate at [`u64::MAX`].
    pub fn cost(self) -> OperationCost {
        let made = self.0.outputs().map(size).fold(0, u64::saturating_add);
        let mut inputs: Vec<&TensorIr> = self.0.inputs().collect();
        let table = inputs.first().map(|table| table.id);
        inputs.sort_by_key(|input| input.id);
        inputs.dedup_by_key(|input| input.id);
        let moves = moves(self.0);
        let read = inputs.into_iter().map(|input| match moves {
            Moves::Selected if Some(input.id) == table => size(input).min(made),
            _ => size(input),
        });
        let flops = self.product_flops().unwrap_or(0);
        let bytes = match moves {
            Moves::Nothing => 0,
            Moves::Selected | Moves::All => read.fold(made, u64::saturating_add),
        };
        OperationCost { flops, bytes }
    }

    /// Returns the FLOPs of a product; `None` for every other operation.
    pub fn product_flops(self) -> Option<u64> {
        match self.0 {
            OperationIr::Float(_, FloatOperationIr::Matmul(op))
            | OperationIr::Int(IntOperationIr::Matmul(op)) => {
                Some(sums(&op.out, from_end(&op.lhs, 0)))
            }
            OperationIr::Module(module) => module_flops(module),
            _ => None,
        }
    }

    /// Returns the bytes that the operation allocates on the CPU beside its outputs, as far as known: a product of 16-bit
    /// numbers converts its operands and its result.
    pub fn workspace_bytes(self) -> u64 {
        let OperationIr::Float(_, FloatOperationIr::Matmul(product)) = self.0 else {
            return 0;
        };
        let tensors = [&product.lhs, &product.rhs, &product.out].into_iter();
        let halves = tensors.filter(|tensor| matches!(tensor.dtype, DType::F16 | DType::BF16));
        let elements: u64 = halves.map(|t| t.shape.num_elements() as u64).sum();
        elements * size_of::<f32>() as u64
    }
}

/// Returns the bytes of the elements of a tensor.
fn size(tensor: &TensorIr) -> u64 {
    tensor.shape.num_elements() as u64 * tensor.dtype.size() as u64
}

/// The inputs that an operation moves.
enum Moves {
    /// No bytes: the operation creates new strides over the same memory.
    Nothing,
    /// At most the bytes of the outputs of the first input, the table, and all bytes of the other inputs.
    Selected,
    All,
}

fn moves(operation: &OperationIr) -> Moves {
    match operation {
        OperationIr::BaseFloat(base) | OperationIr::BaseInt(base) | OperationIr::BaseBool(base) => {
            match base {
                Base::Reshape(_)
                | Base::SwapDims(_)
                | Base::Permute(_)
                | Base::Flip(_)
                | Base::Expand(_)
                | Base::Unfold(_)
                | Base::Slice(_) => Moves::Nothing,
                Base::Select(_) | Base::Gather(_) | Base::GatherNd(_) => Moves::Selected,
                _ => Moves::All,
            }
        }
        OperationIr::Module(Module::Embedding(_)) => Moves::Selected,
        _ => Moves::All,
    }
}

fn module_flops(module: &Module) -> Option<u64> {
    Some(match module {
        Module::Linear(op) => sums(&op.out, from_end(&op.x, 0)),
        Module::LinearXBackward(op) => sums(&op.out, from_end(&op.output_grad, 0)),
        Module::LinearWeightBackward(op) => sums(&op.out, rows(&op.x)),
        // Each element of the result uses the weights of its channel.
        Module::Conv1d(op) => sums(&op.out, per_channel(&op.weight)),
        Module::Conv2d(op) => sums(&op.out, per_channel(&op.weight)),
        Module::Conv3d(op) => sums(&op.out, per_channel(&op.weight)),
        Module::Conv1dXBackward(op) => sums(&op.output_grad, per_channel(&op.weight)),
        Module::Conv2dXBackward(op) => sums(&op.output_grad, per_channel(&op.weight)),
        Module::Conv3dXBackward(op) => sums(&op.output_grad, per_channel(&op.weight)),
        Module::Conv1dWeightBackward(op) => sums(&op.output_grad, per_channel(&op.weight)),
        Module::Conv2dWeightBackward(op) => sums(&op.output_grad, per_channel(&op.weight)),
        Module::Conv3dWeightBackward(op) => sums(&op.output_grad, per_channel(&op.weight)),
        // Each element of the input uses the weights of its channel.
        Module::ConvTranspose1d(op) => sums(&op.x, per_channel(&op.weight)),
        Module::ConvTranspose2d(op) => sums(&op.x, per_channel(&op.weight)),
        Module::ConvTranspose3d(op) => sums(&op.x, per_channel(&op.weight)),
        Module::ConvTranspose1dWeightBackward(op) => sums(&op.x, per_channel(&op.weight)),
        Module::ConvTranspose2dWeightBackward(op) => sums(&op.x, per_channel(&op.weight)),
        Module::ConvTranspose3dWeightBackward(op) => sums(&op.x, per_channel(&op.weight)),
        Module::DeformableConv2d(op) => sums(&op.out, per_channel(&op.weight)),
        Module::DeformableConv2dBackward(op) => {
            sums(&op.out_grad, per_channel(&op.weight)).saturating_mul(2)
        }
        Module::Attention(op) => {
            let scores = rows(&op.query).saturating_mul(from_end(&op.key, 1));
            let widths = from_end(&op.query, 0).saturating_add(from_end(&op.value, 0));
            scores.saturating_mul(widths).saturating_mul(2)
        }
        _ => return None,
    })
}

/// Returns the FLOPs of sums of `terms` products, one sum for each element of a tensor.
fn sums(of: &TensorIr, terms: u64) -> u64 {
    let elements = product(dimensions(of));
    elements.saturating_mul(terms).saturating_mul(2)
}

/// Returns the number of weights of one output channel; a weight is `[output channels, input channels / groups,
/// kernel..]`.
fn per_channel(weight: &TensorIr) -> u64 {
    product(dimensions(weight).skip(1))
}

/// Returns the product of all dimensions except the last.
fn rows(tensor: &TensorIr) -> u64 {
    product(dimensions(tensor).rev().skip(1))
}

/// Returns the length of a dimension, counted from the last; 1 if it does not exist.
fn from_end(tensor: &TensorIr, dimension: usize) -> u64 {
    dimensions(tensor).rev().nth(dimension).unwrap_or(1)
}

fn dimensions(tensor: &TensorIr) -> impl DoubleEndedIterator<Item = u64> {
    tensor.shape.as_slice().iter().map(|length| *length as u64)
}

fn product(factors: impl Iterator<Item = u64>) -> u64 {
    factors.fold(1, u64::saturating_mul)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Shape;
    use burn_ir::{
        AttentionOpIr, AttentionOptionsIr, BinaryOpIr, Conv2dOpIr, Conv2dOptionsIr,
        Conv2dWeightBackwardOpIr, Conv2dXBackwardOpIr, ConvTranspose2dOpIr,
        ConvTranspose2dOptionsIr, EmbeddingOpIr, GatherOpIr, LinearOpIr, LinearWeightBackwardOpIr,
        LinearXBackwardOpIr, MatmulOpIr, NumericOperationIr, SwapDimsOpIr, TensorId,
    };

    use super::*;

    /// The id of the output; the tests have fewer inputs.
    const OUTPUT: u64 = 9;

    fn output() -> TensorId {
        TensorId::new(OUTPUT)
    }

    fn tensor(id: u64, dims: &[usize]) -> TensorIr {
        TensorIr::uninit(TensorId::new(id), Shape::from(dims.to_vec()), DType::F32)
    }

    #[track_caller]
    fn check_flops(operation: OperationIr, expected: u64) {
        assert_eq!(
            Operation(&operation).product_flops(),
            Some(expected),
            "{operation:?}"
        );
    }

    fn matmul(lhs: TensorIr, rhs: TensorIr) -> OperationIr {
        let matmul = MatmulOpIr::create(lhs, rhs, output);
        OperationIr::Float(DType::F32, FloatOperationIr::Matmul(matmul))
    }

    #[test]
    fn products_of_matrices() {
        for (lhs, rhs, flops) in [
            (&[2, 3][..], &[3, 5][..], 60),
            (&[7, 2, 3], &[7, 3, 5], 7 * 60),
            // One matrix for a batch, and a batch from both sides.
            (&[7, 2, 3], &[1, 3, 5], 7 * 60),
            (&[4, 1, 2, 3], &[1, 7, 3, 5], 28 * 60),
            (&[2, 0], &[0, 5], 0),
        ] {
            check_flops(matmul(tensor(0, lhs), tensor(1, rhs)), flops);
        }
    }

    #[test]
    fn linear_layers_and_their_gradients() {
        let (x, weight, gradient) = (
            tensor(0, &[2, 3, 4]),
            tensor(1, &[4, 5]),
            tensor(2, &[2, 3, 5]),
        );
        let linear = LinearOpIr::create(x.clone(), weight.clone(), None, output);
        let of_x = LinearXBackwardOpIr::create(weight, gradient.clone(), output);
        let of_weight = LinearWeightBackwardOpIr::create(x, gradient, output);
        for module in [
            Module::Linear(linear),
            Module::LinearXBackward(of_x),
            Module::LinearWeightBackward(of_weight),
        ] {
            check_flops(OperationIr::Module(module), 2 * 6 * 4 * 5);
        }
    }

    #[test]
    fn convolutions_and_their_gradients() {
        let options = Conv2dOptionsIr {
            stride: [1, 1],
            padding: [(1, 1), (0, 1)],
            dilation: [1, 1],
            groups: 2,
        };
        // 7 by 5 positions of 16 channels, each of which uses 4 channels of 2 by 2.
        let (x, weight) = (tensor(0, &[1, 8, 6, 5]), tensor(1, &[16, 4, 2, 2]));
        let conv = Conv2dOpIr::create(x.clone(), weight.clone(), None, options.clone(), output);
        assert_eq!(conv.out.shape.as_slice(), [1, 16, 7, 5]);
        let gradient = tensor(2, &[1, 16, 7, 5]);
        let of_x = Conv2dXBackwardOpIr::create(
            x.clone(),
            weight.clone(),
            gradient.clone(),
            options.clone(),
            output,
        );
        let of_weight = Conv2dWeightBackwardOpIr::create(x, weight, gradient, options, output);
        for module in [
            Module::Conv2d(conv),
            Module::Conv2dXBackward(of_x),
            Module::Conv2dWeightBackward(of_weight),
        ] {
            check_flops(OperationIr::Module(module), 2 * (16 * 7 * 5) * 16);
        }
    }

    /// The input of a transposed convolution is the result of a convolution.
    #[test]
    fn transposed_convolutions() {
        let options = ConvTranspose2dOptionsIr {
            stride: [2, 2],
            padding: [0, 0],
            padding_out: [0, 0],
            dilation: [1, 1],
            groups: 1,
        };
        let (x, weight) = (tensor(0, &[1, 3, 4, 4]), tensor(1, &[3, 5, 2, 2]));
        let conv = ConvTranspose2dOpIr::create(x, weight, None, options, output);
        check_flops(
            OperationIr::Module(Module::ConvTranspose2d(conv)),
            2 * (3 * 16) * (5 * 4),
        );
    }

    #[test]
    fn attention_is_two_products() {
        let options = AttentionOptionsIr {
            scale: None,
            softcap: None,
            is_causal: true,
        };
        // Two batches of three heads; 5 queries and 7 keys of 11 elements, values of 13.
        let attention = AttentionOpIr::create(
            tensor(0, &[2, 3, 5, 11]),
            tensor(1, &[2, 3, 7, 11]),
            tensor(2, &[2, 3, 7, 13]),
            None,
            None,
            options,
            output,
        );
        let operation = OperationIr::Module(Module::Attention(attention));
        check_flops(operation, 210 * 2 * (11 + 13));
    }

    #[test]
    fn gigantic_shapes_saturate() {
        let huge = |id| tensor(id, &[1 << 40, 1 << 40]);
        check_flops(matmul(huge(0), huge(1)), u64::MAX);
    }

    /// The bytes of an operation over inputs of these shapes, whose ids are their positions.
    fn bytes(inputs: &[(&[usize], DType)], make: impl FnOnce(&[TensorIr]) -> OperationIr) -> u64 {
        let inputs = inputs.iter().zip(0..).map(|((dims, dtype), id)| TensorIr {
            dtype: *dtype,
            ..tensor(id, dims)
        });
        let inputs: Vec<TensorIr> = inputs.collect();
        Operation(&make(&inputs)).cost().bytes
    }

    #[test]
    fn inputs_are_read_once_and_outputs_written() {
        let add = |same: bool| {
            move |inputs: &[TensorIr]| {
                let right = inputs[usize::from(!same)].clone();
                let add = BinaryOpIr::create(inputs[0].clone(), right, output);
                OperationIr::NumericFloat(DType::F32, NumericOperationIr::Add(add))
            }
        };
        let inputs: [(&[usize], DType); 2] = [(&[4, 8], DType::F32), (&[1, 8], DType::F32)];
        assert_eq!(bytes(&inputs, add(false)), 4 * (32 + 8 + 32));
        assert_eq!(bytes(&inputs[..1], add(true)), 4 * (32 + 32));
    }

    #[test]
    fn views_move_nothing_and_tables_what_is_selected() {
        let view = bytes(&[(&[4, 8], DType::F32)], |inputs| {
            let swap = SwapDimsOpIr::create(inputs[0].clone(), 0, 1, output);
            OperationIr::BaseFloat(Base::SwapDims(swap))
        });
        assert_eq!(view, 0);
        let inputs: [(&[usize], DType); 2] = [(&[1000, 5], DType::F32), (&[3, 5], DType::I64)];
        let gathered = bytes(&inputs, |inputs| {
            let [table, indices] = [&inputs[0], &inputs[1]].map(TensorIr::clone);
            let gather = GatherOpIr::create(table, 0, indices, output);
            OperationIr::BaseFloat(Base::Gather(gather))
        });
        // Fifteen values are read and written, and fifteen indices of twice their size.
        assert_eq!(gathered, 4 * 15 + 8 * 15 + 4 * 15);
        let inputs: [(&[usize], DType); 2] = [(&[1000, 8], DType::F32), (&[2, 3], DType::I64)];
        let selected = bytes(&inputs, |inputs| {
            let [weights, indices] = [&inputs[0], &inputs[1]].map(TensorIr::clone);
            let embedding = EmbeddingOpIr::create(weights, indices, output);
            OperationIr::Module(Module::Embedding(embedding))
        });
        // Six rows of eight are read and written, and six indices.
        assert_eq!(selected, 4 * 48 + 8 * 6 + 4 * 48);
    }
}
