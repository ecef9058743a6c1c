//! From a deferred model to real parameters: the table, the values, the errors.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::nn::{
    BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, LinearLayout,
    RotaryEncoding, RotaryEncodingConfig,
};
use burn::tensor::{Bool, DType, Device, Distribution, Int, Tensor, TensorData};
use tinderbox_deferred::random::{Domain, Seed, Stream, generate};
use tinderbox_deferred::{
    Deferred, MaterializeError, MaterializeOptions, Mismatch, Observer, Origin, ParameterPath,
    PartialModule, Request, Source, SourceError, Values, check_materialized, parameter_values,
};
use tinderbox_fake::{DynTensor, Mode, RecordOptions, Region, record};

#[derive(Module, Debug)]
struct Inner {
    linear: Linear,
    some: Option<Linear>,
    none: Option<Linear>,
}

#[derive(Module, Debug)]
enum Head {
    Plain(Linear),
    Normed(LayerNorm),
}

/// One of every kind of value that a module may have.
#[derive(Module, Debug)]
struct Zoo {
    row: Linear,
    col: Linear,
    frozen: Linear,
    inner: Inner,
    layers: Vec<Linear>,
    plain: Head,
    normed: Head,
    batch_norm: BatchNorm,
    rope: RotaryEncoding,
    ints: Param<Tensor<1, Int>>,
    bools: Param<Tensor<2, Bool>>,
    eager: Param<Tensor<2>>,
    own: Param<Tensor<2>>,
    again: Param<Tensor<2>>,
}

fn col(device: &Device) -> Linear {
    let config = LinearConfig::new(2, 3).with_layout(LinearLayout::Col);
    config.init(device)
}

impl Zoo {
    fn new(device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let own = Param::uninitialized(
            ParamId::new(),
            |device, trainable| {
                let draws = || Tensor::random([2, 2], Distribution::Normal(0.0, 1.0), device);
                (draws() + draws()).set_require_grad(trainable)
            },
            device.clone(),
            true,
            [2, 2].into(),
        );
        Self {
            row: linear(2, 3),
            col: col(device),
            frozen: linear(1, 1).no_grad(),
            inner: Inner {
                linear: linear(3, 1),
                some: Some(linear(1, 2)),
                none: None,
            },
            layers: vec![
                linear(4, 4),
                LinearConfig::new(4, 4).with_bias(false).init(device),
            ],
            plain: Head::Plain(linear(1, 1)),
            normed: Head::Normed(LayerNormConfig::new(3).init(device)),
            batch_norm: BatchNormConfig::new(3).init(device),
            rope: RotaryEncodingConfig::new(8, 4).init(device),
            ints: Param::initialized(ParamId::new(), Tensor::arange(0..3, device)),
            bools: Param::initialized(ParamId::new(), Tensor::from_bool([[true], [false]], device)),
            eager: Param::from_tensor(Tensor::from_floats([[1.0, 2.0]], device)),
            again: own.clone(),
            own,
        }
    }
}

fn flex() -> Device {
    Device::flex()
}

fn zoo() -> Deferred<Zoo> {
    Deferred::new(Zoo::new).unwrap()
}

type Bits = BTreeMap<String, TensorData>;

fn bits<M: Module>(module: &M) -> Bits {
    let values = parameter_values(module).into_iter();
    values
        .map(|(path, value)| (path.to_string(), value.to_data().unwrap()))
        .collect()
}

/// The texts of an error and of all its sources.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

fn path(path: &str) -> ParameterPath {
    ParameterPath::new(path)
}

#[test]
fn the_table_lists_every_parameter() {
    let model = zoo();
    insta::assert_snapshot!(format!("{model:100}"));
    let table = model.parameters();
    let eager = table.iter().filter(|p| p.origin == Origin::Eager);
    let eager: Vec<&str> = eager.map(|p| p.path.as_str()).collect();
    assert_eq!(
        eager,
        [
            "batch_norm.running_mean",
            "batch_norm.running_var",
            "ints",
            "bools",
            "eager"
        ]
    );
    let clones = table
        .iter()
        .filter_map(|p| p.clone_of.as_ref().map(|of| (&p.path, of)));
    assert_eq!(clones.collect::<Vec<_>>(), [(&path("again"), &path("own"))]);
    assert_eq!(table.distinct().count(), table.len() - 1);
    // Shape, dtype and order are as in the real module.
    let real = parameter_values(&Zoo::new(&flex()));
    let real: Vec<_> = real
        .iter()
        .map(|(path, v)| {
            (
                path,
                v.shape().iter().map(|d| *d as u64).collect(),
                v.dtype(),
            )
        })
        .collect();
    let listed: Vec<_> = table
        .iter()
        .map(|p| (&p.path, p.shape.clone(), p.dtype))
        .collect();
    assert_eq!(listed, real);
    let bytes: usize = bits(&Zoo::new(&flex()))
        .values()
        .map(|d| d.as_bytes().len())
        .sum();
    assert_eq!(
        table.bytes(),
        bytes as u64 - 16,
        "the clone is counted once"
    );
}

