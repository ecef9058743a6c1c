//! What stays in memory in a pass over the model, decided before it runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::DType;
use tinderbox_deferred::{ParameterTable, Request, Source, available_bytes, process_bytes};
use tinderbox_fake::Mode;
use tinderbox_planner::{
    DiskRate, MemoryBudget, StreamError, StreamItem, StreamPlan, StreamPrediction, StreamVisit,
    UPDATE_VALUES,
};

use super::spill;
use super::visits::{Visit, visits};
use crate::StreamedError;
use crate::lists::StepLists;
use crate::runtime::program::CutProgram;
use crate::runtime::streamed::{Item, StreamedSetup, request_as};
use crate::schedule::StageIndex;

/// Bytes that the process may need in addition to all that is counted: stacks of threads, small allocations, and memory that
/// the allocator can't reuse.
const SPARE_BYTES: u64 = 8 << 20;
/// The part of the counted bytes that the allocator may not be able to reuse.
const SPARE_PART: u64 = 32;

/// A pass: the order of the stages, and what stays in memory meanwhile.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) plan: Arc<StreamPlan>,
    /// The values, in the order of the plan.
    pub(crate) items: Vec<Item>,
    /// The dtype in which each parameter is read, by position in the table.
    pub(crate) dtypes: BTreeMap<usize, DType>,
    /// Whether it changes what is read.
    pub(crate) is_training: bool,
    /// The visits with which it was planned.
    pub(super) visits: Vec<Visit>,
}

impl Pass {
    /// Whether a pass of these visits may be run with its plan, and would not leave much memory unused.
    fn serves(&self, visits: &[Visit], is_training: bool, budget_bytes: u64) -> bool {
        let is_same = |planned: &Visit, visit: &Visit| {
            planned.stage == visit.stage
                && planned.parameters == visit.parameters
                && planned.values == visit.values
                && planned.is_update == visit.is_update
        };
        self.is_training == is_training
            && self.visits.len() == visits.len()
            && self.visits.iter().zip(visits).all(|(planned, visit)| {
                let unused = planned.other_bytes.checked_sub(visit.other_bytes);
                is_same(planned, visit) && unused.is_some_and(|unused| unused <= budget_bytes / 8)
            })
    }
}

/// Plans passes within a memory limit.
pub(crate) struct Passes {
    budget: MemoryBudget,
    table: Arc<ParameterTable>,
    source: Arc<dyn Source>,
    /// What a step may change, and where it may write activations.
    setup: Arc<StreamedSetup>,
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
    pub(crate) fn new(
        budget: MemoryBudget,
        table: Arc<ParameterTable>,
        source: Arc<dyn Source>,
        setup: Arc<StreamedSetup>,
    ) -> Self {
        if let MemoryBudget::Bytes(_) = budget {
            // What an allocator keeps for later is memory of the process too.
            tinderbox_pages::return_freed_blocks();
        }
        tinderbox_pages::release_freed_memory();
        let (limit_bytes, besides_bytes) = match budget {
            MemoryBudget::Values(bytes) => (bytes, 0),
            MemoryBudget::Bytes(bytes) => {
                let spare = SPARE_BYTES + bytes / SPARE_PART;
                (bytes, process_bytes().unwrap_or(0) + spare)
            }
            MemoryBudget::Available => {
                let available = available_bytes(&setup.device).unwrap_or(u64::MAX);
                (available, SPARE_BYTES + available / 10)
            }
        };
        Self {
            budget,
            table,
            source,
            setup,
            limit_bytes,
            values_bytes: limit_bytes.saturating_sub(besides_bytes),
            besides_bytes,
            last: None,
        }
    }

    /// The pass of these lists over micro-batches with these programs, if other carried values of so many bytes exist.
    pub(crate) fn pass(
        &mut self,
        mode: Mode,
        lists: &StepLists,
        cuts: &[&CutProgram],
        carried_bytes: u64,
    ) -> Result<Arc<Pass>, StreamedError> {
        let is_training = mode == Mode::Training;
        let mut visits = visits(lists, cuts, is_training && self.setup.scratch_dir.is_some());
        let parameters = self.table.iter().as_slice();
        // Of the stage that was updated before, while it is written.
        let mut written = 0;
        for visit in &mut visits {
            let mut rows = std::mem::take(&mut visit.rows);
            rows.retain(|position, _| !visit.parameters.contains_key(position));
            match is_training {
                // It holds them whole, to update them.
                true => {
                    let whole = rows.into_iter().map(|(at, (dtype, _))| (at, dtype));
                    visit.parameters.extend(whole);
                }
                false => visit.other_bytes += self.bytes_of_rows(&rows),
            }
            visit.other_bytes += carried_bytes + written;
            let trained = self.setup.trained.get(visit.stage.index());
            let (mut updated, mut largest) = (0, 0);
            for (position, state) in trained.into_iter().flatten().filter(|_| is_training) {
                let parameter = &parameters[*position];
                // The stage holds them as they are, to update them, and as programs read them.
                let read = visit.parameters.insert(*position, parameter.dtype);
                if let Some(read) = read.filter(|read| *read != parameter.dtype) {
                    visit.other_bytes += read.size() as u64 * parameter.elements();
                }
                if let Some(state) = state.filter(|_| visit.is_update) {
                    visit.values.insert(Item::State(*position), state);
                    // The memory of the old values is free, and not yet used again; while they are written, states are copied.
                    visit.other_bytes += parameter.bytes + 2 * state;
                    updated += parameter.bytes + state;
                    largest = largest.max(parameter.bytes);
                }
            }
            // What an optimizer computes inside, of one parameter at a time.
            visit.other_bytes += UPDATE_VALUES * largest;
            if updated > 0 {
                // What was written before is waited for then.
                written = updated;
            }
        }
        if let Some(last) = &self.last
            && last.serves(&visits, is_training, self.values_bytes)
        {
            return Ok(last.clone());
        }
        let pass = Arc::new(self.plan(visits, is_training)?);
        self.last = Some(pass.clone());
        Ok(pass)
    }

