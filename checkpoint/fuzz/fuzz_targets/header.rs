//! Any header is rejected, or equals the decoding of its own encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tinderbox_checkpoint::{Header, StoredDType, decode_header, encode_header};

// The input is used twice: as the file size in 8 bytes and the start of the file, and as the JSON of a header
// with a correct length, which the fuzzer then need not find.
fuzz_target!(|data: &[u8]| {
    let Some((size, bytes)) = data.split_first_chunk::<8>() else {
        return;
    };
    let size = u64::from_le_bytes(*size);
    check(bytes, size);
    let json_bytes = bytes.len() as u64;
    let sized = [&json_bytes.to_le_bytes()[..], bytes].concat();
    check(&sized, size);
    // The size is the size of the data here, so that any tiling of it can be accepted.
    check(&sized, size.saturating_add(sized.len() as u64));
});

fn check(bytes: &[u8], file_bytes: u64) {
    let Ok(header) = decode_header(bytes, file_bytes) else {
        return;
    };
    let data_bytes = file_bytes - header.data_start_bytes;
    let metadata: Vec<(&str, &str)> = header.metadata.iter().map(|(k, v)| (&**k, &**v)).collect();
    let tensors: Vec<(&str, StoredDType, &[u64])> = header
        .tensors
        .iter()
        .map(|t| (&*t.name, t.dtype, &*t.shape))
        .collect();
    let encoded = encode_header(&metadata, &tensors).expect("an accepted header can be encoded");
    assert_eq!(encoded.len() % 8, 0);
    let Some(file_bytes) = data_bytes.checked_add(encoded.len() as u64) else {
        return;
    };
    let again = decode_header(&encoded, file_bytes).expect("an encoded header is accepted");
    let mut metadata = header.metadata;
    // The tensors are encoded in order.
    metadata.sort();
    let expected = Header {
        metadata,
        tensors: header.tensors,
        data_start_bytes: encoded.len() as u64,
    };
    assert_eq!(again, expected);
}
