//! Heap memory for opening a manifest: at most four times its size, for any contents. The only test of
//! its process.

use std::{collections::BTreeMap, fmt::Write, fs};

use burn::tensor::TensorData;
use peak_alloc::PeakAlloc;
use tinderbox_checkpoint::{Checkpoint, Digest, Manifest, Role, Run, SaveTensor, Scalar};
use tinderbox_checkpoint_tests::{TIMEOUT, meta};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const MIB: usize = 1 << 20;
/// Allowed in addition to the memory that grows with the manifest.
const BESIDE: usize = MIB / 8;
/// The size of an attack's repeated element.
const LARGE: usize = 6 * MIB;

/// Returns the temporary peak memory of a call and its result.
fn peak<T>(call: impl FnOnce() -> T) -> (usize, T) {
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let result = call();
    (HEAP.peak_usage().saturating_sub(before), result)
}

/// Returns a valid empty manifest with some fields replaced or added.
fn manifest(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut all = BTreeMap::from([
        ("format", "\"tinderbox-checkpoint\""),
        ("version", "1"),
        ("minor", "1"),
        ("attempt", "\"00000000000000000000000000000000\""),
        ("step", "1"),
        ("seed", "1"),
        ("data_position", "1"),
        ("world_size", "1"),
        ("block_bytes", "64"),
        ("metadata", "null"),
        ("plan", "null"),
        ("scalars", "[]"),
        ("files", "[]"),
        ("index", "null"),
        ("tensors", "[]"),
    ]);
    all.extend(fields.iter().copied());
    let mut body = String::from("{");
    for (name, value) in all {
        if !name.is_empty() {
            write!(body, "\"{name}\":").unwrap();
        }
        write!(body, "{value},").unwrap();
    }
    body.pop();
    body.push('}');
    let digest = Digest::of(body.as_bytes());
    format!("{{\"xxh3_128\":\"{digest}\",\"body\":{body}}}\n").into_bytes()
}

/// A large list.
fn list(items: impl Iterator<Item = String>) -> String {
    let mut list = String::from("[");
    for item in items {
        if list.len() > LARGE {
            break;
        }
        list.push_str(&item);
        list.push(',');
    }
    list.pop();
    list.push(']');
    list
}

/// Returns a large list of equal items, as [`list`].
fn repeated(item: &str) -> String {
    let count = (LARGE - 1) / (item.len() + 1) + 1;
    let items = format!("{item},").repeat(count);
    format!("[{}]", &items[..items.len() - 1])
}

/// Returns distinct sorted names, as short as possible.
fn names() -> impl Iterator<Item = String> {
    let letters = || (b'0'..=b'~').filter(|byte| *byte != b'\\').map(char::from);
    letters().flat_map(move |a| {
        letters().flat_map(move |b| {
            letters().flat_map(move |c| letters().map(move |d| String::from_iter([a, b, c, d])))
        })
    })
}

const DIGEST: &str = "\"00000000000000000000000000000000\"";
const CHUNK: &str =
    r#"{"offset":[],"size":[],"file":"","start_bytes":0,"len_bytes":0,"digests":[]}"#;

fn tensor(name: &str, fields: &str, shape: &str, chunks: &str) -> String {
    format!(
        r#"{{"name":"{name}",{fields}"role":"model","dtype":"F32","shape":{shape},"chunks":{chunks}}}"#
    )
}

/// Returns tensors with the maximum number of dimensions. They are whole, or cut into two chunks: the second
/// chunk does not start at zeros.
fn many_dimensions(in_two: bool) -> Vec<u8> {
    let numbers = |first: u32, rest: u32| format!("[{first}{}]", format!(",{rest}").repeat(31));
    let chunk = |begin| {
        CHUNK
            .replace(
                "\"offset\":[]",
                &format!("\"offset\":{}", numbers(begin, 0)),
            )
            .replace("\"size\":[]", &format!("\"size\":{}", numbers(1, 1)))
    };
    let (chunks, first) = match in_two {
        false => (format!("[{}]", chunk(0)), 1),
        true => (format!("[{},{}]", chunk(0), chunk(1)), 2),
    };
    let shape = numbers(first, 1);
    let tensors = names().map(|name| tensor(&name, "", &shape, &chunks));
    manifest(&[("tensors", &list(tensors))])
}

