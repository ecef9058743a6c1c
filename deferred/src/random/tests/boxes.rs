//! Boxes of tensors compared with the same elements of the whole.

use burn::tensor::{DType, Distribution, Element, Shape, TensorData};
use half::{bf16, f16};
use proptest::prelude::*;
use tinderbox_fake::Region;

use super::made;
use crate::random::{Domain, RandomError, Seed, Stream, generate, generate_region};

const NORMAL: Distribution = Distribution::Normal(30.0, 9.0);

fn stream() -> Stream {
    Stream::new(Seed::new(5), Domain::Init, "box", 1).at(2, 3)
}

/// Returns the elements of a region, one by one, from the values of the whole.
fn slice<E: Copy>(whole: &[E], shape: &[usize], region: &Region) -> Vec<E> {
    let mut out = Vec::new();
    for (element, value) in whole.iter().enumerate() {
        let mut rest = element;
        let inside = (0..shape.len()).rev().all(|d| {
            let index = (rest % shape[d]) as u64;
            rest /= shape[d];
            (region.offset()[d]..region.offset()[d] + region.size()[d]).contains(&index)
        });
        if inside {
            out.push(*value);
        }
    }
    out
}

fn check(shape: &[usize], offset: &[u64], size: &[u64]) {
    fn check_dtype<E: Element + PartialEq + std::fmt::Debug>(shape: &[usize], region: &Region) {
        let dtype = E::dtype();
        for distribution in [Distribution::Default, NORMAL] {
            let shape_of_whole = Shape::from(shape.to_vec());
            let whole = generate(&stream(), distribution, shape_of_whole.clone(), dtype);
            let whole = whole.expect("the parameters are valid");
            let part = generate_region(&stream(), distribution, &shape_of_whole, region, dtype);
            let part = part.expect("it is inside");
            assert_eq!(part.dtype(), dtype);
            let sizes: Vec<usize> = region.size().iter().map(|s| *s as usize).collect();
            assert_eq!(*part.shape(), Shape::from(sizes));
            let values = |data: &TensorData| data.try_to_vec::<E>().expect("the dtype is E's");
            let context = format!("{dtype:?} {distribution:?} {shape:?} {region}");
            let expected = slice(&values(&whole), shape, region);
            assert_eq!(values(&part), expected, "{context}");
        }
    }
    let region = Region::new(offset.to_vec(), size.to_vec()).expect("a small region");
    for_types!(check_dtype(shape, &region): f32 f64 f16 bf16 i64 u8);
}

/// A shape and a box in it, of any rank up to 5, often empty or with whole dimensions.
fn shape_and_box() -> impl Strategy<Value = (Vec<usize>, Vec<u64>, Vec<u64>)> {
    let dimension = (1usize..12).prop_flat_map(|length| {
        let part = (0..=length as u64, 0..=length as u64)
            .prop_map(|(a, b)| (a.min(b), a.max(b) - a.min(b)));
        let whole = Just((0, length as u64));
        (Just(length), prop_oneof![part, whole])
    });
    proptest::collection::vec(dimension, 0..=5).prop_map(|dimensions| {
        let shape = dimensions.iter().map(|(length, _)| *length).collect();
        let offset = dimensions.iter().map(|(_, (offset, _))| *offset).collect();
        let size = dimensions.iter().map(|(_, (_, size))| *size).collect();
        (shape, offset, size)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn a_box_equals_its_part_of_the_whole((shape, offset, size) in shape_and_box()) {
        check(&shape, &offset, &size);
    }
}

/// Boxes of several tasks: their ends are inside runs, and the runs are of every kind.
#[test]
fn large_boxes_equal_their_parts_of_the_whole() {
    check(&[], &[], &[]);
    check(&[300_000], &[77_777], &[200_001]);
    check(&[700, 400], &[3, 0], &[500, 400]);
    check(&[700, 400], &[3, 11], &[500, 301]);
    check(&[9000, 32], &[1, 31], &[8999, 1]);
    check(&[9000, 32], &[1, 5], &[8999, 27]);
    check(&[40, 60, 50], &[0, 7, 5], &[40, 50, 45]);
    check(&[40, 60, 50], &[0, 59, 0], &[40, 1, 50]);
}

#[test]
fn a_tensor_of_more_than_two_to_the_32_elements_has_its_boxes() {
    // Row 3 begins at element 3 * 2^40: only `fill` can generate the same elements alone.
    let whole = Shape::from(vec![1usize << 20, 1 << 40]);
    let region = Region::new(vec![3, (1 << 35) + 5], vec![2, 70]).expect("a small region");
    let part = generate_region(&stream(), NORMAL, &whole, &region, DType::F32);
    let part = part.expect("it is inside").try_to_vec::<f32>();
    let rows = [3, 4].map(|row| {
        let first = (row << 40) + (1 << 35) + 5;
        made::<f32>(&stream(), NORMAL, first, 70)
    });
    assert_eq!(part.expect("f32"), rows.concat());

    // One column of it: the elements are 2^40 apart.
    let region = Region::new(vec![100, 7], vec![90, 1]).expect("a small region");
    let column = generate_region(&stream(), NORMAL, &whole, &region, DType::F64);
    let column = column.expect("it is inside").try_to_vec::<f64>();
    let single = |row: u64| made::<f64>(&stream(), NORMAL, (row << 40) + 7, 1);
    let expected: Vec<f64> = (100..190).flat_map(single).collect();
    assert_eq!(column.expect("f64"), expected);
}

#[test]
fn boxes_outside_of_the_tensor_are_refused() {
    let check = |shape: &[usize], offset: &[u64], size: &[u64], expected: &str| {
        let region = Region::new(offset.to_vec(), size.to_vec()).expect("a small region");
        let whole = Shape::from(shape.to_vec());
        let error = generate_region(&stream(), NORMAL, &whole, &region, DType::F32);
        let RandomError::Region { source } = error.expect_err("it is refused") else {
            panic!("{shape:?}: another error");
        };
        assert_eq!(source.to_string(), expected);
    };
    let past = "region [0..2, 1..4] reaches past the shape [2, 3]";
    check(&[2, 3], &[0, 1], &[2, 3], past);
    let rank = "region [0..2] has 1 dimension(s), the shape [2, 3] has 2: give a range for each";
    check(&[2, 3], &[0], &[2], rank);
}