#[test]
fn a_model_without_parameters() {
    let model = Deferred::new(|_| None::<Linear>).unwrap();
    assert!(model.parameters().near("x").is_empty());
    let none = model
        .materialize(&flex(), &model.initializer(Seed::new(1)))
        .unwrap();
    assert!(none.is_none());
}

/// A value of the specified generator: the expected result of a recipe with one draw.
fn drawn(
    seed: u64,
    owner: &str,
    draw: u64,
    distribution: Distribution,
    shape: [usize; 2],
) -> TensorData {
    let stream = Stream::new(Seed::new(seed), Domain::Init, owner, draw);
    generate(&stream, distribution, shape.into(), DType::F32).unwrap()
}

#[test]
fn initial_values_equal_the_recipe() {
    let model = zoo();
    let real = bits(
        &model
            .materialize(&flex(), &model.initializer(Seed::new(9)))
            .unwrap(),
    );
    let bound = (1.0f64 / 2.0).sqrt();
    let uniform = Distribution::Uniform(-bound, bound);
    assert_eq!(
        real["row.weight"],
        drawn(9, "row.weight", 0, uniform, [2, 3])
    );
    let normal = Distribution::Normal(0.0, 1.0);
    let draw = |n| Tensor::<2>::from_data(drawn(9, "own", n, normal, [2, 2]), &flex());
    assert_eq!(real["own"], (draw(0) + draw(1)).into_data());
    assert_eq!(real["again"], real["own"]);
    assert_eq!(real["eager"], TensorData::from([[1.0f32, 2.0]]));
    assert_eq!(real["ints"], TensorData::from([0i32, 1, 2]));
    assert_eq!(real["bools"], TensorData::from([[true], [false]]));
    assert_eq!(
        real["batch_norm.running_var"],
        TensorData::from([1.0f32, 1.0, 1.0])
    );
}

/// With the values of a plain model, the materialized one is that model.
#[test]
fn a_whole_model_is_the_plain_one() {
    let model = zoo();
    for device in [flex(), flex().autodiff()] {
        let plain = Zoo::new(&device);
        let values: Values = parameter_values(&plain).into_iter().collect();
        let made = model.materialize(&device, &values).unwrap();
        check_materialized(&made).unwrap();
        assert_eq!(bits(&made), bits(&plain));
        assert_eq!(made.devices(), plain.devices());
        assert_eq!(made.num_params(), plain.num_params());
        assert_eq!(made.own.id, made.again.id, "clones share their id");
        // Fields that no visitor sees.
        let rope = |zoo: &Zoo| zoo.rope.freq_complex.to_data();
        assert_eq!(rope(&made), rope(&plain));
        assert_eq!(
            made.rope.freq_complex.device(),
            plain.rope.freq_complex.device()
        );
        // Gradients are required of the same parameters, before and after `train` and `valid`.
        let trained = |zoo: &Zoo| trainable(zoo);
        assert_eq!(trained(&made), trained(&plain));
        if device.is_autodiff() {
            assert!(made.row.weight.val().is_require_grad());
            assert!(!made.frozen.weight.val().is_require_grad());
            assert_eq!(trained(&made.valid().train()), trained(&plain));
        } else {
            let (made, plain) = (made.clone().train(), plain.clone().train());
            assert_eq!(trained(&made), trained(&plain));
            assert!(made.col.weight.val().is_require_grad());
            assert!(!made.frozen.weight.val().is_require_grad());
        }
        // Mappers: the column layout is transposed where a module is saved and loaded.
        let saved = |zoo: &Zoo| zoo.col.weight.transform_for_save().val().into_data();
        assert_eq!(saved(&made), saved(&plain));
        assert_ne!(
            saved(&made).shape(),
            made.col.weight.val().to_data().shape()
        );
        // Burn rejects a record for a materialized parameter of column layout, because its shape is not the
        // saved one. The mapper is therefore tested alone.
        let file = Tensor::from_data(saved(&plain), &device);
        let loaded = made
            .col
            .weight
            .clone()
            .transform_for_load(file, made.col.weight.id);
        assert_eq!(loaded.val().into_data(), plain.col.weight.val().into_data());
        let reloaded = Zoo::new(&device).load_record(made.into_record());
        assert_eq!(bits(&reloaded), bits(&plain));
        assert_eq!(trained(&reloaded), trained(&plain));
    }
}

