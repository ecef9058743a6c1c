//! One test per invalid header, with the `safetensors` crate as the reference for validity.

use std::collections::HashMap;

use super::*;

/// Returns a file with this JSON header and `data_bytes` bytes of data.
fn file(json: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    bytes
}

fn decode(bytes: &[u8]) -> Result<Header, HeaderError> {
    decode_header(bytes, bytes.len() as u64)
}

/// Checks that the file is rejected with this text, and by the `safetensors` crate unless that is more
/// lenient.
fn check_refused(bytes: &[u8], expected: &str) {
    let error = decode(bytes).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

const ONE: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

#[test]
fn a_valid_file_is_accepted() {
    let header = decode(&file(ONE, 8)).unwrap();
    assert_eq!(header.tensors.len(), 1);
    assert_eq!(header.data_start_bytes, 8 + ONE.len() as u64);
}

#[test]
fn attack_file_shorter_than_the_length() {
    for len in 0..8 {
        check_refused(&vec![0; len], "past the end");
    }
}

#[test]
fn attack_header_over_100_mb() {
    let mut bytes = 100_000_001u64.to_le_bytes().to_vec();
    bytes.push(b'{');
    check_refused(&bytes, "limit is 100000000");
    check_refused(&u64::MAX.to_le_bytes(), "limit is 100000000");
}

#[test]
fn attack_header_past_the_end() {
    let mut bytes = file(ONE, 8);
    bytes[..8].copy_from_slice(&1000u64.to_le_bytes());
    check_refused(&bytes, "past the end");
}

#[test]
fn attack_header_that_the_caller_did_not_read() {
    let bytes = file(ONE, 8);
    assert!(decode_header(&bytes[..20], bytes.len() as u64).is_err());
}

#[test]
fn attack_header_that_does_not_start_with_a_brace() {
    check_refused(&file(&format!(" {ONE}"), 8), "start");
    check_refused(&file("", 0), "start");
}

#[test]
fn attack_not_json() {
    check_refused(&file("{\"a\":", 0), "JSON");
    check_refused(&file(&format!("{ONE}x"), 8), "JSON");
    let mut bytes = file(ONE, 8);
    bytes[10] = 0xff;
    check_refused(&bytes, "JSON");
}

#[test]
fn attack_deep_nesting() {
    let nested = format!("{{\"a\":{}", "[".repeat(1_000_000));
    check_refused(&file(&nested, 0), "JSON");
}

#[test]
fn attack_duplicate_key() {
    let json = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}"#;
    check_refused(&file(json, 16), "twice");
    // An escaped spelling of the same key.
    let json = json.replacen("\"a\"", "\"\\u0061\"", 1);
    check_refused(&file(&json, 16), "twice");
}

#[test]
fn attack_duplicate_field() {
    let json = r#"{"a":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}}"#;
    check_refused(&file(json, 8), "JSON");
}

#[test]
fn attack_duplicate_metadata() {
    let twice = r#"{"__metadata__":{},"__metadata__":{}}"#;
    check_refused(&file(twice, 0), "JSON");
    let inner = r#"{"__metadata__":{"a":"1","a":"2"}}"#;
    check_refused(&file(inner, 0), "JSON");
}

