//! Files of recorded operations: CBOR, because JSON can't represent infinities and NaN.
//!
//! A file has two items: a header, and the body, whose digest is in the header.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use crate::GraphFileError;
use crate::operation::encode;

/// The recorded operations are Burn's own types, so a file depends on the release of Burn.
const BURN: &str = "0.22.1";

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
    burn: String,
    /// XXH3-128 of all bytes after the header, in hexadecimal digits.
    digest: String,
}

/// Serializes a file: a header with its format, its version, Burn's release and the digest of its body, and the body.
/// Equal bodies have equal bytes.
pub fn seal(format: &str, version: u32, body: &impl Serialize) -> Vec<u8> {
    let mut encoded = Vec::new();
    encode(body, &mut encoded);
    let header = Header {
        format: format.into(),
        version,
        burn: BURN.into(),
        digest: hex_digest(&encoded),
    };
    let mut bytes = Vec::new();
    encode(&header, &mut bytes);
    bytes.append(&mut encoded);
    bytes
}

/// Reads the body of a file of [`seal`].
///
/// # Errors
///
/// When the bytes are damaged, or of another format, version or release of Burn.
pub fn unseal<T: DeserializeOwned>(
    format: &str,
    version: u32,
    mut bytes: &[u8],
) -> Result<T, GraphFileError> {
    let header: Header = ciborium::from_reader(&mut bytes).map_err(decoder_error)?;
    for (field, expected, found) in [
        ("format", format.to_owned(), header.format),
        ("version", version.to_string(), header.version.to_string()),
        ("Burn version", BURN.to_owned(), header.burn),
    ] {
        if expected != found {
            return Err(GraphFileError::Version {
                field,
                expected,
                found,
            });
        }
    }
    let (expected, found) = (header.digest, hex_digest(bytes));
    if expected != found {
        return Err(GraphFileError::Damaged { expected, found });
    }
    let body = ciborium::from_reader(&mut bytes).map_err(decoder_error)?;
    if !bytes.is_empty() {
        let reason = "bytes follow the graph";
        return Err(GraphFileError::Inconsistent { reason });
    }
    Ok(body)
}

fn decoder_error(error: ciborium::de::Error<std::io::Error>) -> GraphFileError {
    use ciborium::de::Error;
    let reason = match error {
        Error::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "the file is truncated".into()
        }
        Error::Io(error) => error.to_string(),
        Error::Syntax(offset) => format!("byte {offset} is not CBOR"),
        Error::Semantic(_, reason) => reason,
        Error::RecursionLimitExceeded => "it is nested too deeply".into(),
    };
    GraphFileError::Decode { reason }
}

/// Returns the XXH3-128 of bytes, in hexadecimal digits.
pub fn hex_digest(bytes: &[u8]) -> String {
    format!("{:032x}", XxHash3_128::oneshot(bytes))
}
