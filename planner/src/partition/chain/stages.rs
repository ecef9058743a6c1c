//! What a stage of some blocks takes on its rank, and whether it fits.

use tinderbox_schedule::{LinkCosts, Schedule, StageIndex};

use super::flight::{Flight, flights};
use super::model::{LONGEST_NS, Programs, StepModel};
use super::ranges::RangeBytes;
use crate::{Machine, RankModel, Step, Work};

/// A stage's part in the time of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StageTime {
    /// In the maximum.
    pub(super) most: u64,
    /// In the sum.
    pub(super) sum: u64,
    /// Whether it fits only with its activations made again.
    pub(super) recompute: bool,
}

/// One place of the pipeline: the rank of a stage and its neighbours'.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) rank: RankModel,
    /// Bytes that the stage may hold.
    pub(super) limit_bytes: u64,
    /// Whether the stage before lies on another rank.
    comes_far: bool,
    /// Whether the stage behind lies on another rank.
    goes_far: bool,
    flights: Vec<Flight>,
    /// The fastest rank of this place and those behind it.
    fastest: RankModel,
}

/// Sums over the blocks before each position.
#[derive(Debug)]
struct Sums {
    programs: Vec<Programs>,
    weight_gradient_bytes: Vec<u64>,
}

/// Times and bytes of stages, of any blocks in any place.
#[derive(Debug)]
pub(super) struct Stages {
    sums: Sums,
    pub(super) places: Vec<Place>,
    pub(super) model: StepModel,
    link: LinkCosts,
    action_ns: u64,
    may_recompute: bool,
}

impl Stages {
    /// Linear in blocks and in the actions of the lists.
    pub(super) fn new(
        work: &Work,
        machine: &Machine,
        step: &Step,
        lists: Option<&Schedule>,
    ) -> Self {
        let map = machine.stage_to_rank();
        let places = map.iter().enumerate().map(|(stage, rank)| Place {
            rank: machine.rank(*rank),
            limit_bytes: machine.rank(*rank).memory_bytes.unwrap_or(u64::MAX),
            comes_far: stage > 0 && map[stage - 1] != *rank,
            goes_far: map.get(stage + 1).is_some_and(|next| next != rank),
            flights: flights(lists, StageIndex::new(stage)),
            fastest: machine.rank(*rank),
        });
        let mut places: Vec<Place> = places.collect();
        for place in (1..places.len()).rev() {
            let behind = places[place].fastest;
            if behind.speed_permille > places[place - 1].fastest.speed_permille {
                places[place - 1].fastest = behind;
            }
        }
        Self {
            sums: Sums::new(work),
            places,
            model: StepModel::new(step, machine.ranks(), machine.chunks(), lists),
            link: machine.link,
            action_ns: machine.action_ns.min(LONGEST_NS >> 8),
            may_recompute: step.may_recompute,
        }
    }

    /// Number of stages.
    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    /// Whether a stage may make its activations again.
    pub(super) fn may_recompute(&self) -> bool {
        self.may_recompute
    }

    /// What the stage of blocks `from..to` in a place takes; `None` where it does not fit.
    pub(super) fn time(
        &self,
        place: usize,
        range: (usize, usize),
        bytes: &RangeBytes,
    ) -> Option<StageTime> {
        let recompute = self.recomputes(place, range, bytes)?;
        let (most, sum) = self.parts(place, range, bytes, recompute);
        Some(StageTime {
            most,
            sum,
            recompute,
        })
    }

    /// Whether the stage of some blocks in a place makes its activations again, since it does not fit
    /// else; `None` where it fits in no way. A stage that keeps them takes less time.
    pub(super) fn recomputes(
        &self,
        place: usize,
        range: (usize, usize),
        bytes: &RangeBytes,
    ) -> Option<bool> {
        let limit = self.places[place].limit_bytes;
        let fits = |recompute| {
            limit == u64::MAX || self.held_bytes(place, range, bytes, recompute) <= limit
        };
        match (fits(false), self.may_recompute) {
            (true, _) => Some(false),
            (false, true) if fits(true) => Some(true),
            _ => None,
        }
    }

    /// A number for each place: the same where the same blocks take the same time.
    pub(super) fn kinds(&self) -> Vec<usize> {
        let mut known = Vec::new();
        let places = self.places.iter();
        let kinds = places.map(|place| {
            let kind = (place.rank.speed_permille, place.comes_far, place.goes_far);
            let position = known.iter().position(|other| *other == kind);
            position.unwrap_or_else(|| {
                known.push(kind);
                known.len() - 1
            })
        });
        kinds.collect()
    }