    /// What reading rows of parameters takes.
    fn bytes_of_rows(&self, rows: &BTreeMap<usize, (DType, u64)>) -> u64 {
        let requests = rows.iter().map(|(position, (dtype, count))| {
            request_as(&self.table, *position, *dtype, &self.setup.device).rows(0, *count)
        });
        let requests: Vec<Request> = requests.collect();
        let bytes: u64 = requests.iter().map(Request::bytes).sum();
        // In parts, and joined.
        2 * bytes + self.source.working_bytes(&requests)
    }

    /// What the last pass reads and keeps, with the times of reading from a disk, and of these visits.
    pub(crate) fn prediction(
        &self,
        disk: DiskRate,
        compute_ns: impl Fn(StageIndex) -> u64,
    ) -> Option<StreamPrediction> {
        let pass = self.last.as_ref()?;
        let plan = StreamPlan::clone(&pass.plan);
        let of_visit = |visit: usize| compute_ns(pass.visits[visit].stage);
        let plan = plan.with_times(disk, of_visit);
        Some(plan.predict())
    }

    fn plan(&self, visits: Vec<Visit>, is_training: bool) -> Result<Pass, StreamedError> {
        let table = &self.table;
        // Each parameter once, in the dtype in which it is read, or in its own if that differs.
        let mut dtypes: BTreeMap<usize, DType> = BTreeMap::new();
        for (position, dtype) in visits.iter().flat_map(|visit| &visit.parameters) {
            let read = dtypes.entry(*position).or_insert(*dtype);
            if read != dtype {
                *read = table.iter().as_slice()[*position].dtype;
            }
        }
        let requests = dtypes.iter();
        let requests =
            requests.map(|(at, dtype)| request_as(table, *at, *dtype, &self.setup.device));
        let requests: Vec<Request> = requests.collect();
        // Of any group of them, and of any activation.
        let largest = visits.iter().flat_map(Visit::activations).max();
        let largest = largest.unwrap_or(0);
        let working = self.source.working_bytes(&requests) + spill::working_bytes(largest);
        let positions = dtypes.keys().copied().map(Item::Parameter);
        let bytes = requests.iter().map(Request::bytes);
        let mut items: BTreeMap<Item, u64> = positions.zip(bytes).collect();
        items.extend(visits.iter().flat_map(|visit| &visit.values));
        let index: BTreeMap<Item, usize> = items.keys().copied().zip(0..).collect();
        let stream_items = items.iter().map(|(item, bytes)| StreamItem {
            bytes: *bytes,
            read_ns: 0,
            is_made: matches!(item, Item::Activation(_)),
        });
        let streamed = visits.iter().map(|visit| {
            let parameters = visit.parameters.keys().copied().map(Item::Parameter);
            let values = parameters.chain(visit.values.keys().copied());
            StreamVisit {
                items: values.map(|item| index[&item]).collect(),
                other_bytes: visit.other_bytes + working,
                compute_ns: 0,
            }
        });
        let streamed = streamed.collect();
        let plan = StreamPlan::new(stream_items.collect(), streamed, self.values_bytes);
        let plan = plan.map_err(|error| self.too_small(&error, &visits, working))?;
        tracing::info!(
            visits = visits.len(),
            values_bytes = self.values_bytes,
            "a pass was planned"
        );
        Ok(Pass {
            plan: Arc::new(plan),
            items: items.into_keys().collect(),
            dtypes,
            is_training,
            visits,
        })
    }

    fn too_small(&self, error: &StreamError, visits: &[Visit], working: u64) -> StreamedError {
        let visit = &visits[error.visit];
        let activations: u64 = visit.activations().sum();
        let other_bytes = visit.other_bytes + activations + working;
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
