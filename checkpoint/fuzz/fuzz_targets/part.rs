//! Any part of a rank is accepted or rejected without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tinderbox_checkpoint::{Digest, testing::check_part};

// The input as a file, and as the body of a file with a correct digest, which a fuzzer can't find.
fuzz_target!(|data: &[u8]| {
    let _ = check_part(data);
    let start = format!("{{\"xxh3_128\":\"{}\",\"body\":", Digest::of(data));
    let _ = check_part(&[start.as_bytes(), data, b"}\n"].concat());
});
