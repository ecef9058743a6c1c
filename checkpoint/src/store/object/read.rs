//! A file that is read from a bucket.

use std::io;

use object_store::{GetOptions, ObjectMeta, path::Path};

use super::bucket::BucketStore;
use crate::store::ReadFile;

/// An object as it was when it was opened.
#[derive(derive_more::Debug)]
pub(super) struct BucketRead {
    #[debug(skip)]
    bucket: BucketStore,
    at: Path,
    bytes: u64,
    /// What an object that replaces it does not have; `None` where the service gives none that it takes as a
    /// condition.
    #[debug(skip)]
    e_tag: Option<String>,
}

impl BucketRead {
    pub(super) fn new(bucket: BucketStore, at: Path, meta: ObjectMeta) -> Self {
        Self {
            bucket,
            at,
            bytes: meta.size,
            // A weak one never matches.
            e_tag: meta.e_tag.filter(|tag| !tag.starts_with("W/")),
        }
    }
}

impl ReadFile for BucketRead {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    /// One request. Memory: as much again as is read, until it is copied.
    fn read_exact_at(&self, into: &mut [u8], start: u64) -> io::Result<()> {
        let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let end = start.checked_add(into.len() as u64);
        let end = end.filter(|end| *end <= self.bytes).ok_or_else(ended)?;
        if into.is_empty() {
            // An empty range is none to the services.
            return Ok(());
        }
        let options = GetOptions::new()
            .with_range(Some(start..end))
            .with_if_match(self.e_tag.clone());
        let (objects, at) = (self.bucket.objects(), self.at.clone());
        let (bytes, size) = self.bucket.run(async move {
            let found = objects.get_opts(&at, options).await?;
            let size = found.meta.size;
            Ok((found.bytes().await?, size))
        })?;
        if size != self.bytes {
            // It was replaced, and the service has not told.
            return Err(io::Error::from(io::ErrorKind::StaleNetworkFileHandle));
        }
        if bytes.len() != into.len() {
            return Err(ended());
        }
        into.copy_from_slice(&bytes);
        Ok(())
    }
}
