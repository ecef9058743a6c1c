//! The cost of any operation, and whether it is too much to be done twice.

use burn_ir::{CustomOpIr, OperationIr};

use super::activation::activation;
use super::collective::distributed;
use super::count::{Count, OperationCost};
use super::elementwise::{bool, float, int};
use super::module::module;
use super::movement::base;
use super::numeric::numeric;
use super::size::elements;

/// What an operation takes, from the shapes and dtypes that it carries alone.
///
/// The module's table has the formulas. Nothing here fails or overflows, whatever the shapes say:
/// counts stop at [`u64::MAX`], a dimension of zero makes them zero, and one that is missing counts
/// as one.
///
/// Every match on Burn's operations is exhaustive, so an operation that a new release of Burn adds
/// does not compile before it has a cost.
///
/// Cost: by the number of the operation's tensors and of their dimensions.
pub fn operation_cost(operation: &OperationIr) -> OperationCost {
    match operation {
        OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => {
            base(op)
        }
        OperationIr::NumericFloat(_, op) | OperationIr::NumericInt(_, op) => numeric(op),
        OperationIr::Bool(op) => bool(op),
        OperationIr::Int(op) => int(op),
        OperationIr::Float(_, op) => float(op),
        OperationIr::Module(op) => module(op),
        OperationIr::Activation(op) => activation(op),
        OperationIr::Distributed(op) => distributed(op),
        OperationIr::Custom(op) => op.count(),
        // A constant that is there already, and one that is given back.
        OperationIr::Init(_) | OperationIr::Drop(_) => OperationCost::default(),
    }
}

/// Whether an operation is too much work to be done again on every stage that reads its result: more
/// than four FLOPs per element that it reads or makes.
///
/// A tensor that is read twice counts twice. Activations, random numbers, reductions and layer norms
/// of more than a few elements a row are below that; products of matrices of more than a few rows,
/// convolutions, pooling with large windows and sorting of long rows are above.
pub fn is_heavy(operation: &OperationIr) -> bool {
    const CHEAP_FLOPS_PER_ELEMENT: u64 = 4;
    let tensors = operation.inputs().chain(operation.outputs());
    let touched = tensors.map(elements).fold(0, u64::saturating_add);
    operation_cost(operation).flops > touched.saturating_mul(CHEAP_FLOPS_PER_ELEMENT)
}

/// Nobody knows what an operation of an extension does. It counts one FLOP per element of its
/// largest input or of all its outputs, whichever is more, and reads and writes everything.
impl Count for CustomOpIr {
    fn count(&self) -> OperationCost {
        let largest = self.inputs.iter().map(elements).max().unwrap_or(0);
        let made = self.outputs.iter().map(elements);
        let made = made.fold(0, u64::saturating_add);
        OperationCost::of_flops(largest.max(made))
            .reads(&self.inputs)
            .writes(&self.outputs)
    }
}

#[cfg(test)]
mod tests {
    use burn_backend::{DType, Distribution, Shape};
    use burn_ir::{
        ActivationOperationIr as A, BinaryOpIr, DimOpIr, FloatOperationIr as F, InitOperationIr,
        IrVisitorMut, MatmulOpIr, RandomOpIr, TensorIr, UnaryOpIr,
    };
    use proptest::prelude::*;

    use super::*;
    use crate::cost::fixture::{check, output, tensor};
    use crate::cost::samples::{all_operations, float_operation, layer_operations, row_operations};
    use crate::cost::size::bytes;

    /// Makes every dimension of every tensor the next of some lengths, over and over.
    struct Lengths(Vec<usize>);

