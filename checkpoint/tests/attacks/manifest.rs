//! Attacks on the manifest, with a correct digest.

use serde_json::{Value, json};
use tinderbox_checkpoint::tools::{ReshardOptions, reshard};
use tinderbox_checkpoint::{
    Checkpoint, ErrorClass, FormatError, LayoutError, LoadError, Manifest, Role, Run,
};
use tinderbox_checkpoint_tests::chain;

use crate::forge::{FIRST, SMALL, Victim, json_text, nested, sealed, zeros};

/// Checks the error after replacing one value, found by a JSON pointer.
fn set(at: &str, value: Value) -> FormatError {
    let victim = Victim::whole();
    victim.set(at, value);
    victim.manifest_error()
}

/// Checks the error after replacing the first occurrence of a text in the body.
fn replace(from: &str, to: &str) -> FormatError {
    let victim = Victim::whole();
    victim.replace(from, to);
    victim.manifest_error()
}

fn check_json(error: FormatError, expected: &str) {
    let text = json_text(error);
    assert!(text.contains(expected), "{text}");
}

#[test]
fn an_unchanged_forgery_is_accepted() {
    for victim in [Victim::whole(), Victim::chunks()] {
        victim.reseal(|body| body["seed"] = json!(5));
        Checkpoint::open(&victim.dir).unwrap().verify().unwrap();
    }
}

#[test]
fn deep_json() {
    let check_nesting = |error| {
        assert!(
            matches!(error, FormatError::Nesting { limit: 126 }),
            "{error}"
        );
    };
    for at in ["metadata", "plan"] {
        let victim = Victim::first_version();
        victim.set(&format!("/{at}"), json!("here"));
        victim.replace("\"here\"", &nested(100_000));
        check_nesting(victim.manifest_error());
    }
    let unknown = |place: &str| {
        let victim = Victim::whole();
        let to = format!("\"unknown\":{},{place}", nested(100_000));
        victim.replace(place, &to);
        victim
    };
    // Preserved fields have a nesting limit; ignored fields in a file, a tensor or a chunk have none.
    check_nesting(unknown("\"step\":").manifest_error());
    for place in ["\"header_bytes\":", "\"chunks\":", "\"offset\":"] {
        Checkpoint::open(unknown(place).dir).unwrap();
    }
    let shape = format!("\"shape\":{}", nested(100_000));
    check_json(replace("\"shape\":[5,7]", &shape), "expected u64");
}

/// A parser that skips a value does not validate it: an accepted value must be readable later.
#[test]
fn strings_and_numbers_that_can_not_be_parsed() {
    for value in ["\"\\ud800\"", "1e999", "[{\"a\":\"\\udc00\"}]"] {
        for field in ["metadata", "plan"] {
            let victim = Victim::first_version();
            victim.set(&format!("/{field}"), json!("here"));
            victim.replace("\"here\"", value);
            json_text(victim.manifest_error());
        }
        let victim = Victim::whole();
        let to = format!("\"later\":{value},\"step\":");
        victim.replace("\"step\":", &to);
        let error = Manifest::from_bytes(&std::fs::read(victim.dir.join("manifest.json")).unwrap());
        json_text(error.unwrap_err());
    }
}

#[test]
fn metadata_as_deep_as_the_format_says() {
    let victim = Victim::whole();
    victim.set("/metadata", json!("here"));
    victim.replace("\"here\"", &nested(126));
    Checkpoint::open(&victim.dir).unwrap();
    let victim = Victim::whole();
    victim.set("/metadata", json!("here"));
    victim.replace("\"here\"", &nested(127));
    let error = victim.manifest_error();
    assert!(
        matches!(error, FormatError::Nesting { limit: 126 }),
        "{error}"
    );
}

