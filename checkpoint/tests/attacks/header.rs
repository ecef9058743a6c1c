//! Attacks on the header of a safetensors file, with a correct digest in the manifest.

use tinderbox_checkpoint::HeaderError;
use tinderbox_checkpoint_tests::chain;

use crate::forge::{FIRST, SMALL, Victim, nested};

const GAMMA: &str = r#""norm.gamma":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]}"#;
const MASK: &str = r#""mask":{"dtype":"BOOL","shape":[9],"data_offsets":[6,15]}"#;

/// Checks the error of the small file after replacing a text of its header.
fn attack(from: &str, to: &str) -> HeaderError {
    let victim = Victim::whole();
    victim.replace_header_json(SMALL, |json| {
        assert!(json.contains(from), "{from} is not in {json}");
        json.replacen(from, to, 1)
    });
    victim.header_error(SMALL)
}

fn check_json(from: &str, to: &str, expected: &str) {
    let error = attack(from, to);
    assert!(matches!(error, HeaderError::Json { .. }), "{error}");
    assert!(chain(&error).contains(expected), "{}", chain(&error));
}

#[test]
fn an_unchanged_forgery_is_accepted() {
    let victim = Victim::whole();
    victim.replace_header_json(SMALL, |json| json.replace(",\"mask\"", " , \"mask\""));
    let checkpoint = tinderbox_checkpoint::Checkpoint::open(&victim.dir).unwrap();
    checkpoint.verify().unwrap();
}

#[test]
fn a_header_above_the_limit() {
    for claimed in [100_000_001, u64::MAX, 1 << 63] {
        let victim = Victim::whole();
        victim.replace_header(SMALL, |mut header| {
            header[..8].copy_from_slice(&claimed.to_le_bytes());
            header
        });
        let HeaderError::TooLarge {
            found_bytes,
            limit_bytes,
        } = victim.header_error(SMALL)
        else {
            panic!("{claimed}");
        };
        assert_eq!((found_bytes, limit_bytes), (claimed, 100_000_000));
    }
}

#[test]
fn a_header_past_the_end_of_the_file() {
    let victim = Victim::whole();
    let mut size = 0;
    victim.replace_header(SMALL, |mut header| {
        // One more than the 15 bytes of data that follow.
        size = header.len() as u64 + 15;
        header[..8].copy_from_slice(&(size - 8 + 1).to_le_bytes());
        header
    });
    let HeaderError::PastEnd {
        header_bytes,
        file_bytes,
    } = victim.header_error(SMALL)
    else {
        panic!();
    };
    assert_eq!((header_bytes, file_bytes), (size + 1, size));
}

#[test]
fn a_header_that_counts_its_end_as_data() {
    let victim = Victim::whole();
    victim.replace_header_json(SMALL, |json| {
        let json = json.replace("[0,6]", "[8,14]").replace("[6,15]", "[14,23]");
        let hidden = r#"{"hidden":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"#;
        json.replacen('{', hidden, 1).trim_end().to_owned() + "........"
    });
    victim.replace_header(SMALL, |mut header| {
        let len = header.len() as u64 - 8 - 8;
        header[..8].copy_from_slice(&len.to_le_bytes());
        header
    });
    let error = victim.header_error(SMALL);
    assert!(matches!(error, HeaderError::NotAsListed { .. }), "{error}");
}

#[test]
fn deep_json() {
    // Rejected at its start: a list in a list is not expected.
    check_json("[9]", &nested(100_000), "expected u64");
    check_json("\"pt\"", &nested(100_000), "expected a string");
    let unknown = format!("{{\"unknown\":{},\"dtype\":\"BOOL\"", nested(100_000));
    check_json("{\"dtype\":\"BOOL\"", &unknown, "unknown field `unknown`");
    check_json(GAMMA, &format!("\"norm.gamma\":{}", nested(100_000)), "");
}

#[test]
fn a_duplicate_entry() {
    let error = attack(MASK, &format!("{MASK},{MASK}"));
    assert!(
        matches!(&error, HeaderError::DuplicateKey { tensor } if tensor == "mask"),
        "{error}"
    );
    // An escaped spelling of the same key.
    let escaped = MASK.replace("mask", "m\\u0061sk");
    let error = attack(MASK, &format!("{MASK},{escaped}"));
    assert!(
        matches!(&error, HeaderError::DuplicateKey { tensor } if tensor == "mask"),
        "{error}"
    );
}

#[test]
fn a_duplicate_field_in_an_entry() {
    for field in ["dtype", "shape", "data_offsets"] {
        let value = match field {
            "dtype" => "\"U8\"",
            "shape" => "[9]",
            _ => "[0,9]",
        };
        check_json(
            "{\"dtype\":\"BOOL\"",
            &format!("{{\"{field}\":{value},\"{field}\":{value},\"dtype\":\"BOOL\""),
            &format!("duplicate field `{field}`"),
        );
    }
}

#[test]
fn duplicate_metadata() {
    let expected = "duplicate key `__metadata__`";
    check_json(
        "{\"__metadata__\"",
        "{\"__metadata__\":{},\"__metadata__\"",
        expected,
    );
    let escaped = "{\"\\u005f_metadata__\":{},\"__metadata__\"";
    check_json("{\"__metadata__\"", escaped, expected);
    let twice = "{\"format\":\"np\",\"format\"";
    check_json("{\"format\"", twice, "duplicate key `format`");
}

#[test]
fn overlapping_offsets() {
    let error = attack("[6,15]", "[0,9]");
    assert!(
        matches!(
            &error,
            HeaderError::Start { tensor, expected_bytes: 6, found_bytes: 0 } if tensor == "mask"
        ),
        "{error}"
    );
}