/// Paths of the parameters that require gradients.
fn trainable<M: Module>(module: &M) -> Vec<String> {
    #[derive(Default)]
    struct Trainable(Vec<String>, Vec<String>);
    impl ModuleVisitor for Trainable {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.into());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.val().is_require_grad() {
                self.1.push(self.0.join("."));
            }
        }
    }
    let mut found = Trainable::default();
    module.visit(&mut found);
    found.1
}

#[test]
fn unselected_parameters_stay_fake_and_are_named() {
    let model = zoo();
    let source = model.initializer(Seed::new(3));
    for device in [flex(), flex().autodiff()] {
        let whole = bits(&model.materialize(&device, &source).unwrap());
        let options = MaterializeOptions::on(&device)
            .only(|p| !p.path.is_under("inner") && p.path.as_str() != "batch_norm.running_mean");
        let part = model.materialize(options, &source).unwrap();
        let error = check_materialized(&part).unwrap_err();
        let fake = [
            "inner.linear.weight",
            "inner.linear.bias",
            "inner.some.weight",
            "inner.some.bias",
            "batch_norm.running_mean",
        ];
        let MaterializeError::NotMaterialized { paths } = &error else {
            panic!("{error}");
        };
        assert_eq!(*paths, fake.map(path));
        assert_eq!(
            error.to_string(),
            "5 parameter(s) are fake, the first is `inner.linear.weight`: they were not selected \
             when the module was materialized"
        );
        for (path, value) in parameter_values(&part) {
            assert_eq!(value.is_fake(), fake.contains(&path.as_str()), "{path}");
            if !value.is_fake() {
                assert_eq!(value.to_data().unwrap(), whole[path.as_str()], "{path}");
            }
        }
        assert_eq!(part.num_params(), model.module().num_params());
    }
    let error = check_materialized(model.module()).unwrap_err();
    assert!(
        matches!(error, MaterializeError::NotMaterialized { paths } if paths.len() == model.parameters().len())
    );
    // A clone without its original gets the original's value.
    let again = MaterializeOptions::on(&flex()).only(|p| p.path.as_str() == "again");
    let clone = model.materialize(again, &source).unwrap();
    assert!(DynTensor::from(clone.own.val()).is_fake());
    let whole = model.materialize(&flex(), &source).unwrap();
    assert_eq!(clone.again.val().into_data(), whole.own.val().into_data());
}

