//! Manifests with large claims or large contents.

use serde_json::{Value, json};
use tinderbox_checkpoint::{Checkpoint, FormatError, LayoutError, LoadError, Role};
use tinderbox_fake::Region;

use crate::forge::{FIRST, SMALL, Victim, json_text, position, zeros};

/// Modifies tensor `mask`: booleans of shape `[9]`.
fn set_mask(field: &str, value: Value) -> FormatError {
    let victim = Victim::whole();
    victim.reseal(|body| {
        let at = position(&body["tensors"], "mask");
        body["tensors"][at][field] = value;
    });
    victim.manifest_error()
}

fn check_shape(shape: Value) {
    let error = set_mask("shape", shape.clone());
    assert!(
        matches!(&error, FormatError::Shape { tensor, .. } if tensor == "mask"),
        "{shape}: {error}"
    );
}

#[test]
fn products_that_overflow() {
    let half = 1u64 << 32;
    check_shape(json!([half, half]));
    check_shape(json!([u64::MAX]));
    // 63 bits: the limit of an allocation.
    check_shape(json!([1u64 << 63]));
    check_shape(json!([3_037_000_500u64, 3_037_000_500u64]));
    // No elements, but the strides overflow.
    check_shape(json!([0, half, half]));
    check_shape(json!([half, half, 0]));
    // The elements fit, the bytes do not.
    let victim = Victim::whole();
    victim.set("/tensors/0/shape", json!([1u64 << 61]));
    let error = victim.manifest_error();
    assert!(
        matches!(&error, FormatError::Shape { tensor, .. } if tensor == "embed.weight"),
        "{error}"
    );
    let victim = Victim::whole();
    victim.replace("\"shape\":[9]", "\"shape\":[18446744073709551616]");
    json_text(victim.manifest_error());
    let victim = Victim::whole();
    victim.replace("\"shape\":[9]", "\"shape\":[-9]");
    json_text(victim.manifest_error());
}

#[test]
fn too_many_dimensions() {
    let mut shape = vec![1u64; 33];
    shape[0] = 9;
    check_shape(json!(shape));
    check_shape(json!(vec![0u64; 33]));
}

#[test]
fn a_huge_shape_over_few_bytes() {
    // Bytes and digests must match even if everything else is valid.
    let claimed = 1u64 << 50;
    let victim = Victim::whole();
    victim.reseal(|body| {
        let at = position(&body["tensors"], "mask");
        body["tensors"][at]["shape"] = json!([claimed]);
        body["tensors"][at]["chunks"][0]["size"] = json!([claimed]);
    });
    let error = victim.manifest_error();
    assert!(
        matches!(&error, FormatError::ChunkSize { tensor, .. } if tensor == "mask"),
        "{error}"
    );
    victim.reseal(|body| {
        let at = position(&body["tensors"], "mask");
        body["tensors"][at]["chunks"][0]["len_bytes"] = json!(claimed);
    });
    let error = victim.manifest_error();
    assert!(
        matches!(&error, FormatError::ChunkSize { tensor, .. } if tensor == "mask"),
        "{error}"
    );
    // A valid chunk with an invalid shape.
    let error = set_mask("shape", json!([claimed]));
    assert!(
        matches!(
            &error,
            FormatError::Layout { tensor, source } if tensor == "mask"
                && **source == LayoutError::Gap { missing: claimed - 9, elements: claimed }
        ),
        "{error}"
    );
}