/// `null` is as none, as for Python's package; anything else is refused.
#[test]
fn metadata_may_be_null() {
    for (json, expected) in [
        (r#"{"__metadata__":null}"#, true),
        (r#"{"__metadata__":{}}"#, true),
        (r#"{"__metadata__":[]}"#, false),
        (r#"{"__metadata__":"null"}"#, false),
        (r#"{"__metadata__":{"a":null}}"#, false),
        (r#"{"__metadata__":null,"__metadata__":null}"#, false),
    ] {
        let file = file(json, 0);
        let found = decode_header(&file, file.len() as u64);
        assert_eq!(found.is_ok(), expected, "{json}: {found:?}");
        assert!(
            found.is_err() || safetensors::SafeTensors::deserialize(&file).is_ok(),
            "{json}"
        );
    }
}

#[test]
fn attack_unknown_field() {
    let json = ONE.replace("\"shape\"", "\"x\":0,\"shape\"");
    check_refused(&file(&json, 8), "JSON");
}

#[test]
fn attack_unknown_dtype() {
    check_refused(&file(&ONE.replace("F32", "F8_E4M3"), 8), "F8_E4M3");
}

#[test]
fn attack_gap() {
    let json = ONE.replace("[0,8]", "[4,12]");
    check_refused(&file(&json, 12), "gap");
}

const TWO: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[4],"data_offsets":[8,12]}}"#;

#[test]
fn attack_gap_between() {
    assert!(decode(&file(TWO, 12)).is_ok());
    check_refused(&file(&TWO.replace("[8,12]", "[9,13]"), 13), "gap");
}

#[test]
fn attack_overlap() {
    check_refused(&file(&TWO.replace("[8,12]", "[4,8]"), 8), "overlap");
    check_refused(&file(&TWO.replace("[8,12]", "[0,4]"), 8), "overlap");
}

#[test]
fn attack_reversed_offsets() {
    check_refused(&file(&ONE.replace("[0,8]", "[8,0]"), 8), "offsets are 8..0");
}

#[test]
fn attack_size_against_shape_and_dtype() {
    check_refused(&file(&ONE.replace("[2]", "[3]"), 8), "12 bytes");
    check_refused(&file(&ONE.replace("F32", "F64"), 8), "16 bytes");
}

#[test]
fn attack_trailing_bytes() {
    check_refused(&file(ONE, 9), "holds 9");
}

#[test]
fn attack_missing_bytes() {
    check_refused(&file(ONE, 7), "holds 7");
}

#[test]
fn attack_overflow() {
    for shape in ["[4294967296,4294967296]", "[9223372036854775807]"] {
        check_refused(&file(&ONE.replace("[2]", shape), 8), "too large");
    }
    // Zero elements, but the strides overflow.
    let json = r#"{"a":{"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}}"#;
    check_refused(&file(json, 0), "too large");
    let json = ONE.replace("[0,8]", "[0,18446744073709551616]");
    check_refused(&file(&json, 8), "JSON");
}

#[test]
fn attack_too_many_dimensions() {
    let json = ONE.replace("[2]", &format!("[2{}]", ",1".repeat(40)));
    check_refused(&file(&json, 8), "too large");
}

#[test]
fn refuses_to_encode_a_reserved_or_repeated_key() {
    for keys in [["__metadata__", "a"], ["a", "a"]] {
        let tensors = keys.map(|key| (key, StoredDType::F32, &[2u64][..]));
        assert!(matches!(
            encode_header(&[], &tensors),
            Err(HeaderError::DuplicateKey { .. })
        ));
    }
}

#[test]
fn the_safetensors_crate_reads_our_headers() {
    let tensors: [(&str, StoredDType, &[u64]); 5] = [
        ("a \"quoted\"\n\u{1F525}", StoredDType::F64, &[2, 3]),
        ("scalar", StoredDType::F32, &[]),
        ("empty", StoredDType::F32, &[0, 4]),
        ("half", StoredDType::BF16, &[3]),
        ("truth", StoredDType::Bool, &[5]),
    ];
    let mut bytes = encode_header(&[("format", "pt")], &tensors).unwrap();
    assert_eq!(bytes.len() % 8, 0);
    bytes.extend((0..63u8).map(|b| b % 2));
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ours = decode(&bytes).unwrap();
    assert_eq!(theirs.len(), tensors.len());
    assert_eq!(ours.metadata, [("format".to_owned(), "pt".to_owned())]);
    for ((name, dtype, shape), tensor) in tensors.iter().zip(&ours.tensors) {
        assert_eq!(
            (*name, *dtype, *shape),
            (&*tensor.name, tensor.dtype, &*tensor.shape)
        );
        let view = theirs.tensor(name).unwrap();
        assert_eq!(view.dtype().to_string(), dtype.name());
        let start = (ours.data_start_bytes + tensor.start_bytes) as usize;
        assert_eq!(
            view.data(),
            &bytes[start..start + tensor.len_bytes as usize]
        );
    }
}

#[test]
fn we_read_the_headers_of_the_safetensors_crate() {
    use safetensors::{Dtype, tensor::TensorView};
    let data: Vec<u8> = (0..24).collect();
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let views = [
        ("w", TensorView::new(Dtype::F32, vec![2, 3], &data).unwrap()),
        ("b", TensorView::new(Dtype::U8, vec![24], &data).unwrap()),
        ("e", TensorView::new(Dtype::I64, vec![0], &[]).unwrap()),
    ];
    let bytes = safetensors::serialize(views, Some(metadata)).unwrap();
    let header = decode(&bytes).unwrap();
    let names: Vec<&str> = header.tensors.iter().map(|t| &*t.name).collect();
    assert_eq!(names, ["e", "w", "b"]);
    assert_eq!(header.tensors[1].shape, [2, 3]);
    assert_eq!(header.tensors[2].start_bytes, 24);
}

#[test]
fn truncation_and_flips_never_panic() {
    let bytes = file(TWO, 12);
    for at in 0..bytes.len() {
        assert!(decode(&bytes[..at]).is_err(), "{at}");
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            let _ = decode(&flipped);
        }
    }
}
