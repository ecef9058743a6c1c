//! Operations of layers: convolution, pooling, attention, normalization, activations.

use burn::tensor::module::{
    adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d, attention, avg_pool1d,
    avg_pool2d, batch_norm, batch_norm_train, conv_transpose1d, conv_transpose2d, conv_transpose3d,
    conv1d, conv2d, conv3d, ctc_loss, deform_conv2d, embedding, fold4d, interpolate, layer_norm,
    linear, max_pool1d, max_pool1d_with_indices, max_pool2d, max_pool2d_with_indices, unfold4d,
};
use burn::tensor::ops::{
    AttentionModuleOptions, AvgPoolOptions, ConvOptions, ConvTransposeOptions, DeformConvOptions,
    InterpolateMode, InterpolateOptions, MaxPoolOptions, UnfoldOptions,
};
use burn::tensor::{Tensor, activation};

use crate::check::{Row, Rows, bools, floats, ints, one, two};

type Activation = fn(Tensor<2>) -> Tensor<2>;

/// With a bias and without.
const BIAS: [bool; 2] = [true, false];

/// `flex` has no `NearestExact`.
const INTERPOLATE: [InterpolateMode; 4] = [
    InterpolateMode::Nearest,
    InterpolateMode::Bilinear,
    InterpolateMode::Bicubic,
    InterpolateMode::Lanczos3,
];

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = convolutions();
    rows.extend(transposed());
    rows.extend(from_convolutions());
    rows.extend(pools());
    rows.extend(interpolations());
    rows.extend(others());
    rows.extend(attentions());
    rows.extend(activations());
    rows
}

fn convolutions() -> Vec<Row> {
    let mut rows = Rows::new("convolution");
    for bias in BIAS {
        let with = if bias { "with" } else { "without" };
        rows.add(&format!("conv1d {with} bias"), move |d| {
            let bias = bias.then(|| floats(d, [4], 3));
            let options = ConvOptions::new([2], [1], [1], 2);
            one(conv1d(
                floats(d, [2, 4, 7], 1),
                floats(d, [4, 2, 3], 2),
                bias,
                options,
            ))
        });
        rows.add(&format!("conv2d {with} bias"), move |d| {
            let bias = bias.then(|| floats(d, [4], 3));
            let options = ConvOptions::new([1, 2], [1, 0], [1, 1], 1);
            one(conv2d(
                floats(d, [2, 3, 5, 6], 1),
                floats(d, [4, 3, 3, 2], 2),
                bias,
                options,
            ))
        });
        rows.add(&format!("conv3d {with} bias"), move |d| {
            let bias = bias.then(|| floats(d, [2], 3));
            let options = ConvOptions::new([1, 1, 1], [1, 0, 1], [1, 1, 1], 1);
            let weight = floats(d, [2, 3, 2, 2, 2], 2);
            one(conv3d(floats(d, [1, 3, 3, 4, 4], 1), weight, bias, options))
        });
    }
    rows.add("conv2d, other padding at the end", |d| {
        let options = ConvOptions::new_with_padding([1, 1], [(1, 0), (0, 2)], [1, 1], 1);
        one(conv2d(
            floats(d, [1, 2, 4, 4], 1),
            floats(d, [2, 2, 3, 3], 2),
            None,
            options,
        ))
    });
    rows.done()
}

fn transposed() -> Vec<Row> {
    let mut rows = Rows::new("transposed convolution");
    for bias in BIAS {
        let with = if bias { "with" } else { "without" };
        rows.add(&format!("conv transpose 1d {with} bias"), move |d| {
            let bias = bias.then(|| floats(d, [4], 3));
            let options = ConvTransposeOptions::new([2], [1], [1], [1], 1);
            one(conv_transpose1d(
                floats(d, [2, 3, 5], 1),
                floats(d, [3, 4, 3], 2),
                bias,
                options,
            ))
        });
        rows.add(&format!("conv transpose 2d {with} bias"), move |d| {
            let bias = bias.then(|| floats(d, [4], 3));
            let options = ConvTransposeOptions::new([2, 1], [1, 0], [1, 0], [1, 1], 2);
            let weight = floats(d, [4, 2, 3, 2], 2);
            one(conv_transpose2d(
                floats(d, [1, 4, 3, 4], 1),
                weight,
                bias,
                options,
            ))
        });
        rows.add(&format!("conv transpose 3d {with} bias"), move |d| {
            let bias = bias.then(|| floats(d, [2], 3));
            let options = ConvTransposeOptions::new([1; 3], [0; 3], [0; 3], [1; 3], 1);
            let weight = floats(d, [3, 2, 2, 2, 2], 2);
            one(conv_transpose3d(
                floats(d, [1, 3, 2, 3, 3], 1),
                weight,
                bias,
                options,
            ))
        });
    }
    rows.done()
}