#[test]
fn a_duplicate_field() {
    for (field, value) in [
        // Fields of the manifest; the first two are checked before all others.
        ("format", json!("tinderbox-checkpoint")),
        ("version", json!(1)),
        ("attempt", json!("0".repeat(32))),
        ("step", json!(12)),
        ("world_size", json!(1)),
        ("block_bytes", json!(64)),
        ("metadata", json!({})),
        ("index", json!(null)),
        ("files", json!([])),
        ("tensors", json!([])),
        ("scalars", json!([])),
        // Fields of a file, a tensor, a chunk.
        ("header_digest", zeros()),
        ("rank", json!(0)),
        ("number", json!(0)),
        ("dtype", json!("U8")),
        ("shape", json!([])),
        ("tied", json!([])),
        ("chunks", json!([])),
        ("offset", json!([])),
        ("start_bytes", json!(0)),
        ("len_bytes", json!(0)),
        ("digests", json!([])),
    ] {
        let place = format!("\"{field}\":");
        let error = replace(&place, &format!("{place}{value},{place}"));
        check_json(error, &format!("duplicate field `{field}`"));
    }
    // The caller's metadata has a field of this name too.
    let error = replace("\"plan\":{", "\"plan\":null,\"plan\":{");
    check_json(error, "duplicate field `plan`");
}

#[test]
fn a_scalar_of_two_types() {
    check_json(replace("{\"uint\":11}", "{\"uint\":11,\"uint\":12}"), "");
    check_json(replace("{\"uint\":11}", "{\"uint\":11,\"int\":11}"), "");
    check_json(replace("{\"uint\":11}", "{}"), "");
    check_json(replace("{\"uint\":11}", "11"), "");
}

#[test]
fn something_listed_twice() {
    for list in ["files", "tensors", "scalars"] {
        let victim = Victim::whole();
        victim.reseal(|body| {
            let all = body[list].as_array_mut().unwrap();
            all.insert(0, all[0].clone());
        });
        check_order(victim.manifest_error(), list);
    }
    let victim = Victim::chunks();
    victim.reseal(|body| {
        let all = body["tensors"][0]["chunks"].as_array_mut().unwrap();
        all.insert(0, all[0].clone());
    });
    let error = victim.manifest_error();
    assert!(
        matches!(error, FormatError::Order { list: "chunks" }),
        "{error}"
    );
}

fn check_order(error: FormatError, list: &str) {
    let text = chain(&error);
    let expected = format!("the list of {list} is not sorted, or has duplicates");
    assert!(text.contains(&expected), "{text}");
}

#[test]
fn two_chunks_of_a_file_overlap() {
    // `norm.gamma` is at 168..174, and `mask` should follow.
    for start in [168u64, 170, 173] {
        let error = set("/tensors/1/chunks/0/start_bytes", json!(start));
        assert!(
            matches!(
                &error,
                FormatError::Data { file, expected_bytes: 174, found_bytes } if file == SMALL && *found_bytes == start
            ),
            "{error}"
        );
    }
}

#[test]
fn two_chunks_of_a_tensor_overlap() {
    let victim = Victim::chunks();
    victim.set("/tensors/0/chunks/1/offset", json!([0, 2]));
    let error = victim.manifest_error();
    let FormatError::Layout { tensor, source } = &error else {
        panic!("{error}");
    };
    assert_eq!(tensor, "w");
    let overlap = LayoutError::Overlap {
        first: 0,
        second: 1,
        region: tinderbox_fake::Region::new(vec![0, 2], vec![2, 1]).unwrap(),
    };
    assert_eq!(**source, overlap);
}

#[test]
fn a_gap_in_a_tensor() {
    let victim = Victim::chunks();
    // The same number of bytes of the file belongs to no tensor.
    victim.reseal(|body| {
        body["tensors"][0]["chunks"].as_array_mut().unwrap().pop();
    });
    let error = victim.manifest_error();
    assert!(
        matches!(
            &error,
            FormatError::Layout { tensor, source } if tensor == "w"
                && **source == LayoutError::Gap { missing: 3, elements: 18 }
        ),
        "{error}"
    );
}

#[test]
fn boxes_that_overflow_or_run_backwards() {
    for (offset, size) in [
        (json!([u64::MAX, 0]), json!([1, 3])),
        (json!([1, 0]), json!([u64::MAX, 3])),
        (json!([0, 0]), json!([1u64 << 32, 1u64 << 32])),
        (json!([0, 0]), json!([1u64 << 63, 2])),
    ] {
        let victim = Victim::chunks();
        victim.set("/tensors/0/chunks/3/offset", offset);
        victim.set("/tensors/0/chunks/3/size", size);
        check_json(victim.manifest_error(), "overflows 64 bits");
    }
    for (field, value) in [
        ("size", json!([-1, 3])),
        ("offset", json!([-1, 3])),
        ("size", json!([1.0, 3])),
        ("size", json!([1, 3, 1])),
        ("offset", json!([])),
    ] {
        let victim = Victim::chunks();
        victim.set(&format!("/tensors/0/chunks/3/{field}"), value);
        json_text(victim.manifest_error());
    }
}

