// Generated from ONNX "tests/onnx/models/residual.onnx" by burn-onnx
extern crate alloc;
use burn::nn::BatchNorm;
use burn::nn::BatchNormConfig;
use burn::nn::Linear;
use burn::nn::LinearConfig;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::nn::conv::Conv2dConfig;
use burn::nn::pool::AdaptiveAvgPool2d;
use burn::nn::pool::AdaptiveAvgPool2dConfig;
use burn::nn::pool::MaxPool2d;
use burn::nn::pool::MaxPool2dConfig;
use burn::prelude::*;
use burn::tensor::Bytes;
use burn_store::BurnpackStore;
use burn_store::ModuleSnapshot;

#[derive(Module, Debug)]
pub struct Model {
    conv2d1: Conv2d,
    batchnormalization1: BatchNorm,
    maxpool2d1: MaxPool2d,
    conv2d2: Conv2d,
    batchnormalization2: BatchNorm,
    conv2d3: Conv2d,
    batchnormalization3: BatchNorm,
    conv2d4: Conv2d,
    batchnormalization4: BatchNorm,
    conv2d5: Conv2d,
    batchnormalization5: BatchNorm,
    conv2d6: Conv2d,
    batchnormalization6: BatchNorm,
    globalaveragepool1: AdaptiveAvgPool2d,
    linear1: Linear,
    #[module(skip)]
    device: Device,
}

extern crate std;

impl Default for Model {
    fn default() -> Self {
        Self::from_file("tests/onnx/models/residual.bpk", &Default::default())
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
        let conv2d1 = Conv2dConfig::new([3, 8], [3, 3])
            .with_stride([1, 1])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization1 = BatchNormConfig::new(8)
            .with_epsilon(0.000009999999747378752f64)
            .with_momentum(0.8999999761581421f64)
            .init(device);
        let maxpool2d1 = MaxPool2dConfig::new([3, 3])
            .with_strides([2, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_dilation([1, 1])
            .with_ceil_mode(false)
            .init();
        let conv2d2 = Conv2dConfig::new([8, 8], [3, 3])
            .with_stride([1, 1])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization2 = BatchNormConfig::new(8)
            .with_epsilon(0.000009999999747378752f64)
            .with_momentum(0.8999999761581421f64)
            .init(device);
        let conv2d3 = Conv2dConfig::new([8, 8], [3, 3])
            .with_stride([1, 1])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization3 = BatchNormConfig::new(8)
            .with_epsilon(0.000009999999747378752f64)
            .with_momentum(0.8999999761581421f64)
            .init(device);
        let conv2d4 = Conv2dConfig::new([8, 16], [3, 3])
            .with_stride([2, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization4 = BatchNormConfig::new(16)
            .with_epsilon(0.000009999999747378752f64)
            .with_momentum(0.8999999761581421f64)
            .init(device);
        let conv2d5 = Conv2dConfig::new([16, 16], [3, 3])
            .with_stride([1, 1])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization5 = BatchNormConfig::new(16)
            .with_epsilon(0.000009999999747378752f64)
            .with_momentum(0.8999999761581421f64)
            .init(device);
        let conv2d6 = Conv2dConfig::new([8, 16], [1, 1])
            .with_stride([2, 2])
            .with_padding(PaddingConfig2d::Valid)
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization6 = BatchNormConfig::new(16)
            .with_epsilon(0.000009999999747378752f64)
            .with_momentum(0.8999999761581421f64)
            .init(device);
        let globalaveragepool1 = AdaptiveAvgPool2dConfig::new([1, 1]).init();
        let linear1 = LinearConfig::new(16, 10).with_bias(true).init(device);
        Self {
            conv2d1,
            batchnormalization1,
            maxpool2d1,
            conv2d2,
            batchnormalization2,
            conv2d3,
            batchnormalization3,
            conv2d4,
            batchnormalization4,
            conv2d5,
            batchnormalization5,
            conv2d6,
            batchnormalization6,
            globalaveragepool1,
            linear1,
            device: device.clone(),
        }
    }

    #[allow(clippy::let_and_return, clippy::approx_constant)]
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let conv2d1_out1 = self.conv2d1.forward(images);
        let batchnormalization1_out1 = self.batchnormalization1.forward(conv2d1_out1);
        let relu1_out1 = burn::tensor::activation::relu(batchnormalization1_out1);
        let maxpool2d1_out1 = self.maxpool2d1.forward(relu1_out1);
        let conv2d2_out1 = self.conv2d2.forward(maxpool2d1_out1.clone());
        let batchnormalization2_out1 = self.batchnormalization2.forward(conv2d2_out1);
        let relu2_out1 = burn::tensor::activation::relu(batchnormalization2_out1);
        let conv2d3_out1 = self.conv2d3.forward(relu2_out1);
        let batchnormalization3_out1 = self.batchnormalization3.forward(conv2d3_out1);
        let add1_out1 = batchnormalization3_out1.add(maxpool2d1_out1);
        let relu3_out1 = burn::tensor::activation::relu(add1_out1);
        let conv2d4_out1 = self.conv2d4.forward(relu3_out1.clone());
        let batchnormalization4_out1 = self.batchnormalization4.forward(conv2d4_out1);
        let relu4_out1 = burn::tensor::activation::relu(batchnormalization4_out1);
        let conv2d5_out1 = self.conv2d5.forward(relu4_out1);
        let batchnormalization5_out1 = self.batchnormalization5.forward(conv2d5_out1);
        let conv2d6_out1 = self.conv2d6.forward(relu3_out1);
        let batchnormalization6_out1 = self.batchnormalization6.forward(conv2d6_out1);
        let add2_out1 = batchnormalization5_out1.add(batchnormalization6_out1);
        let relu5_out1 = burn::tensor::activation::relu(add2_out1);
        let globalaveragepool1_out1 = self.globalaveragepool1.forward(relu5_out1);
        let flatten1_out1 = {
            let leading_dim = globalaveragepool1_out1.shape()[..1]
                .iter()
                .product::<usize>() as i32;
            globalaveragepool1_out1.reshape::<2, _>([leading_dim, -1])
        };
        let linear1_out1 = self.linear1.forward(flatten1_out1);
        linear1_out1
    }
}
