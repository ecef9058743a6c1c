//! What stays in memory in a pass over the model, decided before it runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{DType, Device};
use tinderbox_deferred::{ParameterTable, Request, Source, available_bytes, process_bytes};
use tinderbox_planner::{
    MemoryBudget, StreamError, StreamItem, StreamPlan, StreamPrediction, StreamVisit,
};

use super::bytes::{ForwardVisit, forward_visits};
use crate::StreamedError;
use crate::runtime::rank::RankSetup;
use crate::runtime::stage::CutProgram;
use crate::schedule::StageIndex;

/// Bytes that the process may need in addition to all that is counted: stacks of threads, small allocations, and memory that
/// the allocator can't reuse.
const SPARE_BYTES: u64 = 8 << 20;
/// The part of the counted bytes that the allocator may not be able to reuse.
const SPARE_PART: u64 = 32;

/// A pass: the order of the stages, and what stays in memory meanwhile.
#[derive(Debug)]
pub(in crate::runtime) struct Pass {
    pub(super) plan: Arc<StreamPlan>,
    /// The stage of each visit.
    pub(super) stages: Vec<StageIndex>,
    /// The position in the table of each value, and the dtype in which it is read.
    pub(super) parameters: Vec<(usize, DType)>,
    /// The visits with which it was planned.
    visits: Vec<ForwardVisit>,
}

impl Pass {
    /// The request for a value.
    pub(super) fn request(&self, setup: &RankSetup, item: usize) -> Request {
        request(&setup.table, &setup.device, self.parameters[item])
    }

    /// Whether a pass of these visits may be run with its plan, and would not leave much memory unused.
    fn serves(&self, visits: &[ForwardVisit], budget_bytes: u64) -> bool {
        self.visits.len() == visits.len()
            && self.visits.iter().zip(visits).all(|(planned, visit)| {
                let unused = planned.other_bytes.checked_sub(visit.other_bytes);
                planned.parameters == visit.parameters
                    && unused.is_some_and(|unused| unused <= budget_bytes / 8)
            })
    }
}

fn request(table: &ParameterTable, device: &Device, (position, dtype): (usize, DType)) -> Request {
    let parameter = &table.iter().as_slice()[position];
    let request = Request::of(parameter, device);
    Request { dtype, ..request }
}

/// Returns whether the system's cache of files can hold a model of so many bytes beside what the limit allows. Of files that are
/// read in turn, a cache that is a little too small holds none.
pub(super) fn is_cached(model_bytes: u64, budget: MemoryBudget, device: &Device) -> bool {
    let Some(available) = available_bytes(device) else {
        return true;
    };
    let left = match budget {
        MemoryBudget::Available => available / 10,
        MemoryBudget::Values(bytes) => available.saturating_sub(bytes),
        MemoryBudget::Bytes(bytes) => {
            (available + process_bytes().unwrap_or(0)).saturating_sub(bytes)
        }
    };
    model_bytes <= left
}

/// Plans passes within a memory limit.
pub(in crate::runtime) struct Passes {
    budget: MemoryBudget,
    table: Arc<ParameterTable>,
    device: Device,
    source: Arc<dyn Source>,
    /// The limit in bytes.
    limit_bytes: u64,
    /// The bytes of it that are allowed for values.
    values_bytes: u64,
    /// Bytes that are not for values.
    besides_bytes: u64,
    last: Option<Arc<Pass>>,
}

impl Passes {
    /// Measures what the process holds. Called when everything but parameters and activations is there.
    pub(in crate::runtime) fn new(
        budget: MemoryBudget,
        (table, device): (Arc<ParameterTable>, Device),
        source: Arc<dyn Source>,
    ) -> Self {
        tinderbox_pages::release_freed_memory();
        let (limit_bytes, besides_bytes) = match budget {
            MemoryBudget::Values(bytes) => (bytes, 0),
            MemoryBudget::Bytes(bytes) => {
                let spare = SPARE_BYTES + bytes / SPARE_PART;
                (bytes, process_bytes().unwrap_or(0) + spare)
            }
            MemoryBudget::Available => {
                let available = available_bytes(&device).unwrap_or(u64::MAX);
                (available, SPARE_BYTES + available / 10)
            }
        };
        Self {
            budget,
            table,
            device,
            source,
            limit_bytes,
            values_bytes: limit_bytes.saturating_sub(besides_bytes),
            besides_bytes,
            last: None,
        }
    }

