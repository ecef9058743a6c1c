//! Recipes: a region equals the same region of the whole, bit for bit, and a file computes the same bits.

use burn::module::Param;
use burn::nn::{Initializer, LinearConfig};
use burn::tensor::{Bool, DType, Device, Distribution, Int, Tensor, TensorData, s};
use proptest::prelude::*;
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{
    Deferred, MaterializeOptions, MemoryCheck, ParameterPath, Recipe, Request, Rng, Source,
};
use tinderbox_fake::{DynTensor, RecordOptions, Recording, Region, record};

fn flex() -> Device {
    Device::flex()
}

fn recorded(init: impl FnOnce(&Device) -> DynTensor) -> (DynTensor, Recording) {
    record(&RecordOptions::default(), init).unwrap()
}

fn recipe(init: impl FnOnce(&Device) -> DynTensor) -> Recipe {
    let (tensor, recording) = recorded(init);
    Recipe::of_tensor(&recording, &tensor, Seed::new(7)).unwrap()
}

fn region(offset: &[u64], size: &[u64]) -> Region {
    Region::new(offset.to_vec(), size.to_vec()).unwrap()
}

fn data(recipe: &Recipe) -> TensorData {
    recipe.materialize(&flex()).unwrap().to_data().unwrap()
}

/// The region of the whole, sliced from it.
fn cut(whole: &Recipe, region: &Region) -> TensorData {
    let whole = whole.materialize(&flex()).unwrap();
    whole.slice(region).to_data().unwrap()
}

fn normal(device: &Device, shape: [usize; 2]) -> Tensor<2> {
    Tensor::random(shape, Distribution::Normal(0.1, 0.5), device)
}

