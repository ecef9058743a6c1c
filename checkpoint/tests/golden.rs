//! The format does not drift: a checkpoint that version 1 wrote is still read, and still written.
//!
//! After a deliberate change of the format: a new version, and a new directory beside this one, made by
//! saving `small_contents(11)` and copying the step's directory. The old one stays.

mod support;

use std::{fs, path::Path};

use support::{load, meta, names, save, small_contents};
use tinderbox_checkpoint::Checkpoint;

#[test]
fn version_1() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/version-1");
    let checkpoint = Checkpoint::open(&golden).unwrap();
    checkpoint.verify().unwrap();
    assert_eq!(load(&checkpoint).unwrap(), small_contents(11));

    let run = tempfile::tempdir().unwrap();
    let dir = save(run.path(), meta(11, 1), &small_contents(11));
    assert_eq!(names(&dir), names(&golden));
    for name in names(&dir) {
        let [written, expected] = [&dir, &golden].map(|dir| {
            let bytes = fs::read(dir.join(&name)).unwrap();
            // The id of the attempt, and with it the manifest's own digest, is new each time.
            if name == "manifest.json" {
                let id = Checkpoint::open(dir)
                    .unwrap()
                    .manifest()
                    .attempt
                    .to_string();
                let text = String::from_utf8(bytes).unwrap();
                text[45..].replace(&id, "").into_bytes()
            } else {
                bytes
            }
        });
        assert!(written == expected, "{name} is written differently");
    }
}