#[test]
fn path_escapes() {
    for name in [
        "../model-rank-00000.safetensors",
        "../step-00000010/model-rank-00000.safetensors",
        "./model-rank-00000.safetensors",
        "/etc/passwd",
        "//model-rank-00000.safetensors",
        "..\\model-rank-00000.safetensors",
        "C:\\model-rank-00000.safetensors",
        "model-rank-00000.safetensors\0",
        "model-rank-00000.safetensors\0.safetensors",
        "model-rank-00000.safetensors/",
        "model-rank-00000.safetensors ",
        "model-rank-00000.safetensors/../../x",
        "MODEL-RANK-00000.safetensors",
        "model-rank-0.safetensors",
        "model-rank-000000.safetensors",
        "model-rank-+0000.safetensors",
        "model-rank-00000-00000.safetensors",
        "model-rank-\u{ff10}0000.safetensors",
        "manifest.json",
        "",
        ".",
        "..",
    ] {
        let victim = Victim::whole();
        // In the list and in the chunks, and sorted.
        victim.reseal(|body| {
            let text = body
                .to_string()
                .replace(&format!("\"{FIRST}\""), &json!(name).to_string());
            *body = serde_json::from_str(&text).unwrap();
            let files = body["files"].as_array_mut().unwrap();
            files.sort_by_key(|file| file["name"].as_str().unwrap().to_owned());
        });
        let error = victim.manifest_error();
        assert!(
            matches!(&error, FormatError::FileName { found } if found == name),
            "{name:?}: {error}"
        );
        // Only in a chunk.
        let error = set("/tensors/0/chunks/0/file", json!(name));
        assert!(
            matches!(&error, FormatError::UnlistedFile { tensor, file } if tensor == "embed.weight" && file == name),
            "{name:?}: {error}"
        );
    }
}

#[test]
fn a_file_whose_number_differs_from_its_name() {
    for (at, value) in [
        ("/files/0/number", json!(0)),
        ("/files/0/number", json!(2)),
        ("/files/0/number", json!(u32::MAX)),
        ("/files/1/number", json!(1)),
        ("/files/0/rank", json!(1)),
        ("/files/1/role", json!("state")),
    ] {
        let error = set(at, value.clone());
        let name = if at.contains('0') { SMALL } else { FIRST };
        assert!(
            matches!(&error, FormatError::FileName { found } if found == name),
            "{at} {value}: {error}"
        );
    }
    check_json(set("/files/0/number", json!(1u64 << 32)), "expected u32");
    check_json(set("/files/0/number", json!(-1)), "expected u32");
}

#[test]
fn a_tied_name_that_shadows() {
    // The name of another tensor, its own name, and a tied name of another tensor.
    for (tensor, name) in [(0usize, "mask"), (0, "embed.weight"), (2, "head.weight")] {
        let victim = Victim::whole();
        victim.reseal(|body| body["tensors"][tensor]["tied"] = json!([name]));
        let error = victim.manifest_error();
        assert!(
            matches!(
                &error,
                FormatError::Name { name: found, reason: "identifies two tensors" } if found == name
            ),
            "{name}: {error}"
        );
    }
    // Names are unique within a role.
    let victim = Victim::whole();
    victim.reseal(|body| body["tensors"][3]["tied"] = json!(["mask"]));
    let checkpoint = Checkpoint::open(&victim.dir).unwrap();
    let found = |role| &checkpoint.tensor(role, "mask").unwrap().name;
    assert_eq!(found(Role::Model), "mask");
    assert_eq!(found(Role::State), "embed.weight.moment_1");
}