#[test]
fn huge_dimensions_without_an_element() {
    let huge = 1u64 << 40;
    let victim = Victim::whole();
    let path = victim.dir.join(SMALL);
    victim.replace_header_json(SMALL, |json| {
        json.replace("[9]", &format!("[0,{huge}]"))
            .replace("[6,15]", "[6,6]")
    });
    victim.reseal(|body| {
        let (file, at) = (
            position(&body["files"], SMALL),
            position(&body["tensors"], "mask"),
        );
        let bytes = body["files"][file]["size_bytes"].as_u64().unwrap() - 9;
        body["files"][file]["size_bytes"] = json!(bytes);
        std::fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(bytes)
            .unwrap();
        let mask = &mut body["tensors"][at];
        mask["shape"] = json!([0, huge]);
        let chunk = &mut mask["chunks"][0];
        (chunk["offset"], chunk["size"]) = (json!([0, 0]), json!([0, huge]));
        (chunk["len_bytes"], chunk["digests"]) = (json!(0), json!([]));
    });
    let checkpoint = Checkpoint::open(&victim.dir).unwrap();
    checkpoint.verify().unwrap();
    let mask = checkpoint.tensor(Role::Model, "mask").unwrap();
    let whole = Region::whole(&mask.shape).unwrap();
    let found = checkpoint.read(mask, &whole).unwrap();
    assert!(found.as_bytes().is_empty());
    assert_eq!(found.shape()[..], [0, huge as usize]);
    // An empty part, past its end.
    let part = Region::new(vec![0, huge - 1], vec![0, 1]).unwrap();
    assert!(checkpoint.read(mask, &part).unwrap().as_bytes().is_empty());
    let outside = Region::new(vec![0, huge], vec![1, 1]).unwrap();
    let error = checkpoint.read(mask, &outside).unwrap_err();
    assert!(
        matches!(&error, LoadError::Region { tensor, .. } if tensor == "mask"),
        "{error}"
    );
}

#[test]
fn an_empty_tensor_in_two_chunks() {
    let victim = Victim::chunks();
    victim.reseal(|body| {
        let tensor = &mut body["tensors"][0];
        tensor["shape"] = json!([0, 6]);
        let chunks = tensor["chunks"].as_array_mut().unwrap();
        chunks.truncate(2);
        for (at, chunk) in chunks.iter_mut().enumerate() {
            (chunk["offset"], chunk["size"]) = (json!([0, 3 * at]), json!([0, 3]));
            (chunk["len_bytes"], chunk["digests"]) = (json!(0), json!([]));
        }
    });
    let error = victim.manifest_error();
    assert!(
        matches!(
            &error,
            FormatError::Layout { tensor, source } if tensor == "w"
                && matches!(**source, LayoutError::Empty { .. })
        ),
        "{error}"
    );
}

#[test]
fn one_chunk_too_many() {
    let many = 65_537;
    let victim = Victim::whole();
    victim.reseal(|body| {
        let at = position(&body["tensors"], "mask");
        let mask = &mut body["tensors"][at];
        mask["shape"] = json!([many]);
        let mut chunk = mask["chunks"][0].take();
        chunk["size"] = json!([1]);
        let chunks = (0..many).map(|i| {
            chunk["offset"] = json!([i]);
            chunk.clone()
        });
        mask["chunks"] = chunks.collect();
    });
    let error = victim.manifest_error();
    assert!(
        matches!(
            &error,
            FormatError::Layout { tensor, source } if tensor == "mask"
                && **source == LayoutError::TooManyChunks { found: many, limit: 65_536 }
        ),
        "{error}"
    );
}

#[test]
fn huge_arrays() {
    let many = 200_000;
    let error = set_mask("tied", json!(vec![""; many]));
    assert!(
        matches!(error, FormatError::Order { list: "tied names" }),
        "{error}"
    );
    let victim = Victim::whole();
    victim.reseal(|body| {
        let at = position(&body["tensors"], "mask");
        body["tensors"][at]["chunks"][0]["digests"] = json!(vec![zeros(); many]);
    });
    let error = victim.manifest_error();
    assert!(
        matches!(&error, FormatError::ChunkSize { tensor, .. } if tensor == "mask"),
        "{error}"
    );
    for list in ["files", "scalars", "tensors"] {
        let victim = Victim::whole();
        victim.reseal(|body| body[list] = json!(vec![body[list][0].clone(); many / 10]));
        let text = tinderbox_checkpoint_tests::chain(&victim.manifest_error());
        let expected = format!("the list of {list} is not sorted");
        assert!(text.contains(&expected), "{text}");
    }
}

#[test]
fn a_message_about_a_huge_array_stays_readable() {
    let many = 1_000_000;
    let mut shape = vec![1u64; many];
    shape[0] = 9;
    let victim = Victim::whole();
    victim.set("/format", json!("x".repeat(many)));
    let format = victim.manifest_error();
    assert!(matches!(format, FormatError::Format { .. }));
    let victim = Victim::whole();
    victim.reseal(|body| {
        let at = position(&body["tensors"], "mask");
        let chunk = &mut body["tensors"][at]["chunks"][0];
        (chunk["offset"], chunk["size"]) = (json!(vec![0u64; many]), json!(shape));
    });
    let region = victim.manifest_error();
    let shape = set_mask("shape", json!(shape));
    assert!(matches!(shape, FormatError::Shape { .. }));
    for error in [format, region, shape] {
        let text = tinderbox_checkpoint_tests::chain(&error);
        assert!(text.len() < 10_000, "{} bytes: {}", text.len(), &text[..80]);
    }
}

