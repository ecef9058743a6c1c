//! The code and weights that `burn-onnx` 0.22.0 generated from the ONNX files of this folder. `make_models.py` made these,
//! and the JSON files, which contain what ONNX's own evaluator computes. To generate all of it again:
//!
//! ```console
//! $ pip install onnx
//! $ cargo install burn-onnx --version 0.22.0
//! $ python3 tests/onnx/make_models.py tests/onnx/models
//! $ for name in residual encoder masked; do onnx2burn --no-development tests/onnx/models/$name.onnx tests/onnx/models; done
//! $ cargo fmt
//! ```

#[allow(dead_code, clippy::all, reason = "generated")]
pub mod encoder;
#[allow(dead_code, clippy::all, reason = "generated")]
pub mod masked;
#[allow(dead_code, clippy::all, reason = "generated")]
pub mod residual;

use std::path::PathBuf;

use burn::tensor::{Device, Tensor};

/// A generated model of one input.
pub struct Import<M, X> {
    pub name: &'static str,
    /// The name of the input in the ONNX file.
    pub input_name: &'static str,
    pub new: fn(&Device) -> M,
    /// What plain Burn loads.
    pub from_file: fn(PathBuf, &Device) -> M,
    pub forward: fn(&M, X) -> Tensor<2>,
    /// An input of numbers.
    pub input: fn(&[f32], &Device) -> X,
    /// The numbers of an input are integers from 0 on, less than this.
    pub input_below: f32,
}

impl<M, X> Clone for Import<M, X> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M, X> Copy for Import<M, X> {}

/// A file of this folder.
pub fn file(name: &str, extension: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("onnx/models");
    folder.join(name).with_extension(extension)
}

/// What ONNX's own evaluator was given and computed, by name.
pub fn expected(name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(file(name, "json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The numbers of a list of JSON.
pub fn floats(list: &serde_json::Value) -> Vec<f32> {
    let numbers = list.as_array().unwrap().iter();
    numbers
        .map(|number| number.as_f64().unwrap() as f32)
        .collect()
}
