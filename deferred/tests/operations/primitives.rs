//! Operations that the tensor API does not record: a backend that is called
//! directly records some, and others are added to the recording by hand.

use burn::tensor::{DType, Device, Int, Tensor, activation, module};
use burn_backend::Backend;
use burn_backend::ops::FloatTensorOps;
use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_capture::CaptureBackend;
use burn_dispatch::{BackendTensor, DispatchKindConversion, DispatchTensor};
use burn_flex::Flex;
use burn_ir::{
    BinaryOpIr, CtcLossOpIr, FloatOperationIr, ModuleOperationIr, NumericOperationIr, OperationIr,
    ReduceDimsOpIr, UnaryOpIr,
};
use tinderbox_fake::DynTensor;

use crate::check::{Row, Rows, floats, ints, one, values};
use crate::hand_made::{hand_made, records};

fn float<B: Backend, const D: usize>(tensor: Tensor<D>) -> FloatTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let tensor = tensor.into_dispatch();
    match <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor) {
        Ok(BackendTensor::Float(tensor)) => tensor,
        _ => panic!("not a float tensor of this backend"),
    }
}

fn int<B: Backend, const D: usize>(tensor: Tensor<D, Int>) -> IntTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let tensor = tensor.into_dispatch();
    match <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor) {
        Ok(BackendTensor::Int(tensor)) => tensor,
        _ => panic!("not an int tensor of this backend"),
    }
}

fn output<B: Backend>(tensor: FloatTensor<B>) -> Vec<DynTensor>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let tensor = BackendTensor::<B>::Float(tensor);
    one(<DispatchTensor as DispatchKindConversion<B>>::from_backend(
        tensor,
    ))
}

/// Adds a row that calls the backend of the device directly.
macro_rules! on_backend {
    ($rows:ident, $name:literal, |$device:ident, $backend:ident| $call:expr) => {
        $rows.add($name, |device| {
            fn call<$backend: Backend>($device: &Device) -> Vec<DynTensor>
            where
                DispatchTensor: DispatchKindConversion<$backend>,
            {
                output::<$backend>($call)
            }
            match records(device) {
                true => call::<CaptureBackend>(device),
                false => call::<Flex>(device),
            }
        });
    };
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = Rows::new("backend");
    on_backend!(rows, "linear", |d, B| {
        let (x, weight) = (floats(d, [2, 3, 4], 1), floats(d, [4, 5], 2));
        B::linear(
            float::<B, 3>(x),
            float::<B, 2>(weight),
            Some(float::<B, 1>(floats(d, [5], 3))),
        )
    });
    on_backend!(rows, "linear without bias", |d, B| {
        B::linear(
            float::<B, 2>(floats(d, [3, 4], 1)),
            float::<B, 2>(floats(d, [4, 5], 2)),
            None,
        )
    });
    on_backend!(rows, "linear, gradient of the input", |d, B| {
        let gradient = float::<B, 3>(floats(d, [2, 3, 5], 1));
        B::linear_x_backward(float::<B, 2>(floats(d, [4, 5], 2)), gradient)
    });
    on_backend!(rows, "linear, gradient of the weight", |d, B| {
        let gradient = float::<B, 3>(floats(d, [2, 3, 5], 1));
        B::linear_weight_backward(float::<B, 3>(floats(d, [2, 3, 4], 2)), gradient)
    });
    on_backend!(rows, "linear, gradient of the bias", |d, B| {
        B::linear_bias_backward(float::<B, 3>(floats(d, [2, 3, 5], 1)))
    });
    tests_by_hand(&mut rows);
    numbers_by_hand(&mut rows);
    rows.done()
}

fn tests_by_hand(rows: &mut Rows) {
    type Make = fn(UnaryOpIr) -> FloatOperationIr;
    type Call = fn(Tensor<1>) -> DynTensor;
    let tests: [(&str, Make, Call); 2] = [
        ("is nan", FloatOperationIr::IsNan, |x| x.is_nan().into()),
        ("is inf", FloatOperationIr::IsInf, |x| x.is_inf().into()),
    ];
    for (name, make, call) in tests {
        rows.add(name, move |d| {
            let x = Tensor::<1>::from_floats([f32::NAN, 1.0, f32::INFINITY, -0.0], d);
            if !records(d) {
                return vec![call(x)];
            }
            let bool = d.settings().bool_dtype.into();
            one(hand_made(d, one(x), ([4], bool), |mut inputs, out| {
                let input = inputs.remove(0);
                OperationIr::Float(DType::F32, make(UnaryOpIr { input, out }))
            }))
        });
    }
}

fn numbers_by_hand(rows: &mut Rows) {
    rows.add("powi of floats", |d| {
        let (x, exponents) = (floats(d, [6], 1), ints(d, [6], &[0, 1, 2, 3, -1, 5]));
        if !records(d) {
            return output::<Flex>(Flex::float_powi(
                float::<Flex, 1>(x),
                int::<Flex, 1>(exponents),
            ));
        }
        let inputs = vec![x.into(), exponents.into()];
        one(hand_made(d, inputs, ([6], DType::F32), |inputs, out| {
            let [lhs, rhs] = inputs.try_into().unwrap();
            let powi = NumericOperationIr::Powi(BinaryOpIr { lhs, rhs, out });
            OperationIr::NumericFloat(DType::F32, powi)
        }))
    });
    rows.add("sum dims of ints", |d| {
        let x = values::<3, Int>(d, DType::I32, [2, 3, 4], 1);
        if !records(d) {
            return one(x.sum_dims(&[0, 2]));
        }
        one(hand_made(
            d,
            one(x),
            ([1, 3, 1], DType::I32),
            |mut inputs, out| {
                let (input, axes) = (inputs.remove(0), vec![0, 2]);
                let sum = NumericOperationIr::SumDims(ReduceDimsOpIr { input, out, axes });
                OperationIr::NumericInt(DType::I32, sum)
            },
        ))
    });
    rows.add("ctc loss", |d| {
        let log_probs = activation::log_softmax(floats(d, [5, 2, 4], 1), 2);
        let targets = ints(d, [2, 2], &[1, 2, 3, 1]);
        let (lengths, target_lengths) = (ints(d, [2], &[5, 4]), ints(d, [2], &[2, 1]));
        if !records(d) {
            return one(module::ctc_loss(
                log_probs,
                targets,
                lengths,
                target_lengths,
                0,
            ));
        }
        let inputs = vec![
            log_probs.into(),
            targets.into(),
            lengths.into(),
            target_lengths.into(),
        ];
        one(hand_made(d, inputs, ([2], DType::F32), |inputs, out| {
            let [log_probs, targets, input_lengths, target_lengths] = inputs.try_into().unwrap();
            OperationIr::Module(ModuleOperationIr::CtcLoss(CtcLossOpIr {
                log_probs,
                targets,
                input_lengths,
                target_lengths,
                blank: 0,
                out,
            }))
        }))
    });
}