#[test]
fn tied_names_that_are_none() {
    for name in ["", "__metadata__", "x".repeat(4097).as_str()] {
        let error = set("/tensors/0/tied", json!([name]));
        assert!(matches!(error, FormatError::Name { .. }), "{error}");
        assert!(error.to_string().len() < 200, "{error}");
    }
    for names in [json!(["b", "a"]), json!(["a", "a"])] {
        let error = set("/tensors/0/tied", names);
        assert!(
            matches!(error, FormatError::Order { list: "tied names" }),
            "{error}"
        );
    }
}

#[test]
fn floats_with_wrong_digits() {
    for digits in [
        json!("3FF0000000000000"),
        json!("3ff"),
        json!("+ff0000000000000"),
        json!("-ff0000000000000"),
        json!("0x3ff00000000000"),
        json!(" 3ff000000000000"),
        json!("3ff00000000000000"),
        json!(""),
        json!("NaN"),
        json!(1.0),
        json!(null),
    ] {
        json_text(set("/scalars/0/value", json!({ "float": digits })));
    }
    for value in [
        json!({"int": 1u64 << 63}),
        json!({"uint": -1}),
        json!({"bool": 1}),
        json!({"Float": "3ff0000000000000"}),
    ] {
        json_text(set("/scalars/0/value", value));
    }
}

#[test]
fn block_sizes_that_are_none() {
    for bytes in [
        0u64,
        1,
        32,
        63,
        65,
        96,
        1000,
        (64 << 20) + 1,
        128 << 20,
        u64::MAX,
        1 << 63,
    ] {
        check_json(set("/block_bytes", json!(bytes)), "is not a power of two");
    }
    check_json(set("/block_bytes", json!(-64)), "");
    check_json(set("/block_bytes", json!(64.0)), "");
    // A valid size, but not the block size of the digests.
    let error = set("/block_bytes", json!(128));
    assert!(
        matches!(&error, FormatError::ChunkSize { tensor, .. } if tensor == "embed.weight"),
        "{error}"
    );
}

#[test]
fn another_version_is_reported_first() {
    for version in [0, 2, u32::MAX] {
        let victim = Victim::whole();
        victim.reseal(|body| {
            body["version"] = json!(version);
            body["tensors"] = json!({"unknown": "form"});
        });
        let error = victim.manifest_error();
        assert!(
            matches!(error, FormatError::Version { expected: 1, found } if found == version),
            "{error}"
        );
    }
    let error = set("/format", json!("tinderbox-checkpoint-part"));
    assert!(
        matches!(&error, FormatError::Format { found, .. } if found == "tinderbox-checkpoint-part"),
        "{error}"
    );
    json_text(set("/version", json!("1")));
}

#[test]
fn fields_of_another_form() {
    for (field, value) in [
        ("minor", json!(-1)),
        ("minor", json!(1.5)),
        ("minor", json!(1_u64 << 32)),
        ("required_features", json!(0)),
        ("required_features", json!("later")),
        ("step", json!(-0.0)),
    ] {
        let victim = Victim::whole();
        victim.reseal(|body| body[field] = value);
        json_text(victim.manifest_error());
    }
    let victim = Victim::whole();
    let position = victim.body()["data_position"].to_string();
    json_text(replace(
        &format!("\"data_position\":{position}"),
        "\"data_position\":-0",
    ));
}

#[test]
fn additions_of_a_newer_version_are_accepted() {
    for at in [
        "",
        "/files/2",
        "/index",
        "/plan",
        "/tensors/4",
        "/tensors/4/chunks/0",
        "/scalars/1",
    ] {
        let victim = Victim::whole();
        victim.reseal(|body| body.pointer_mut(at).unwrap()["later"] = json!(1));
        victim.reseal(|body| body["minor"] = json!(u32::MAX));
        let checkpoint = Checkpoint::open(&victim.dir).unwrap();
        checkpoint.verify().unwrap();
        assert_eq!(
            checkpoint
                .manifest()
                .unknown_fields()
                .value("later")
                .is_some(),
            at.is_empty()
        );
    }
    // A scalar has exactly one form.
    json_text(set("/scalars/1/value", json!({"uint": 1, "later": 1})));
}

