// Generated from ONNX "tests/onnx/models/masked.onnx" by burn-onnx
extern crate alloc;
use burn::nn::Linear;
use burn::nn::LinearConfig;
use burn::prelude::*;
use burn::tensor::Bytes;
use burn_store::BurnpackStore;
use burn_store::ModuleSnapshot;

#[derive(Module, Debug)]
pub struct Model {
    linear1: Linear,
    #[module(skip)]
    device: Device,
}

extern crate std;

impl Default for Model {
    fn default() -> Self {
        Self::from_file("tests/onnx/models/masked.bpk", &Default::default())
    }
}

impl Model {
    /// Load model weights from a burnpack file.
    pub fn from_file<P: AsRef<std::path::Path>>(file: P, device: &Device) -> Self {
        let mut model = Self::new(device);
        let mut store = BurnpackStore::from_file(&file);
        model.load_from(&mut store).unwrap_or_else(|e| {
            panic!(
                "Failed to load burnpack file {}: {e}",
                file.as_ref().display()
            )
        });
        model
    }

    /// Load model weights from in-memory bytes.
    ///
    /// The bytes must be the contents of a `.bpk` file.
    pub fn from_bytes(bytes: Bytes, device: &Device) -> Self {
        let mut model = Self::new(device);
        let mut store = BurnpackStore::from_bytes(Some(bytes));
        model
            .load_from(&mut store)
            .unwrap_or_else(|e| panic!("Failed to load burnpack bytes: {e}"));
        model
    }
}

impl Model {
    #[allow(unused_variables)]
    pub fn new(device: &Device) -> Self {
        let linear1 = LinearConfig::new(16, 10).with_bias(true).init(device);
        Self {
            linear1,
            device: device.clone(),
        }
    }

    #[allow(clippy::let_and_return, clippy::approx_constant)]
    pub fn forward(&self, sequences: Tensor<3>, lengths: Tensor<1, Int>) -> Tensor<2> {
        let reducemax1_out1 = { lengths.clone().max_dim(0usize).reshape([1]) };
        let range1_out1 = {
            let start = 0i64;
            let limit = (reducemax1_out1).into_scalar::<i64>();
            let delta = 1i64;
            assert!(delta != 0);
            let n = (((limit as i128 - start as i128) as f64) / delta as f64)
                .ceil()
                .max(0.0) as i64;
            Tensor::arange(0..n, &self.device)
                .cast(burn::tensor::DType::I64)
                .mul_scalar(delta)
                .add_scalar(start)
        };
        let unsqueeze1_out1: Tensor<2, Int> = lengths.unsqueeze_dims::<2>(&[-1]);
        let less1_out1 = (range1_out1)
            .unsqueeze_dims(&[0isize])
            .lower(unsqueeze1_out1);
        let cast1_out1 = less1_out1.float().cast(burn::tensor::DType::F32);
        let unsqueeze2_out1: Tensor<3> = cast1_out1.unsqueeze_dims::<3>(&[-1]);
        let mul1_out1 = sequences.mul(unsqueeze2_out1);
        let reducemean1_out1 = { mul1_out1.mean_dim(1usize).squeeze_dims::<2usize>(&[1]) };
        let linear1_out1 = self.linear1.forward(reducemean1_out1);
        linear1_out1
    }
}
