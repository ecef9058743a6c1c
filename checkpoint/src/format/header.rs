//! Encoding and decoding of safetensors headers.
//!
//! ```text
//! | n: u64, little-endian | n bytes of JSON, padded with spaces | data |
//! ```
//!
//! Specification: <https://github.com/huggingface/safetensors#format>.

use std::{collections::BTreeSet, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor},
};

use super::stored_len;
use crate::{
    HeaderError, StoredDType,
    error::{short, short_shape},
};

/// Size of the length prefix in bytes.
const PREFIX_BYTES: u64 = 8;
/// Maximum size in bytes of the JSON header, as in other safetensors readers.
const MAX_JSON_BYTES: u64 = 100_000_000;
/// Alignment of the data section, as in the format's reference implementation: the size of the widest
/// element.
const ALIGN_BYTES: usize = 8;
/// Alignment of the data of a large file, and of offsets, lengths and addresses of reads around the cache of the system: at least the
/// block of usual disks.
pub(crate) const PAGE_BYTES: usize = 4096;
/// The bytes of data from which a file is large.
const PAGED_BYTES: u64 = 1 << 20;
/// Bytes of the length of the header.
const LENGTH_BYTES: usize = size_of::<u64>();
const METADATA_KEY: &str = "__metadata__";

/// A decoded header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The entries of `__metadata__`, in file order.
    pub metadata: Vec<(String, String)>,
    /// The tensors, in the order of their data; they tile the data section exactly.
    pub tensors: Vec<HeaderTensor>,
    /// Where the data section starts in the file, in bytes.
    pub data_start_bytes: u64,
}

/// One tensor of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderTensor {
    /// Its key.
    pub name: String,
    /// Type of an element.
    pub dtype: StoredDType,
    /// Size per dimension.
    pub shape: Vec<u64>,
    /// Offset of the first byte from the start of the data section.
    pub start_bytes: u64,
    /// Number of bytes.
    pub len_bytes: u64,
}

/// Encodes the header of a file that holds these tensors in this order, without gaps.
///
/// # Errors
///
/// Returns an error if a key is duplicated or reserved, a size overflows, or the header is too large.
pub fn encode_header(
    metadata: &[(&str, &str)],
    tensors: &[(&str, StoredDType, &[u64])],
) -> Result<Vec<u8>, HeaderError> {
    let mut keys = BTreeSet::from([METADATA_KEY]);
    let mut json = b"{".to_vec();
    let mut push = |key: &str, value: Vec<u8>| {
        if json.len() > 1 {
            json.push(b',');
        }
        json.extend(to_json(key));
        json.push(b':');
        json.extend(value);
    };
    if !metadata.is_empty() {
        let pairs: std::collections::BTreeMap<_, _> = metadata.iter().copied().collect();
        push(METADATA_KEY, to_json(&pairs));
    }
    let mut start = 0u64;
    for (name, dtype, shape) in tensors {
        if !keys.insert(name) {
            return Err(HeaderError::DuplicateKey {
                tensor: (*name).to_owned(),
            });
        }
        let end = stored_len(shape, *dtype)
            .and_then(|len| start.checked_add(len))
            .ok_or_else(|| overflow(name, shape))?;
        let entry = RawTensor {
            dtype: dtype.name().to_owned(),
            shape: shape.to_vec(),
            data_offsets: [start, end],
        };
        push(name, to_json(&entry));
        start = end;
    }
    json.push(b'}');
    let align = match start >= PAGED_BYTES {
        true => PAGE_BYTES,
        false => ALIGN_BYTES,
    };
    let header = (LENGTH_BYTES + json.len()).next_multiple_of(align);
    json.resize(header - LENGTH_BYTES, b' ');
    let len = json.len() as u64;
    if len > MAX_JSON_BYTES {
        return Err(HeaderError::TooLarge {
            found_bytes: len,
            limit_bytes: MAX_JSON_BYTES,
        });
    }
    let mut bytes = len.to_le_bytes().to_vec();
    bytes.extend(json);
    Ok(bytes)
}

/// Returns the size of a file's header in bytes, including the length prefix, from the first bytes of the
/// file.
///
/// # Errors
///
/// Returns an error if the header exceeds the limit of the format or extends past the end of the file.
pub(crate) fn header_len(first_bytes: &[u8], file_bytes: u64) -> Result<u64, HeaderError> {
    let Some(prefix) = first_bytes.first_chunk::<8>() else {
        return Err(HeaderError::PastEnd {
            header_bytes: PREFIX_BYTES,
            file_bytes,
        });
    };
    let json_bytes = u64::from_le_bytes(*prefix);
    if json_bytes > MAX_JSON_BYTES {
        return Err(HeaderError::TooLarge {
            found_bytes: json_bytes,
            limit_bytes: MAX_JSON_BYTES,
        });
    }
    let header_bytes = PREFIX_BYTES + json_bytes;
    if header_bytes > file_bytes {
        return Err(HeaderError::PastEnd {
            header_bytes,
            file_bytes,
        });
    }
    Ok(header_bytes)
}