#[test]
fn unknown_fields_are_kept_unchanged() {
    let victim = Victim::whole();
    // A number that is neither an integer nor a float in Rust, and an escape.
    let later = r#""later":[123456789012345678901234567890,"\u0061"]"#;
    let body = victim.body().to_string();
    let body = format!("{{{later},{}", &body[1..]);
    std::fs::write(victim.dir.join("manifest.json"), sealed(body.as_bytes())).unwrap();
    let checkpoint = Checkpoint::open(&victim.dir).unwrap();
    let names = checkpoint.manifest().unknown_fields().names();
    assert_eq!(names.collect::<Vec<_>>(), ["later"]);
    let to = tempfile::tempdir().unwrap();
    let saved = reshard(
        &checkpoint,
        &Run::local(to.path()),
        3,
        &ReshardOptions::default(),
        &(),
    );
    let text = std::fs::read_to_string(saved.unwrap().join("manifest.json")).unwrap();
    assert!(text.contains(later), "{}", &text[..300]);
}

#[test]
fn bytes_around_the_manifest() {
    let victim = Victim::whole();
    let body = victim.body().to_string().into_bytes();
    let whole = sealed(&body);
    Manifest::from_bytes(&whole).unwrap();
    let (whole, text) = (&whole[..], str::from_utf8(&body).unwrap());
    for bytes in [
        [whole, &b"\n"[..]].concat(),
        [whole, &b"x"[..]].concat(),
        [whole, &b"\0"[..]].concat(),
        [&b" "[..], whole].concat(),
        [&b"\xef\xbb\xbf"[..], whole].concat(),
        Vec::new(),
    ] {
        let error = Manifest::from_bytes(&bytes).unwrap_err();
        assert!(matches!(error, FormatError::Envelope), "{error}");
    }
    for bytes in [[whole, &b"}\n"[..]].concat(), [whole, whole].concat()] {
        let error = Manifest::from_bytes(&bytes).unwrap_err();
        assert!(matches!(error, FormatError::Digest { .. }), "{error}");
    }
    for body in [
        format!("{text}{text}"),
        format!("{text}}}"),
        format!("{text},\"body\":{text}"),
        format!("{text}\0"),
        String::new(),
    ] {
        json_text(Manifest::from_bytes(&sealed(body.as_bytes())).unwrap_err());
    }
}

#[test]
fn names_that_are_not_unicode() {
    for name in [
        &b"m\xffsk"[..],
        b"m\xc0\xafsk",
        b"m\xed\xa0\x80k",
        b"a\0b\\",
        b"m\\ud800",
    ] {
        let victim = Victim::whole();
        let mut body = victim.body().to_string().into_bytes();
        let at = body.windows(6).position(|w| w == b"\"mask\"").unwrap();
        body.splice(at + 1..at + 5, name.iter().copied());
        victim.seal(&body);
        json_text(victim.manifest_error());
    }
}

#[test]
fn a_step_that_differs_from_the_directory() {
    let victim = Victim::whole();
    victim.set("/step", json!(12));
    let run = Run::local(victim.run());
    let check = |error: &LoadError| {
        let LoadError::WrongStep {
            path,
            expected,
            found,
        } = error
        else {
            panic!("{}", chain(error));
        };
        assert_eq!((path, *expected, *found), (&victim.dir, 11, 12));
    };
    check(&run.open(11).unwrap_err());
    let LoadError::NoneUsable { reasons, .. } = run.latest().unwrap_err() else {
        panic!();
    };
    check(&reasons[0]);
}

#[test]
fn a_feature_that_is_not_known_is_named() {
    let victim = Victim::whole();
    victim.reseal(|body| {
        body["required_features"] = json!(["sparse", "more"]);
        // The feature may change any other field.
        body["tensors"] = json!({"unknown": "form"});
    });
    let error = Checkpoint::open(&victim.dir).unwrap_err();
    assert_eq!(error.class(), ErrorClass::NotSupported);
    let text = chain(&error);
    assert!(text.contains("requires the feature `sparse`"), "{text}");
    victim.reseal(|body| body["required_features"] = json!([]));
    victim.set("/tensors", Victim::whole().body()["tensors"].take());
    Checkpoint::open(&victim.dir).unwrap();
}

#[test]
fn more_fields_than_a_document_has() {
    let victim = Victim::whole();
    victim.reseal(|body| {
        for number in 0..2000 {
            body[format!("field {number}")] = json!(null);
        }
    });
    check_json(victim.manifest_error(), "more than 1024 fields");
}