    /// A stage's parts in the maximum and in the sum.
    pub(super) fn parts(
        &self,
        place: usize,
        (from, to): (usize, usize),
        bytes: &RangeBytes,
        recompute: bool,
    ) -> (u64, u64) {
        let at = &self.places[place];
        let [into, back] = match at.comes_far {
            true => [bytes.forward_in, bytes.gradient_out],
            false => [0, 0],
        };
        let [out, returned] = match at.goes_far {
            true => [bytes.forward_out, bytes.gradient_in],
            false => [0, 0],
        };
        let messages = |a: u64, b: u64| (u64::from(a > 0) + u64::from(b > 0)) * self.action_ns;
        let stage = |recompute| {
            let mut times = self.programs(at.rank, (from, to), recompute);
            times.forward += messages(into, out);
            times.backward += messages(returned, back);
            times.input += messages(returned, back);
            self.model.stage(times)
        };
        let (most, mut sum) = stage(recompute);
        if recompute {
            // Some heads fall where `I` grows; work that is done twice is no gain.
            sum = sum.max(stage(false).1);
        }
        sum += message_ns(self.link, into) + message_ns(self.link, back);
        let busy = self.link.transfer(into).max(self.link.transfer(back));
        (most.max(self.model.link(busy.min(LONGEST_NS))), sum)
    }

    /// Times of the programs of blocks `from..to` on a rank, without messages.
    fn programs(&self, rank: RankModel, (from, to): (usize, usize), recompute: bool) -> Programs {
        let mut times = self.sums.between(from, to);
        if recompute {
            times.backward += times.forward;
            times.input += times.forward;
        }
        // As `RankModel::time`, without numbers of 128 bits: a thousand times the longest fits.
        let time = |nanoseconds: u64| {
            let scaled = match rank.speed_permille {
                1000 => nanoseconds,
                speed => nanoseconds * 1000 / speed.max(1),
            };
            scaled.min(LONGEST_NS) + self.action_ns
        };
        Programs {
            forward: time(times.forward),
            backward: time(times.backward),
            input: time(times.input),
            weight: time(times.weight),
        }
    }

    /// What a stage holds at its peak, with two messages waiting at each of its ends.
    pub(super) fn held_bytes(
        &self,
        place: usize,
        (from, to): (usize, usize),
        bytes: &RangeBytes,
        recompute: bool,
    ) -> u64 {
        let at = &self.places[place];
        let each = self.sums.weight_gradient_bytes(from, to);
        let (activation, own) = match recompute {
            true => (bytes.got, bytes.kept - bytes.got),
            false => (bytes.kept, 0),
        };
        let into = if at.comes_far { bytes.forward_in } else { 0 };
        let returned = if at.goes_far { bytes.gradient_in } else { 0 };
        let buffers = into.saturating_add(returned).saturating_mul(2);
        most(&at.flights, activation, each)
            .saturating_add(bytes.resident)
            .saturating_add(bytes.transient)
            .saturating_add(own)
            .saturating_add(buffers)
    }

    /// The part in the maximum of any stage with these blocks at the least, or `None` where none fits.
    /// Grows with the blocks.
    pub(super) fn least_most(
        &self,
        place: usize,
        (from, to): (usize, usize),
        bytes: &RangeBytes,
    ) -> Option<u64> {
        let at = &self.places[place];
        let mut recompute = false;
        if at.limit_bytes < u64::MAX {
            if self.least_bytes(place, (from, to), bytes) > at.limit_bytes {
                return None;
            }
            recompute = self.least_kept(place, (from, to), bytes) > at.limit_bytes;
        }
        let times = self.programs(at.rank, (from, to), recompute);
        Some(self.model.stage(times).0)
    }

    /// What any stage with these blocks holds at the least. Grows with the blocks.
    pub(super) fn least_bytes(
        &self,
        place: usize,
        (from, to): (usize, usize),
        bytes: &RangeBytes,
    ) -> u64 {
        if !self.may_recompute {
            return self.least_kept(place, (from, to), bytes);
        }
        let each = self.sums.weight_gradient_bytes(from, to);
        // One micro-batch's activations are there while its backward runs.
        let held = self.places[place].flights.iter().map(|flight| {
            let kept = if flight.micro_batches > 0 {
                bytes.kept
            } else {
                0
            };
            kept.saturating_add(each.saturating_mul(flight.weight_gradients))
        });
        let held = held.max().unwrap_or(0).saturating_add(bytes.resident);
        held.saturating_add(bytes.transient)
    }

