// Generated from ONNX "tests/onnx/models/encoder.onnx" by burn-onnx
extern crate alloc;
use burn::nn::LayerNorm;
use burn::nn::LayerNormConfig;
use burn::nn::Linear;
use burn::nn::LinearConfig;
use burn::prelude::*;
use burn::tensor::Bytes;
use burn_store::BurnpackStore;
use burn_store::ModuleSnapshot;

#[derive(Module, Debug)]
pub struct Model {
    constant3: burn::module::Param<Tensor<2>>,
    constant5: burn::module::Param<Tensor<2, Int>>,
    constant8: burn::module::Param<Tensor<2>>,
    constant11: burn::module::Param<Tensor<2>>,
    constant26: burn::module::Param<Tensor<1>>,
    constant36: burn::module::Param<Tensor<1>>,
    constant37: burn::module::Param<Tensor<1>>,
    constant38: burn::module::Param<Tensor<1>>,
    layernormalization1: LayerNorm,
    linear1: Linear,
    linear2: Linear,
    linear3: Linear,
    linear4: Linear,
    layernormalization2: LayerNorm,
    linear5: Linear,
    linear6: Linear,
    layernormalization3: LayerNorm,
    linear7: Linear,
    #[module(skip)]
    device: Device,
}

extern crate std;

impl Default for Model {
    fn default() -> Self {
        Self::from_file("tests/onnx/models/encoder.bpk", &Default::default())
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
        let constant3: burn::module::Param<Tensor<2>> = burn::module::Param::uninitialized(
            burn::module::ParamId::new(),
            move |device, _require_grad| {
                Tensor::<2>::zeros([50, 16], (device, burn::tensor::DType::F32))
            },
            device.clone(),
            false,
            [50, 16].into(),
        );
        let constant5: burn::module::Param<Tensor<2, Int>> = burn::module::Param::uninitialized(
            burn::module::ParamId::new(),
            move |device, _require_grad| {
                Tensor::<2, Int>::zeros([1, 8], (device, burn::tensor::DType::I64))
            },
            device.clone(),
            false,
            [1, 8].into(),
        );
        let constant8: burn::module::Param<Tensor<2>> = burn::module::Param::uninitialized(
            burn::module::ParamId::new(),
            move |device, _require_grad| {
                Tensor::<2>::zeros([2, 16], (device, burn::tensor::DType::F32))
            },
            device.clone(),
            false,
            [2, 16].into(),
        );
        let constant11: burn::module::Param<Tensor<2>> = burn::module::Param::uninitialized(
            burn::module::ParamId::new(),
            move |device, _require_grad| {
                Tensor::<2>::zeros([8, 16], (device, burn::tensor::DType::F32))
            },
            device.clone(),
            false,
            [8, 16].into(),
        );
        let constant26: burn::module::Param<Tensor<1>> = burn::module::Param::uninitialized(
            burn::module::ParamId::new(),
            move |device, _require_grad| {
                Tensor::<1>::from_data(
                    burn::tensor::TensorData::from([-10000f64]),
                    (device, burn::tensor::DType::F32),
                )
            },
            device.clone(),
            false,
            [1].into(),
        );
        let constant36: burn::module::Param<Tensor<1>> = burn::module::Param::uninitialized(
            burn::module::ParamId::new(),
            move |device, _require_grad| {
                Tensor::<1>::from_data(
                    burn::tensor::TensorData::from([1.4142135381698608f64]),
                    (device, burn::tensor::DType::F32),
                )
            },
            device.clone(),
            false,
            [1].into(),
        );
        let constant37: burn::module::Param<Tensor<1>> = burn::module::Param::uninitialized(
            burn::module::ParamId::new(),
            move |device, _require_grad| {
                Tensor::<1>::from_data(
                    burn::tensor::TensorData::from([1f64]),
                    (device, burn::tensor::DType::F32),
                )
            },
            device.clone(),
            false,
            [1].into(),
        );
        let constant38: burn::module::Param<Tensor<1>> = burn::module::Param::uninitialized(
            burn::module::ParamId::new(),
            move |device, _require_grad| {
                Tensor::<1>::from_data(
                    burn::tensor::TensorData::from([0.5f64]),
                    (device, burn::tensor::DType::F32),
                )
            },
            device.clone(),
            false,
            [1].into(),
        );
        let layernormalization1 = LayerNormConfig::new(16)
            .with_epsilon(0.000009999999747378752f64)
            .with_bias(true)
            .init(device);
        let linear1 = LinearConfig::new(16, 16).with_bias(true).init(device);
        let linear2 = LinearConfig::new(16, 16).with_bias(true).init(device);
        let linear3 = LinearConfig::new(16, 16).with_bias(true).init(device);
        let linear4 = LinearConfig::new(16, 16).with_bias(true).init(device);
        let layernormalization2 = LayerNormConfig::new(16)
            .with_epsilon(0.000009999999747378752f64)
            .with_bias(true)
            .init(device);
        let linear5 = LinearConfig::new(16, 32).with_bias(true).init(device);
        let linear6 = LinearConfig::new(32, 16).with_bias(true).init(device);
        let layernormalization3 = LayerNormConfig::new(16)
            .with_epsilon(0.000009999999747378752f64)
            .with_bias(true)
            .init(device);
        let linear7 = LinearConfig::new(16, 10).with_bias(true).init(device);
        Self {
            constant3,
            constant5,
            constant8,
            constant11,
            constant26,
            constant36,
            constant37,
            constant38,
            layernormalization1,
            linear1,
            linear2,
            linear3,
            linear4,
            layernormalization2,
            linear5,
            linear6,
            layernormalization3,
            linear7,
            device: device.clone(),
        }
    }

