//! Closures that create the same model at every call, and closures that do not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig, LinearLayout};
use burn::tensor::{DType, Device, Distribution, Shape, Tensor};
use tinderbox_deferred::{Deferred, DeferredError};

const HINT: &str = "; it must create the same model at every call: draw random values through Burn's \
                    tensors, not from the host";

#[derive(Module, Debug)]
struct Net {
    first: Option<Linear>,
    own: Param<Tensor<1>>,
    again: Param<Tensor<1>>,
    last: Vec<Linear>,
    field: Tensor<1>,
}

/// The properties of `Net` that may differ from call to call.
#[derive(Clone)]
struct Layout {
    bias: bool,
    first: bool,
    outputs: usize,
    layout: LinearLayout,
    layers: usize,
    frozen: bool,
    clone: bool,
    field: f32,
    own: fn(&Device) -> Tensor<1>,
    eager: bool,
}

fn usual() -> Layout {
    Layout {
        bias: true,
        first: true,
        outputs: 3,
        layout: LinearLayout::Row,
        layers: 1,
        frozen: false,
        clone: false,
        field: 0.5,
        own: |device| Tensor::random([4], Distribution::Uniform(-0.1, 0.1), device) * 2.0,
        eager: false,
    }
}

fn build(shape: &Layout, device: &Device) -> Net {
    let linear = |from, to| {
        let config = LinearConfig::new(from, to).with_bias(shape.bias);
        config.with_layout(shape.layout).init(device)
    };
    let make = shape.own;
    let own = || match shape.eager {
        true => Param::from_tensor(make(device)),
        false => Param::uninitialized(
            ParamId::new(),
            move |device: &Device, trainable| make(device).set_require_grad(trainable),
            device.clone(),
            true,
            Shape::new([4]),
        ),
    };
    let first = own();
    let first = match shape.frozen {
        true => first.set_require_grad(false),
        false => first,
    };
    Net {
        first: shape.first.then(|| linear(2, shape.outputs)),
        again: match shape.clone {
            true => first.clone(),
            false => own(),
        },
        own: first,
        last: (0..shape.layers).map(|_| linear(1, 1)).collect(),
        field: Tensor::from_floats([shape.field, 1.0], device),
    }
}

/// A model that is created by `before` at the first call and by `now` at every later one.
fn changing(before: Layout, now: Layout) -> Deferred<Net> {
    let calls = AtomicUsize::new(0);
    let init = move |device: &Device| match calls.fetch_add(1, Ordering::Relaxed) {
        0 => build(&before, device),
        _ => build(&now, device),
    };
    Deferred::new(init).unwrap()
}

#[test]
fn what_differs_is_named() {
    let check = |change: fn(&mut Layout), expected: &str| {
        let mut now = usual();
        change(&mut now);
        let error = changing(usual(), now).check_stable().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the closure created another model at its second call: {expected}{HINT}")
        );
    };
    check(
        |net| net.outputs = 5,
        "parameter `first.weight` differs in its shape, which was [2, 3] and is now [2, 5]",
    );
    check(
        |net| net.bias = false,
        "parameter `first.bias` no longer exists",
    );
    check(
        |net| net.first = false,
        "parameter `first.weight` no longer exists",
    );
    check(|net| net.layers = 2, "parameter `last.1.weight` is new");
    check(
        |net| net.layers = 0,
        "parameter `last.0.weight` no longer exists",
    );
    check(
        |net| net.frozen = true,
        "parameter `own` differs in its training state, which was trainable and is now frozen",
    );
    check(
        |net| net.eager = true,
        "parameter `own` differs in its origin, which was lazy and is now eager",
    );
    check(
        |net| net.clone = true,
        "parameter `again` differs in its original, which was itself and is now `own`",
    );
    check(
        |net| net.layout = LinearLayout::Col,
        "parameter `first.weight` differs in its declared shape, which was [2, 3] and is now [3, 2]",
    );
    check(
        |net| net.own = |device| Tensor::<1>::ones([4], device).cast(DType::BF16),
        "parameter `own` differs in its dtype, which was f32 and is now bf16",
    );
    check(
        |net| {
            net.own = |device| Tensor::random([4], Distribution::Uniform(-0.2, 0.1), device) * 2.0;
        },
        "in the recipe of parameter `own`, operation 1 was Float.Random(Uniform(-0.1, 0.1)) -> \
         f32[4] and is now Float.Random(Uniform(-0.2, 0.1)) -> f32[4]",
    );
    check(
        |net| net.own = |device| Tensor::random([4], Distribution::Uniform(-0.1, 0.1), device),
        "in the recipe of parameter `own`, operation 2 was NumericFloat.MulScalar(Float(2.0)) -> \
         f32[4] and no longer exists",
    );
    check(
        |net| net.field = 0.25,
        "outside the recipes of all parameters, constant 1 was f32[2] with 0.5 at element 0 and is \
         now f32[2] with 0.25 at element 0",
    );
}

