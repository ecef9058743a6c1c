//! The script that made the ONNX files makes the same files again.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::models::{file, floats};

/// The outputs of one version of `onnx` and the outputs of another.
const TOLERANCE: f32 = 1e-6;

#[test]
fn the_script_makes_these_files() {
    let onnx = Command::new("python3")
        .args(["-c", "import onnx, numpy"])
        .output();
    if !onnx.is_ok_and(|output| output.status.success()) {
        eprintln!(
            "NOT RUN: the script that makes the ONNX files, because there is no `python3` with the package `onnx`"
        );
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("onnx/make_models.py");
    let made = tempfile::tempdir().unwrap();
    let output = Command::new("python3")
        .arg(script)
        .arg(made.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for name in ["residual", "encoder", "masked"] {
        let onnx = fs::read(made.path().join(name).with_extension("onnx")).unwrap();
        if onnx != fs::read(file(name, "onnx")).unwrap() {
            // Another version of `onnx` may write the same graph in other bytes.
            eprintln!("{name}.onnx has other bytes; its outputs are compared");
        }
        let read = |path| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
        let found = read(made.path().join(name).with_extension("json"));
        let expected = read(file(name, "json"));
        for (key, expected) in expected.as_object().unwrap() {
            let (found, expected) = (floats(&found[key]), floats(expected));
            assert_eq!(found.len(), expected.len(), "{name}, {key}");
            let same = |(found, expected): (&f32, &f32)| (found - expected).abs() <= TOLERANCE;
            assert!(found.iter().zip(&expected).all(same), "{name}, {key}");
        }
    }
}