/// A step of a random program on matrices, chosen by numbers.
fn grow(tensors: &mut Vec<Tensor<2>>, (code, pick): (u8, u64), device: &Device) {
    let mut pick = pick;
    let mut below = |n: usize| {
        let chosen = (pick % n as u64) as usize;
        pick = (pick / n as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(21);
        chosen
    };
    let x = tensors[below(tensors.len())].clone();
    let [rows, columns] = x.dims();
    let made = match code % 26 {
        0 => Tensor::random([1 + below(5), 1 + below(5)], Distribution::Default, device),
        1 => normal(device, [rows, columns]) + x,
        2 => x.exp().clamp(-4.0, 4.0),
        3 => x.erf() * 0.5,
        4 => x.tanh().neg(),
        5 => x.abs().sqrt() + 0.25,
        6 => x.recip().clamp(-2.0, 2.0),
        7 => x.clone().sub(x.swap_dims(0, 1).reshape([rows, columns])),
        8 => x.clone().mul(x),
        9 => x.swap_dims(0, 1),
        10 => x.permute([1, 0]).exp().clamp_max(3.0),
        11 => x.flip([below(2)]),
        12 => x.flip([0, 1]),
        13 => x.reshape([rows * columns, 1]),
        14 => x.reshape([1, rows * columns]),
        15 => {
            let divisors: Vec<usize> = (1..=rows * columns)
                .filter(|d| (rows * columns).is_multiple_of(*d))
                .collect();
            let first = divisors[below(divisors.len())];
            x.reshape([first, rows * columns / first])
        }
        16 => {
            let (r, c) = (below(rows), below(columns));
            x.slice([r..r + 1 + below(rows - r), c..c + 1 + below(columns - c)])
        }
        17 => x.slice(burn::tensor::s![..;2, ..]),
        18 => {
            let (r, c) = (below(rows), below(columns));
            let ranges = [r..r + 1 + below(rows - r), c..c + 1 + below(columns - c)];
            let value = normal(device, [ranges[0].len(), ranges[1].len()]);
            x.slice_assign(ranges, value)
        }
        19 if rows * columns <= 24 => x.repeat_dim(below(2), 2),
        20 if rows * columns <= 24 => Tensor::cat(vec![x.clone(), x.clone() * 2.0, x], below(2)),
        21 => {
            let row = normal(device, [1, columns]);
            x * row.expand([rows, columns])
        }
        22 => {
            let mask = x.clone().greater_elem(0.1);
            x.clone().mask_where(mask, normal(device, [rows, columns]))
        }
        23 => {
            let indices: Vec<i32> = (0..1 + below(4)).map(|_| below(rows) as i32).collect();
            x.select(0, Tensor::<1, Int>::from_ints(indices.as_slice(), device))
        }
        // Operations that are not sliceable.
        24 if rows <= 8 => x.clone().matmul(x.swap_dims(0, 1)).clamp(-3.0, 3.0),
        25 => x.clone().sum_dim(1).expand([rows, columns]) + x,
        _ => x.cast(DType::BF16).cast(DType::F32),
    };
    tensors.push(made);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_region_is_the_region_of_the_whole(
        steps in prop::collection::vec((0u8..26, any::<u64>()), 1..14),
        corner in [0.0..1.0f64, 0.0..1.0],
        extent in [0.0..1.0f64, 0.0..1.0],
    ) {
        let whole = recipe(|device| {
            let mut tensors = vec![normal(device, [4, 3])];
            for step in steps {
                grow(&mut tensors, step, device);
            }
            tensors.pop().unwrap().into()
        });
        let mut offset = Vec::new();
        let mut size = Vec::new();
        for (d, length) in whole.shape().into_iter().enumerate() {
            let start = (corner[d] * length as f64) as u64;
            offset.push(start);
            size.push((extent[d] * (length - start + 1) as f64) as u64);
        }
        let wanted = region(&offset, &size);
        let part = whole.region(&wanted).unwrap();
        prop_assert_eq!(part.shape(), wanted.size().to_vec());
        prop_assert_eq!(data(&part), cut(&whole, &wanted));
        // A region of a region, and a round trip through a file.
        let read = Recipe::from_bytes(&part.to_bytes()).unwrap();
        prop_assert_eq!(&read, &part);
        let inner: Vec<u64> = wanted.size().iter().map(|s| s.div_ceil(2)).collect();
        let inner = region(&[0, 0], &inner);
        prop_assert_eq!(data(&read.region(&inner).unwrap()), cut(&part, &inner));
    }
}

fn ints(device: &Device) -> Tensor<2, Int> {
    Tensor::random([6, 8], Distribution::Uniform(-50.0, 50.0), device)
}

#[test]
fn integers_and_booleans_are_sliceable() {
    let check = |init: fn(&Device) -> DynTensor| {
        let whole = recipe(init);
        let wanted = region(&[1, 2], &[3, 4]);
        let part = whole.region(&wanted).unwrap();
        assert!(part.plan().not_sliceable.is_empty(), "{}", part.graph());
        assert_eq!(data(&part), cut(&whole, &wanted), "{}", part.graph());
    };
    check(|d| Tensor::<2, Int>::random([6, 8], Distribution::Uniform(0.0, 99.0), d).into());
    check(|d| (ints(d).bitwise_and_scalar(7) * 3 - ints(d)).into());
    check(|d| ints(d).float().sin().into());
    check(|d| ints(d).greater_elem(4).bool_not().into());
    check(|d| {
        ints(d)
            .greater_elem(4)
            .bool_or(ints(d).lower_elem(-7))
            .int()
            .into()
    });
    check(|d| Tensor::<2, Bool>::tril_mask([6, 8], 0, d).into());
    check(|d| Tensor::<1, Int>::arange(0..48, d).reshape([6, 8]).into());
    check(|d| Tensor::<2>::full([6, 8], 2.5, d).cast(DType::F16).into());
    check(|d| {
        Tensor::<2>::ones([6, 8], d)
            .mask_fill(Tensor::tril_mask([6, 8], 0, d), f32::INFINITY)
            .into()
    });
}

#[test]
fn the_cost_of_a_region_is_proportional_to_it() {
    // 4 TiB; 24 bytes of it are needed.
    let huge = recipe(|device| {
        let weight = Tensor::<2>::random([1 << 20, 1 << 20], Distribution::Default, device);
        let scaled = (weight * 2.0 - 1.0) * 0.02;
        scaled
            .swap_dims(0, 1)
            .reshape([1 << 10, 1 << 10, 1 << 20])
            .into()
    });
    assert_eq!(huge.plan().bytes, 1 << 42);
    let part = huge.region(&region(&[5, 7, 1000], &[1, 1, 6])).unwrap();
    // Twice, because a transposed tensor is copied when it is reshaped.
    assert_eq!(part.plan().peak_bytes, 48);
    assert_eq!(part.plan().not_sliceable, []);
    assert_eq!(part.materialize(&flex()).unwrap().bytes(), 24);
}

#[test]
fn operations_that_are_not_sliceable_are_named() {
    let orthogonal = recipe(|device| {
        Initializer::Orthogonal { gain: 1.0 }
            .init::<2, _>([6, 4], device)
            .val()
            .into()
    });
    let wanted = region(&[2, 1], &[3, 2]);
    let part = orthogonal.region(&wanted).unwrap();
    assert_eq!(data(&part), cut(&orthogonal, &wanted));
    let whole = part.plan().not_sliceable;
    assert!(!whole.is_empty(), "a decomposition is not sliceable");
    let (first, bytes) = (&whole[0], part.plan().bytes);
    assert_eq!(first.bytes, first.shape.iter().product::<u64>() * 4);
    let text = part.plan().to_string();
    assert!(text.contains(&first.operation) && bytes == 24, "{text}");
    // The part does not keep the memory of the whole.
    let product = recipe(|device| normal(device, [8, 8]).matmul(normal(device, [8, 8])).into());
    let part = product.region(&region(&[0, 0], &[2, 2])).unwrap();
    insta::assert_snapshot!(part.plan());
}

type Program<'a> = &'a dyn Fn(&Device) -> DynTensor;

/// `flex` sums a view in another order than the same values in row-major order, and whether a value is a view
/// depends on its other uses.
#[test]
fn operations_that_are_not_sliceable_do_not_depend_on_the_region() {
    let wide = |device: &Device| normal(device, [64, 64]);
    let scaled = |y: Tensor<2>, s: Tensor<1>| DynTensor::from(y * s.reshape([1, 1]));
    let programs: [(&str, Program<'_>); 6] = [
        ("the sum of a slice", &|d| {
            let y = wide(d);
            scaled(y.clone(), y.slice([0..64, 0..32]).sum())
        }),
        ("the mean of a slice with steps", &|d| {
            let y = wide(d);
            scaled(y.clone(), y.slice([s![..;2], s![3..]]).mean())
        }),
        ("the sum of transposed values, twice read", &|d| {
            let y = wide(d);
            let turned = y.clone().transpose() * 2.0;
            scaled(y + turned.clone(), turned.sum())
        }),
        ("sums along a dimension of transposed values", &|d| {
            let y = wide(d).transpose();
            (y.clone().sum_dim(1) + y).into()
        }),
        ("the product of a slice", &|d| {
            let y = wide(d);
            let left = y.clone().slice([0..64, 0..48]);
            (left.matmul(y.slice([s![16..], s![..]])) + 1.0).into()
        }),
        ("the sum of repeated values", &|d| {
            let y = wide(d);
            let sum = y.clone().slice([s![..], s![0..1]]).expand([64, 64]).sum();
            scaled(y, sum)
        }),
    ];
    for (name, program) in programs {
        let whole = recipe(program);
        for wanted in [
            region(&[0, 0], &[1, 32]),
            region(&[5, 3], &[7, 60]),
            region(&[63, 63], &[1, 1]),
            region(&[0, 0], &[64, 64]),
        ] {
            let part = whole.region(&wanted).unwrap();
            assert_eq!(data(&part), cut(&whole, &wanted), "{name}, {wanted}");
            // A part of a part, and its plan.
            let size = wanted.size().iter().map(|size| size.div_ceil(2)).collect();
            let inner = Region::new(vec![0, 0], size).unwrap();
            let again = part.region(&inner).unwrap();
            assert_eq!(
                data(&again),
                cut(&part, &inner),
                "{name}, {wanted}, {inner}"
            );
            let named = again.plan().not_sliceable.len();
            assert!(
                named <= part.plan().not_sliceable.len() + 1,
                "{}",
                again.plan()
            );
        }
    }
}

#[test]
fn dimensions_of_no_elements_need_nothing() {
    let check = |expected: &[u64], program: &dyn Fn(&Device) -> Tensor<2>| {
        let whole = recipe(|d| program(d).into());
        assert_eq!(whole.shape(), expected);
        let zeros = vec![0f32; expected.iter().product::<u64>() as usize];
        assert_eq!(data(&whole).as_slice::<f32>().unwrap(), zeros);
    };
    let none = |device: &Device| Tensor::<3>::random([0, 2, 2], Distribution::Default, device);
    check(&[1, 4], &|d| none(d).flatten::<2>(1, 2).sum_dim(0));
    check(&[4, 1], &|d| {
        none(d).flatten::<2>(1, 2).transpose().sum_dim(1)
    });
    check(&[0, 1], &|d| none(d).flatten::<2>(0, 1).sum_dim(1));
    check(&[0, 4], &|d| none(d).flatten::<2>(1, 2).exp());
}

/// Values that share memory need less than their bytes.
#[test]
fn the_memory_of_a_repeated_value_is_predicted() {
    let model =
        Deferred::new(|d: &Device| Param::from_tensor(Tensor::<1>::ones([1], d).expand([1024])))
            .unwrap();
    let plan = model.initializer(Seed::new(1)).recipe("").unwrap().plan();
    assert_eq!((plan.bytes, plan.peak_bytes), (4096, 4096));
    let options = MaterializeOptions::on(&flex()).memory_check(MemoryCheck::Bytes(4096));
    let initializer = model.initializer(Seed::new(1));
    let made = model.materialize(options, &initializer).unwrap();
    assert_eq!(
        made.val().into_data(),
        Tensor::<1>::ones([1024], &flex()).into_data()
    );
    let options = MaterializeOptions::on(&flex()).memory_check(MemoryCheck::Bytes(4095));
    assert!(model.materialize(options, &initializer).is_err());
}

/// With the backend's generator, a region is sliced from the whole, and the memory of the whole is predicted.
#[test]
fn the_backend_makes_the_whole_of_a_region() {
    let model = Deferred::new(|d: &Device| LinearConfig::new(64, 64).init(d)).unwrap();
    let initializer = model.initializer(Seed::new(1)).with_rng(Rng::Backend);
    let table = model.parameters();
    let request = |dtype| Request {
        path: ParameterPath::new("weight"),
        clones: Vec::new(),
        shape: table.find("weight").unwrap().shape.clone(),
        region: region(&[0, 0], &[1, 64]),
        dtype,
        device: flex(),
    };
    assert!(initializer.working_bytes(&[request(DType::F32)]) >= 64 * 64 * 4);
}

/// A closure that computes a constant by an initializer of another model, within an initializer of its own.
#[test]
fn initializers_may_be_nested() {
    let teacher = Deferred::new(|d: &Device| LinearConfig::new(4, 4).init(d)).unwrap();
    let model = Deferred::new(move |device: &Device| {
        let source = teacher.initializer(Seed::new(1)).with_rng(Rng::Backend);
        let weight = teacher.materialize_tensor("weight", &flex(), &source);
        let weight = weight.unwrap().to_data().unwrap();
        Param::from_tensor(Tensor::<2>::from_data(weight, device))
    })
    .unwrap();
    let source = model.initializer(Seed::new(2)).with_rng(Rng::Backend);
    model.materialize(&flex(), &source).unwrap();
}

#[test]
fn a_recipe_is_refused_by_name() {
    let whole = recipe(|device| normal(device, [4, 4]).into());
    let error = whole.region(&region(&[3, 0], &[2, 4])).unwrap_err();
    insta::assert_snapshot!(chain(&error));
    let (tensor, _) = recorded(|device| normal(device, [4, 4]).into());
    let (_, other) = recorded(|device| normal(device, [4, 4]).into());
    let error = Recipe::of_tensor(&other, &tensor, Seed::new(1)).unwrap_err();
    insta::assert_snapshot!(chain(&error));
    let model = Deferred::new(|d: &Device| LinearConfig::new(2, 3).init(d)).unwrap();
    let initializer = model.initializer(Seed::new(1)).with_rng(Rng::Backend);
    insta::assert_snapshot!(chain(&initializer.recipe("weight").unwrap_err()));
    let error = model
        .initializer(Seed::new(1))
        .recipe("wieght")
        .unwrap_err();
    insta::assert_snapshot!(chain(&error));
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

#[test]
fn damaged_files_are_refused() {
    let bytes = recipe(|device| (normal(device, [4, 4]) * f32::NEG_INFINITY).into());
    let bytes = bytes.to_bytes();
    for end in 0..bytes.len() {
        assert!(Recipe::from_bytes(&bytes[..end]).is_err(), "cut at {end}");
    }
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(Recipe::from_bytes(&damaged).is_err(), "flipped at {at}");
    }
}

#[test]
fn a_parameter_depends_on_its_recipe_alone() {
    let model = Deferred::new(|d: &Device| {
        vec![
            LinearConfig::new(6, 4).init(d),
            LinearConfig::new(4, 2).init(d),
        ]
    });
    let model = model.unwrap();
    let initializer = model.initializer(Seed::new(5));
    let whole = model.materialize_parameters(&flex(), &initializer).unwrap();
    for (path, value) in whole.values() {
        let recipe = initializer.recipe(path.as_str()).unwrap();
        let read = Recipe::from_bytes(&recipe.to_bytes()).unwrap();
        assert_eq!(read.name(), path.as_str());
        assert_eq!(data(&read), value.to_data().unwrap());
        let part = Region::whole(&recipe.shape()).unwrap();
        let offset = vec![1; part.rank()];
        let size = part.size().iter().map(|s| s - 1).collect();
        let part = Region::new(offset, size).unwrap();
        let made = model
            .materialize_region(path.as_str(), &part, &flex(), &initializer)
            .unwrap();
        assert_eq!(
            made.to_data().unwrap(),
            value.slice(&part).to_data().unwrap()
        );
    }
}

/// Set in the child process: the recipe's file.
const FILE: &str = "TINDERBOX_TEST_RECIPE";

#[test]
fn another_process_makes_the_same_bits() {
    if let Some(file) = std::env::var_os(FILE) {
        // The child process only has the file, and none of the program below.
        let bytes = std::fs::read(&file).unwrap();
        let made = data(&Recipe::from_bytes(&bytes).unwrap());
        std::fs::write(
            std::path::Path::new(&file).with_extension("bits"),
            made.as_bytes(),
        )
        .unwrap();
        return;
    }
    let recipe = recipe(|device| {
        (normal(device, [40, 30]).exp() * 1e-3)
            .cast(DType::BF16)
            .into()
    });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weight.recipe");
    std::fs::write(&file, recipe.to_bytes()).unwrap();
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "recipe::another_process_makes_the_same_bits"])
        .env(FILE, &file)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let bits = std::fs::read(file.with_extension("bits")).unwrap();
    assert_eq!(bits, data(&recipe).as_bytes());
}

#[test]
fn tensors_of_one_recording_share_what_they_share_there() {
    let ([a, b], recording) = record(&RecordOptions::default(), |device| {
        let shared = normal(device, [3, 3]);
        let sum: DynTensor = (shared.clone() + 1.0).into();
        [shared.into(), sum]
    })
    .unwrap();
    let make = |tensor: &DynTensor| {
        let recipe = Recipe::of_tensor(&recording, tensor, Seed::new(3)).unwrap();
        recipe
            .materialize(&flex())
            .unwrap()
            .typed::<2, burn::tensor::Float>()
            .unwrap()
    };
    assert_eq!((make(&a) + 1.0).into_data(), make(&b).into_data());
}
