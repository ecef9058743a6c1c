//! One case per manifest property that readers rely on: a manifest with a correct digest and invalid contents
//! must be rejected.

use serde_json::{Value, json};

use super::*;
use crate::format::envelope;

fn valid() -> Value {
    let digest = "0".repeat(32);
    json!({
        "format": "tinderbox-checkpoint", "version": 1, "attempt": digest, "step": 1, "seed": 2,
        "data_position": 3, "world_size": 2, "block_bytes": 64, "metadata": null, "plan": null,
        "scalars": [{"name": "t", "value": {"int": 1}}],
        "files": [
            {"name": "model-rank-00000.safetensors", "role": "model", "rank": 0, "number": 0, "size_bytes": 116,
             "header_bytes": 16, "header_digest": digest},
            {"name": "model-rank-00001.safetensors", "role": "model", "rank": 1, "number": 0, "size_bytes": 20,
             "header_bytes": 16, "header_digest": digest},
        ],
        "index": null,
        "tensors": [
            {"name": "a", "role": "model", "dtype": "F32", "shape": [6], "chunks": [
                {"offset": [0], "size": [5], "file": "model-rank-00000.safetensors",
                 "start_bytes": 16, "len_bytes": 20, "digests": [digest]},
                {"offset": [5], "size": [1], "file": "model-rank-00001.safetensors",
                 "start_bytes": 16, "len_bytes": 4, "digests": [digest]},
            ]},
            {"name": "b", "role": "model", "dtype": "U8", "shape": [80], "chunks": [
                {"offset": [0], "size": [80], "file": "model-rank-00000.safetensors",
                 "start_bytes": 36, "len_bytes": 80, "digests": [digest, digest]},
            ]},
        ],
    })
}

fn decode(value: &Value) -> Result<Manifest, FormatError> {
    Manifest::from_bytes(&envelope::seal(value).unwrap())
}

#[test]
fn a_valid_manifest_is_accepted() {
    assert_eq!(decode(&valid()).unwrap().tensors.len(), 2);
}

#[test]
fn attacks() {
    let max = u64::MAX;
    let cases: &[(&str, Value, &str)] = &[
        ("/format", json!("other"), "tinderbox-checkpoint"),
        ("/version", json!(2), "version 2"),
        ("/world_size", json!(0), "world size"),
        ("/world_size", json!(1), "not a valid name"),
        ("/world_size", json!(65_537), "world size"),
        ("/block_bytes", json!(0), "JSON"),
        ("/block_bytes", json!(128), "chunk"),
        ("/attempt", json!("../../etc"), "JSON"),
        ("/scalars/0/name", json!(""), "is empty"),
        ("/files/0/name", json!("/etc/passwd"), "not a valid name"),
        (
            "/files/0/name",
            json!("../model-rank-00000.safetensors"),
            "not a valid name",
        ),
        (
            "/files/0/name",
            json!("model-rank-00001.safetensors"),
            "not sorted",
        ),
        ("/files/0/role", json!("state"), "not a valid name"),
        ("/files/0/header_bytes", json!(4), "header"),
        ("/files/0/header_bytes", json!(max), "header"),
        ("/files/0/header_bytes", json!(24), "bytes"),
        ("/files/0/size_bytes", json!(117), "bytes"),
        ("/files/0/size_bytes", json!(max), "bytes"),
        ("/files/0/header_digest", json!("x"), "JSON"),
        (
            "/index",
            json!({"size_bytes": 1, "digest": "0".repeat(32)}),
            "index",
        ),
        ("/tensors/0/name", json!(""), "is empty"),
        ("/tensors/0/name", json!("__metadata__"), "reserved"),
        ("/tensors/1/name", json!("x".repeat(5000)), "longer"),
        ("/tensors/0/name", json!("b"), "not sorted"),
        ("/tensors/0/role", json!("state"), "not sorted"),
        ("/tensors/1/role", json!("state"), "not list"),
        ("/tensors/0/dtype", json!("F33"), "JSON"),
        ("/tensors/0/dtype", json!("F64"), "chunk"),
        ("/tensors/0/shape", json!([7]), "no chunk"),
        ("/tensors/0/shape", json!([5]), "past the shape"),
        ("/tensors/0/shape", json!([max]), "too large"),
        ("/tensors/0/shape", json!(vec![1; 33]), "too large"),
        ("/tensors/0/shape", json!([6, 1]), "1 dimension(s)"),
        ("/tensors/0/chunks", json!([]), "no chunk"),
        ("/tensors/0/chunks/0/offset", json!([1]), "twice"),
        ("/tensors/0/chunks/0/offset", json!([max]), "JSON"),
        ("/tensors/0/chunks/0/offset", json!([5]), "not sorted"),
        ("/tensors/0/chunks/0/offset", json!([0, 0]), "JSON"),
        ("/tensors/0/chunks/0/size", json!([6]), "twice"),
        ("/tensors/0/chunks/0/size", json!([0]), "is empty"),
        (
            "/tensors/0/chunks/0/file",
            json!("manifest.json"),
            "not list",
        ),
        ("/tensors/0/chunks/0/start_bytes", json!(12), "bytes"),
        ("/tensors/0/chunks/0/start_bytes", json!(max), "bytes"),
        ("/tensors/0/chunks/0/len_bytes", json!(21), "chunk"),
        ("/tensors/0/chunks/0/digests", json!([]), "chunk"),
        ("/tensors/1", json!(null), "JSON"),
        ("/tensors", json!([]), "bytes"),
    ];
    for (at, value, expected) in cases {
        let mut manifest = valid();
        *manifest.pointer_mut(at).unwrap() = value.clone();
        match decode(&manifest) {
            Ok(_) => panic!("{at} was accepted"),
            Err(error) => {
                let mut text = error.to_string();
                if let Some(source) = std::error::Error::source(&error) {
                    text = format!("{text}: {source}");
                }
                assert!(text.contains(expected), "{at}: {text}");
            }
        }
    }
}

#[test]
fn unknown_fields_are_accepted() {
    for at in [
        "",
        "/files/0",
        "/tensors/0",
        "/tensors/0/chunks/0",
        "/scalars/0",
    ] {
        let mut manifest = valid();
        manifest.pointer_mut(at).unwrap()["later"] = json!([1, {"deep": null}]);
        let found = decode(&manifest).unwrap();
        let kept = found.unknown_fields();
        // Fields that describe the run are preserved; fields that describe bytes are rewritten with them.
        let expected = at.is_empty().then(|| json!([1, {"deep": null}]));
        assert_eq!(kept.value("later"), expected, "{at:?}");
    }
    let mut manifest = valid();
    manifest["metadata"] = json!({"anything": [1, null]});
    assert!(decode(&manifest).is_ok());
}

#[test]
fn attack_a_whole_tensor_without_index() {
    let mut manifest = valid();
    manifest["tensors"].as_array_mut().unwrap().remove(0);
    manifest["files"].as_array_mut().unwrap().remove(1);
    let file = &mut manifest["files"][0];
    file["size_bytes"] = json!(96);
    manifest["tensors"][0]["chunks"][0]["start_bytes"] = json!(16);
    assert!(decode(&manifest).unwrap_err().to_string().contains("index"));
    manifest["index"] = json!({"size_bytes": 1, "digest": "0".repeat(32)});
    decode(&manifest).unwrap();
}