    /// The pass over micro-batches with these programs, if other carried values of so many bytes exist.
    pub(in crate::runtime) fn pass(
        &mut self,
        cuts: &[&CutProgram],
        carried_bytes: u64,
    ) -> Result<Arc<Pass>, StreamedError> {
        let forwards: Vec<_> = cuts.iter().map(|cut| &cut.forward_bytes).collect();
        let mut visits = forward_visits(&forwards);
        for visit in &mut visits {
            visit.other_bytes += carried_bytes;
        }
        if let Some(last) = &self.last
            && last.serves(&visits, self.values_bytes)
        {
            return Ok(last.clone());
        }
        let pass = Arc::new(self.plan(visits)?);
        self.last = Some(pass.clone());
        Ok(pass)
    }

    /// What the last pass reads and keeps, with the times of reading so many bytes of values per second, and of these visits.
    pub(super) fn prediction(
        &self,
        read_bytes_per_s: u64,
        compute_ns: impl Fn(StageIndex) -> u64,
    ) -> Option<StreamPrediction> {
        let pass = self.last.as_ref()?;
        let read_ns = |bytes: u64| {
            let nanoseconds =
                u128::from(bytes) * 1_000_000_000 / u128::from(read_bytes_per_s.max(1));
            u64::try_from(nanoseconds).unwrap_or(u64::MAX)
        };
        let plan = StreamPlan::clone(&pass.plan);
        let plan = plan.with_times(
            |item| read_ns(item.bytes),
            |visit| compute_ns(pass.stages[visit]),
        );
        Some(plan.predict())
    }

    fn plan(&self, visits: Vec<ForwardVisit>) -> Result<Pass, StreamedError> {
        let table = &self.table;
        // Each parameter once, in the dtype in which it is read, or in its own if that differs.
        let mut parameters: BTreeMap<usize, DType> = BTreeMap::new();
        for (position, dtype) in visits.iter().flat_map(|visit| &visit.parameters) {
            let read = parameters.entry(*position).or_insert(*dtype);
            if read != dtype {
                *read = table.iter().as_slice()[*position].dtype;
            }
        }
        let parameters: Vec<(usize, DType)> = parameters.into_iter().collect();
        let requests = parameters
            .iter()
            .map(|of| request(table, &self.device, *of));
        let requests: Vec<Request> = requests.collect();
        // Of any group of them.
        let working = self.source.working_bytes(&requests);
        let item_of: BTreeMap<usize, usize> = parameters
            .iter()
            .enumerate()
            .map(|(item, (position, _))| (*position, item))
            .collect();
        let items = requests.iter().map(|request| StreamItem {
            bytes: request.bytes(),
            read_ns: 0,
        });
        let streamed = visits.iter().map(|visit| StreamVisit {
            items: visit
                .parameters
                .keys()
                .map(|position| item_of[position])
                .collect(),
            other_bytes: visit.other_bytes + working,
            compute_ns: 0,
        });
        let plan = StreamPlan::new(items.collect(), streamed.collect(), self.values_bytes);
        let plan = plan.map_err(|error| self.too_small(&error, &visits, working))?;
        let stages = visits.len();
        tracing::info!(
            stages,
            values_bytes = self.values_bytes,
            "a pass was planned"
        );
        Ok(Pass {
            plan: Arc::new(plan),
            stages: visits.iter().map(|visit| visit.stage).collect(),
            parameters,
            visits,
        })
    }

    fn too_small(
        &self,
        error: &StreamError,
        visits: &[ForwardVisit],
        working: u64,
    ) -> StreamedError {
        let visit = &visits[error.visit];
        let other_bytes = visit.other_bytes + working;
        let least_bytes = match self.budget {
            // A part of the limit is spare.
            MemoryBudget::Bytes(bytes) => {
                let needed = error.least_bytes + self.besides_bytes - bytes / SPARE_PART;
                needed + needed / (SPARE_PART - 1) + 1
            }
            _ => error.least_bytes + self.besides_bytes,
        };
        StreamedError::Budget {
            budget_bytes: self.limit_bytes,
            least_bytes,
            stage: visit.stage,
            parameter_bytes: error.least_bytes - other_bytes,
            other_bytes,
            besides_bytes: self.besides_bytes,
        }
    }
}
