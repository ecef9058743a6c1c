//! Burn's backward pass: autodiff records the operations of the gradients too.

use burn::tensor::module::{
    adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d, attention, avg_pool1d,
    avg_pool2d, batch_norm_train, conv_transpose1d, conv_transpose2d, conv_transpose3d, conv1d,
    conv2d, conv3d, ctc_loss, deform_conv2d, embedding, interpolate, layer_norm, linear,
    max_pool1d, max_pool2d,
};
use burn::tensor::ops::{
    AttentionModuleOptions, AvgPoolOptions, ConvOptions, ConvTransposeOptions, DeformConvOptions,
    GridSampleOptions, InterpolateMode, InterpolateOptions, MaxPoolOptions,
};
use burn::tensor::{Device, IndexingUpdateOp, Tensor, activation};
use burn_autodiff::Autodiff;
use burn_backend::AutodiffBackend;
use burn_capture::CaptureBackend;
use burn_dispatch::{BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor};
use tinderbox_fake::DynTensor;

use crate::check::{Row, Rows, bools, floats, ints};

type Tracked = Autodiff<CaptureBackend>;
type Unary = fn(Tensor<2>) -> Tensor<2>;
type Binary = fn(&Device, Tensor<2>, Tensor<2>) -> Tensor<2>;

/// Tensors for which a row needs gradients.
struct Leaves<'a> {
    device: &'a Device,
    leaves: Vec<DynTensor>,
}

impl<'a> Leaves<'a> {
    fn on(device: &'a Device) -> Self {
        Self {
            device,
            leaves: Vec::new(),
        }
    }

    fn leaf<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        let seed = self.leaves.len() as u64 + 1;
        let leaf = floats(self.device, shape, seed).require_grad();
        self.leaves.push(leaf.clone().into());
        leaf
    }

    /// Returns the output, and the gradients of the leaves for a loss in which every element has a
    /// different weight.
    fn gradients<const D: usize>(self, output: Tensor<D>) -> Vec<DynTensor> {
        let weights = floats(self.device, output.dims(), 99);
        let loss = DynTensor::from((output.clone() * weights).sum());
        let mut outputs = vec![DynTensor::from(output)];
        outputs.extend(match loss.is_fake() {
            true => recorded(loss, self.leaves),
            false => eager(loss, self.leaves),
        });
        outputs
    }
}

fn eager(loss: DynTensor, leaves: Vec<DynTensor>) -> Vec<DynTensor> {
    let gradients = Dispatch::backward(loss.into());
    let gradient = |leaf: DynTensor| Dispatch::grad(&leaf.into(), &gradients).unwrap().into();
    leaves.into_iter().map(gradient).collect()
}

/// The dispatching backend rejects differentiation on a capture device; the backend itself does not.
fn recorded(loss: DynTensor, leaves: Vec<DynTensor>) -> Vec<DynTensor> {
    let tracked = |tensor: DynTensor| {
        match <DispatchTensor as DispatchKindConversion<Tracked>>::try_into_backend(tensor.into()) {
            Ok(BackendTensor::Float(tensor)) => tensor,
            _ => panic!("not a tracked float tensor"),
        }
    };
    let gradients = Tracked::backward(tracked(loss));
    let gradient = |leaf: DynTensor| {
        let gradient = Tracked::grad(&tracked(leaf), &gradients).unwrap();
        type Plain = CaptureBackend;
        <DispatchTensor as DispatchKindConversion<Plain>>::from_backend(BackendTensor::Float(
            gradient,
        ))
        .into()
    };
    leaves.into_iter().map(gradient).collect()
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = convolutions();
    rows.extend(pools());
    rows.extend(layers());
    rows.extend(pointwise());
    rows
}

