//! Descriptions of operations, for errors and printed graphs.

use burn::tensor::DType;
use burn_ir::{OperationIr, TensorIr};

use super::Operation;
use crate::brackets::{inside, parts};

/// Returns dtype and shape, such as `f32[4, 8]`.
pub fn typed_shape(dtype: DType, shape: &[usize]) -> String {
    format!("{}{shape:?}", crate::dtype_name(dtype))
}

impl Operation<'_> {
    /// Returns the name, such as `Float.Matmul`.
    pub fn name(self) -> String {
        use OperationIr::{Custom, Float, NumericFloat, NumericInt};
        let text = format!("{:?}", self.0);
        // `NumericFloat(F32, Add(BinaryOpIr { .. }))`: the family, perhaps a dtype, the operation.
        let mut variants = text.split(['(', ')', ' ']);
        let family = variants.next().unwrap_or("Operation");
        let name = match self.0 {
            Custom(custom) => Some(custom.id.as_str()),
            // The dtype comes first.
            NumericFloat(..) | NumericInt(..) | Float(..) => variants.nth(1),
            _ => variants.next(),
        };
        match name {
            Some(name) if !name.ends_with("Ir") => format!("{family}.{name}"),
            _ => family.to_owned(),
        }
    }

    /// Returns name, arguments and outputs, such as `Float.Random(Uniform(-0.1, 0.1)) -> f32[4, 8]`.
    pub fn describe(self) -> String {
        let outputs = self.0.outputs();
        let outputs: Vec<String> = outputs.map(|t| typed_shape(t.dtype, &t.shape)).collect();
        let arguments = arguments(&format!("{:?}", self.0));
        format!("{}({arguments}) -> {}", self.name(), outputs.join(", "))
    }

    /// Returns name, arguments, outputs and inputs, such as `Float.Matmul() -> f32[4, 8] of %1 f32[4, 2], %2 f32[2, 8]`.
    pub fn describe_with_inputs(self) -> String {
        let text = |t: &TensorIr| format!("%{} {}", t.id.value(), typed_shape(t.dtype, &t.shape));
        let inputs: Vec<String> = self.0.inputs().map(text).collect();
        format!("{} of {}", self.describe(), inputs.join(", "))
    }
}

/// Returns the arguments of an operation that are not tensors, from its debug text, which ends with the fields
/// of Burn's struct for it: `Float(F32, Random(RandomOpIr { out: TensorIr { .. }, .. }))`.
fn arguments(text: &str) -> String {
    let Some((before, fields)) = text.split_once("Ir { ") else {
        return String::new();
    };
    // The operation has a tensor and no other field.
    if before.ends_with("Tensor") {
        return String::new();
    }
    let mut arguments = parts(inside(fields).unwrap_or_default().trim(), ", ");
    arguments.retain(|argument| !argument.contains("TensorIr {"));
    match arguments.as_slice() {
        // The name of a single argument is implied by the operation's name.
        [only] => only
            .split_once(": ")
            .map_or(*only, |(_, value)| value)
            .into(),
        several => several.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Distribution, Tensor};

    use crate::{RecordOptions, record};

    #[test]
    fn has_name_arguments_and_outputs() {
        let ((), recording) = record(&RecordOptions::default(), |device| {
            let x = Tensor::<2>::random([2, 3], Distribution::Uniform(-0.5, 0.5), device);
            let y = x.clone().clamp(-0.25, 0.25).add_scalar(2.0).transpose();
            let _ = (
                x.matmul(y.clone()),
                y.clone().slice([0..2, 0..1]),
                y.max_dim_with_indices(0),
            );
        })
        .unwrap();
        let nodes = recording.graph().nodes().iter();
        let texts: Vec<String> = nodes.map(|node| node.operation().describe()).collect();
        insta::assert_snapshot!(texts.join("\n"));
    }
}
