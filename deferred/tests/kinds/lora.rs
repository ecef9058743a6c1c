//! Adapters and reparameterizations: LoRA, other reparameterizations, quantization.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{
    Flag, Lora, Module, Param, ParamGroup, QLora, Quantizer, Reparameterization, Reparameterizer,
};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig, LinearLayout};
use burn::tensor::quantization::{Calibration, QuantValue};
use burn::tensor::{Device, Shape, Tensor, TensorData};
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{
    Deferred, DeferredError, Initializer, MaterializeOptions, Observer, Request, Rng, Source,
    SourceError, Values, check_materialized, parameter_values,
};
use tinderbox_fake::DynTensor;

use crate::check::{SEED, chain, devices, flex, hold, input, kind};
use crate::facts::{Use, values};

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: LayerNorm,
    second: Linear,
}

fn net(device: &Device) -> Net {
    let second = LinearConfig::new(3, 2).with_bias(false);
    Net {
        first: LinearConfig::new(2, 3).init(device),
        norm: LayerNormConfig::new(3).init(device),
        second: second.with_layout(LinearLayout::Col).init(device),
    }
}

fn lora() -> Lora {
    Lora::new(2, 4.0)
}

fn forward(net: &Net, device: &Device) -> Tensor<2> {
    let x = net.norm.forward(net.first.forward(input([2, 2], device)));
    net.second.forward(x)
}

const USE: Use<Net> = Use {
    fields: |_| Vec::new(),
    forward,
};

/// Seeded like plain Burn.
fn backend<M: Module>(model: &Deferred<M>) -> Initializer {
    model.initializer(Seed::new(SEED)).with_rng(Rng::Backend)
}

/// Plain Burn: seeded, constructed, and its parameters visited in order.
fn eager(device: &Device) -> Net {
    device.seed(SEED);
    let net = net(device);
    values(&net);
    net
}

#[test]
fn lora_in_the_closure() {
    let model = kind(
        |device| net(device).apply_lora(lora()),
        &[
            "first.weight: float f32 [2, 3], fixed, eager",
            "first.weight.lora.a: float f32 [2, 2], trainable, eager",
            "first.weight.lora.b: float f32 [2, 3], trainable, eager",
            "first.bias: float f32 [3], fixed, lazy",
            "norm.gamma: float f32 [3], fixed, lazy",
            "norm.beta: float f32 [3], fixed, lazy",
            "second.weight: float f32 [3, 2], fixed, eager",
            "second.weight.lora.a: float f32 [3, 2], trainable, eager",
            "second.weight.lora.b: float f32 [2, 2], trainable, eager",
        ],
        forward,
    )
    .check();
    // Burn initializes the adapted weights when it attaches the adapters, which is documented.
    assert_eq!(
        model.parameters().eager_bytes(),
        4 * (6 + 4 + 6 + 6 + 6 + 4)
    );
}

#[test]
fn lora_on_a_group() {
    kind(
        |device| {
            let bases = ParamGroup::from_path("first.weight");
            net(device)
                .apply_lora(Lora::new(1, 1.0).set_param_group(bases.clone()))
                .unfreeze_group(ParamGroup::all().exclude(bases))
        },
        &[
            "first.weight: float f32 [2, 3], fixed, eager",
            "first.weight.lora.a: float f32 [2, 1], trainable, eager",
            "first.weight.lora.b: float f32 [1, 3], trainable, eager",
            "first.bias: float f32 [3], trainable, lazy",
            "norm.gamma: float f32 [3], trainable, lazy",
            "norm.beta: float f32 [3], trainable, lazy",
            "second.weight: float f32 [3, 2], trainable, eager",
        ],
        forward,
    )
    .check();
}