#[test]
fn metadata_and_a_plan_beyond_their_limits() {
    for (field, limit) in [("metadata", 1u64 << 20), ("plan", 16 << 20)] {
        // Including quotation marks, one byte more than the limit, and exactly the limit; the field name also
        // with an escape.
        for (more, refused, name) in [
            (1, true, field.to_owned()),
            (1, true, field.replace('a', "\\u0061")),
            (0, false, field.to_owned()),
        ] {
            let victim = Victim::first_version();
            let text = json!("x".repeat((limit - 2 + more) as usize));
            victim.set(&format!("/{field}"), text);
            victim.replace(&format!("\"{field}\":"), &format!("\"{name}\":"));
            if !refused {
                Checkpoint::open(&victim.dir).unwrap();
                continue;
            }
            let error = victim.manifest_error();
            assert!(
                matches!(
                    error,
                    FormatError::TooLarge { found_bytes, limit_bytes } if (found_bytes, limit_bytes) == (limit + 1, limit)
                ),
                "{error}"
            );
        }
    }
}

#[test]
fn an_index_larger_than_any_manifest() {
    // `verify` reads the whole file into memory, and a sparse file costs an attacker nothing.
    let victim = Victim::whole();
    victim.set("/index/size_bytes", json!(1u64 << 40));
    let error = victim.manifest_error();
    assert!(matches!(error, FormatError::TooLarge { .. }), "{error}");
    let victim = Victim::whole();
    victim.set("/plan/size_bytes", json!(1u64 << 40));
    let error = victim.manifest_error();
    assert!(matches!(error, FormatError::TooLarge { .. }), "{error}");
}

#[test]
fn a_header_that_every_reader_refuses() {
    for header_bytes in [0u64, 7, 100_000_009, 1 << 63, u64::MAX] {
        let victim = Victim::whole();
        victim.reseal(|body| {
            let at = position(&body["files"], FIRST);
            body["files"][at]["header_bytes"] = json!(header_bytes);
            body["files"][at]["size_bytes"] = json!(u64::MAX);
        });
        let error = victim.manifest_error();
        assert!(
            matches!(
                &error,
                FormatError::HeaderBytes { file, found_bytes } if file == FIRST && *found_bytes == header_bytes
            ),
            "{error}"
        );
    }
}

#[test]
fn a_manifest_larger_than_any() {
    let victim = Victim::whole();
    let path = victim.dir.join("manifest.json");
    // Sparse: it uses no disk space, and must not be read.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len((256 << 20) + 1).unwrap();
    let error = Checkpoint::open(&victim.dir).unwrap_err();
    let LoadError::Io(failed) = &error else {
        panic!("{error}");
    };
    assert_eq!(failed.path, path);
    assert_eq!(failed.source.kind(), std::io::ErrorKind::FileTooLarge);
}

#[test]
fn many_chunks_that_no_dimension_separates() {
    // Half of them are rows, half are columns: all pairs of one half overlap in the sweep over each
    // dimension.
    let many = 4096u64;
    let mut chunks = Vec::new();
    let victim = Victim::whole();
    let mut push = |offset: [u64; 2], size: [u64; 2]| {
        chunks.push(json!({
            "offset": offset, "size": size, "file": SMALL, "start_bytes": 0, "len_bytes": 0, "digests": [],
        }));
    };
    push([0, 0], [1, many]);
    (0..many).for_each(|column| push([0, many + column], [many, 1]));
    (1..many).for_each(|row| push([row, 0], [1, many]));
    victim.reseal(|body| {
        let at = position(&body["tensors"], "mask");
        body["tensors"][at]["shape"] = json!([many, 2 * many]);
        body["tensors"][at]["chunks"] = json!(chunks);
    });
    // They tile it, which is checked before their bytes.
    let error = victim.manifest_error();
    assert!(
        matches!(&error, FormatError::ChunkSize { tensor, .. } if tensor == "mask"),
        "{error}"
    );
}
