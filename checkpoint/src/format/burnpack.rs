//! Encoding and decoding of the headers of burnpack files, in which Burn saves modules.
//!
//! ```text
//! | "NRUB" | version: u16 | n: u32 | n bytes of CBOR | zeros to a multiple of 256 | data |
//! ```
//!
//! Integers are little-endian. The CBOR lists dtype, shape and range of each tensor, by name; ranges begin at multiples
//! of 256 bytes of the data. Specification: the crate `burn-pack` 0.22.1.

use std::collections::BTreeMap;

use burn::tensor::{BoolStore, DType};
use serde::{Deserialize, Serialize};

use super::header::{Pairs, check_len, end_of, past_end};
use super::{Header, Texts, stored_len};
use crate::{HeaderError, StoredDType, error::short};

/// The first bytes of a file.
const MAGIC: [u8; 4] = *b"NRUB";
/// The only version.
const VERSION: u16 = 1;
/// Offset of the CBOR in bytes.
const PREFIX_BYTES: u64 = 10;
/// Maximum size in bytes of the CBOR, as in Burn's reader.
const MAX_CBOR_BYTES: u64 = 100 << 20;
/// Alignment of the data section and of each tensor in it.
const ALIGN_BYTES: u64 = 256;
/// Maximum depth of nested CBOR values; Burn's own files have four.
const MAX_DEPTH: usize = 32;

/// The largest tensor that Burn's reader accepts.
const MAX_TENSOR_BYTES: u64 = 10 << 30;
/// The largest file that Burn's reader accepts.
const MAX_FILE_BYTES: u64 = 100 << 30;

/// Encodes the header of a file that holds these tensors in this order, each at the next multiple of [`ALIGN_BYTES`] of
/// the data, which begins after the header.
///
/// # Errors
///
/// Returns an error if a name is duplicated, a size overflows, or Burn's reader would refuse the file for its size.
pub(crate) fn encode_burnpack(
    tensors: &[(&str, StoredDType, &[u64])],
) -> Result<Vec<u8>, HeaderError> {
    let mut listed: BTreeMap<&str, RawTensor> = BTreeMap::new();
    let too_large = |tensor: &str, found_bytes, limit_bytes| HeaderError::PackLimit {
        tensor: short(tensor),
        found_bytes,
        limit_bytes,
    };
    let mut end = 0_u64;
    for (name, dtype, shape) in tensors {
        let bytes = stored_len(shape, *dtype).unwrap_or(u64::MAX);
        if bytes > MAX_TENSOR_BYTES {
            return Err(too_large(name, bytes, MAX_TENSOR_BYTES));
        }
        let start = padded(end);
        end = start + bytes;
        if end > MAX_FILE_BYTES {
            return Err(too_large(name, end, MAX_FILE_BYTES));
        }
        let tensor = RawTensor {
            dtype: dtype.burn(),
            shape: shape.to_vec(),
            data_offsets: [start, end],
        };
        if listed.insert(name, tensor).is_some() {
            let tensor = (*name).to_owned();
            return Err(HeaderError::DuplicateKey { tensor });
        }
    }
    let mut cbor = Vec::new();
    let written = ciborium::ser::into_writer(&BTreeMap::from([("tensors", listed)]), &mut cbor);
    written.expect("texts and integers always have a CBOR form");
    check_len(cbor.len() as u64, MAX_CBOR_BYTES)?;
    // Within the limit, the length fits.
    let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
    bytes.extend((cbor.len() as u32).to_le_bytes());
    bytes.extend(cbor);
    bytes.resize(padded(bytes.len() as u64) as usize, 0);
    Ok(bytes)
}

/// Returns the next multiple of the alignment.
pub(crate) const fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN_BYTES)
}

/// Returns whether a file that begins with these bytes is a burnpack file.
pub(crate) fn is_burnpack(first_bytes: &[u8]) -> bool {
    first_bytes.starts_with(&MAGIC)
}

/// Returns the size of a file's header in bytes, padding included, from the first bytes of the file.
///
/// # Errors
///
/// Returns an error if the version is unknown, or the header exceeds the limit of the format or extends past the end of
/// the file.
pub(crate) fn burnpack_len(first_bytes: &[u8], file_bytes: u64) -> Result<u64, HeaderError> {
    let end = cbor_end(first_bytes, file_bytes)?;
    // A file without tensors ends without padding.
    Ok(padded(end).min(file_bytes))
}