    /// The same of a stage that keeps its activations.
    fn least_kept(&self, place: usize, (from, to): (usize, usize), bytes: &RangeBytes) -> u64 {
        let each = self.sums.weight_gradient_bytes(from, to);
        most(&self.places[place].flights, bytes.kept, each)
            .saturating_add(bytes.resident)
            .saturating_add(bytes.transient)
    }

    /// Nanoseconds of the blocks before a position, on a rank of speed 1.
    pub(super) fn work_before(&self, at: usize) -> u64 {
        let before = self.sums.between(0, at);
        before.forward + before.backward
    }

    /// What all stages from a place on add to the sum at the least, where they run blocks from `from`
    /// on: heads grow at most as fast as their blocks', so those of all blocks in one stage on the
    /// fastest rank are not more.
    pub(super) fn least_sum(&self, place: usize, from: usize) -> u64 {
        let left = &self.places[place..];
        let Some(fastest) = left.first().map(|place| place.fastest) else {
            return 0;
        };
        let mut times = self.programs(fastest, (from, self.sums.programs.len() - 1), false);
        let more = self.action_ns.saturating_mul(left.len() as u64 - 1);
        for time in [
            &mut times.forward,
            &mut times.backward,
            &mut times.input,
            &mut times.weight,
        ] {
            *time = time.saturating_add(more).min(LONGEST_NS);
        }
        // Times are rounded down, a few for each stage.
        let rounded = 16 * left.len() as u64;
        self.model.stage(times).1.saturating_sub(rounded)
    }

    /// Whether the stage in a place gets messages from the one before.
    pub(super) fn comes_far(&self, place: usize) -> bool {
        self.places[place].comes_far
    }

    /// Time of a step in nanoseconds: rounded up, with the reduce and the update that end it.
    pub(super) fn step_ns(&self, scaled: u64) -> u64 {
        let time = scaled.div_ceil(self.model.chunks);
        time.saturating_add(2 * self.action_ns)
    }
}

/// What a message of so many bytes adds to the sum; nothing where there is none.
pub(super) fn message_ns(link: LinkCosts, bytes: u64) -> u64 {
    match bytes {
        0 => 0,
        _ => link.transfer(bytes).min(LONGEST_NS) + link.latency.min(LONGEST_NS),
    }
}

/// The most bytes of states with so many bytes per micro-batch and per weight gradient.
fn most(flights: &[Flight], activation: u64, weight_gradient: u64) -> u64 {
    let held = flights.iter().map(|flight| {
        activation
            .saturating_mul(flight.micro_batches)
            .saturating_add(weight_gradient.saturating_mul(flight.weight_gradients))
    });
    held.max().unwrap_or(0)
}

impl Sums {
    fn new(work: &Work) -> Self {
        let blocks = (work.blocks.len() as u64).max(1);
        let [longest, largest] = [LONGEST_NS / blocks, u64::MAX / 8 / blocks];
        let mut now = (Programs::default(), 0);
        let mut sums = Self {
            programs: vec![now.0],
            weight_gradient_bytes: vec![now.1],
        };
        for block in &work.blocks {
            now.0.forward += block.forward.min(longest);
            now.0.backward += block.backward.min(longest);
            now.0.input += block.input_gradient.min(longest);
            now.0.weight += block.weight_gradient.min(longest);
            now.1 += block.weight_gradient_bytes.min(largest);
            sums.programs.push(now.0);
            sums.weight_gradient_bytes.push(now.1);
        }
        sums
    }

    fn between(&self, from: usize, to: usize) -> Programs {
        let [a, b] = [from.min(to), to].map(|at| self.programs[at]);
        Programs {
            forward: b.forward - a.forward,
            backward: b.backward - a.backward,
            input: b.input - a.input,
            weight: b.weight - a.weight,
        }
    }

    fn weight_gradient_bytes(&self, from: usize, to: usize) -> u64 {
        self.weight_gradient_bytes[to] - self.weight_gradient_bytes[from.min(to)]
    }
}