#[test]
fn lora_after_materialization() {
    let _held = hold();
    let model = Deferred::new(net).unwrap();
    for device in devices() {
        let adapted = |net: Net| {
            device.seed(SEED + 1);
            net.apply_lora(lora())
        };
        let fresh = || adapted(net(&device));
        let made = model.materialize(&device, &backend(&model)).unwrap();
        let (made, eager) = (adapted(made), adapted(eager(&device)));
        let expected = USE.facts(&eager, &device, &fresh);
        assert_eq!(USE.facts(&made, &device, &fresh), expected);
        assert!(made.first.weight.adapter().is_some());
        // Trained and merged.
        if device.is_autodiff() {
            let merged = |net| values(&USE.train(net, &device).valid().materialize());
            let (made, eager) = (merged(made), merged(eager));
            assert_eq!(made, eager);
            assert_ne!(
                made[0].2, expected.values[0].2,
                "the adapter is in the weight"
            );
        }
    }
}

/// Pretrained weights under fresh adapters: each request is served by the source that has it.
struct Under {
    weights: Values,
    adapters: Initializer,
}

impl Source for Under {
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        let one = |request: &Request| {
            let of_adapter = request.path.as_str().contains(".lora.");
            let source: &dyn Source = if of_adapter {
                &self.adapters
            } else {
                &self.weights
            };
            source.load(std::slice::from_ref(request), observer)
        };
        let values: Result<Vec<_>, _> = requests.iter().map(one).collect();
        Ok(values?.into_iter().flatten().collect())
    }

    fn describe(&self) -> String {
        "pretrained weights and fresh adapters".into()
    }
}

#[test]
fn lora_over_pretrained_weights() {
    let _held = hold();
    let pretrained = net(&flex());
    let model = Deferred::new(|device| net(device).apply_lora(lora())).unwrap();
    let source = Under {
        weights: parameter_values(&pretrained).into_iter().collect(),
        adapters: model.initializer(Seed::new(SEED)),
    };
    let made = model.materialize(&flex(), &source).unwrap();
    for (path, _, data) in values(&pretrained) {
        let base = values(&made).into_iter().find(|(p, ..)| *p == path);
        assert_eq!(base.unwrap().2, data, "{path}");
    }
    // A fresh adapter does not change the output, and trains.
    let data = |weight: &Param<Tensor<2>>| -> TensorData { weight.val().into_data() };
    assert_eq!(data(&made.first.weight), data(&pretrained.first.weight));
    assert_eq!(
        forward(&made, &flex()).into_data(),
        forward(&pretrained.clone().apply_lora(lora()), &flex()).into_data()
    );
    let trained = USE.train(made.train(), &flex().autodiff());
    assert_eq!(
        trained.first.weight.base().into_data(),
        data(&pretrained.first.weight)
    );
    assert_ne!(data(&trained.first.weight), data(&pretrained.first.weight));
}

/// Adapters need weights with values. A fake one has no device for its adapter.
#[test]
fn lora_on_a_part_of_a_model() {
    let _held = hold();
    let model = Deferred::new(net).unwrap();
    let source = backend(&model);
    let part = |device: &Device| {
        let first = MaterializeOptions::on(device).only(|p| p.path.is_under("first"));
        model.materialize(first, &source).unwrap()
    };
    for device in devices() {
        let group = ParamGroup::from_predicate("first");
        let adapted = part(&device).apply_lora(lora().set_param_group(group.clone()));
        let weight = &adapted.first.weight;
        assert_eq!(weight.adapter().unwrap().b.val().dims(), [2, 3]);
        let expected = eager(&device).first.weight.val().into_data();
        assert_eq!(weight.val().into_data(), expected);
        check_materialized(&adapted).unwrap_err();
    }
    let error = check_materialized(&part(&flex())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "3 parameter(s) are fake, the first is `norm.gamma`: they were not selected when the module \
         was materialized"
    );
    let panic = catch_unwind(AssertUnwindSafe(|| part(&flex()).apply_lora(lora())));
    let panic = panic.unwrap_err();
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    assert_eq!(
        text.or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap(),
        "capture tensor operations must run inside CaptureDevice::capture_scope"
    );
}

/// A weight as a direction and a length for each column, with a switch.
#[derive(Module, Debug)]
struct WeightNorm {
    length: Param<Tensor<1>>,
    enabled: Param<Flag>,
}

fn lengths<const D: usize>(direction: Tensor<D>) -> Tensor<1> {
    let columns = direction.dims()[D - 1];
    let squares = direction.powi_scalar(2).reshape([-1, columns as i64]);
    let sums: Tensor<2> = squares.sum_dim(0);
    sums.sqrt().reshape([columns])
}

