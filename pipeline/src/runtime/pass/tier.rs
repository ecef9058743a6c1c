//! Parameters in the memory of the host, between the source and a device with its own memory.

use std::collections::BTreeSet;
use std::collections::hash_map::{Entry, HashMap};

use burn::tensor::Device;
use parking_lot::Mutex;
use tinderbox_deferred::{Observer, Request, Source, SourceError, read_values};
use tinderbox_fake::DynTensor;

use super::pass::Pass;
use super::spill::moved;
use crate::runtime::streamed::Item;

/// The parameters that stay in the memory of the host.
pub(crate) struct HostTier {
    limit_bytes: u64,
    held: Mutex<HostValues>,
}

#[derive(Default)]
struct HostValues {
    /// The parameters that stay, by position in the table.
    chosen: BTreeSet<usize>,
    values: HashMap<usize, DynTensor>,
}

impl HostTier {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            held: Mutex::default(),
        }
    }

    /// Chooses what stays for a pass, of the parameters that it does not change, and drops the rest.
    ///
    /// Cost: linear in the values of all visits.
    pub(crate) fn choose(&self, pass: &Pass, is_changed: impl Fn(usize) -> bool) {
        if self.limit_bytes == 0 {
            return;
        }
        let position = |item: usize| match pass.items[item] {
            Item::Parameter(position) if !is_changed(position) => Some(position),
            _ => None,
        };
        let chosen = pass
            .plan
            .behind(self.limit_bytes, |item| position(item).is_some());
        let held = &mut *self.held.lock();
        held.chosen = chosen.into_iter().filter_map(position).collect();
        held.values.retain(|at, value| {
            held.chosen.contains(at) && pass.dtypes.get(at) == Some(&value.dtype())
        });
    }

    /// Reads parameters, each requested by its position in the table: from the host if they are there, or from the source. Returns
    /// them by position.
    pub(crate) fn read(
        &self,
        requested: &[(usize, Request)],
        source: &dyn Source,
        observer: &dyn Observer,
    ) -> Result<HashMap<usize, DynTensor>, SourceError> {
        let mut held = self.held.lock();
        let missing = requested.iter();
        let missing = missing.filter(|(at, _)| !held.values.contains_key(at));
        let missing: Vec<&(usize, Request)> = missing.collect();
        // On the device, where a source may compute them.
        let requests = missing.iter().map(|(_, request)| request.clone());
        let found = read_values(&requests.collect::<Vec<_>>(), source, observer)?;
        let positions = missing.into_iter().map(|(at, _)| *at);
        let mut read: HashMap<usize, DynTensor> = positions.zip(found).collect();
        let HostValues { chosen, values } = &mut *held;
        for (at, value) in read.iter().filter(|(at, _)| chosen.contains(at)) {
            values.insert(*at, moved(value.clone(), &Device::flex())?);
        }
        for (at, request) in requested {
            if let Entry::Vacant(place) = read.entry(*at) {
                place.insert(moved(values[at].clone(), &request.device)?);
            }
        }
        Ok(read)
    }
}