fn from_convolutions() -> Vec<Row> {
    let mut rows = Rows::new("like a convolution");
    for bias in BIAS {
        let with = if bias { "with" } else { "without" };
        for mask in BIAS {
            rows.add(&format!("deformable {with} bias, mask {mask}"), move |d| {
                let options = DeformConvOptions::new([1, 1], [0, 0], [1, 1], 1, 1);
                one(deform_conv2d(
                    floats(d, [1, 2, 4, 4], 1),
                    floats(d, [1, 18, 2, 2], 2),
                    floats(d, [3, 2, 3, 3], 3),
                    mask.then(|| floats(d, [1, 9, 2, 2], 4)),
                    bias.then(|| floats(d, [3], 5)),
                    options,
                ))
            });
        }
        rows.add(&format!("linear {with} bias"), move |d| {
            let bias = bias.then(|| floats(d, [5], 3));
            one(linear(floats(d, [2, 3, 4], 1), floats(d, [4, 5], 2), bias))
        });
        rows.add(&format!("linear of one vector {with} bias"), move |d| {
            let bias = bias.then(|| floats(d, [5], 3));
            one(linear(floats(d, [4], 1), floats(d, [4, 5], 2), bias))
        });
    }
    rows.add("unfold and fold", |d| {
        let options = || UnfoldOptions::new([1, 1], [0, 1], [1, 1]);
        let unfolded = unfold4d(floats(d, [1, 2, 4, 4], 1), [2, 2], options());
        two((
            unfolded.clone(),
            fold4d(unfolded, [4, 4], [2, 2], options()),
        ))
    });
    rows.done()
}

fn pools() -> Vec<Row> {
    let mut rows = Rows::new("pool");
    for ceil in BIAS {
        rows.add(&format!("max 1d, ceil {ceil}"), move |d| {
            let options = || {
                MaxPoolOptions::new([3])
                    .with_stride([2])
                    .with_ceil_mode(ceil)
            };
            let x = floats(d, [2, 3, 8], 1);
            let (values, indices) = max_pool1d_with_indices(x.clone(), options());
            vec![
                max_pool1d(x, options()).into(),
                values.into(),
                indices.into(),
            ]
        });
        rows.add(&format!("max 2d, ceil {ceil}"), move |d| {
            let options = || {
                MaxPoolOptions::new([2, 3])
                    .with_stride([2, 2])
                    .with_padding([1, 1])
                    .with_dilation([1, 1])
                    .with_ceil_mode(ceil)
            };
            let x = floats(d, [2, 3, 5, 6], 1);
            let (values, indices) = max_pool2d_with_indices(x.clone(), options());
            vec![
                max_pool2d(x, options()).into(),
                values.into(),
                indices.into(),
            ]
        });
        rows.add(&format!("average, ceil {ceil}"), move |d| {
            let flat = AvgPoolOptions::new([3])
                .with_stride([2])
                .with_ceil_mode(ceil);
            let options = AvgPoolOptions::new([2, 3])
                .with_padding([1, 1])
                .with_count_include_pad(false)
                .with_ceil_mode(ceil);
            let x = floats(d, [2, 3, 5, 6], 1);
            two((
                avg_pool1d(floats(d, [2, 3, 8], 1), flat),
                avg_pool2d(x, options),
            ))
        });
    }
    rows.add("other padding at the end", |d| {
        let options = MaxPoolOptions::new([2, 2]).with_padding_pairs([(0, 1), (1, 0)]);
        two(max_pool2d_with_indices(floats(d, [1, 2, 4, 4], 1), options))
    });
    rows.add("adaptive average", |d| {
        vec![
            adaptive_avg_pool1d(floats(d, [2, 3, 7], 1), 3).into(),
            adaptive_avg_pool2d(floats(d, [2, 3, 5, 6], 1), [2, 4]).into(),
            adaptive_avg_pool3d(floats(d, [1, 2, 4, 5, 3], 1), [2, 2, 2]).into(),
        ]
    });
    rows.done()
}

fn interpolations() -> Vec<Row> {
    let mut rows = Rows::new("interpolation");
    for mode in INTERPOLATE {
        rows.add(&format!("interpolate {mode:?}"), move |d| {
            let corners = |align: bool| {
                let options = InterpolateOptions::new(mode.clone()).with_output_size([5, 7]);
                interpolate(
                    floats(d, [1, 2, 4, 4], 1),
                    options.with_align_corners(align),
                )
            };
            two((corners(false), corners(true)))
        });
    }
    rows.done()
}