fn convolutions() -> Vec<Row> {
    let mut rows = Rows::tracked("gradient of a convolution");
    for bias in [true, false] {
        rows.add(&format!("1d, bias {bias}"), move |d| {
            let mut leaves = Leaves::on(d);
            let (x, w) = (leaves.leaf([2, 4, 7]), leaves.leaf([4, 2, 3]));
            let bias = bias.then(|| leaves.leaf([4]));
            leaves.gradients(conv1d(x, w, bias, ConvOptions::new([2], [1], [1], 2)))
        });
        rows.add(&format!("2d, bias {bias}"), move |d| {
            let mut leaves = Leaves::on(d);
            let (x, w) = (leaves.leaf([2, 3, 5, 6]), leaves.leaf([4, 3, 3, 2]));
            let bias = bias.then(|| leaves.leaf([4]));
            leaves.gradients(conv2d(
                x,
                w,
                bias,
                ConvOptions::new([1, 2], [1, 0], [1, 1], 1),
            ))
        });
        rows.add(&format!("3d, bias {bias}"), move |d| {
            let mut leaves = Leaves::on(d);
            let (x, w) = (leaves.leaf([1, 3, 3, 4, 4]), leaves.leaf([2, 3, 2, 2, 2]));
            let bias = bias.then(|| leaves.leaf([2]));
            leaves.gradients(conv3d(
                x,
                w,
                bias,
                ConvOptions::new([1; 3], [1, 0, 1], [1; 3], 1),
            ))
        });
        rows.add(&format!("1d transposed, bias {bias}"), move |d| {
            let mut leaves = Leaves::on(d);
            let (x, w) = (leaves.leaf([2, 3, 5]), leaves.leaf([3, 4, 3]));
            let bias = bias.then(|| leaves.leaf([4]));
            let options = ConvTransposeOptions::new([2], [1], [1], [1], 1);
            leaves.gradients(conv_transpose1d(x, w, bias, options))
        });
        rows.add(&format!("2d transposed, bias {bias}"), move |d| {
            let mut leaves = Leaves::on(d);
            let (x, w) = (leaves.leaf([1, 4, 3, 4]), leaves.leaf([4, 2, 3, 2]));
            let bias = bias.then(|| leaves.leaf([4]));
            let options = ConvTransposeOptions::new([2, 1], [1, 0], [1, 0], [1, 1], 2);
            leaves.gradients(conv_transpose2d(x, w, bias, options))
        });
        rows.add(&format!("3d transposed, bias {bias}"), move |d| {
            let mut leaves = Leaves::on(d);
            let (x, w) = (leaves.leaf([1, 3, 2, 3, 3]), leaves.leaf([3, 2, 2, 2, 2]));
            let bias = bias.then(|| leaves.leaf([2]));
            let options = ConvTransposeOptions::new([1; 3], [0; 3], [0; 3], [1; 3], 1);
            leaves.gradients(conv_transpose3d(x, w, bias, options))
        });
        for mask in [true, false] {
            rows.add(&format!("deformable, bias {bias}, mask {mask}"), move |d| {
                let mut leaves = Leaves::on(d);
                let (x, offset) = (leaves.leaf([1, 2, 4, 4]), leaves.leaf([1, 18, 2, 2]));
                let weight = leaves.leaf([3, 2, 3, 3]);
                let mask = mask.then(|| leaves.leaf([1, 9, 2, 2]));
                let bias = bias.then(|| leaves.leaf([3]));
                let options = DeformConvOptions::new([1, 1], [0, 0], [1, 1], 1, 1);
                leaves.gradients(deform_conv2d(x, offset, weight, mask, bias, options))
            });
        }
    }
    rows.done()
}