#[test]
fn any_subset_in_any_order_has_the_bits_of_the_whole() {
    let model = zoo();
    let source = model.initializer(Seed::new(5));
    let whole = bits(&model.materialize(&flex(), &source).unwrap());
    let distinct: Vec<_> = model
        .parameters()
        .distinct()
        .map(|p| p.path.clone())
        .collect();
    for mask in [
        0u32,
        1,
        0b1010_1010_1010,
        0b111_0000_0000,
        u32::MAX,
        u32::MAX,
    ] {
        let selected = |p: &ParameterPath| {
            let index = distinct.iter().position(|d| d == p);
            index.is_some_and(|index| mask >> index & 1 == 1)
        };
        let options = MaterializeOptions::on(&flex()).only(|p| selected(&p.path));
        let part = model.materialize_parameters(options, &source).unwrap();
        let expected: Vec<_> = distinct.iter().filter(|p| selected(p)).collect();
        assert_eq!(part.paths().collect::<Vec<_>>(), expected, "{mask:b}");
        for (path, bits) in bits(&part) {
            assert_eq!(bits, whole[&path], "{path}");
        }
    }
    let mut requests: Vec<Request> = distinct
        .iter()
        .map(|p| request(&model, p.as_str()))
        .collect();
    requests.reverse();
    for (request, value) in requests.iter().zip(source.load(&requests, &()).unwrap()) {
        assert_eq!(value.to_data().unwrap(), whole[request.path.as_str()]);
    }
    // On an autodiff device too, parameters without their module are plain.
    let part = model
        .materialize_parameters(&flex().autodiff(), &source)
        .unwrap();
    assert!(
        part.values()
            .all(|(_, value)| !value.device().is_autodiff())
    );
    let values: Values = part.values().map(|(p, v)| (p.clone(), v)).collect();
    let part = model
        .materialize_parameters(&flex().autodiff(), &values)
        .unwrap();
    assert!(
        part.values()
            .all(|(_, value)| !value.device().is_autodiff())
    );

    let other = bits(
        &model
            .materialize(&flex(), &model.initializer(Seed::new(6)))
            .unwrap(),
    );
    let weights = [
        "row.weight",
        "row.bias",
        "col.weight",
        "inner.some.weight",
        "layers.1.weight",
        "own",
    ];
    for weight in weights {
        assert_ne!(whole[weight], other[weight], "{weight}");
    }
    assert_eq!(whole["batch_norm.gamma"], other["batch_norm.gamma"]);
}

#[derive(Module, Debug)]
struct Stack {
    before: Option<Linear>,
    layers: Vec<Linear>,
    norm: Option<BatchNorm>,
    last: Linear,
}

#[test]
fn another_layer_leaves_the_others_as_they_are() {
    let make = |more: bool| {
        let model = Deferred::new(move |d: &Device| {
            let linear = || LinearConfig::new(3, 3).init(d);
            Stack {
                before: more.then(linear),
                layers: (0..if more { 4 } else { 2 }).map(|_| linear()).collect(),
                norm: more.then(|| BatchNormConfig::new(3).init(d)),
                last: linear(),
            }
        })
        .unwrap();
        bits(
            &model
                .materialize(&flex(), &model.initializer(Seed::new(1)))
                .unwrap(),
        )
    };
    let (small, big) = (make(false), make(true));
    assert_eq!((small.len(), big.len()), (6, 16));
    for (path, bits) in &small {
        assert_eq!(*bits, big[path], "{path}");
    }
    assert_ne!(big["layers.0.weight"], big["layers.1.weight"]);
}

#[derive(Module, Debug)]
struct Fickle {
    layers: Vec<Linear>,
    one: Option<Param<Tensor<1>>>,
    two: Option<Param<Tensor<2>>>,
    int: Option<Param<Tensor<1, Int>>>,
}

impl Fickle {
    fn new(layers: &[usize], device: &Device) -> Self {
        let layers = layers.iter().map(|n| LinearConfig::new(*n, 2).init(device));
        Self {
            layers: layers.collect(),
            one: None,
            two: None,
            int: None,
        }
    }
}

#[test]
fn a_closure_that_makes_another_model_is_an_error() {
    let check = |changed: &str, make: fn(usize, &Device) -> Fickle| {
        // The second call, which only compares, is unchanged; the third, on the device, is not.
        let calls = AtomicUsize::new(0);
        let change = move |d: &Device| {
            let call = calls.fetch_add(1, Ordering::SeqCst);
            make(call.saturating_sub(1), d)
        };
        let model = Deferred::new(change).unwrap();
        let source = model.initializer(Seed::new(0));
        let error = model.materialize(&flex(), &source).map(drop).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "parameter `{changed}` is not the same as when the model was recorded: the closure \
                 must create the same model at every call"
            )
        );
        // Without the closure, the recorded parameters are used.
        model.materialize_parameters(&flex(), &source).unwrap();
    };
    check("layers.1.weight", |call, d| {
        Fickle::new(&[2, 3][..2 - call], d)
    });
    check("layers.1.weight", |call, d| {
        Fickle::new(&[2, 3][..1 + call], d)
    });
    check("layers.0.weight", |call, d| Fickle::new(&[2 + call], d));
    check("one", |call, d| Fickle {
        one: Some(match call {
            0 => Param::from_tensor(Tensor::zeros([2], d)),
            _ => Param::uninitialized(
                ParamId::new(),
                |d, _| Tensor::zeros([2], d),
                d.clone(),
                true,
                [2].into(),
            ),
        }),
        ..Fickle::new(&[], d)
    });
    check("one", |call, d| Fickle {
        one: Some(Param::from_tensor(Tensor::zeros([2 + call], d))),
        ..Fickle::new(&[], d)
    });
}

