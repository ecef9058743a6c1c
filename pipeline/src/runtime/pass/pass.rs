//! The plan of a pass over the model: which values stay in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use burn::tensor::DType;
use tinderbox_deferred::{ParameterTable, Request, Source, available_bytes, process_bytes};
use tinderbox_planner::{
    DiskRate, MemoryBudget, StreamError, StreamItem, StreamPlan, StreamPrediction, StreamVisit,
    UPDATE_VALUES,
};

use super::tiers;
use super::visits::{Visit, visits};
use crate::StreamedError;
use crate::lists::StepLists;
use crate::runtime::program::CutProgram;
use crate::runtime::streamed::{Item, StreamedSetup, request_as};
use crate::schedule::{ScheduleMode, StageIndex};

/// Bytes that the process may need in addition to the counted bytes: stacks of threads, small allocations, and memory that
/// the allocator can't reuse.
const SPARE_BYTES: u64 = 8 << 20;
/// The part of the counted bytes that the allocator may not be able to reuse.
const SPARE_PART: u64 = 32;

/// A pass: the order of the stages, and the values that stay in memory meanwhile.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) plan: Arc<StreamPlan>,
    /// The values, in the order of the plan.
    pub(crate) items: Vec<Item>,
    /// The dtype in which each parameter is read, by position in the table.
    pub(crate) dtypes: BTreeMap<usize, DType>,
    /// Whether the pass changes the values that it reads.
    pub(crate) is_training: bool,
    /// The visits for which the pass was planned.
    pub(super) visits: Vec<Visit>,
}

impl Pass {
    /// The parameters that stay in the memory of the host, by position: at most `bytes`, and none that the pass changes.
    ///
    /// Cost: linear in the values of all visits.
    pub(super) fn host_parameters(
        &self,
        bytes: u64,
        is_changed: impl Fn(usize) -> bool,
    ) -> BTreeSet<usize> {
        let position = |item: usize| match self.items[item] {
            Item::Parameter(position) if !is_changed(position) => Some(position),
            _ => None,
        };
        let may_stay = |item| position(item).is_some();
        let chosen = self.plan.second_tier(bytes, may_stay);
        chosen.into_iter().filter_map(position).collect()
    }

    /// Whether a pass of these visits may run with this plan without leaving much memory unused.
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
    table: Arc<ParameterTable>,
    source: Arc<dyn Source>,
    /// The limit, the parameters that a step may change, and the directory for activations.
    setup: Arc<StreamedSetup>,
    /// The limit in bytes.
    limit_bytes: u64,
    /// The part of the limit for values, in bytes.
    values_bytes: u64,
    /// The rest of the limit, in bytes.
    besides_bytes: u64,
    last: Option<Arc<Pass>>,
}

impl Passes {
    /// Measures the memory of the process. Must be called once everything exists except parameters and activations.
    pub(crate) fn new(
        table: Arc<ParameterTable>,
        source: Arc<dyn Source>,
        setup: Arc<StreamedSetup>,
    ) -> Self {
        let budget = setup.options.budget;
        if let MemoryBudget::Bytes(_) = budget {
            // Memory that an allocator keeps for later is memory of the process too.
            tinderbox_memory::return_freed_blocks();
        }
        tinderbox_memory::release_freed_memory();
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
            table,
            source,
            setup,
            limit_bytes,
            values_bytes: limit_bytes.saturating_sub(besides_bytes),
            besides_bytes,
            last: None,
        }
    }

    /// Returns the pass of these lists over micro-batches with these programs. `carried_bytes` are the bytes of the other
    /// carried values that exist.
    pub(crate) fn pass(
        &mut self,
        lists: &StepLists,
        cuts: &[&CutProgram],
        carried_bytes: u64,
    ) -> Result<Arc<Pass>, StreamedError> {
        let is_training = lists.schedule.mode == ScheduleMode::Training;
        let mut visits = visits(lists, cuts, is_training && self.setup.scratch_dir.is_some());
        let parameters = self.table.iter().as_slice();
        // The bytes of the stage that was updated before, while they are written.
        let mut written = 0;
        for visit in &mut visits {
            let mut rows = std::mem::take(&mut visit.rows);
            rows.retain(|position, _| !visit.parameters.contains_key(position));
            match is_training {
                // The stage holds them whole, to update them.
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
                // The stage holds them in their own dtype, to update them, and in the dtype that programs read.
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
            // The temporary values of an optimizer, for one parameter at a time.
            visit.other_bytes += UPDATE_VALUES * largest;
            if updated > 0 {
                // Then the earlier writes have ended.
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

    /// The bytes that reading rows of parameters needs.
    fn bytes_of_rows(&self, rows: &BTreeMap<usize, (DType, u64)>) -> u64 {
        let requests = rows.iter().map(|(position, (dtype, count))| {
            request_as(&self.table, *position, *dtype, &self.setup.device).rows(0, *count)
        });
        let requests: Vec<Request> = requests.collect();
        let bytes: u64 = requests.iter().map(Request::bytes).sum();
        // The parts, and the parts joined.
        2 * bytes + self.source.working_bytes(&requests)
    }

    /// Predicts what the last pass reads and keeps, and its times with a disk of this rate and visits of these times.
    pub(crate) fn prediction(
        &self,
        disk: DiskRate,
        compute_ns: impl Fn(StageIndex) -> u64,
    ) -> Option<StreamPrediction> {
        let pass = self.last.as_ref()?;
        let of_visit = |visit: usize| compute_ns(pass.visits[visit].stage);
        Some(pass.plan.predict(disk, of_visit))
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
        let requests = requests.map(|(at, read)| request_as(table, *at, *read, &self.setup.device));
        let requests: Vec<Request> = requests.collect();
        // For any group of parameters, and any activation.
        let largest = visits.iter().flat_map(Visit::activations).max();
        let largest = largest.unwrap_or(0);
        let working = self.source.working_bytes(&requests) + tiers::working_bytes(largest);
        let positions = dtypes.keys().copied().map(Item::Parameter);
        let bytes = requests.iter().map(Request::bytes);
        let mut items: BTreeMap<Item, u64> = positions.zip(bytes).collect();
        items.extend(visits.iter().flat_map(|visit| &visit.values));
        let index: BTreeMap<Item, usize> = items.keys().copied().zip(0..).collect();
        let stream_items = items.iter().map(|(item, bytes)| StreamItem {
            bytes: *bytes,
            is_made: matches!(item, Item::Activation(_)),
        });
        let streamed = visits.iter().map(|visit| {
            let parameters = visit.parameters.keys().copied().map(Item::Parameter);
            let values = parameters.chain(visit.values.keys().copied());
            StreamVisit {
                items: values.map(|item| index[&item]).collect(),
                other_bytes: visit.other_bytes + working,
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
        let least_bytes = match self.setup.options.budget {
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