/// Returns the end of the CBOR.
fn cbor_end(first_bytes: &[u8], file_bytes: u64) -> Result<u64, HeaderError> {
    let prefix = first_bytes.first_chunk::<{ PREFIX_BYTES as usize }>();
    let prefix = prefix.ok_or(past_end(PREFIX_BYTES, file_bytes))?;
    let [_, _, _, _, v0, v1, n @ ..] = *prefix;
    match u16::from_le_bytes([v0, v1]) {
        VERSION => {
            let cbor_bytes = u64::from(u32::from_le_bytes(n));
            end_of(PREFIX_BYTES, cbor_bytes, MAX_CBOR_BYTES, file_bytes)
        }
        found => Err(HeaderError::PackVersion { found }),
    }
}

/// Decodes the header of a file of `file_bytes` bytes from a buffer that holds at least the whole header.
///
/// Memory: proportional to the size of the header, for any contents.
///
/// # Errors
///
/// Returns an error if the header is invalid, a tensor is quantized, or the tensors overlap, leave more than padding
/// between them, or do not end with the file.
pub(crate) fn decode_burnpack(bytes: &[u8], file_bytes: u64) -> Result<Header, HeaderError> {
    let data_start = burnpack_len(bytes, file_bytes)?;
    let cbor = bytes.get(PREFIX_BYTES as usize..cbor_end(bytes, file_bytes)? as usize);
    let cbor = cbor.ok_or(past_end(data_start, bytes.len() as u64))?;
    let raw = ciborium::de::from_reader_with_recursion_limit(cbor, MAX_DEPTH);
    let raw: RawPack = raw.map_err(|error| HeaderError::Cbor {
        reason: error.to_string(),
    })?;
    let tensors = raw.tensors.0.into_iter().map(|(name, tensor)| {
        // Booleans of four bytes have the dtype of booleans of one.
        let is_wide = matches!(tensor.dtype, DType::Bool(BoolStore::U32));
        let dtype = StoredDType::of(tensor.dtype).filter(|_| !is_wide);
        let dtype = dtype.ok_or_else(|| format!("{:?}", tensor.dtype));
        (name, dtype, tensor.shape, tensor.data_offsets)
    });
    let metadata = raw.metadata.map_or_else(Vec::new, |pairs| pairs.0);
    Header::of(metadata, tensors, data_start..file_bytes, ALIGN_BYTES)
}

/// The CBOR of a header. Other fields are ignored.
#[derive(Deserialize)]
struct RawPack {
    tensors: Pairs<RawTensor>,
    metadata: Option<Texts>,
}

#[derive(Deserialize, Serialize)]
struct RawTensor {
    dtype: DType,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;
    use burn_pack::{Reader, Tensor, Writer};

    use super::*;
    use crate::format::header::check_contiguous;

    /// Returns a file that Burn's own crate writes.
    fn file() -> Vec<u8> {
        let tensor = |name: &str, data: TensorData| {
            let (bytes, shape, dtype) = data.into_parts();
            Tensor::new(name.into(), dtype, shape, None, bytes)
        };
        let tensors = vec![
            tensor(
                "b.weight",
                TensorData::new(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]),
            ),
            tensor("a", TensorData::new(vec![7i64], [1])),
            tensor("empty", TensorData::new(Vec::<f32>::new(), [0, 4])),
        ];
        let writer = Writer::new(tensors).with_metadata("format", "test");
        writer.into_bytes().unwrap().to_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Header, HeaderError> {
        decode_burnpack(bytes, bytes.len() as u64)
    }

    #[test]
    fn reads_what_burn_writes() {
        let bytes = file();
        assert!(is_burnpack(&bytes));
        let header = decode(&bytes).unwrap();
        assert_eq!(header.metadata, [("format".to_owned(), "test".to_owned())]);
        let reader = Reader::from_bytes(burn_std::Bytes::from_bytes_vec(bytes.clone())).unwrap();
        assert_eq!(header.tensors.len(), 3);
        for tensor in &header.tensors {
            let start = (header.data_start_bytes + tensor.start_bytes) as usize;
            let found = &bytes[start..start + tensor.len_bytes as usize];
            assert_eq!(
                found,
                reader.tensor_data(&tensor.name).unwrap(),
                "{}",
                tensor.name
            );
        }
    }

