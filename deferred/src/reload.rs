//! Replaces the values of parameters.

use std::ops::Range;
use std::time::Instant;

use burn::tensor::Device;

use crate::materialize::read_values;
use crate::memory;
use crate::{
    MaterializeError, MemoryCheck, Observer, ParameterTable, PartialModule, Request, Source,
};

/// Replaces the values of all parameters of a [`PartialModule`], in place.
///
/// Everything that can be checked without values is checked by [`check`](Self::check), before
/// [`run`](Self::run) changes anything.
#[derive(Clone, Debug)]
pub struct Reload {
    /// In the order of the module.
    requests: Vec<Request>,
}

impl Reload {
    /// Creates a reload of a module's parameters, in the dtypes of the table. Parameters that the table lacks keep
    /// their values.
    pub fn new(table: &ParameterTable, module: &PartialModule, device: &Device) -> Self {
        let parameters = module.paths().filter_map(|path| table.get(path));
        let requests = parameters.map(|p| Request::of(table, p, device)).collect();
        Self { requests }
    }

    /// Rejects a source that does not match the model, and memory that is not enough for one group of values.
    /// Reads no values.
    ///
    /// # Errors
    ///
    /// The errors of [`materialize_parameters`](crate::materialize_parameters).
    pub fn check(
        &self,
        table: &ParameterTable,
        source: &dyn Source,
        check: MemoryCheck,
    ) -> Result<(), MaterializeError> {
        source.check(table, &self.requests)?;
        let groups = groups_by_bytes(self.requests.iter().map(Request::bytes));
        let groups = groups.into_iter().map(|group| &self.requests[group]);
        let largest = groups.max_by_key(|group| bytes(group));
        memory::check(largest.unwrap_or_default(), source, 0, check)
    }

    /// Replaces the values.
    ///
    /// Memory: in addition to the values and the working memory of the source, at most the bytes of the largest value, or
    /// 1 MiB. Values are loaded in groups of that size, and each group replaces the old values before the next is loaded.
    ///
    /// # Errors
    ///
    /// When the source fails, or returns another shape or dtype. Some parameters then have new values, and others their old
    /// values.
    pub fn run(
        &self,
        module: &mut PartialModule,
        source: &dyn Source,
        observer: &dyn Observer,
    ) -> Result<(), MaterializeError> {
        let (parameters, bytes) = (self.requests.len(), bytes(&self.requests));
        let source_name = source.describe();
        let span = tracing::info_span!("reload", parameters, bytes, source = source_name);
        let _entered = span.enter();
        let started = Instant::now();
        observer.begin(parameters, bytes);
        for group in groups_by_bytes(self.requests.iter().map(Request::bytes)) {
            let requests = &self.requests[group];
            let values = read_values(requests, source, observer)?;
            for (request, value) in requests.iter().zip(values) {
                if let Some(position) = module.position(&request.path) {
                    module.replace(position, value)?;
                }
            }
        }
        observer.end();
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(parameters, bytes, seconds, "reloaded");
        Ok(())
    }
}

/// The bytes of values that are loaded together, because each load has a fixed cost.
const GROUP_BYTES: u64 = 1 << 20;

/// Returns ranges of consecutive values that together have no more bytes than the largest one, or than 1 MiB.
pub fn groups_by_bytes(bytes: impl Iterator<Item = u64> + Clone) -> Vec<Range<usize>> {
    let most = bytes.clone().max().unwrap_or(0).max(GROUP_BYTES);
    let (mut groups, mut begin, mut end, mut held) = (Vec::new(), 0, 0, 0_u64);
    for bytes in bytes {
        if end > begin && held + bytes > most {
            groups.push(begin..end);
            (begin, held) = (end, 0);
        }
        held += bytes;
        end += 1;
    }
    groups.push(begin..end);
    groups
}

fn bytes(requests: &[Request]) -> u64 {
    requests.iter().map(Request::bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_no_more_bytes_than_the_largest_value_or_a_mebibyte() {
        let groups = |sizes: &[u64]| {
            let groups = groups_by_bytes(sizes.iter().copied());
            let groups = groups.into_iter().map(|group| sizes[group].to_vec());
            groups.collect::<Vec<_>>()
        };
        let large = [1, 2, 4, 8, 3, 5, 6, 0, 1].map(|size| size << 20);
        let expected: [&[u64]; 4] = [&[1, 2, 4], &[8], &[3, 5], &[6, 0, 1]];
        let expected = expected.map(|group| group.iter().map(|size| size << 20).collect());
        assert_eq!(groups(&large), Vec::<Vec<u64>>::from(expected));
        let half = 1 << 19;
        assert_eq!(groups(&[half, half, 1]), [vec![half, half], vec![1]]);
        assert_eq!(groups(&[7; 10_000]), [[7; 10_000]]);
        assert_eq!(groups(&[0, 0]), [[0, 0]]);
        assert_eq!(groups(&[]), [Vec::<u64>::new()]);
    }
}