    #[allow(clippy::let_and_return, clippy::approx_constant)]
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<2> {
        let constant3_out1 = self.constant3.val();
        let constant5_out1 = self.constant5.val();
        let constant8_out1 = self.constant8.val();
        let constant11_out1 = self.constant11.val();
        let constant16_out1: [i64; 2] = [2i64, 8i64];
        let constant24_out1 = 0i64;
        let constant26_out1 = self.constant26.val();
        let constant29_out1: [i64; 1] = [16i64];
        let constant36_out1 = self.constant36.val();
        let constant37_out1 = self.constant37.val();
        let constant38_out1 = self.constant38.val();
        let gather1_out1 = {
            let axis_size = constant3_out1.dims()[0] as i64;
            let negative = tokens.clone().clone().lower_elem(0i64);
            let corrected = tokens.clone().clone() + axis_size;
            let indices = tokens.clone().mask_where(negative, corrected);
            constant3_out1.take::<2, 3>(0, indices)
        };
        let shape1_out1: [i64; 2] = {
            let axes = &tokens.clone().dims()[0..2];
            let mut output = [0i64; 2];
            for i in 0..2 {
                output[i] = axes[i] as i64;
            }
            output
        };
        let gather2_out1 = shape1_out1[1] as i64;
        let unsqueeze1_out1 = [gather2_out1 as i64];
        let slice1_out1 = constant5_out1.slice(s![.., 0..unsqueeze1_out1[0]]);
        let gather3_out1 = shape1_out1[0] as i64;
        let unsqueeze2_out1 = [gather3_out1 as i64];
        let gather4_out1 = shape1_out1[1] as i64;
        let unsqueeze3_out1 = [gather4_out1 as i64];
        let concat1_out1: [i64; 2usize] = [&unsqueeze2_out1[..], &unsqueeze3_out1[..]]
            .concat()
            .try_into()
            .unwrap();
        let expand1_out1 = {
            let onnx_shape: [i64; 2usize] = concat1_out1;
            let input_dims = slice1_out1.dims();
            let mut shape = onnx_shape;
            #[allow(clippy::needless_range_loop)]
            for i in 0..2usize {
                let dim_offset = i;
                if shape[dim_offset] == 1 && input_dims[i] > 1 {
                    shape[dim_offset] = input_dims[i] as i64;
                }
            }
            slice1_out1.expand(shape)
        };
        let gather5_out1 = {
            let axis_size = constant8_out1.dims()[0] as i64;
            let negative = expand1_out1.clone().lower_elem(0i64);
            let corrected = expand1_out1.clone() + axis_size;
            let indices = expand1_out1.mask_where(negative, corrected);
            constant8_out1.take::<2, 3>(0, indices)
        };
        let range1_out1 = {
            let start = 0i64;
            let delta = 1i64;
            assert!(delta != 0);
            let n = (((gather2_out1 as i128 - start as i128) as f64) / delta as f64)
                .ceil()
                .max(0.0) as i64;
            Tensor::arange(0..n, &self.device)
                .cast(burn::tensor::DType::I64)
                .mul_scalar(delta)
                .add_scalar(start)
        };
        let gather6_out1 = {
            let axis_size = constant11_out1.dims()[0] as i64;
            let negative = range1_out1.clone().lower_elem(0i64);
            let corrected = range1_out1.clone() + axis_size;
            let indices = range1_out1.mask_where(negative, corrected);
            constant11_out1.take::<1, 2>(0, indices)
        };
        let add1_out1 = gather1_out1.add(gather5_out1);
        let add2_out1 = add1_out1.add((gather6_out1).unsqueeze_dims(&[0isize]));
        let layernormalization1_out1 = {
            let dtype = add2_out1.dtype();
            self.layernormalization1
                .forward(add2_out1.cast(burn::tensor::DType::F32))
                .cast(dtype)
        };
        let shape4_out1: [i64; 3] = {
            let axes = &layernormalization1_out1.clone().dims()[0..3];
            let mut output = [0i64; 3];
            for i in 0..3 {
                output[i] = axes[i] as i64;
            }
            output
        };
        let gather7_out1 = shape4_out1[0] as i64;
        let unsqueeze4_out1 = [gather7_out1 as i64];
        let gather8_out1 = shape4_out1[1] as i64;
        let unsqueeze5_out1 = [gather8_out1 as i64];
        let concat2_out1: [i64; 4usize] = [
            &unsqueeze4_out1[..],
            &unsqueeze5_out1[..],
            &constant16_out1[..],
        ]
        .concat()
        .try_into()
        .unwrap();
        let linear1_out1 = self.linear1.forward(layernormalization1_out1.clone());
        let reshape1_out1 = linear1_out1.reshape(concat2_out1);
        let transpose1_out1 = reshape1_out1.permute([0, 2, 1, 3]);
        let linear2_out1 = self.linear2.forward(layernormalization1_out1.clone());
        let reshape2_out1 = linear2_out1.reshape(concat2_out1);
        let transpose2_out1 = reshape2_out1.permute([0, 2, 1, 3]);
        let linear3_out1 = self.linear3.forward(layernormalization1_out1.clone());
        let reshape3_out1 = linear3_out1.reshape(concat2_out1);
        let transpose3_out1 = reshape3_out1.permute([0, 2, 1, 3]);
        let equal1_out1 = tokens.equal_elem(constant24_out1);
        let cast1_out1 = equal1_out1.float().cast(burn::tensor::DType::F32);
        let unsqueeze6_out1: Tensor<4> = cast1_out1.unsqueeze_dims::<4>(&[1, 2]);
        let mul1_out1 =
            unsqueeze6_out1.mul((constant26_out1).unsqueeze_dims(&[0isize, 1isize, 2isize]));
        let (matmul5_out1,) = {
            let q = transpose1_out1;
            let k = transpose2_out1;
            let v = transpose3_out1;
            let groups = q.dims()[1] / k.dims()[1];
            let (k, v) = if groups > 1 {
                let [batch, kv_heads, k_len, k_dim] = k.dims();
                let v_dim = v.dims()[3];
                (
                    k.unsqueeze_dim::<5>(2)
                        .expand([batch, kv_heads, groups, k_len, k_dim])
                        .reshape([batch, kv_heads * groups, k_len, k_dim]),
                    v.unsqueeze_dim::<5>(2)
                        .expand([batch, kv_heads, groups, k_len, v_dim])
                        .reshape([batch, kv_heads * groups, k_len, v_dim]),
                )
            } else {
                (k, v)
            };
            let score_bias = mul1_out1;
            let hidden_rows = score_bias.clone().max_dim(3).equal_elem(f32::NEG_INFINITY);
            let matmul5_out1 = burn::tensor::module::attention(
                q,
                k,
                v,
                None,
                Some(score_bias),
                burn::tensor::ops::AttentionModuleOptions {
                    scale: Some(0.3535533845424652f64),
                    softcap: None,
                    is_causal: false,
                },
            );
            let matmul5_out1 = {
                let dims = matmul5_out1.dims();
                matmul5_out1.mask_fill(hidden_rows.expand(dims), 0.0)
            };
            (matmul5_out1,)
        };
        let transpose5_out1 = matmul5_out1.permute([0, 2, 1, 3]);
        let gather9_out1 = shape4_out1[0] as i64;
        let unsqueeze7_out1 = [gather9_out1 as i64];
        let gather10_out1 = shape4_out1[1] as i64;
        let unsqueeze8_out1 = [gather10_out1 as i64];
        let concat3_out1: [i64; 3usize] = [
            &unsqueeze7_out1[..],
            &unsqueeze8_out1[..],
            &constant29_out1[..],
        ]
        .concat()
        .try_into()
        .unwrap();
        let reshape4_out1 = transpose5_out1.reshape(concat3_out1);
        let linear4_out1 = self.linear4.forward(reshape4_out1);
        let add4_out1 = layernormalization1_out1.add(linear4_out1);
        let layernormalization2_out1 = {
            let dtype = add4_out1.dtype();
            self.layernormalization2
                .forward(add4_out1.cast(burn::tensor::DType::F32))
                .cast(dtype)
        };
        let linear5_out1 = self.linear5.forward(layernormalization2_out1.clone());
        let div2_out1 = linear5_out1
            .clone()
            .div((constant36_out1).unsqueeze_dims(&[0isize, 1isize]));
        let erf1_out1 = div2_out1.erf();
        let add5_out1 = erf1_out1.add((constant37_out1).unsqueeze_dims(&[0isize, 1isize]));
        let mul2_out1 = linear5_out1.mul(add5_out1);
        let mul3_out1 = mul2_out1.mul((constant38_out1).unsqueeze_dims(&[0isize, 1isize]));
        let linear6_out1 = self.linear6.forward(mul3_out1);
        let add6_out1 = layernormalization2_out1.add(linear6_out1);
        let layernormalization3_out1 = {
            let dtype = add6_out1.dtype();
            self.layernormalization3
                .forward(add6_out1.cast(burn::tensor::DType::F32))
                .cast(dtype)
        };
        let reducemean1_out1 = {
            layernormalization3_out1
                .mean_dim(1usize)
                .squeeze_dims::<2usize>(&[1])
        };
        let linear7_out1 = self.linear7.forward(reducemean1_out1);
        linear7_out1
    }
}
