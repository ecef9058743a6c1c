//! The kernels generate the same bits as the CPU's code.

use burn::tensor::{BoolStore, DType, Distribution, Shape};
use burn_cubecl::CubeDevice;
use proptest::prelude::*;
use tinderbox_fake::Region;

use crate::random::cube::generate_on;
use crate::random::tests::golden::stream;
use crate::random::{DTYPES, RandomError, generate_region};

/// The distributions of the golden file.
fn distributions(dtype: DType) -> [Distribution; 4] {
    let (uniform, normal) = match dtype.is_float() {
        true => ((-1.5, 2.7), (0.1, 1.9)),
        false => ((3.0, 101.0), (50.0, 40.0)),
    };
    [
        Distribution::Default,
        Distribution::Bernoulli(0.3),
        Distribution::Uniform(uniform.0, uniform.1),
        Distribution::Normal(normal.0, normal.1),
    ]
}

fn device() -> CubeDevice {
    CubeDevice::cpu().expect("the build has the CPU runtime")
}

/// Returns the results of the kernel and of the CPU's code.
fn both(
    distribution: Distribution,
    whole: &[usize],
    region: &Region,
    dtype: DType,
) -> (Result<Vec<u8>, RandomError>, Result<Vec<u8>, RandomError>) {
    let whole = Shape::from(whole.to_vec());
    let made = generate_on(&device(), &stream(), distribution, &whole, region, dtype);
    let made = made.map(|tensor| {
        assert_eq!((tensor.dtype, tensor.is_contiguous()), (dtype, true));
        if tensor.meta.num_elements() == 0 {
            return Vec::new();
        }
        let bytes = tensor.client.read_one(tensor.handle);
        bytes.expect("the kernel ran").to_vec()
    });
    let expected = generate_region(&stream(), distribution, &whole, region, dtype);
    let expected = expected.map(|data| data.as_bytes().to_vec());
    (made, expected)
}

fn check(distribution: Distribution, whole: &[usize], region: &Region, dtype: DType) {
    let (made, expected) = both(distribution, whole, region, dtype);
    let differ = made != expected;
    assert!(!differ, "{distribution:?} {dtype:?} {whole:?} {region:?}");
}

/// The values of `golden/random_v1.txt` are at these positions, and the CPU's code is tested
/// against them.
#[test]
fn the_committed_values() {
    let whole = [(1 << 40) + 64];
    for dtype in DTYPES {
        for distribution in distributions(dtype) {
            for (first, count) in [(0, 1 << 14), (6, 6), ((1 << 40) + 1, 6)] {
                let region = Region::new(vec![first], vec![count]).expect("it is short");
                check(distribution, &whole, &region, dtype);
            }
        }
    }
}

/// Limits and special values of the parameters.
#[test]
fn parameters_at_the_ends() {
    let whole = Region::of_shape(&[4096]);
    let wide = [
        Distribution::Bernoulli(0.0),
        Distribution::Bernoulli(1.0),
        Distribution::Uniform(2.0, 2.0),
        Distribution::Normal(-3.0, 0.0),
        // Beyond the range of most types, also of truncated integers.
        Distribution::Normal(0.0, 1e4),
        Distribution::Normal(-40.0, 1e9),
    ];
    for dtype in DTYPES {
        for distribution in wide {
            check(distribution, &[4096], &whole, dtype);
        }
    }
    for dtype in [DType::I64, DType::U64] {
        check(Distribution::Normal(9e18, 1e19), &[4096], &whole, dtype);
    }
    // Small values, which are subnormal.
    for (distribution, dtype) in [
        (Distribution::Normal(0.0, 2e-5), DType::F16),
        (Distribution::Uniform(-1e-7, 1e-7), DType::F16),
        (Distribution::Normal(0.0, 1e-38), DType::F32),
    ] {
        check(distribution, &[4096], &whole, dtype);
    }
}

#[test]
fn what_the_cpu_refuses_is_refused() {
    let whole = Region::of_shape(&[4]);
    let refused = |distribution, dtype| {
        let (made, expected) = both(distribution, &[4], &whole, dtype);
        assert!(expected.is_err());
        assert_eq!(made, expected);
    };
    refused(Distribution::Uniform(0.0, 65520.0), DType::F16);
    refused(Distribution::Bernoulli(1.5), DType::F32);
    refused(Distribution::Default, DType::Bool(BoolStore::Native));
    let outside = Region::new(vec![2], vec![3]).expect("it is short");
    let (made, expected) = both(Distribution::Default, &[4], &outside, DType::F32);
    assert!(expected.is_err());
    assert_eq!(made, expected);
}

/// A region of a tensor of up to four dimensions.
fn regions() -> impl Strategy<Value = (Vec<usize>, Region)> {
    let dimension = (1u64..=12).prop_flat_map(|size| {
        (Just(size), 0..size)
            .prop_flat_map(|(size, offset)| (Just(size), Just(offset), 0..=size - offset))
    });
    proptest::collection::vec(dimension, 1..=4).prop_map(|dimensions| {
        let whole = dimensions.iter().map(|d| d.0 as usize).collect();
        let offset = dimensions.iter().map(|d| d.1).collect();
        let size = dimensions.iter().map(|d| d.2).collect();
        let region = Region::new(offset, size).expect("the ranks are equal");
        (whole, region)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_region_of_any_tensor(
        (whole, region) in regions(),
        dtype in proptest::sample::select(DTYPES.to_vec()),
        distribution in 0usize..4,
    ) {
        check(distributions(dtype)[distribution], &whole, &region, dtype);
    }
}
