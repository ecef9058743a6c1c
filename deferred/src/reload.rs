//! Replaces the values of parameters.

use std::ops::Range;
use std::time::Instant;

use burn::tensor::Device;

use crate::materialize::read_values;
use crate::memory;
use crate::{
    MaterializeError, MaterializeOptions, MemoryCheck, Observer, ParameterTable, PartialModule,
    Request, Source,
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
        let requests = parameters.map(|parameter| Request::of(table, parameter, device));
        Self {
            requests: requests.collect(),
        }
    }

    /// Rejects a source that does not match the model, and memory that is not enough for one group of values.
    /// Reads no values.
    ///
    /// # Errors
    ///
    /// As [`materialize_parameters`](crate::materialize_parameters).
    pub fn check(
        &self,
        table: &ParameterTable,
        source: &dyn Source,
        check: MemoryCheck,
    ) -> Result<(), MaterializeError> {
        source.check(table, &self.requests)?;
        let groups = self.groups().into_iter();
        let groups = groups.map(|group| &self.requests[group]);
        let largest = groups.max_by_key(|group| bytes(group));
        let options = MaterializeOptions::new().memory(check);
        memory::check(largest.unwrap_or_default(), source, 0, &options)
    }

    /// Replaces the values.
    ///
    /// Memory: in addition to the values and the working memory of the source, at most the bytes of the largest value:
    /// values are loaded in groups of that size, and each group replaces the old values before the next is loaded.
    ///
    /// # Errors
    ///
    /// When the source fails, or returns another shape or dtype. Some parameters then have new values, and others the
    /// old ones.
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
        let begun = Instant::now();
        observer.begin(parameters, bytes);
        for group in self.groups() {
            let requests = &self.requests[group];
            let values = read_values(requests, source, observer)?;
            for (request, value) in requests.iter().zip(values) {
                if let Some(position) = module.position(&request.path) {
                    let replaced = module.replace(position, value);
                    replaced.map_err(|source| MaterializeError::Rank { source })?;
                }
            }
        }
        observer.end();
        let seconds = begun.elapsed().as_secs_f64();
        tracing::info!(parameters, bytes, seconds, "reloaded");
        Ok(())
    }

    /// Returns ranges of consecutive parameters that together have no more bytes than the largest value.
    fn groups(&self) -> Vec<Range<usize>> {
        let most = self.requests.iter().map(Request::bytes).max().unwrap_or(0);
        let (mut groups, mut begin, mut held) = (Vec::new(), 0, 0_u64);
        for (at, request) in self.requests.iter().enumerate() {
            if at > begin && held + request.bytes() > most {
                groups.push(begin..at);
                (begin, held) = (at, 0);
            }
            held += request.bytes();
        }
        groups.push(begin..self.requests.len());
        groups
    }
}

fn bytes(requests: &[Request]) -> u64 {
    requests.iter().map(Request::bytes).sum()
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;
    use tinderbox_fake::Region;

    use super::*;
    use crate::ParameterPath;

    #[test]
    fn a_group_has_no_more_bytes_than_the_largest_value() {
        let groups = |sizes: &[u64]| {
            let requests = sizes.iter().map(|size| Request {
                path: ParameterPath::new("weight"),
                clones: Vec::new(),
                shape: vec![*size],
                region: Region::of_shape(&[*size as usize]),
                dtype: DType::U8,
                device: Device::flex(),
            });
            let requests = requests.collect();
            let groups = Reload { requests }.groups().into_iter();
            groups
                .map(|group| sizes[group].to_vec())
                .collect::<Vec<_>>()
        };
        let expected: [&[u64]; 4] = [&[1, 2, 4], &[8], &[3, 5], &[6, 0, 1]];
        assert_eq!(groups(&[1, 2, 4, 8, 3, 5, 6, 0, 1]), expected);
        assert_eq!(groups(&[7]), [[7]]);
        assert_eq!(groups(&[0, 0]), [[0, 0]]);
        assert_eq!(groups(&[]), [Vec::<u64>::new()]);
    }
}
