//! The envelope of a JSON document, which holds its digest.
//!
//! ```text
//! {"xxh3_128":"<32 hex digits>","body":<body>}\n
//! ```
//!
//! The file is JSON, so any tool can read it. Prefix and suffix are fixed and the digest covers the bytes of
//! the body, so any changed byte is detected before the body is parsed.

use serde::Serialize;

use crate::{Digest, FormatError};

const PREFIX: &[u8] = b"{\"xxh3_128\":\"";
const MIDDLE: &[u8] = b"\",\"body\":";
const SUFFIX: &[u8] = b"}\n";

/// Serializes a document as compact JSON in an envelope with its digest. Memory: the size of the result.
pub(super) fn seal(document: &impl Serialize) -> Result<Vec<u8>, FormatError> {
    let start = PREFIX.len() + Digest::HEX_LEN + MIDDLE.len();
    let mut bytes = [PREFIX, &[b'0'; Digest::HEX_LEN], MIDDLE].concat();
    serde_json::to_writer(&mut bytes, document)?;
    let digest = Digest::of(&bytes[start..]).to_string();
    bytes[PREFIX.len()..][..Digest::HEX_LEN].copy_from_slice(digest.as_bytes());
    bytes.extend(SUFFIX);
    Ok(bytes)
}

/// Returns the body if its digest matches.
pub(super) fn open(bytes: &[u8]) -> Result<&[u8], FormatError> {
    let (expected, body) = parts(bytes).ok_or(FormatError::Envelope)?;
    match Digest::of(body) {
        found if found == expected => Ok(body),
        found => Err(FormatError::Digest { expected, found }),
    }
}

/// Returns the digest and the body.
fn parts(bytes: &[u8]) -> Option<(Digest, &[u8])> {
    let rest = bytes.strip_prefix(PREFIX)?;
    let (digits, rest) = rest.split_at_checked(Digest::HEX_LEN)?;
    let body = rest.strip_prefix(MIDDLE)?.strip_suffix(SUFFIX)?;
    let digest = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((digest, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_flip_and_any_truncation_is_found() {
        let sealed = seal(&serde_json::json!({"a": 1})).unwrap();
        assert_eq!(open(&sealed).unwrap(), br#"{"a":1}"#);
        assert!(serde_json::from_slice::<serde_json::Value>(&sealed).is_ok());
        for at in 0..sealed.len() {
            assert!(open(&sealed[..at]).is_err(), "truncated at {at}");
            for bit in 0..8 {
                let mut flipped = sealed.clone();
                flipped[at] ^= 1 << bit;
                let error = open(&flipped).expect_err("a flip is found");
                // Every flip must be reported as damage, not as another error.
                assert!(
                    matches!(error, FormatError::Envelope | FormatError::Digest { .. }),
                    "byte {at} bit {bit}: {error}"
                );
            }
        }
    }
}
