//! A file that is read from a bucket.

use std::io;

use object_store::{GetOptions, ObjectMeta, path::Path};

use super::bucket::BucketStore;
use crate::store::ReadFile;

/// An object in the version that was opened.
#[derive(derive_more::Debug)]
pub(super) struct BucketRead {
    #[debug(skip)]
    bucket: BucketStore,
    at: Path,
    bytes: u64,
    /// The entity tag, which a replacement would not have; `None` if the service has none that it accepts as
    /// a condition.
    #[debug(skip)]
    e_tag: Option<String>,
}

impl BucketRead {
    pub(super) fn new(bucket: BucketStore, at: Path, meta: ObjectMeta) -> Self {
        Self {
            bucket,
            at,
            bytes: meta.size,
            // A weak tag never matches.
            e_tag: meta.e_tag.filter(|tag| !tag.starts_with("W/")),
        }
    }
}

impl ReadFile for BucketRead {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    /// One request. Memory: an additional copy of the bytes, until they are copied to the buffer.
    fn read_exact_at(&self, into: &mut [u8], start: u64) -> io::Result<()> {
        let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let end = start.checked_add(into.len() as u64);
        let end = end.filter(|end| *end <= self.bytes).ok_or_else(ended)?;
        if into.is_empty() {
            // The services reject an empty range.
            return Ok(());
        }
        let options = GetOptions::new()
            .with_range(Some(start..end))
            .with_if_match(self.e_tag.clone());
        let (objects, at) = (self.bucket.objects.clone(), self.at.clone());
        let (bytes, size) = self.bucket.run(async move {
            let found = objects.get_opts(&at, options).await?;
            let size = found.meta.size;
            Ok((found.bytes().await?, size))
        })?;
        if size != self.bytes {
            // It was replaced, and the service ignored the condition.
            return Err(io::Error::from(io::ErrorKind::StaleNetworkFileHandle));
        }
        if bytes.len() != into.len() {
            return Err(ended());
        }
        into.copy_from_slice(&bytes);
        Ok(())
    }
}