fn attacks() -> Vec<(&'static str, Vec<u8>)> {
    let one_chunk = format!("[{CHUNK}]");
    let escaped = format!("\"\\u0061{}\"", "a".repeat(LARGE));
    let in_one = |tensor: String| format!("[{tensor}]");
    let with_chunk = |chunk: String| in_one(tensor("a", "", "[]", &format!("[{chunk}]")));
    let fields = list(names().map(|name| format!("\"{name}\":0")));
    vec![
        ("metadata", manifest(&[("metadata", &repeated("0"))])),
        (
            "metadata by another spelling",
            manifest(&[("metad\\u0061ta", &repeated("0"))]),
        ),
        ("an unknown field", manifest(&[("later", &repeated("0"))])),
        (
            "unknown fields",
            manifest(&[("", fields.trim_matches(['[', ']']))]),
        ),
        (
            "features",
            manifest(&[("required_features", &repeated("\"\""))]),
        ),
        ("the format", manifest(&[("format", &escaped)])),
        (
            "tensors without chunks",
            manifest(&[("tensors", &list(names().map(|n| tensor(&n, "", "[]", "[]"))))]),
        ),
        (
            "small tensors",
            manifest(&[(
                "tensors",
                &list(names().map(|n| tensor(&n, "", "[]", &one_chunk))),
            )]),
        ),
        (
            "small tensors, each tied",
            manifest(&[(
                "tensors",
                &list(names().map(|n| tensor(&n, &format!("\"tied\":[\"{n}\"],"), "[]", &one_chunk))),
            )]),
        ),
        (
            "dimensions",
            manifest(&[("tensors", &in_one(tensor("a", "", &repeated("1"), &one_chunk)))]),
        ),
        (
            "dimensions of a chunk",
            manifest(&[(
                "tensors",
                &with_chunk(CHUNK.replace("\"offset\":[]", &format!("\"offset\":{}", repeated("1")))),
            )]),
        ),
        (
            "tied names",
            manifest(&[(
                "tensors",
                &in_one(tensor(
                    "a",
                    &format!("\"tied\":{},", list(names().map(|n| format!("\"{n}\"")))),
                    "[]",
                    &one_chunk,
                )),
            )]),
        ),
        ("tensors of many dimensions", many_dimensions(false)),
        ("parts of many dimensions", many_dimensions(true)),
        (
            "digests",
            manifest(&[(
                "tensors",
                &with_chunk(CHUNK.replace("\"digests\":[]", &format!("\"digests\":{}", repeated(DIGEST)))),
            )]),
        ),
        (
            "chunks",
            manifest(&[("tensors", &in_one(tensor("a", "", "[]", &repeated(CHUNK))))]),
        ),
        (
            "a long name",
            manifest(&[(
                "tensors",
                &in_one(tensor(escaped.trim_matches('"'), "", "[]", &one_chunk)),
            )]),
        ),
        (
            "scalars",
            manifest(&[(
                "scalars",
                &list(names().map(|n| format!(r#"{{"name":"{n}","value":{{"int":0}}}}"#))),
            )]),
        ),
        (
            "files",
            manifest(&[(
                "files",
                &list(names().map(|n| {
                    format!(
                        r#"{{"name":"{n}","role":"model","rank":0,"number":0,"size_bytes":0,"header_bytes":0,"header_digest":{DIGEST}}}"#
                    )
                })),
            )]),
        ),
        (
            "arrays in arrays",
            manifest(&[("later", &format!("{}{}", "[".repeat(LARGE / 2), "]".repeat(LARGE / 2)))]),
        ),
    ]
}

#[test]
fn at_most_four_times_the_size_of_the_file() {
    let mut failures = Vec::new();
    let mut check = |name: &str, held: usize, bytes: usize| {
        println!("{name}: {:.2} times", held as f64 / bytes as f64);
        if held > 4 * bytes + BESIDE {
            failures.push(format!("{name}: {held} bytes for {bytes}"));
        }
    };
    // Valid manifests, from their files: many small tensors, then many blocks.
    let run = tempfile::tempdir().unwrap();
    for (step, tensors, elements) in [(1, 40_000, 1), (2, 2, 3_000_000)] {
        let attempt = Run::local(run.path()).begin(meta(step, 1)).unwrap();
        let tensors = (0..tensors).map(|at| {
            let data = TensorData::new(vec![1.0f32; elements], [elements]);
            SaveTensor::whole(format!("layers.{at}.weight"), Role::Model, data)
        });
        let tensors: Vec<_> = tensors.collect();
        let scalars = (0..tensors.len()).map(|at| (format!("time.{at}"), Scalar::Uint(1)));
        let scalars = scalars.collect();
        attempt
            .handle()
            .write_rank(0, &tensors, &scalars, &())
            .unwrap();
        let dir = attempt.publish(TIMEOUT).unwrap();
        let bytes = fs::metadata(dir.join("manifest.json")).unwrap().len() as usize;
        assert!(bytes > 6 * MIB, "{bytes}");
        let (held, checkpoint) = peak(|| Checkpoint::open(&dir).unwrap());
        check(&format!("{} tensors", tensors.len()), held, bytes);
        drop(checkpoint);
    }
    for (name, bytes) in attacks() {
        let (held, result) = peak(|| Manifest::from_bytes(&bytes));
        // An unknown field is preserved up to its limit, and a manifest may have many scalars.
        let sound = ["an unknown field", "scalars"].contains(&name);
        assert_eq!(result.is_ok(), sound, "{name}: {:?}", result.err());
        check(name, bytes.len() + held, bytes.len());
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