fn pools() -> Vec<Row> {
    let mut rows = Rows::tracked("gradient of a pool");
    rows.add("max 1d", |d| {
        let mut leaves = Leaves::on(d);
        let x = leaves.leaf([2, 3, 8]);
        leaves.gradients(max_pool1d(x, MaxPoolOptions::new([3]).with_stride([2])))
    });
    rows.add("max 2d", |d| {
        let mut leaves = Leaves::on(d);
        let x = leaves.leaf([2, 3, 5, 6]);
        leaves.gradients(max_pool2d(
            x,
            MaxPoolOptions::new([2, 3]).with_padding([1, 1]),
        ))
    });
    rows.add("average 1d", |d| {
        let mut leaves = Leaves::on(d);
        let x = leaves.leaf([2, 3, 8]);
        leaves.gradients(avg_pool1d(x, AvgPoolOptions::new([3]).with_stride([2])))
    });
    rows.add("average 2d", |d| {
        let mut leaves = Leaves::on(d);
        let x = leaves.leaf([2, 3, 5, 6]);
        let options = AvgPoolOptions::new([2, 3]).with_padding([1, 1]);
        leaves.gradients(avg_pool2d(x, options.with_count_include_pad(false)))
    });
    rows.add("adaptive 1d", |d| {
        let mut leaves = Leaves::on(d);
        let x = leaves.leaf([2, 3, 7]);
        leaves.gradients(adaptive_avg_pool1d(x, 3))
    });
    rows.add("adaptive 2d", |d| {
        let mut leaves = Leaves::on(d);
        let x = leaves.leaf([2, 3, 5, 6]);
        leaves.gradients(adaptive_avg_pool2d(x, [2, 4]))
    });
    rows.add("adaptive 3d", |d| {
        let mut leaves = Leaves::on(d);
        let x = leaves.leaf([1, 2, 4, 5, 3]);
        leaves.gradients(adaptive_avg_pool3d(x, [2, 2, 2]))
    });
    for mode in [
        InterpolateMode::Nearest,
        InterpolateMode::Bilinear,
        InterpolateMode::Bicubic,
    ] {
        rows.add(&format!("interpolate {mode:?}"), move |d| {
            let mut leaves = Leaves::on(d);
            let x = leaves.leaf([1, 2, 4, 4]);
            let options = InterpolateOptions::new(mode.clone()).with_output_size([5, 7]);
            leaves.gradients(interpolate(x, options))
        });
    }
    rows.done()
}

fn layers() -> Vec<Row> {
    let mut rows = Rows::tracked("gradient of a layer");
    rows.add("embedding", |d| {
        let mut leaves = Leaves::on(d);
        let weights = leaves.leaf([6, 3]);
        leaves.gradients(embedding(weights, ints(d, [2, 3], &[5, 0, 2, 2, 1, 5])))
    });
    rows.add("linear", |d| {
        let mut leaves = Leaves::on(d);
        let (x, weight, bias) = (
            leaves.leaf([2, 3, 4]),
            leaves.leaf([4, 5]),
            leaves.leaf([5]),
        );
        leaves.gradients(linear(x, weight, Some(bias)))
    });
    rows.add("layer norm", |d| {
        let mut leaves = Leaves::on(d);
        let (x, gamma, beta) = (leaves.leaf([2, 3, 4]), leaves.leaf([4]), leaves.leaf([4]));
        leaves.gradients(layer_norm(x, gamma, Some(beta), 1e-5))
    });
    rows.add("batch norm", |d| {
        let mut leaves = Leaves::on(d);
        let (x, gamma, beta) = (leaves.leaf([2, 3, 4]), leaves.leaf([3]), leaves.leaf([3]));
        leaves.gradients(batch_norm_train(x, gamma, beta, 1e-5).output)
    });
    rows.add("attention", |d| {
        let mut leaves = Leaves::on(d);
        let shape = [2, 2, 3, 4];
        let (q, k, v) = (leaves.leaf(shape), leaves.leaf(shape), leaves.leaf(shape));
        let bias = leaves.leaf([2, 2, 3, 3]);
        let options = AttentionModuleOptions {
            is_causal: true,
            ..Default::default()
        };
        leaves.gradients(attention(q, k, v, None, Some(bias), options))
    });
    rows.add("ctc loss", |d| {
        let mut leaves = Leaves::on(d);
        let log_probs = activation::log_softmax(leaves.leaf([5, 2, 4]), 2);
        let targets = ints(d, [2, 2], &[1, 2, 3, 1]);
        let lengths = ints(d, [2], &[5, 4]);
        leaves.gradients(ctc_loss(
            log_probs,
            targets,
            lengths,
            ints(d, [2], &[2, 1]),
            0,
        ))
    });
    rows.add("grid sample", |d| {
        let mut leaves = Leaves::on(d);
        let x = leaves.leaf([2, 3]);
        let image = floats(d, [1, 2, 4, 5], 1);
        let sampled =
            image.grid_sample_2d(floats(d, [1, 3, 3, 2], 2), GridSampleOptions::default());
        let sampled: Tensor<2> = sampled.reshape([6, 3]).slice_dim(0, 0..2);
        leaves.gradients(x * sampled)
    });
    rows.done()
}

