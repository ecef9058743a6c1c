//! Encoding and decoding of safetensors headers.
//!
//! ```text
//! | n: u64, little-endian | n bytes of JSON, padded with spaces | data |
//! ```
//!
//! Specification: <https://github.com/huggingface/safetensors#format>.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::stored_len;
use crate::error::{short, short_shape};
use crate::{HeaderError, StoredDType};

/// Size of the length prefix in bytes.
const PREFIX_BYTES: u64 = 8;
/// Maximum size in bytes of the JSON header, as in other safetensors readers.
const MAX_JSON_BYTES: u64 = 100_000_000;
/// Alignment of the data section, as in the format's reference implementation: the size of the widest element.
const ALIGN_BYTES: usize = 8;
/// Alignment of the data of a large file, and of offsets, lengths and addresses of reads around the cache of the system: at
/// least the block size of usual disks.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Minimum size of the data of a large file in bytes.
const PAGED_BYTES: u64 = 1 << 20;
const METADATA_KEY: &str = "__metadata__";

/// A decoded header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The entries of `__metadata__`, in file order.
    pub metadata: Vec<(String, String)>,
    /// The tensors, in the order of their data; they tile the data section exactly.
    pub tensors: Vec<HeaderTensor>,
    /// Offset of the data section from the start of the file, in bytes.
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
    let mut json = Vec::new();
    let mut serializer = serde_json::Serializer::new(&mut json);
    let mut entries = serializer.serialize_map(None)?;
    if !metadata.is_empty() {
        let pairs: BTreeMap<_, _> = metadata.iter().copied().collect();
        entries.serialize_entry(METADATA_KEY, &pairs)?;
    }
    let mut start = 0u64;
    for (name, dtype, shape) in tensors {
        if !keys.insert(name) {
            let tensor = (*name).to_owned();
            return Err(HeaderError::DuplicateKey { tensor });
        }
        let end = stored_len(shape, *dtype)
            .and_then(|len| start.checked_add(len))
            .ok_or_else(|| overflow(name, shape))?;
        let entry = RawTensor {
            dtype: dtype.name().to_owned(),
            shape: shape.to_vec(),
            data_offsets: [start, end],
        };
        entries.serialize_entry(name, &entry)?;
        start = end;
    }
    SerializeMap::end(entries)?;
    let align = match start >= PAGED_BYTES {
        true => PAGE_BYTES,
        false => ALIGN_BYTES,
    };
    let header = (PREFIX_BYTES as usize + json.len()).next_multiple_of(align);
    json.resize(header - PREFIX_BYTES as usize, b' ');
    let len = json.len() as u64;
    check_len(len, MAX_JSON_BYTES)?;
    Ok([&len.to_le_bytes()[..], &json].concat())
}

/// Returns the size of a file's header in bytes, including the length prefix, from the first bytes of the
/// file.
///
/// # Errors
///
/// Returns an error if the header exceeds the limit of the format or extends past the end of the file.
pub(crate) fn header_len(first_bytes: &[u8], file_bytes: u64) -> Result<u64, HeaderError> {
    let prefix = first_bytes.first_chunk();
    let prefix = prefix.ok_or(past_end(PREFIX_BYTES, file_bytes))?;
    let json_bytes = u64::from_le_bytes(*prefix);
    end_of(PREFIX_BYTES, json_bytes, MAX_JSON_BYTES, file_bytes)
}

/// Returns the end of a header of `len_bytes` bytes after a prefix; the header must be within a limit and within the file.
pub(super) fn end_of(
    prefix_bytes: u64,
    len_bytes: u64,
    limit_bytes: u64,
    file_bytes: u64,
) -> Result<u64, HeaderError> {
    check_len(len_bytes, limit_bytes)?;
    match prefix_bytes + len_bytes {
        end if end > file_bytes => Err(past_end(end, file_bytes)),
        end => Ok(end),
    }
}

/// Rejects a header that is longer than a limit.
pub(super) fn check_len(found_bytes: u64, limit_bytes: u64) -> Result<(), HeaderError> {
    match found_bytes > limit_bytes {
        true => Err(HeaderError::TooLarge {
            found_bytes,
            limit_bytes,
        }),
        false => Ok(()),
    }
}

pub(super) fn past_end(header_bytes: u64, file_bytes: u64) -> HeaderError {
    HeaderError::PastEnd {
        header_bytes,
        file_bytes,
    }
}