#[test]
fn a_parameter_of_another_device_is_an_error() {
    let check = |named: &str, found: &str, make: fn(&Device) -> Fickle| {
        let error = Deferred::new(make).map(drop).unwrap_err();
        assert_eq!(
            chain(&error),
            format!(
                "parameter `{named}` was created on {found}, not on the device that was passed to \
                 the closure: pass that device to every `init`"
            )
        );
    };
    check("layers.0.weight", "flex", |_| Fickle::new(&[2], &flex()));
    check("one", "flex", |d| Fickle {
        one: Some(Param::from_tensor(Tensor::zeros([2], &flex()))),
        ..Fickle::new(&[2], d)
    });
    check("int", "cuda:5", |d| {
        let options = RecordOptions::default().in_mode(Mode::Training);
        let options = options.claiming("cuda:5".parse().unwrap());
        let (int, _) = record(&options, |d| Tensor::zeros([2], d)).unwrap();
        Fickle {
            int: Some(Param::initialized(ParamId::new(), int)),
            ..Fickle::new(&[2], d)
        }
    });
}

#[test]
fn a_fake_device_is_rejected() {
    let model = zoo();
    let options = RecordOptions::default().claiming("cuda:3".parse().unwrap());
    let ((), _) = record(&options, |device| {
        let source = model.initializer(Seed::new(1));
        let error = model.materialize(device, &source).map(drop).unwrap_err();
        // The devices of the build follow.
        let expected =
            "programs can't run on a recording device (cuda:3): this build runs them on flex";
        let said = chain(&error);
        assert!(said.starts_with(expected), "{said}");
    })
    .unwrap();
}

fn request(model: &Deferred<Zoo>, name: &str) -> Request {
    let parameter = model.parameters().get(&path(name)).unwrap();
    Request {
        path: path(name),
        clones: Vec::new(),
        shape: parameter.shape.clone(),
        region: Region::whole(&parameter.shape).unwrap(),
        dtype: parameter.dtype,
        device: flex(),
    }
}

#[test]
fn a_region_is_a_slice_of_the_whole() {
    let model = zoo();
    let initializer = model.initializer(Seed::new(2));
    let values: Values = parameter_values(&Zoo::new(&flex())).into_iter().collect();
    let sources: [&dyn Source; 2] = [&initializer, &Arc::new(values)];
    for source in sources {
        for (name, offset, size) in [
            ("layers.0.weight", [1, 0], [2, 4]),
            ("layers.0.weight", [3, 3], [1, 1]),
            ("layers.0.weight", [0, 2], [4, 2]),
            ("col.weight", [1, 1], [1, 2]),
            ("own", [0, 1], [2, 1]),
            ("bools", [1, 0], [1, 1]),
            ("layers.0.weight", [0, 0], [4, 4]),
        ] {
            let whole = request(&model, name);
            let region = Region::new(offset.to_vec(), size.to_vec()).unwrap();
            let part = Request {
                region: region.clone(),
                ..whole.clone()
            };
            let [whole, part] = source
                .load(&[whole, part], &())
                .unwrap()
                .try_into()
                .unwrap();
            let expected = whole.slice(&region).to_data().unwrap();
            assert_eq!(part.to_data().unwrap(), expected, "{name}{region}");
        }
        let half = Request {
            dtype: DType::BF16,
            ..request(&model, "row.weight")
        };
        let [whole, half] = source
            .load(&[request(&model, "row.weight"), half], &())
            .unwrap()
            .try_into()
            .unwrap();
        assert_eq!(half.dtype(), DType::BF16);
        assert_eq!(
            half.to_data().unwrap(),
            whole.cast_float(DType::BF16).to_data().unwrap()
        );
    }
}