fn pointwise() -> Vec<Row> {
    let mut rows = Rows::tracked("gradient of");
    let unary: [(&str, Unary); 26] = [
        ("relu", activation::relu),
        ("leaky relu", |x| activation::leaky_relu(x, 0.125)),
        ("gelu", activation::gelu),
        ("sigmoid", activation::sigmoid),
        ("log sigmoid", activation::log_sigmoid),
        ("hard sigmoid", |x| activation::hard_sigmoid(x, 0.2, 0.5)),
        ("softmax", |x| activation::softmax(x, 1)),
        ("log softmax", |x| activation::log_softmax(x, 1)),
        ("exp", Tensor::exp),
        ("log", |x| x.abs().log()),
        ("erf", Tensor::erf),
        ("tanh", Tensor::tanh),
        ("sin", Tensor::sin),
        ("sqrt", |x| x.abs().sqrt()),
        ("powf scalar", |x| x.abs().powf_scalar(1.5)),
        ("powi scalar", |x| x.powi_scalar(3)),
        ("clamp", |x| x.clamp(-0.5, 0.5)),
        ("sort", |x| x.sort(1)),
        ("max dim", |x| x.max_dim(1)),
        ("prod dim", |x| x.prod_dim(1)),
        ("cumsum", |x| x.cumsum(1)),
        ("mean dim", |x| x.mean_dim(0)),
        ("flip and slice", |x| x.flip([0]).slice([1..3, 0..2])),
        ("reused", |x| {
            x.clone() * x.clone().transpose().matmul(x).slice([0..3, 0..4])
        }),
        ("repeat", |x| x.repeat_dim(0, 2)),
        ("unfold", |x| x.unfold::<3, _>(1, 2, 1).reshape([9, 2])),
    ];
    for (name, apply) in unary {
        rows.add(name, move |d| {
            let mut leaves = Leaves::on(d);
            let x = leaves.leaf([3, 4]);
            leaves.gradients(apply(x))
        });
    }
    let binary: [(&str, Binary); 9] = [
        ("add, broadcast", |_, x, y| x + y.slice([0..1, 0..4])),
        ("div", |_, x, y| x / y),
        ("atan2", |_, x, y| x.atan2(y)),
        ("powf", |_, x, y| x.abs().powf(y)),
        ("mask where", |d, x, y| x.mask_where(bools(d, [3, 4], 5), y)),
        ("select assign", |d, x, y| {
            let indices = ints(d, [3], &[2, 0, 2]);
            x.select_assign(0, indices, y, IndexingUpdateOp::Add)
        }),
        ("scatter and gather", |d, x, y| {
            let indices = ints(d, [3, 4], &[0, 3, 1, 1, 2, 0, 1, 2, 3, 3, 0, 0]);
            let gathered = y.gather(1, indices.clone());
            x.scatter(1, indices, gathered, IndexingUpdateOp::Add)
        }),
        ("cat", |_, x, y| Tensor::cat(vec![x.clone(), y, x], 0)),
        ("slice assign", |_, x, y| {
            x.slice_assign([0..2, 0..4], y.slice([1..3, 0..4]))
        }),
    ];
    for (name, apply) in binary {
        rows.add(name, move |d| {
            let mut leaves = Leaves::on(d);
            let (x, y) = (leaves.leaf([3, 4]), leaves.leaf([3, 4]));
            leaves.gradients(apply(d, x, y))
        });
    }
    rows.done()
}
