//! The time and memory of a stage on its rank.

use tinderbox_schedule::arithmetic::sum;
use tinderbox_schedule::{LinkCosts, Schedule, StageIndex};

use super::ranges::BlockRange;
use crate::cost_model::{LONGEST_NS, Programs, StepModel, message_ns};
use crate::partition::flight::{Flight, flights, most_bytes};
use crate::{Machine, RankModel, Step, Work};

/// The rank of a stage, and whether its neighbours are on other ranks.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) rank: RankModel,
    /// The memory limit of the stage in bytes.
    pub(super) limit_bytes: u64,
    /// Whether the stage before is on another rank.
    receives: bool,
    /// The time of messages from the stage before.
    link: LinkCosts,
    /// Whether the stage after is on another rank.
    sends: bool,
    flights: Vec<Flight>,
}

/// Sums over blocks: nanoseconds of `F`, `B`, `I` and `W`, and the bytes that `I` keeps for `W`.
type Sums = [u64; 5];

/// Times and bytes of stages of any blocks.
pub(super) struct Stages {
    /// The sums of the blocks before each one, and of all.
    sums: Vec<Sums>,
    pub(super) places: Vec<Place>,
    /// For each place, the first one at which the same blocks take the same time.
    pub(super) first_like: Vec<usize>,
    pub(super) model: StepModel,
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
        let places = map.iter().enumerate().map(|(stage, rank)| {
            let before = stage.checked_sub(1).map(|before| map[before]);
            let model = machine.rank(*rank);
            Place {
                rank: model,
                limit_bytes: model.memory_bytes.unwrap_or(u64::MAX),
                receives: before.is_some_and(|before| before != *rank),
                link: before.map_or(machine.link, |before| machine.link_between(before, *rank)),
                sends: map.get(stage + 1).is_some_and(|next| next != rank),
                flights: flights(lists, StageIndex::new(stage)),
            }
        });
        let places: Vec<Place> = places.collect();
        let kind = |place: &Place| {
            let speed = place.rank.speed_permille;
            let link = (place.link.latency, place.link.ticks_per_mib);
            (speed, place.receives, place.sends, link)
        };
        let first_like = places.iter().filter_map(|place| {
            let mut all = places.iter();
            all.position(|other| kind(other) == kind(place))
        });
        Self {
            sums: sums_of(work),
            first_like: first_like.collect(),
            places,
            model: StepModel::new(step, machine.ranks(), machine.chunks(), lists),
            action_ns: machine.action_ns.min(LONGEST_NS >> 8),
            may_recompute: step.may_recompute,
        }
    }

    /// Number of stages.
    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    /// Returns whether a stage recomputes its activations because it does not fit otherwise; `None` if
    /// it does not fit at all. A stage that keeps its activations is faster.
    pub(super) fn recomputes(&self, place: usize, range: &BlockRange) -> Option<bool> {
        let limit = self.places[place].limit_bytes;
        let fits =
            |recompute| limit == u64::MAX || self.held_bytes(place, range, recompute) <= limit;
        match (fits(false), self.may_recompute) {
            (true, _) => Some(false),
            (false, true) if fits(true) => Some(true),
            _ => None,
        }
    }

    /// A lower bound of the stage's term of the maximum: without messages. Grows with the blocks.
    pub(super) fn least_most(&self, place: usize, range: &BlockRange) -> u64 {
        let times = self.programs(self.places[place].rank, range, false);
        self.model.stage(times).0
    }

    /// The stage's terms of the maximum and of the sum.
    pub(super) fn parts(&self, place: usize, range: &BlockRange, recompute: bool) -> (u64, u64) {
        let (at, bytes) = (&self.places[place], &range.bytes);
        let [receives, sends] = [at.receives, at.sends].map(u64::from);
        let [into, back] = [bytes.forward_in, bytes.gradient_out].map(|bytes| bytes * receives);
        let [out, returned] = [bytes.forward_out, bytes.gradient_in].map(|bytes| bytes * sends);
        let messages = |a: u64, b: u64| (u64::from(a > 0) + u64::from(b > 0)) * self.action_ns;
        let (forwards, backwards) = (messages(into, out), messages(returned, back));
        let stage = |recompute| {
            let [forward, backward, input, weight] = self.programs(at.rank, range, recompute);
            let [backward, input] = [backward, input].map(|ns| ns + backwards);
            self.model
                .stage([forward + forwards, backward, input, weight])
        };
        let (most, mut sum) = stage(recompute);
        if recompute {
            // Some heads decrease as `I` grows; recomputation must not count as a gain.
            sum = sum.max(stage(false).1);
        }
        sum += message_ns(at.link, into) + message_ns(at.link, back);
        let busy = at.link.transfer(into).max(at.link.transfer(back));
        (most.max(self.model.link(busy.min(LONGEST_NS))), sum)
    }

    /// Times of the programs of blocks `from..to` on a rank, without messages.
    fn programs(&self, rank: RankModel, range: &BlockRange, recompute: bool) -> Programs {
        let [forward, mut backward, mut input, weight, _] = self.between(range.from, range.to);
        if recompute {
            backward += forward;
            input += forward;
        }
        // As `RankModel::time`, but in 64 bits: a thousand times the longest time fits.
        [forward, backward, input, weight].map(|nanoseconds| {
            let scaled = match rank.speed_permille {
                1000 => nanoseconds,
                speed => nanoseconds * 1000 / speed.max(1),
            };
            scaled.min(LONGEST_NS) + self.action_ns
        })
    }

    /// The bytes of a stage at its peak, with two messages waiting at each end.
    pub(super) fn held_bytes(&self, place: usize, range: &BlockRange, recompute: bool) -> u64 {
        let (at, bytes) = (&self.places[place], &range.bytes);
        let [.., each] = self.between(range.from, range.to);
        let activation = if recompute { bytes.got } else { bytes.kept };
        let own = bytes.kept - activation;
        let into = if at.receives { bytes.forward_in } else { 0 };
        let returned = if at.sends { bytes.gradient_in } else { 0 };
        let buffers = into.saturating_add(returned).saturating_mul(2);
        let flights = most_bytes(at.flights.iter().copied(), [activation, each]);
        sum([flights, bytes.resident, bytes.transient, own, buffers])
    }

    /// A lower bound of the bytes of any stage with these blocks. Grows with the blocks.
    pub(super) fn least_bytes(&self, place: usize, range: &BlockRange) -> u64 {
        let bytes = &range.bytes;
        let [.., each] = self.between(range.from, range.to);
        // With recomputation, the activations of one micro-batch exist while its backward runs.
        let most = if self.may_recompute { 1 } else { u64::MAX };
        let flights = self.places[place].flights.iter().map(|flight| Flight {
            micro_batches: flight.micro_batches.min(most),
            ..*flight
        });
        let flights = most_bytes(flights, [bytes.kept, each]);
        sum([flights, bytes.resident, bytes.transient])
    }

    /// Nanoseconds of the blocks before a position, on a rank of speed 1.
    pub(super) fn work_before(&self, at: usize) -> u64 {
        let [forward, backward, ..] = self.sums[at];
        forward + backward
    }

    /// Returns the sums of blocks `from..to`.
    fn between(&self, from: usize, to: usize) -> Sums {
        let [a, b] = [from.min(to), to].map(|at| self.sums[at]);
        std::array::from_fn(|of| b[of] - a[of])
    }

    /// The time of a step in nanoseconds: rounded up, including the reduce and the update at its end.
    pub(super) fn step_ns(&self, scaled: u64) -> u64 {
        let time = scaled.div_ceil(self.model.chunks);
        time.saturating_add(2 * self.action_ns)
    }
}

/// Returns the sums of the blocks before each one, and of all. They do not overflow.
fn sums_of(work: &Work) -> Vec<Sums> {
    let blocks = (work.blocks.len() as u64).max(1);
    let [longest, largest] = [LONGEST_NS / blocks, u64::MAX / 8 / blocks];
    let mut sums = vec![Sums::default()];
    for (at, block) in work.blocks.iter().enumerate() {
        let [forward, backward, input, weight] = block.times().map(|time| time.min(longest));
        let bytes = block.weight_gradient_bytes.min(largest);
        let own = [forward, backward, input, weight, bytes];
        sums.push(std::array::from_fn(|of| sums[at][of] + own[of]));
    }
    sums
}