/// As checkpoints do.
#[test]
fn extra_values_are_named() {
    let model = zoo();
    let all = || parameter_values(&Zoo::new(&flex())).into_iter();
    let known = |values: Values| model.materialize(&flex(), &values).map(drop);
    known(all().collect()).unwrap();
    let mut more: Vec<_> = all().filter(|(p, _)| p.as_str() != "eager").collect();
    let one = || DynTensor::from(Tensor::<1>::zeros([1], &flex()));
    more.extend([(path("row.bios"), one()), (path("head"), one())]);
    let values: Values = more.into_iter().collect();
    let count = all().len() + 1;
    let expected = format!(
        "a set of {count} values in memory does not fit the model, nothing was loaded:\n  \
         missing: eager\n  extra: head\n  extra: row.bios"
    );
    let error = known(values.clone()).unwrap_err();
    assert_eq!(
        std::error::Error::source(&error).unwrap().to_string(),
        expected
    );
    // Only a part of the model is requested: values for the rest are not extra.
    let part = |values: &Values| {
        let options = MaterializeOptions::on(&flex());
        let options = options.only(|p| p.path.as_str() == "row.weight");
        model.materialize_parameters(options, values)
    };
    assert!(part(&values).is_err());
    assert_eq!(part(&all().collect()).unwrap().len(), 1);
}

#[test]
fn all_mismatches_are_in_one_error() {
    let model = zoo();
    let initializer = model.initializer(Seed::new(2));
    let (fake, _) = record(&RecordOptions::default(), |d| Tensor::<1>::zeros([3], d)).unwrap();
    let values = parameter_values(&Zoo::new(&flex())).into_iter();
    let values = values.chain([(path("fake"), fake.into())]);
    let values: Values = values.filter(|(p, _)| p.as_str() != "eager").collect();
    let changed = |name: &str, change: &dyn Fn(&mut Request)| {
        let mut request = request(&model, name);
        change(&mut request);
        request
    };
    let region = |offset: u64, size: u64| Region::new(vec![offset], vec![size]).unwrap();
    let requests = [
        request(&model, "row.weight"),
        changed("row.bias", &|r| r.path = path("row.bios")),
        changed("col.weight", &|r| {
            r.shape = vec![3, 2];
            r.region = Region::whole(&r.shape).unwrap();
        }),
        changed("ints", &|r| {
            r.dtype = DType::I64;
            r.region = region(2, 2);
        }),
        changed("bools", &|r| r.dtype = DType::F32),
        changed("frozen.bias", &|r| r.dtype = DType::I32),
        changed("inner.some.bias", &|r| {
            r.region = Region::whole(&[2, 1]).unwrap()
        }),
    ];
    let common = "
  missing: row.bios
  shape of col.weight: the model has [3, 2], the source [2, 3]
  dtype of ints: the model has i64, the source i32
  region of ints: region [2..4] reaches past the shape [3]
  dtype of bools: the model has f32, the source bool
  dtype of frozen.bias: the model has i32, the source f32
  region of inner.some.bias: region [0..2, 0..1] has 2 dimension(s), the shape [2] has 1: give a range for each";
    let error = initializer.load(&requests, &()).map(drop).unwrap_err();
    assert_eq!(
        chain(&error),
        format!(
            "initializer with seed 2 does not fit the model, nothing was \
             loaded:{common}"
        )
    );
    let fake = changed("row.bias", &|r| {
        r.path = path("fake");
        r.region = region(1, 1);
    });
    let requests = [&requests[..], &[request(&model, "eager"), fake]].concat();
    let error = values.load(&requests, &()).map(drop).unwrap_err();
    let count = model.parameters().len();
    assert_eq!(
        chain(&error),
        format!(
            "a set of {count} values in memory does not fit the model, nothing was loaded:{common}
  missing: eager
  fake, without data: fake"
        )
    );
    let error = model.materialize(&flex(), &values).map(drop).unwrap_err();
    assert_eq!(
        chain(&error),
        format!(
            "the parameters could not be loaded: a set of {count} values in memory does not fit the model, \
             nothing was loaded:\n  missing: eager\n  extra: fake"
        )
    );
    assert_eq!(Mismatch::Extra { path: path("x") }.to_string(), "extra: x");
}

/// A source with arbitrary answers.
struct Answers(fn(&Request) -> Option<DynTensor>);

impl Source for Answers {
    fn load(&self, requests: &[Request], _: &dyn Observer) -> Result<Vec<DynTensor>, SourceError> {
        Ok(requests.iter().filter_map(self.0).collect())
    }

    fn describe(&self) -> String {
        "a test".into()
    }
}

