//! Any manifest is rejected, or equals the decoding of its own encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tinderbox_checkpoint::{Digest, Manifest};

// The input as a file, and as the body of a file with a correct digest, which a fuzzer can't find.
fuzz_target!(|data: &[u8]| {
    check(data);
    check(&sealed(data));
});

fn check(bytes: &[u8]) {
    let Ok(manifest) = Manifest::from_bytes(bytes) else {
        return;
    };
    let body = serde_json::to_vec(&manifest).expect("an accepted manifest can be encoded");
    let again = Manifest::from_bytes(&sealed(&body)).expect("an encoded manifest is accepted");
    assert_eq!(again, manifest);
}

fn sealed(body: &[u8]) -> Vec<u8> {
    let start = format!("{{\"xxh3_128\":\"{}\",\"body\":", Digest::of(body));
    [start.as_bytes(), body, b"}\n"].concat()
}
