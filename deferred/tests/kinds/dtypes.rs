//! Casts to another dtype during materialization.

use burn::module::{Lora, Module, ModuleMapper, Param, ParamId};
use burn::nn::{
    BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, LinearLayout,
    RotaryEncoding, RotaryEncodingConfig,
};
use burn::tensor::{Bool, DType, Device, FloatDType, Int, Tensor, TensorData};
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{
    Deferred, Initializer, MaterializeOptions, Parameter, ParameterPath, Rng, Source, Values,
    parameter_values,
};
use tinderbox_fake::{DynTensor, TensorKind};

use crate::check::{SEED, chain, devices, flex, hold, input};
use crate::facts::{Use, values};

const HALVES: [DType; 2] = [DType::BF16, DType::F16];

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: LayerNorm,
    batch_norm: BatchNorm,
    eager: Param<Tensor<2>>,
    last: Linear,
}

fn net(device: &Device) -> Net {
    let col = LinearConfig::new(3, 2).with_layout(LinearLayout::Col);
    Net {
        first: LinearConfig::new(2, 3).init(device),
        norm: LayerNormConfig::new(3).init(device),
        batch_norm: BatchNormConfig::new(3).init(device),
        eager: Param::from_tensor(Tensor::random([3, 3], Default::default(), device)),
        last: col.init(device).no_grad(),
    }
}

/// In the dtypes of the parameters.
fn forward(net: &Net, device: &Device) -> Tensor<2> {
    let like = |x: Tensor<2>, dtype: DType| x.cast(FloatDType::from(dtype));
    let x = like(input([4, 2], device), net.first.weight.dtype());
    let x = like(net.first.forward(x), net.norm.gamma.dtype());
    let x = like(net.norm.forward(x), net.batch_norm.gamma.dtype());
    let x = like(net.batch_norm.forward(x), net.eager.dtype());
    let x = like(x.matmul(net.eager.val()), net.last.weight.val().dtype());
    net.last.forward(x)
}

const USE: Use<Net> = Use {
    fields: |_| Vec::new(),
    forward,
};

type Choice<'a> = &'a dyn Fn(&str) -> Option<DType>;

/// Casts each parameter of a plain module.
struct Casts<'a> {
    path: Vec<String>,
    choose: Choice<'a>,
}

impl ModuleMapper for Casts<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(dtype) = (self.choose)(&self.path.join(".")) else {
            return param;
        };
        param.map(|value| {
            let trainable = value.is_require_grad();
            let cast = value.detach().cast(FloatDType::from(dtype)).detach();
            match trainable {
                true => cast.require_grad(),
                false => cast,
            }
        })
    }
}

fn cast<M: Module>(module: M, choose: Choice) -> M {
    let path = Vec::new();
    module.map(&mut Casts { path, choose })
}

/// Plain Burn: seeded, constructed, visited in order, and cast.
fn eager(device: &Device, make: fn(&Device) -> Net, choose: Choice) -> Net {
    device.seed(SEED);
    let net = make(device);
    values(&net);
    cast(net, choose)
}

fn backend<M: Module>(model: &Deferred<M>) -> Initializer {
    model.initializer(Seed::new(SEED)).with_rng(Rng::Backend)
}

/// Checks that a model with these dtypes is the plain one, cast.
fn check(make: fn(&Device) -> Net, choose: Choice) {
    let _held = hold();
    let model = Deferred::new(make).unwrap();
    let options =
        |device: &Device| MaterializeOptions::on(device).dtype(|p| choose(p.path.as_str()));
    for device in devices() {
        let eager = eager(&device, make, choose);
        let expected = USE.facts(&eager, &device, &|| make(&device));
        let made = model
            .materialize(options(&device), &backend(&model))
            .unwrap();
        assert_eq!(USE.facts(&made, &device, &|| make(&device)), expected);
    }
    // With the other generator: the cast values of the whole, also alone.
    let counter = model.initializer(Seed::new(SEED));
    let whole = cast(model.materialize(&flex(), &counter).unwrap(), choose);
    let made = model.materialize(options(&flex()), &counter).unwrap();
    assert_eq!(values(&made), values(&whole));
    let part = model
        .materialize_parameters(options(&flex()), &counter)
        .unwrap();
    assert_eq!(values(&part), values(&whole));
}

#[test]
fn all_parameters() {
    for dtype in [DType::BF16, DType::F16, DType::F64, DType::F32] {
        check(net, &|_| Some(dtype));
    }
}

#[test]
fn some_parameters() {
    check(net, &|path| {
        path.starts_with("first").then_some(DType::BF16)
    });
    check(net, &|path| match path {
        "first.weight" | "first.bias" => Some(DType::F16),
        "eager" => Some(DType::F64),
        path if path.starts_with("last") => Some(DType::BF16),
        _ => None,
    });
}

fn adapted(device: &Device) -> Net {
    let net = net(device);
    Net {
        last: net.last.apply_lora(Lora::new(2, 4.0)),
        ..net
    }
}

/// Adapters in the dtype of their weight, and over a weight of another: Burn then computes in theirs.
#[test]
fn weights_under_adapters() {
    check(adapted, &|_| Some(DType::BF16));
    check(adapted, &|path| {
        (path == "last.weight").then_some(DType::BF16)
    });
}

#[derive(Module, Debug)]
struct OfEachKind {
    float: Param<Tensor<2>>,
    int: Param<Tensor<1, Int>>,
    bool: Param<Tensor<2, Bool>>,
    rotary: RotaryEncoding,
}