#[test]
fn a_source_that_breaks_its_promise_is_an_error() {
    let model = Deferred::new(|d: &Device| LinearConfig::new(2, 3).init(d)).unwrap();
    let check = |answer: fn(&Request) -> Option<DynTensor>, expected: &str| {
        let source = Answers(answer);
        let expected = format!("the parameters could not be loaded: {expected}");
        let whole = model.materialize(&flex(), &source).map(drop).unwrap_err();
        assert_eq!(chain(&whole), expected);
        let part = model.materialize_parameters(&flex(), &source);
        assert_eq!(chain(&part.map(drop).unwrap_err()), expected);
    };
    check(
        |r| (r.path.leaf() == "bias").then(|| DynTensor::zeros([3].into(), r.dtype, &r.device)),
        "a test returned 1 values for 2 requests",
    );
    check(
        |r| Some(DynTensor::zeros([2, 3].into(), DType::F16, &r.device)),
        "a test does not fit the model, nothing was loaded:
  dtype of weight: the model has f32, the source f16
  shape of bias: the model has [3], the source [2, 3]
  dtype of bias: the model has f32, the source f16",
    );
}

#[test]
fn a_partial_module_is_a_burn_module() {
    let model = zoo();
    let source = model.initializer(Seed::new(4));
    let whole = model.materialize(&flex(), &source).unwrap();
    let layers = MaterializeOptions::on(&flex()).only(|p| p.path.is_under("layers"));
    let part = model.materialize_parameters(layers, &source).unwrap();
    let visited: Vec<String> = parameter_values(&part)
        .into_iter()
        .map(|(p, _)| p.to_string())
        .collect();
    assert_eq!(
        visited,
        ["layers.0.weight", "layers.0.bias", "layers.1.weight"]
    );
    assert_eq!((part.len(), part.is_empty()), (3, false));
    assert_eq!((part.num_params(), part.bytes()), (36, 144));
    assert_eq!(part.devices().len(), 1);
    assert_eq!(bits(&part.clone().to_device(&flex())), bits(&part));
    assert_eq!(part.position(&path("layers.1.weight")), Some(2));
    assert_eq!(part.position(&path("row.weight")), None);
    let third = part.value(2).to_data().unwrap();
    assert_eq!(third, whole.layers[1].weight.val().into_data());

    // Its record is that part of the derived module's.
    let record = part.clone().into_record();
    assert_eq!(record.len(), 3);
    let other = model
        .materialize(&flex(), &model.initializer(Seed::new(8)))
        .unwrap();
    let mut expected = bits(&other);
    expected.extend(bits(&part));
    let loaded = other.load_record(record.allow_partial(true));
    assert_eq!(bits(&loaded), expected);
    let everything = whole.into_record().allow_unused(true);
    let zeroed = part
        .values()
        .map(|(p, v)| (p.clone(), DynTensor::zeros(v.shape(), v.dtype(), &flex())));
    let zeroed = PartialModule::new(zeroed).unwrap();
    assert_ne!(bits(&zeroed), bits(&part));
    assert_eq!(bits(&zeroed.load_record(everything)), bits(&part));

    let mut replaced = part.clone();
    let value = DynTensor::zeros([5].into(), DType::I32, &flex());
    replaced.replace(1, value).unwrap();
    assert_eq!(replaced.value(1).shape().as_slice(), [5]);
    assert_eq!(part.value(1).shape().as_slice(), [4]);
    let nine: Tensor<9> = Tensor::zeros([1; 9], &flex());
    let error = PartialModule::new([(path("w"), nine.into())]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor(..., size=[1, 1, 1, 1, 1, 1, 1, 1, 1], dtype=f32, device=flex, fake=false) is not a \
         tensor of rank 8 and kind Float"
    );
}

#[test]
fn a_partial_module_trains_again_after_a_validation() {
    let weight = Tensor::<2>::zeros([2, 3], &flex().autodiff()).require_grad();
    let part = PartialModule::new([(path("w"), weight.into())]).unwrap();
    let trains = |part: &PartialModule| {
        let value: Tensor<2> = part.value(0).typed().unwrap();
        value.is_require_grad()
    };
    let validated = part.valid();
    assert_eq!(
        [&part, &validated, &validated.clone().train()].map(trains),
        [true, false, true]
    );
}