impl Reparameterization for WeightNorm {
    const NAME: &'static str = "weight_norm";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        if !self.enabled.is_enabled() {
            return base;
        }
        let scale = self.length.val() / lengths(base.clone());
        let mut shape = [1; D];
        shape[D - 1] = scale.dims()[0];
        base * scale.reshape(Shape::from(shape.to_vec()))
    }
}

struct Normalize;

impl Reparameterizer for Normalize {
    type Reparam = WeightNorm;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<WeightNorm>) {
        if D < 2 {
            return (param, None);
        }
        let length = Param::from_tensor(lengths(param.base()).detach());
        let enabled = Param::from_bool(path.starts_with("first"));
        (param, Some(WeightNorm { length, enabled }))
    }
}

#[test]
fn reparameterizations_of_your_own() {
    let model = kind(
        |device| net(device).apply_reparameterization(Normalize),
        &[
            "first.weight: float f32 [2, 3], trainable, eager",
            "first.weight.weight_norm.length: float f32 [3], trainable, eager",
            "first.bias: float f32 [3], trainable, lazy",
            "norm.gamma: float f32 [3], trainable, lazy",
            "norm.beta: float f32 [3], trainable, lazy",
            "second.weight: float f32 [3, 2], trainable, eager",
            "second.weight.weight_norm.length: float f32 [2], trainable, eager",
        ],
        forward,
    )
    .check();
    // Values that are computed from a weight are computed from the weight's final values.
    let _held = hold();
    let made = model
        .materialize(&flex(), &model.initializer(Seed::new(3)))
        .unwrap();
    let weight = &made.first.weight;
    let state = weight.reparameterization::<WeightNorm>().unwrap();
    assert_eq!(
        state.length.val().into_data(),
        lengths(weight.base()).into_data()
    );
}

fn quantizer(device: &Device) -> Quantizer {
    let scheme = device.settings().quantization.scheme;
    Quantizer::new(Calibration::MinMax, scheme.with_value(QuantValue::Q8S))
}

fn wide(device: &Device) -> Linear {
    LinearConfig::new(8, 8).with_bias(false).init(device)
}

#[test]
fn quantization_in_the_closure() {
    let _held = hold();
    for make in [
        |device: &Device| wide(device).quantize_weights(&mut quantizer(device)),
        |device: &Device| wide(device).apply_qlora(QLora::new(lora(), quantizer(device))),
    ] {
        let error = Deferred::new(make).unwrap_err();
        let DeferredError::Record { source } = &error else {
            panic!("{error}");
        };
        let origin = source.origin();
        assert!(
            origin.place().unwrap().starts_with("kinds/lora.rs:"),
            "{origin}"
        );
        assert_eq!(
            chain(&error).replace(&origin.to_string(), ""),
            "the model could not be constructed on a recording device: the recorded code called \
             something that is not implemented (not implemented): a recording device can't quantize, so if it was \
             that, quantize the materialized module"
        );
    }
}

#[test]
fn quantization_after_materialization() {
    let _held = hold();
    let model = Deferred::new(wide).unwrap();
    for device in devices() {
        let made = || model.materialize(&device, &backend(&model)).unwrap();
        let eager = || {
            device.seed(SEED);
            let linear = wide(&device);
            values(&linear);
            linear
        };
        let quantized = |linear: Linear| {
            let linear = linear.quantize_weights(&mut quantizer(&device));
            linear.weight.val().dequantize().into_data()
        };
        assert_eq!(quantized(made()), quantized(eager()));
        assert_ne!(quantized(made()), eager().weight.val().into_data());
        let adapted = |linear: Linear| {
            device.seed(SEED + 1);
            let linear = linear.apply_qlora(QLora::new(lora(), quantizer(&device)));
            assert!(!linear.weight.base().is_require_grad());
            let a = linear.weight.adapter().unwrap().a.val();
            assert_eq!(a.is_require_grad(), device.is_autodiff());
            let x = linear.forward(input([2, 8], &device));
            [x.into_data(), a.into_data()]
        };
        assert_eq!(adapted(made()), adapted(eager()));
    }
}