#[test]
fn a_gap_between_offsets() {
    let error = attack("[6,15]", "[7,16]");
    assert!(
        matches!(
            &error,
            HeaderError::Start { tensor, expected_bytes: 6, found_bytes: 7 } if tensor == "mask"
        ),
        "{error}"
    );
}

#[test]
fn reversed_offsets() {
    let error = attack("[6,15]", "[15,6]");
    assert!(
        matches!(
            &error,
            HeaderError::TensorSize { tensor, start_bytes: 15, end_bytes: 6, .. } if tensor == "mask"
        ),
        "{error}"
    );
}

#[test]
fn offsets_that_overflow() {
    // At the end of 64 bits: start and end fit, the file is shorter.
    let error = attack("[6,15]", "[18446744073709551606,18446744073709551615]");
    assert!(matches!(error, HeaderError::Start { .. }), "{error}");
    for offsets in [
        "[6,18446744073709551616]",
        "[-9,0]",
        "[6.0,15.0]",
        "[0.6e1,15]",
    ] {
        check_json("[6,15]", offsets, "invalid");
    }
    check_json("[6,15]", "[6,15,24]", "");
    check_json("[6,15]", "[15]", "");
}

#[test]
fn products_that_overflow() {
    for shape in [
        // 64 bits, and to 0.
        "[4294967296,4294967296]",
        // 63 bits: the limit of an allocation.
        "[9223372036854775808]",
        "[3037000500,3037000500]",
        // No elements, but the strides overflow.
        "[0,4294967296,4294967296]",
        "[4294967296,4294967296,0]",
    ] {
        let error = attack("[9]", shape);
        assert!(
            matches!(&error, HeaderError::Overflow { tensor, .. } if tensor == "mask"),
            "{shape}: {error}"
        );
    }
    // The elements fit, the bytes do not.
    let error = attack("[3]", "[4611686018427387904]");
    assert!(
        matches!(&error, HeaderError::Overflow { tensor, .. } if tensor == "norm.gamma"),
        "{error}"
    );
}

#[test]
fn too_many_dimensions() {
    let error = attack("[9]", &format!("[9{}]", ",1".repeat(32)));
    assert!(
        matches!(&error, HeaderError::Overflow { tensor, .. } if tensor == "mask"),
        "{error}"
    );
    // The maximum number of dimensions: another shape than the manifest's.
    let error = attack("[9]", &format!("[9{}]", ",1".repeat(31)));
    assert!(
        matches!(&error, HeaderError::NotAsListed { tensor } if tensor == "mask"),
        "{error}"
    );
}

#[test]
fn a_message_about_a_shape_stays_readable() {
    let error = attack("[9]", &format!("[9{}]", ",1".repeat(1_000_000)));
    assert!(matches!(error, HeaderError::Overflow { .. }));
    assert!(
        error.to_string().len() < 10_000,
        "{} bytes",
        error.to_string().len()
    );
}

#[test]
fn a_tensor_that_the_manifest_does_not_list() {
    // The tensor is empty, so the offsets still tile the file.
    for offsets in ["[0,0]", "[6,6]", "[15,15]"] {
        let extra = format!(
            "{MASK},\"extra\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":{offsets}}}"
        );
        let error = attack(MASK, &extra);
        assert!(matches!(error, HeaderError::NotAsListed { .. }), "{error}");
    }
}

#[test]
fn a_part_that_is_called_as_the_whole() {
    let victim = Victim::chunks();
    victim.replace_header_json(FIRST, |json| json.replace("w[0..2, 0..3]", "w"));
    let error = victim.header_error(FIRST);
    assert!(
        matches!(&error, HeaderError::NotAsListed { tensor } if tensor == "w[0..2, 0..3]"),
        "{error}"
    );
}

#[test]
fn names_that_are_not_unicode() {
    for name in [&b"m\xffsk"[..], b"m\xc0\xafsk", b"m\xed\xa0\x80k"] {
        let victim = Victim::whole();
        victim.replace_header(SMALL, |header| {
            let at = header.windows(4).position(|w| w == b"mask").unwrap();
            let mut json = header[8..].to_vec();
            json.splice(at - 8..at - 4, name.iter().copied());
            [&(json.len() as u64).to_le_bytes()[..], &json].concat()
        });
        let error = victim.header_error(SMALL);
        assert!(matches!(error, HeaderError::Json { .. }), "{error}");
    }
    check_json("\"mask\"", "\"\\ud800\"", "hex escape");
    check_json("\"mask\"", "\"a\0b\"", "control character");
}

#[test]
fn bytes_around_the_object() {
    let around = |change: fn(String) -> String| {
        let victim = Victim::whole();
        victim.replace_header_json(SMALL, change);
        victim.header_error(SMALL)
    };
    let error = around(|json| format!(" {json}"));
    assert!(matches!(error, HeaderError::NotAnObject), "{error}");
    let error = around(|json| format!("\u{feff}{json}"));
    assert!(matches!(error, HeaderError::NotAnObject), "{error}");
    let error = around(|_| String::new());
    assert!(matches!(error, HeaderError::NotAnObject), "{error}");
    for after in ["\0", "x", "{}", "// x"] {
        let victim = Victim::whole();
        victim.replace_header_json(SMALL, |json| format!("{json}{after}"));
        let error = victim.header_error(SMALL);
        assert!(
            matches!(error, HeaderError::Json { .. }),
            "{after:?}: {error}"
        );
    }
}