    impl IrVisitorMut for Lengths {
        fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
            let lengths = self.0.iter().copied().cycle();
            let rank = tensor.shape.as_slice().len();
            tensor.shape = lengths.take(rank).collect::<Vec<_>>().into();
        }
    }

    /// Takes every dimension away.
    struct Scalars;

    impl IrVisitorMut for Scalars {
        fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
            tensor.shape = Vec::<usize>::new().into();
        }
    }

    proptest! {
        #[test]
        fn a_batch_is_worth_its_size(
            batch in 1_usize..20,
            length in 1_usize..20,
            width in 3_usize..20,
        ) {
            let operations = |times: usize| {
                let mut operations = row_operations(batch * times, length, width);
                operations.extend(layer_operations(batch * times, length, width));
                operations
            };
            let (once, twice, thrice) = (operations(1), operations(2), operations(3));
            for ((once, twice), thrice) in once.iter().zip(&twice).zip(&thrice) {
                let costs = [once, twice, thrice].map(operation_cost);
                prop_assert_eq!(costs[1].flops, 2 * costs[0].flops, "{:?}", once);
                prop_assert_eq!(costs[2].flops, 3 * costs[0].flops, "{:?}", once);
                prop_assert_eq!(costs[1].bytes_written, 2 * costs[0].bytes_written, "{:?}", once);
                // Weights and scales are read once, however large the batch is.
                let read = costs.map(|cost| cost.bytes_read);
                prop_assert_eq!(read[2] - read[1], read[1] - read[0], "{:?}", once);
                prop_assert!(read[1] <= 2 * read[0]);
            }
        }

        #[test]
        fn no_more_is_read_than_there_is(batch in 0_usize..200) {
            for operation in all_operations(batch) {
                let mut inputs: Vec<&TensorIr> = operation.inputs().collect();
                inputs.sort_by_key(|input| input.id.value());
                inputs.dedup_by_key(|input| input.id.value());
                let there: u64 = inputs.into_iter().map(bytes).sum();
                let made: u64 = operation.outputs().map(bytes).sum();
                let cost = operation_cost(&operation);
                prop_assert!(cost.bytes_read <= there, "{operation:?}");
                prop_assert_eq!(cost.bytes_written, made, "{:?}", operation);
            }
        }

        #[test]
        fn any_shape_has_a_cost(lengths in prop::collection::vec(any::<usize>(), 1..6)) {
            for mut operation in all_operations(2) {
                operation.visit_mut(&mut Lengths(lengths.clone()));
                operation_cost(&operation);
                is_heavy(&operation);
            }
        }
    }

    #[test]
    fn gigantic_shapes_saturate() {
        for mut operation in all_operations(2) {
            operation.visit_mut(&mut Lengths(vec![usize::MAX]));
            let cost = operation_cost(&operation);
            assert_eq!(cost.bytes_written, u64::MAX, "{operation:?}");
            // What only moves data takes none of them.
            assert!([0, u64::MAX].contains(&cost.flops), "{operation:?}");
        }
        let side = 1 << 40;
        let matmul = MatmulOpIr::create(tensor(0, &[side, side]), tensor(1, &[side, side]), output);
        let most = (u64::MAX, u64::MAX, u64::MAX);
        check(float_operation(F::Matmul(matmul)), most);
    }

    #[test]
    fn dimensions_of_zero_take_nothing() {
        let huge = usize::MAX;
        for lengths in [vec![0], vec![0, huge], vec![huge, 0]] {
            for mut operation in all_operations(2) {
                // A vector of the lengths that start with the huge one has no zero.
                let vectors = operation.inputs().chain(operation.outputs());
                let shortest = vectors.map(|tensor| tensor.shape.as_slice().len()).min();
                if lengths[0] != 0 && shortest < Some(2) {
                    continue;
                }
                operation.visit_mut(&mut Lengths(lengths.clone()));
                let cost = operation_cost(&operation);
                assert_eq!(cost.flops, 0, "{operation:?}");
                // A quantized tensor has its scale even so.
                assert!(
                    cost.bytes_read <= 4 && cost.bytes_written == 0,
                    "{operation:?}"
                );
            }
        }
    }

    #[test]
    fn missing_dimensions_count_as_one() {
        for mut operation in all_operations(2) {
            operation.visit_mut(&mut Scalars);
            let cost = operation_cost(&operation);
            assert!(cost.flops < 200, "{operation:?}");
        }
    }

    #[test]
    fn constants_and_drops_are_free() {
        let x = tensor(0, &[100]);
        check(OperationIr::Drop(x.clone()), (0, 0, 0));
        check(OperationIr::Init(InitOperationIr { out: x }), (0, 0, 0));
    }

    #[test]
    fn an_extension_counts_its_elements() {
        let (long, short) = (tensor(0, &[10, 10]), tensor(1, &[10]));
        let custom = CustomOpIr::new(
            "scan",
            &[long.clone(), short.clone()],
            std::slice::from_ref(&short),
        );
        check(OperationIr::Custom(custom), (100, 440, 40));
        let custom = CustomOpIr::new("scan", &[short], &[long.clone(), long]);
        check(OperationIr::Custom(custom), (200, 40, 800));
    }

    #[test]
    fn products_are_heavy_and_activations_are_not() {
        let matmul = |side| {
            let (lhs, rhs) = (tensor(0, &[side, side]), tensor(1, &[side, side]));
            float_operation(F::Matmul(MatmulOpIr::create(lhs, rhs, output)))
        };
        // 2 n^3 against 4 * 3 n^2: heavy above n = 6.
        assert!(!is_heavy(&matmul(6)));
        assert!(is_heavy(&matmul(7)));
        let unary = || UnaryOpIr::create(tensor(0, &[9]), output);
        let binary = || BinaryOpIr::create(tensor(0, &[9]), tensor(1, &[9]), output);
        let dim = || DimOpIr::create(tensor(0, &[9, 9]), 1, output);
        for cheap in [
            A::Gelu(unary()),
            A::LogSigmoid(unary()),
            A::GeluBackward(binary()),
            A::LogSigmoidBackward(binary()),
            A::LogSoftmax(dim()),
            A::Softmin(dim()),
        ] {
            assert!(
                !is_heavy(&OperationIr::Activation(cheap.clone())),
                "{cheap:?}"
            );
        }
        for distribution in [
            Distribution::Default,
            Distribution::Bernoulli(0.5),
            Distribution::Uniform(0.0, 2.0),
            Distribution::Normal(0.0, 1.0),
        ] {
            let random = RandomOpIr::create(Shape::new([9]), DType::F32, distribution, output);
            assert!(!is_heavy(&float_operation(F::Random(random))));
        }
    }
}