fn others() -> Vec<Row> {
    let mut rows = Rows::new("layer");
    rows.add("embedding", |d| {
        one(embedding(
            floats(d, [6, 3], 1),
            ints(d, [2, 3], &[5, 0, 2, 2, 1, 5]),
        ))
    });
    rows.add("batch norm", |d| {
        let channel = |seed| floats(d, [3], seed);
        let variance = channel(5).abs();
        let x = floats(d, [2, 3, 4], 1);
        one(batch_norm(
            x,
            channel(2),
            channel(3),
            channel(4),
            variance,
            1e-5,
        ))
    });
    rows.add("batch norm in training", |d| {
        let norm = batch_norm_train(
            floats(d, [2, 3, 4], 1),
            floats(d, [3], 2),
            floats(d, [3], 3),
            1e-5,
        );
        vec![norm.output.into(), norm.mean.into(), norm.variance.into()]
    });
    for bias in BIAS {
        rows.add(&format!("layer norm, beta {bias}"), move |d| {
            let beta = bias.then(|| floats(d, [4], 3));
            one(layer_norm(
                floats(d, [2, 3, 4], 1),
                floats(d, [4], 2),
                beta,
                1e-5,
            ))
        });
    }
    rows.add("ctc loss", |d| {
        let log_probs = activation::log_softmax(floats(d, [5, 2, 4], 1), 2);
        let targets = ints(d, [2, 2], &[1, 2, 3, 1]);
        one(ctc_loss(
            log_probs,
            targets,
            ints(d, [2], &[5, 4]),
            ints(d, [2], &[2, 1]),
            0,
        ))
    });
    rows.done()
}

fn attentions() -> Vec<Row> {
    let mut rows = Rows::new("attention");
    for bias in BIAS {
        for mask in BIAS {
            for is_causal in BIAS {
                let name = format!("attention, mask {mask}, bias {bias}, causal {is_causal}");
                rows.add(&name, move |d| {
                    let heads = |seed| floats(d, [2, 2, 3, 4], seed);
                    let options = AttentionModuleOptions {
                        scale: Some(0.25),
                        softcap: (!is_causal).then_some(5.0),
                        is_causal,
                    };
                    // Every query attends to at least one key.
                    let mask = mask.then(|| bools(d, [2, 2, 3, 3], 4).bool_and(diagonal(d)));
                    let bias = bias.then(|| floats(d, [2, 2, 3, 3], 5));
                    one(attention(heads(1), heads(2), heads(3), mask, bias, options))
                });
            }
        }
    }
    rows.done()
}

fn diagonal(device: &burn::tensor::Device) -> Tensor<4, burn::tensor::Bool> {
    Tensor::<2, burn::tensor::Bool>::diag_mask([3, 3], 0, device)
        .unsqueeze::<4>()
        .expand([2, 2, 3, 3])
}

fn activations() -> Vec<Row> {
    let mut rows = Rows::new("activation");
    let table: [(&str, Activation); 22] = [
        ("relu", activation::relu),
        ("leaky relu", |x| activation::leaky_relu(x, 0.125)),
        ("gelu", activation::gelu),
        ("gelu approximate", activation::gelu_approximate),
        ("sigmoid", activation::sigmoid),
        ("hard sigmoid", |x| activation::hard_sigmoid(x, 0.2, 0.5)),
        ("log sigmoid", activation::log_sigmoid),
        ("softmax 0", |x| activation::softmax(x, 0)),
        ("softmax 1", |x| activation::softmax(x, 1)),
        ("log softmax", |x| activation::log_softmax(x, 1)),
        ("softmin", |x| activation::softmin(x, 1)),
        ("quiet softmax", |x| activation::quiet_softmax(x, 1)),
        ("silu", activation::silu),
        ("softplus", |x| activation::softplus(x, 1.5)),
        ("mish", activation::mish),
        ("elu", |x| activation::elu(x, 0.5)),
        ("celu", |x| activation::celu(x, 0.5)),
        ("selu", activation::selu),
        ("hard swish", activation::hard_swish),
        ("glu", |x| activation::glu(x, 1).repeat_dim(1, 2)),
        ("softsign", activation::softsign),
        ("soft shrink", |x| activation::soft_shrink(x, 0.5)),
    ];
    for (name, apply) in table {
        rows.add(name, move |d| one(apply(floats(d, [3, 4], 1))));
    }
    rows.add("prelu", |d| {
        let x = floats(d, [2, 3, 4], 1);
        let per_channel = activation::prelu(x.clone(), floats(d, [3], 2));
        two((per_channel, activation::prelu(x, floats(d, [1], 3))))
    });
    rows.done()
}