fn of_each_kind(device: &Device) -> OfEachKind {
    OfEachKind {
        float: Param::from_tensor(Tensor::random([2, 2], Default::default(), device)),
        int: Param::initialized(ParamId::new(), Tensor::from_ints([1, 0], device)),
        bool: Param::initialized(
            ParamId::new(),
            Tensor::from_bool([[true, false], [false, true]], device),
        ),
        rotary: RotaryEncodingConfig::new(4, 2).init(device),
    }
}

#[test]
fn ints_and_bools_stay_as_they_are() {
    let _held = hold();
    let model = Deferred::new(of_each_kind).unwrap();
    let floats = |p: &Parameter| (p.kind == TensorKind::Float).then_some(DType::BF16);
    let options = MaterializeOptions::on(&flex()).dtype(floats);
    let made = model.materialize(options, &backend(&model)).unwrap();
    flex().seed(SEED);
    let plain = of_each_kind(&flex());
    let expected = [
        plain.float.val().cast(FloatDType::BF16).into_data(),
        plain.int.val().into_data(),
        plain.bool.val().into_data(),
    ];
    let made_values = values(&made).into_iter().map(|(.., data)| data);
    assert_eq!(made_values.collect::<Vec<_>>(), expected);
    // The choice is not called for values that are not parameters.
    assert_eq!(made.rotary.freq_complex.dtype(), DType::F32);
    assert_eq!(
        made.rotary.freq_complex.into_data(),
        plain.rotary.freq_complex.into_data()
    );
}

#[test]
fn other_casts_are_refused() {
    let _held = hold();
    let model = Deferred::new(of_each_kind).unwrap();
    let source = model.initializer(Seed::new(1));
    let check = |choose: fn(&Parameter) -> Option<DType>, expected: &str| {
        let expected = format!(
            "only float parameters are cast, and to f64, f32, f16 or bf16: {expected}; choose a \
             dtype by kind, as in `.dtype(|p| (p.kind == TensorKind::Float).then_some(DType::BF16))`"
        );
        let options = || MaterializeOptions::on(&flex()).dtype(choose);
        let whole = model.materialize(options(), &source);
        assert_eq!(chain(&whole.unwrap_err()), expected);
        let part = model.materialize_parameters(options(), &source);
        assert_eq!(chain(&part.unwrap_err()), expected);
    };
    check(
        |_| Some(DType::BF16),
        "`int` is i32, not bf16, `bool` is bool, not bf16",
    );
    check(
        |p| (p.kind != TensorKind::Bool).then_some(DType::I64),
        "`float` is f32, not i64, `int` is i32, not i64",
    );
    // Parameters that are not selected are not checked.
    let part = MaterializeOptions::on(&flex())
        .only(|p| p.kind == TensorKind::Float)
        .dtype(|_| Some(DType::BF16));
    let part = model.materialize_parameters(part, &source).unwrap();
    assert_eq!(part.value(0).dtype(), DType::BF16);
}

/// Values of another source, in dtypes of their own.
#[test]
fn values_of_any_float_dtype() {
    let _held = hold();
    let model = Deferred::new(net).unwrap();
    // Always a new one, because clones of a running state share it.
    let plain = |dtype: DType| eager(&flex(), net, &|_| Some(dtype));
    let at = |dtype: DType| -> Values { parameter_values(&plain(dtype)).into_iter().collect() };
    let bits =
        |net: &Net| -> Vec<TensorData> { values(net).into_iter().map(|(.., data)| data).collect() };
    let made = |source: &dyn Source, dtype: DType| {
        let options = MaterializeOptions::on(&flex()).dtype(|_| Some(dtype));
        bits(&model.materialize(options, source).unwrap())
    };
    for half in HALVES {
        let rounded = bits(&plain(half));
        assert_eq!(made(&at(DType::F32), half), rounded);
        // In the requested dtype already: unchanged. In the model's own dtype: exact.
        assert_eq!(made(&at(half), half), rounded);
        let widened = bits(&cast(plain(half), &|_| Some(DType::F32)));
        assert_eq!(made(&at(half), DType::F32), widened);
        let default = model.materialize(&flex(), &at(half)).unwrap();
        assert_eq!(bits(&default), widened);
    }
}

/// A model in half precision, materialized in single precision.
#[test]
fn models_in_half_precision() {
    let _held = hold();
    let make = |device: &Device| {
        Param::<Tensor<2>>::uninitialized(
            ParamId::new(),
            |device, trainable| {
                let drawn = Tensor::<2>::random([3, 3], Default::default(), device);
                drawn.cast(FloatDType::BF16).set_require_grad(trainable)
            },
            device.clone(),
            true,
            [3, 3].into(),
        )
    };
    let model = Deferred::new(make).unwrap();
    assert_eq!(model.parameters().bytes(), 18);
    flex().seed(SEED);
    let plain = make(&flex()).val();
    let source = backend(&model);
    let made = model.materialize(&flex(), &source).unwrap().val();
    assert_eq!(made.into_data(), plain.clone().into_data());
    let wide = MaterializeOptions::on(&flex()).dtype(|_| Some(DType::F32));
    let made = model.materialize(wide, &source).unwrap().val();
    assert_eq!(made.into_data(), plain.cast(FloatDType::F32).into_data());
    // One tensor, and one that has another dtype.
    let one: DynTensor = model.materialize_tensor("", &flex(), &source).unwrap();
    assert_eq!(one.dtype(), DType::BF16);
    let missing = model.materialize_tensor("weight", &flex(), &source);
    assert!(missing.is_err() && model.parameters().get(&ParameterPath::new("")).is_some());
}
