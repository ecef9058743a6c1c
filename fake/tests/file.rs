//! Graph files: round trips and damaged files.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use tinderbox_fake::{Graph, GraphFileError, RecordOptions, Region, record, seal, unseal};

fn graph(run: impl FnOnce(&Device)) -> Graph {
    record(&RecordOptions::default(), run)
        .unwrap()
        .1
        .into_graph()
}

/// Numbers that JSON, or a shorter float, can't represent.
const FLOATS: [f64; 8] = [
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    -0.0,
    0.1,
    f64::MIN_POSITIVE / 2.0,
    f64::MAX,
    65520.0,
];

fn small(device: &Device) {
    let x = Tensor::<1>::from_floats(FLOATS.map(|f| f as f32), device);
    let mask = x.clone().equal_elem(FLOATS[0]);
    let y = x.mask_fill(mask, FLOATS[1]) + FLOATS[3];
    drop(y * Tensor::random([8], Distribution::Normal(0.1, 1e-30), device));
}

/// Constants of 40 KB and of 4 KiB.
fn large(device: &Device) {
    let ints = |n: i32| {
        Tensor::<1, Int>::from_data(TensorData::from(&(0..n).collect::<Vec<_>>()[..]), device)
    };
    drop(ints(10_000) + ints(10_000));
    drop(ints(1024) + 1);
}

const FORMAT: &str = "tinderbox-graph";

fn to_bytes(graph: &Graph) -> Vec<u8> {
    seal(FORMAT, 1, graph)
}

fn from_bytes(bytes: &[u8]) -> Result<Graph, GraphFileError> {
    unseal(FORMAT, 1, bytes)
}

#[test]
fn graphs_round_trip() {
    for run in [small as fn(&Device), large, |_| ()] {
        let graph = graph(run);
        let bytes = to_bytes(&graph);
        let decoded = from_bytes(&bytes).unwrap();
        assert_eq!(to_bytes(&decoded), bytes);
        assert_eq!(format!("{decoded:?}"), format!("{graph:?}"));
    }
}

#[test]
fn every_float_round_trips() {
    for value in FLOATS
        .into_iter()
        .chain([f64::from_bits(0x7ff8_0000_dead_beef)])
    {
        let graph = graph(|d| drop(Tensor::<1>::zeros([1], d) * value));
        let decoded = from_bytes(&to_bytes(&graph)).unwrap();
        let text = |g: &Graph| format!("{:?}", g.nodes().last().unwrap().operation);
        assert_eq!(text(&decoded), text(&graph));
        assert!(
            text(&graph).contains(&format!("{value:?}")),
            "{}",
            text(&graph)
        );
    }
    // The bits of constants, NaN payloads too.
    let bits = [0x7fc0_1234u32, 0xffff_ffff, 0x8000_0000, 1];
    let data = TensorData::new(bits.map(f32::from_bits).to_vec(), [4]);
    let graph = graph(|d| drop(Tensor::<1>::from_data(data.clone(), d) + 1.0));
    let decoded = from_bytes(&to_bytes(&graph)).unwrap();
    let first = decoded.node_ids().next().unwrap();
    let constant = decoded.node(first).inputs()[0];
    assert_eq!(
        decoded.constant(constant).unwrap().as_bytes(),
        data.as_bytes()
    );
}

#[test]
fn truncation_at_every_byte_is_an_error() {
    let bytes = to_bytes(&graph(small));
    for end in 0..bytes.len() {
        let decoded = catch_unwind(AssertUnwindSafe(|| from_bytes(&bytes[..end])));
        assert!(decoded.expect("no panic").is_err(), "{end} bytes");
    }
    let longer = [&bytes[..], &[0]].concat();
    let error = from_bytes(&longer).unwrap_err();
    assert!(matches!(error, GraphFileError::Damaged { .. }), "{error}");
}