    /// A file that ends early is refused, wherever it ends; padding at its end may be missing.
    #[test]
    fn truncation_at_every_byte() {
        let bytes = file();
        let header = decode(&bytes).unwrap();
        let last = header
            .tensors
            .iter()
            .map(|tensor| tensor.start_bytes + tensor.len_bytes);
        let needed = (header.data_start_bytes + last.max().unwrap()) as usize;
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]).is_ok(), len >= needed, "{len} bytes");
        }
    }

    /// A changed byte of the header is an error or another header that tiles the file; it never panics.
    #[test]
    fn a_flip_of_every_byte() {
        let bytes = file();
        let start = decode(&bytes).unwrap().data_start_bytes as usize;
        for at in 0..start {
            for flip in [1, 0x10, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                if let Ok(header) = decode(&changed) {
                    let data_bytes = changed.len() as u64 - header.data_start_bytes;
                    check_contiguous(&header.tensors, data_bytes, ALIGN_BYTES).unwrap();
                }
            }
        }
    }

    /// A file with a list of tensors that Burn's crate would not write.
    fn attack(tensors: &[(&str, DType, &[u64], [u64; 2])], data_bytes: usize) -> HeaderError {
        let text = |value: &str| ciborium::Value::from(value);
        let entries = tensors.iter().map(|(name, dtype, shape, [start, end])| {
            let shape = shape
                .iter()
                .map(|size| ciborium::Value::from(*size))
                .collect();
            let range = vec![ciborium::Value::from(*start), ciborium::Value::from(*end)];
            let fields = vec![
                (text("dtype"), ciborium::Value::serialized(dtype).unwrap()),
                (text("shape"), ciborium::Value::Array(shape)),
                (text("data_offsets"), ciborium::Value::Array(range)),
            ];
            (text(name), ciborium::Value::Map(fields))
        });
        let pack = ciborium::Value::Map(vec![(
            text("tensors"),
            ciborium::Value::Map(entries.collect()),
        )]);
        let mut cbor = Vec::new();
        ciborium::ser::into_writer(&pack, &mut cbor).unwrap();
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((cbor.len() as u32).to_le_bytes());
        bytes.extend(cbor);
        bytes.resize(
            bytes.len().next_multiple_of(ALIGN_BYTES as usize) + data_bytes,
            0,
        );
        decode(&bytes).unwrap_err()
    }

    #[test]
    fn attacks() {
        let one = |name, dtype, shape, range| attack(&[(name, dtype, shape, range)], 256);
        let quantized = DType::QFloat(burn::tensor::quantization::QuantScheme::default());
        let cases = [
            one("q", quantized, &[4], [0, 4]),
            one("b", DType::Bool(BoolStore::U32), &[4], [0, 16]),
            one("short", DType::F32, &[4], [0, 12]),
            one("reversed", DType::F32, &[4], [16, 0]),
            one("large", DType::F32, &[u64::MAX, 2], [0, 16]),
            one("outside", DType::F32, &[128], [0, 512]),
            one("late", DType::F32, &[1], [256, 260]),
            attack(
                &[
                    ("a", DType::F32, &[2], [0, 8]),
                    ("b", DType::F32, &[2], [4, 12]),
                ],
                256,
            ),
            attack(
                &[
                    ("a", DType::F32, &[2], [0, 8]),
                    ("a", DType::F32, &[2], [8, 16]),
                ],
                256,
            ),
        ];
        let texts: Vec<String> = cases.iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(texts.join("\n"), @r#"
        tensor `q` has dtype QFloat(QuantScheme { value: Q8F, store: PackedU32(0), mode: Symmetric, tensor: None, block: None }), which is not supported
        tensor `b` has dtype Bool(U32), which is not supported
        tensor `short` has 16 bytes by its shape and dtype, but its offsets are 0..12
        tensor `reversed` has 16 bytes by its shape and dtype, but its offsets are 16..0
        tensor `large` of shape [18446744073709551615, 2] is too large
        the tensors have 512 bytes, the file holds 256
        tensor `late` follows a gap: it starts at byte 256 of the data instead of 0
        tensor `b` overlaps the previous tensor: it starts at byte 4 of the data instead of 8
        tensor `a` is listed twice or has a reserved name
        "#);
    }

    #[test]
    fn other_files() {
        let mut newer = file();
        newer[4] = 2;
        let mut endless = file();
        endless[6..10].fill(0xff);
        let mut broken = file();
        broken[10] = 0xff;
        let texts = [newer, endless, broken].map(|bytes| decode(&bytes).unwrap_err().to_string());
        insta::assert_snapshot!(texts.join("\n"), @r#"
        the burnpack file has version 2, which is not supported: only version 1 is
        the header has 4294967295 bytes, the limit is 104857600
        the CBOR is not a burnpack header: Semantic(None, "invalid type: break, expected map")
        "#);
    }
}