/// Decodes the header of a file of `file_bytes` bytes from a buffer that holds at least the whole header.
///
/// Memory: proportional to the size of the header, whatever its contents.
///
/// # Errors
///
/// Returns an error if the header is invalid or its tensors do not tile the data section of the file exactly.
pub fn decode_header(bytes: &[u8], file_bytes: u64) -> Result<Header, HeaderError> {
    let data_start = header_len(bytes, file_bytes)?;
    let json = usize::try_from(data_start)
        .ok()
        .and_then(|end| bytes.get(PREFIX_BYTES as usize..end))
        .ok_or(HeaderError::PastEnd {
            header_bytes: data_start,
            file_bytes: bytes.len() as u64,
        })?;
    if json.first() != Some(&b'{') {
        return Err(HeaderError::Start);
    }
    let raw: RawHeader =
        serde_json::from_slice(json).map_err(|source| HeaderError::Json { source })?;
    let mut keys = BTreeSet::new();
    let mut tensors = Vec::with_capacity(raw.tensors.len());
    for (name, tensor) in raw.tensors {
        if !keys.insert(name.clone()) {
            return Err(HeaderError::DuplicateKey {
                tensor: short(&name),
            });
        }
        tensors.push(tensor.check(name)?);
    }
    tensors.sort_by_key(|t| (t.start_bytes, t.len_bytes));
    check_contiguous(&tensors, file_bytes - data_start)?;
    Ok(Header {
        metadata: raw.metadata,
        tensors,
        data_start_bytes: data_start,
    })
}

/// Checks that tensors, ordered by their start, tile the data section.
fn check_contiguous(tensors: &[HeaderTensor], data_bytes: u64) -> Result<(), HeaderError> {
    let mut end = 0u64;
    for tensor in tensors {
        let (expected, found) = (end, tensor.start_bytes);
        let name = || short(&tensor.name);
        if found > expected {
            return Err(HeaderError::Gap {
                tensor: name(),
                expected_bytes: expected,
                found_bytes: found,
            });
        }
        if found < expected {
            return Err(HeaderError::Overlap {
                tensor: name(),
                expected_bytes: expected,
                found_bytes: found,
            });
        }
        // `check` verified that start + len equals the end offset in the header, so it fits.
        end = tensor.start_bytes + tensor.len_bytes;
    }
    if end == data_bytes {
        Ok(())
    } else {
        Err(HeaderError::DataSize {
            expected_bytes: end,
            found_bytes: data_bytes,
        })
    }
}

fn to_json<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("texts and integers always have a JSON form")
}

fn overflow(name: &str, shape: &[u64]) -> HeaderError {
    HeaderError::Overflow {
        tensor: short(name),
        shape: short_shape(shape),
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl RawTensor {
    fn check(self, name: String) -> Result<HeaderTensor, HeaderError> {
        match StoredDType::from_name(&self.dtype) {
            Some(dtype) => HeaderTensor::of_range(name, dtype, self.shape, self.data_offsets),
            None => Err(HeaderError::UnknownDType {
                tensor: short(&name),
                found: short(&self.dtype),
            }),
        }
    }
}

impl HeaderTensor {
    /// Creates a tensor of a range of bytes, which has to fit its shape and dtype.
    pub(super) fn of_range(
        name: String,
        dtype: StoredDType,
        shape: Vec<u64>,
        [start, end]: [u64; 2],
    ) -> Result<Self, HeaderError> {
        let Some(expected) = stored_len(&shape, dtype) else {
            return Err(overflow(&name, &shape));
        };
        let Some(found) = end.checked_sub(start) else {
            return Err(HeaderError::Reversed {
                tensor: short(&name),
                start_bytes: start,
                end_bytes: end,
            });
        };
        if expected != found {
            return Err(HeaderError::TensorSize {
                tensor: short(&name),
                expected_bytes: expected,
                found_bytes: found,
            });
        }
        Ok(Self {
            name,
            dtype,
            shape,
            start_bytes: start,
            len_bytes: found,
        })
    }
}

/// All pairs of the JSON object, in order: serde's maps keep only the last of two equal keys.
#[derive(Default)]
struct RawHeader {
    metadata: Vec<(String, String)>,
    tensors: Vec<(String, RawTensor)>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a safetensors header")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let (mut header, mut seen) = (RawHeader::default(), false);
                while let Some(key) = map.next_key::<String>()? {
                    if key != METADATA_KEY {
                        header.tensors.push((key, map.next_value()?));
                    } else if std::mem::replace(&mut seen, true) {
                        return Err(serde::de::Error::custom("duplicate key `__metadata__`"));
                    } else {
                        // `null` is as none, as for other readers.
                        let metadata = map.next_value::<Option<Texts>>()?;
                        header.metadata = metadata.map_or_else(Vec::new, |texts| texts.0);
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// A JSON object with string values, in order; rejects duplicate keys, of which serde's maps keep only the
/// last.
pub(crate) struct Texts(pub(crate) Vec<(String, String)>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with string values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                let mut texts: Vec<(String, String)> = Vec::new();
                let mut keys = BTreeSet::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    if !keys.insert(key.clone()) {
                        return Err(serde::de::Error::custom(format!("duplicate key `{key}`")));
                    }
                    texts.push((key, value));
                }
                Ok(Texts(texts))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

#[cfg(test)]
#[path = "tests/header.rs"]
mod tests;