#[test]
fn a_flip_of_every_bit_is_an_error_or_the_same_graph() {
    let bytes = to_bytes(&graph(small));
    let mut damaged = bytes.clone();
    let mut refused = 0;
    for at in 0..bytes.len() {
        for mask in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
            damaged[at] ^= mask;
            let decoded = catch_unwind(AssertUnwindSafe(|| from_bytes(&damaged)));
            match decoded.expect("no panic") {
                Err(_) => refused += 1,
                Ok(graph) => assert_eq!(to_bytes(&graph), bytes, "byte {at} ^ {mask}"),
            }
            damaged[at] ^= mask;
        }
    }
    assert!(
        refused > bytes.len() * 8,
        "{refused} of {}",
        bytes.len() * 9
    );
}

/// Damage that a digest does not detect, because the digest was computed after it.
#[test]
fn sealed_nonsense_is_refused_without_a_panic() {
    let bytes = to_bytes(&graph(small));
    let digest = |body: &[u8]| format!("{:032x}", twox_hash::XxHash3_128::oneshot(body));
    let start = (0..bytes.len())
        .find(|at| {
            let digest = digest(&bytes[*at..]);
            bytes.windows(32).any(|window| window == digest.as_bytes())
        })
        .unwrap();
    let place = bytes[..start].len() - 32;
    assert_eq!(&bytes[place..start], digest(&bytes[start..]).as_bytes());
    let mut kept = 0;
    for at in start..bytes.len() {
        for value in [
            0,
            0x18,
            0x1b,
            0x3b,
            0x5b,
            0x7f,
            0x9b,
            0xbb,
            0xf6,
            0xfb,
            0xff,
            bytes[at] ^ 1,
        ] {
            let mut sealed = bytes.clone();
            sealed[at] = value;
            let seal = digest(&sealed[start..]);
            sealed[place..start].copy_from_slice(seal.as_bytes());
            let decoded = catch_unwind(AssertUnwindSafe(|| {
                let graph = from_bytes(&sealed).ok()?;
                // An accepted graph can be used.
                let _ = graph.to_string();
                Some(to_bytes(&graph))
            }));
            kept += usize::from(decoded.expect("no panic").is_some());
        }
    }
    // Numbers inside operations may have any value.
    assert!(kept > 0);
}

#[test]
fn other_versions_are_named() {
    let bytes = to_bytes(&graph(small));
    let check = |from: &[u8], to: &[u8], expected: &str| {
        let at = bytes.windows(from.len()).position(|w| w == from).unwrap();
        let mut other = bytes.clone();
        other[at..at + from.len()].copy_from_slice(to);
        assert_eq!(from_bytes(&other).unwrap_err().to_string(), expected);
    };
    check(
        b"tinderbox-graph",
        b"tinderbox-grave",
        "the file has format `tinderbox-grave`, this build reads `tinderbox-graph`: record and write it again",
    );
    check(
        b"version\x01",
        b"version\x02",
        "the file has version `2`, this build reads `1`: record and write it again",
    );
    check(
        b"0.22.1",
        b"0.23.0",
        "the file has Burn version `0.23.0`, this build reads `0.22.1`: record and write it again",
    );
}

#[test]
fn regions_of_a_file_keep_their_invariant() {
    let write = |offset: &[u64], size: &[u64]| {
        let mut bytes = Vec::new();
        let map = [("offset", offset), ("size", size)];
        ciborium::into_writer(&std::collections::BTreeMap::from(map), &mut bytes).unwrap();
        ciborium::from_reader::<Region, _>(&bytes[..])
    };
    let region = Region::new(vec![1, 2], vec![3, 4]).unwrap();
    assert_eq!(write(&[1, 2], &[3, 4]).unwrap(), region);
    for (offset, size) in [
        (&[u64::MAX][..], &[1][..]),
        (&[0], &[1, 1]),
        (&[0, 0], &[1 << 40, 1 << 40]),
    ] {
        assert!(write(offset, size).is_err(), "{offset:?} {size:?}");
    }
}