#[test]
fn parameters_that_change_places() {
    #[derive(Module, Debug)]
    enum Either {
        Left(Linear),
        Right(Linear),
    }
    let calls = AtomicUsize::new(0);
    let model = Deferred::new(move |device| {
        let linear = LinearConfig::new(1, 1).with_bias(false).init(device);
        match calls.fetch_add(1, Ordering::Relaxed) {
            0 => Either::Left(linear),
            _ => Either::Right(linear),
        }
    });
    let error = model.unwrap().check_stable().unwrap_err().to_string();
    assert!(
        error.contains(": parameter `Left.weight` no longer exists;"),
        "{error}"
    );
}

#[test]
fn host_data_are_compared_by_bits() {
    fn constant(value: f32, device: &Device) -> Tensor<1> {
        Tensor::from_floats([1.0, value, 2.0, 3.0], device)
    }
    let with = |own: fn(&Device) -> Tensor<1>| Layout { own, ..usual() };
    let nan = with(|device| constant(f32::NAN, device) * f32::NAN);
    changing(nan.clone(), nan).check_stable().unwrap();
    let zero = with(|device| constant(0.0, device));
    let minus_zero = with(|device| constant(-0.0, device));
    let error = changing(zero, minus_zero).check_stable().unwrap_err();
    let expected = "in the recipe of parameter `own`, constant 1 was f32[4] with 0 at element 1 and \
                    is now f32[4] with -0 at element 1";
    assert!(error.to_string().contains(expected), "{error}");
    let zero = with(|device| Tensor::<1>::ones([4], device) * 0.0);
    let minus_zero = with(|device| Tensor::<1>::ones([4], device) * -0.0);
    let error = changing(zero, minus_zero).check_stable().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("Float(0.0)) -> f32[4] and is now"),
        "{error}"
    );
}

#[test]
fn a_value_read_in_another_order_is_a_difference() {
    let with = |own: fn(&Device) -> Tensor<1>| Layout { own, ..usual() };
    let before = with(|device| {
        let [a, b] = [(); 2].map(|()| Tensor::random([4], Distribution::Default, device));
        a - b
    });
    let now = with(|device| {
        let [a, b] = [(); 2].map(|()| Tensor::random([4], Distribution::Default, device));
        b - a
    });
    let error = changing(before, now).check_stable().unwrap_err();
    let expected = "operation 3 was NumericFloat.Sub() -> f32[4] of %0 f32[4], %1 f32[4] and is now \
                    NumericFloat.Sub() -> f32[4] of %1 f32[4], %0 f32[4]";
    assert!(error.to_string().contains(expected), "{error}");
}

/// A closure may change after it was found to be stable.
#[test]
fn every_check_records_again() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let model = Deferred::new(move |device| {
        let call = counted.fetch_add(1, Ordering::Relaxed);
        let bias = call < 2;
        build(&Layout { bias, ..usual() }, device)
    });
    let model = model.unwrap();
    model.check_stable().unwrap();
    let error = model.check_stable().unwrap_err();
    assert!(matches!(error, DeferredError::Unstable { .. }), "{error}");
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

#[test]
fn every_check_fails_alike() {
    let model = changing(
        usual(),
        Layout {
            bias: false,
            ..usual()
        },
    );
    for _ in 0..2 {
        let error = model.check_stable().unwrap_err();
        assert!(matches!(error, DeferredError::Unstable { .. }), "{error}");
    }
}

#[test]
fn a_closure_that_fails_later_is_reported() {
    let calls = AtomicUsize::new(0);
    let model = Deferred::new(move |device| {
        assert!(calls.fetch_add(1, Ordering::Relaxed) == 0, "only once");
        build(&usual(), device)
    });
    let error = model.unwrap().check_stable().unwrap_err();
    assert!(matches!(error, DeferredError::Record { .. }), "{error}");
}