/// Decodes the header of a file of `file_bytes` bytes from a buffer that holds at least the whole header.
///
/// Memory: proportional to the size of the header, for any contents.
///
/// # Errors
///
/// Returns an error if the header is invalid or its tensors do not tile the data section of the file exactly.
pub fn decode_header(bytes: &[u8], file_bytes: u64) -> Result<Header, HeaderError> {
    let data_start = header_len(bytes, file_bytes)?;
    let end = usize::try_from(data_start).ok();
    let json = end.and_then(|end| bytes.get(PREFIX_BYTES as usize..end));
    let json = json.ok_or(past_end(data_start, bytes.len() as u64))?;
    if json.first() != Some(&b'{') {
        return Err(HeaderError::NotAnObject);
    }
    let raw: RawHeader = serde_json::from_slice(json)?;
    let tensors = raw.tensors.into_iter().map(|(name, tensor)| {
        let dtype = StoredDType::from_name(&tensor.dtype).ok_or_else(|| short(&tensor.dtype));
        (name, dtype, tensor.shape, tensor.data_offsets)
    });
    Header::of(raw.metadata, tensors, data_start..file_bytes, 1)
}

/// A tensor as a header lists it: its name, its dtype or the name of an unsupported dtype, its shape, and the range of its
/// bytes.
pub(super) type Listed = (String, Result<StoredDType, String>, Vec<u64>, [u64; 2]);

impl Header {
    /// Creates a header of tensors with unique names. They follow each other in the data section of a file, each less than
    /// `align_bytes` after the end of the previous tensor.
    pub(super) fn of(
        metadata: Vec<(String, String)>,
        listed: impl Iterator<Item = Listed>,
        data: Range<u64>,
        align_bytes: u64,
    ) -> Result<Self, HeaderError> {
        let mut names = BTreeSet::new();
        let mut tensors = Vec::with_capacity(listed.size_hint().0);
        for tensor in listed {
            if !names.insert(tensor.0.clone()) {
                let tensor = short(&tensor.0);
                return Err(HeaderError::DuplicateKey { tensor });
            }
            tensors.push(HeaderTensor::of(tensor)?);
        }
        tensors.sort_by_key(|tensor| (tensor.start_bytes, tensor.len_bytes));
        check_contiguous(&tensors, data.end - data.start, align_bytes)?;
        Ok(Self {
            metadata,
            tensors,
            data_start_bytes: data.start,
        })
    }
}

/// Checks that tensors, ordered by their start, follow each other with less than `align_bytes` between them, up to the end of
/// the data section.
pub(super) fn check_contiguous(
    tensors: &[HeaderTensor],
    data_bytes: u64,
    align_bytes: u64,
) -> Result<(), HeaderError> {
    let end = tensors.iter().try_fold(0, |expected_bytes, tensor| {
        let found_bytes = tensor.start_bytes;
        match found_bytes.checked_sub(expected_bytes) {
            // `HeaderTensor::of` verified that the end does not overflow.
            Some(gap) if gap < align_bytes => Ok(found_bytes + tensor.len_bytes),
            _ => Err(HeaderError::Start {
                tensor: short(&tensor.name),
                expected_bytes,
                found_bytes,
            }),
        }
    })?;
    let rest = data_bytes.checked_sub(end);
    match rest.is_some_and(|rest| rest < align_bytes) {
        true => Ok(()),
        false => Err(HeaderError::DataSize {
            expected_bytes: end,
            found_bytes: data_bytes,
        }),
    }
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

impl HeaderTensor {
    /// Creates a tensor from a range of bytes, whose length must match its shape and dtype.
    fn of((name, dtype, shape, [start_bytes, end_bytes]): Listed) -> Result<Self, HeaderError> {
        let tensor = || short(&name);
        let dtype = dtype.map_err(|found| HeaderError::UnknownDType {
            tensor: tensor(),
            found,
        })?;
        let expected_bytes = stored_len(&shape, dtype).ok_or_else(|| overflow(&name, &shape))?;
        match end_bytes.checked_sub(start_bytes) == Some(expected_bytes) {
            false => Err(HeaderError::TensorSize {
                tensor: tensor(),
                expected_bytes,
                start_bytes,
                end_bytes,
            }),
            true => Ok(Self {
                name,
                dtype,
                shape,
                start_bytes,
                len_bytes: expected_bytes,
            }),
        }
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
                        // Other readers accept `null` as well.
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

/// All entries of a map, in order: serde's maps keep only the last of two equal keys.
pub(super) struct Pairs<V>(pub(super) Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Pairs<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = Pairs<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<V>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// A JSON object with string values, in order; duplicate keys are rejected.
#[derive(Deserialize)]
#[serde(try_from = "Pairs<String>")]
pub(crate) struct Texts(pub(crate) Vec<(String, String)>);

impl TryFrom<Pairs<String>> for Texts {
    type Error = String;

    fn try_from(Pairs(texts): Pairs<String>) -> Result<Self, String> {
        let mut keys = BTreeSet::new();
        match texts.iter().find(|(key, _)| !keys.insert(key)) {
            Some((key, _)) => Err(format!("duplicate key `{key}`")),
            None => Ok(Self(texts)),
        }
    }
}

#[cfg(test)]
#[path = "tests/header.rs"]
mod tests;
