//! The times, memory and messages of each stage while blocks move between stages.

use std::collections::BTreeMap;
use std::ops::{Add, Sub};

use tinderbox_schedule::arithmetic::sum;

use super::flight::most_bytes;
use super::graph::{Graph, Pin};
use super::terms::{ACTIONS, Terms};
use crate::Partition;

/// The bytes beyond the memory of ranks, then the time of the slowest rank, then the bytes between ranks. Lower
/// is better.
pub(super) type Score = [u128; 3];

/// The sums of one stage.
#[derive(Debug, Clone, Default)]
struct Stage {
    members: usize,
    forward: u64,
    backward: u64,
    weight_gradient_bytes: u64,
    resident: u64,
    /// Bytes kept per micro-batch of values that it computes.
    own: u64,
    /// Bytes kept per micro-batch of values that it receives.
    got: u64,
    /// Bytes per micro-batch from and to other ranks, by the pass that receives or sends them.
    received: [u64; 2],
    sent: [u64; 2],
    /// Messages per micro-batch between ranks, in both directions.
    messages: u64,
    /// The number of its nodes of each transient size.
    transients: BTreeMap<u64, usize>,
    ns: u64,
    recompute: bool,
}

/// The passes, for indexing.
const FORWARD: usize = 0;
const BACKWARD: usize = 1;

/// Stages of a graph under an assignment that changes node by node.
///
/// A shift is linear in the node's nets, times the stages for nets that the node makes. A score is linear in the
/// stages. Memory: nets times stages.
#[derive(Debug, Clone)]
pub(super) struct Loads<'a> {
    pub graph: &'a Graph,
    pub terms: &'a Terms<'a>,
    stage_of: Vec<usize>,
    stages: Vec<Stage>,
    /// For each net and stage, the nodes besides the maker that read and that keep.
    pins: Vec<[u32; 2]>,
    /// For each pair of stages, the nets that cross: between forwards, from a forward to a backward, between backwards.
    edges: Vec<[u32; 3]>,
    crossing: u64,
    is_stale: Vec<bool>,
    excess: Vec<u64>,
}

fn change<T: Copy + Add<Output = T> + Sub<Output = T>>(sum: &mut T, by: T, adds: bool) {
    *sum = if adds { *sum + by } else { *sum - by };
}

impl<'a> Loads<'a> {
    /// Computes the loads of an assignment of nodes to stages.
    pub fn new(graph: &'a Graph, terms: &'a Terms<'a>, stage_of: Vec<usize>) -> Self {
        let stages = terms.stages();
        let mut loads = Self {
            graph,
            terms,
            stages: vec![Stage::default(); stages],
            pins: vec![[0; 2]; graph.nets.len() * stages],
            edges: vec![[0; 3]; stages * stages],
            crossing: 0,
            is_stale: vec![true; terms.stages_of.len()],
            excess: vec![0; terms.stages_of.len()],
            stage_of,
        };
        for node in 0..graph.nodes.len() {
            loads.carry(node, loads.stage_of[node], true);
        }
        for (index, net) in graph.nets.iter().enumerate() {
            for pin in &net.pins {
                loads.pin(index, *pin, loads.stage_of[pin.node], true);
            }
            for stage in 0..stages {
                loads.contribute(index, loads.stage_of[net.maker], stage, true);
            }
        }
        loads.refresh();
        loads
    }

    /// Returns the stage of each node.
    pub fn stage_of(&self) -> &[usize] {
        &self.stage_of
    }

    /// Returns the number of nodes of a stage.
    pub fn members(&self, stage: usize) -> usize {
        self.stages[stage].members
    }

    /// Returns the lowest and the highest stage that a node can move to while all others stay.
    pub fn range(&self, node: usize) -> (usize, usize) {
        let stage = |node: &usize| self.stage_of[*node];
        let low = self.graph.before[node].iter().map(stage).max();
        let high = self.graph.after[node].iter().map(stage).min();
        (low.unwrap_or(0), high.unwrap_or(self.stages.len() - 1))
    }

    /// Returns the score of the assignment.
    pub fn score(&self) -> Score {
        let excess = self.excess.iter().map(|bytes| u128::from(*bytes)).sum();
        let largest = self.rank_ns().max().unwrap_or(0);
        [excess, largest, u128::from(self.crossing)]
    }

    /// Returns the assignment as a partition, where nodes are blocks.
    pub fn partition(&self) -> Partition {
        Partition {
            stage_of: self.stage_of.clone(),
            stage_to_rank: self.terms.stage_to_rank(),
            recompute: self.stages.iter().map(|stage| stage.recompute).collect(),
        }
    }

    fn rank_ns(&self) -> impl DoubleEndedIterator<Item = u128> + ExactSizeIterator {
        let ranks = self.terms.stages_of.iter();
        let ns = |stage: &usize| u128::from(self.stages[*stage].ns);
        ranks.map(move |stages| stages.iter().map(ns).sum())
    }

    /// Returns the rank that limits the score: the rank that exceeds its memory most, or else the slowest; the
    /// first of equals.
    pub fn worst_rank(&self) -> usize {
        let ranks = self.excess.iter().zip(self.rank_ns()).enumerate();
        let worst = ranks.rev().max_by_key(|(_, load)| *load);
        worst.map_or(0, |(rank, _)| rank)
    }

    /// Moves a node to a stage.
    pub fn shift(&mut self, node: usize, to: usize) {
        let from = self.stage_of[node];
        if from == to {
            return;
        }
        let graph = self.graph;
        self.carry(node, from, false);
        self.contribute_all(node, from, to, false);
        for (net, pin) in &graph.incident[node] {
            let Some(pin) = pin else { continue };
            self.pin(*net, *pin, from, false);
            self.pin(*net, *pin, to, true);
        }
        self.stage_of[node] = to;
        self.contribute_all(node, from, to, true);
        self.carry(node, to, true);
        self.refresh();
    }

    /// Adds or subtracts the contributions of a node's nets to the stages that a shift between two stages changes.
    fn contribute_all(&mut self, node: usize, from: usize, to: usize, adds: bool) {
        let graph = self.graph;
        for (net, pin) in &graph.incident[node] {
            let maker = self.stage_of[graph.nets[*net].maker];
            if pin.is_some() {
                self.contribute(*net, maker, from, adds);
                self.contribute(*net, maker, to, adds);
                continue;
            }
            for stage in 0..self.stages.len() {
                self.contribute(*net, maker, stage, adds);
            }
        }
    }

    /// Adds the node's own sums to a stage, or subtracts them.
    fn carry(&mut self, node: usize, stage: usize, adds: bool) {
        self.is_stale[self.terms.rank_of[stage]] = true;
        let node = &self.graph.nodes[node];
        let stage = &mut self.stages[stage];
        for (sum, by) in [
            (&mut stage.forward, node.forward),
            (&mut stage.backward, node.backward),
            (&mut stage.weight_gradient_bytes, node.weight_gradient_bytes),
            (&mut stage.resident, node.resident),
            (&mut stage.own, node.kept),
        ] {
            change(sum, by, adds);
        }
        change(&mut stage.members, 1, adds);
        let same = stage.transients.entry(node.transient).or_default();
        change(same, 1, adds);
        if *same == 0 {
            stage.transients.remove(&node.transient);
        }
    }

    /// Adds or removes a pin of a net.
    fn pin(&mut self, net: usize, pin: Pin, stage: usize, adds: bool) {
        let [reads, keeps] = &mut self.pins[net * self.stages.len() + stage];
        change(reads, u32::from(pin.reads), adds);
        change(keeps, u32::from(pin.keeps), adds);
    }

    /// Adds or subtracts the contribution of a net to one stage. Gradients count as if each stage sent
    /// its own directly to the maker's stage: with one stage per rank as many bytes cross where they
    /// are passed down from stage to stage.
    fn contribute(&mut self, net: usize, maker: usize, stage: usize, adds: bool) {
        let [reads, keeps] = self.pins[net * self.stages.len() + stage].map(|pins| pins > 0);
        // Most nets have few stages.
        if !reads && !keeps && stage != maker {
            return;
        }
        let net = &self.graph.nets[net];
        let sums = &mut self.stages[stage];
        let (sum, keeps, held) = match stage == maker {
            true => (&mut sums.own, keeps || net.maker_keeps, net.copy + net.own),
            false => (&mut sums.got, keeps, if reads { net.copy } else { 0 }),
        };
        let kept = if keeps { net.bytes } else { 0 };
        change(sum, kept, adds);
        change(&mut sums.resident, held, adds);
        self.is_stale[self.terms.rank_of[stage]] |= kept + held > 0;
        if stage == maker {
            return;
        }
        if reads {
            self.cross(maker, stage, [FORWARD; 2], net.bytes, adds);
            self.cross(stage, maker, [BACKWARD; 2], net.gradient_bytes, adds);
        } else if keeps {
            self.cross(maker, stage, [FORWARD, BACKWARD], net.bytes, adds);
        }
    }

    /// Adds or subtracts bytes that one stage sends to another, by the passes that make and read them.
    fn cross(&mut self, from: usize, to: usize, passes: [usize; 2], bytes: u64, adds: bool) {
        let ranks = [from, to].map(|stage| self.terms.rank_of[stage]);
        if bytes == 0 || ranks[0] == ranks[1] {
            return;
        }
        for rank in ranks {
            self.is_stale[rank] = true;
        }
        change(&mut self.crossing, bytes, adds);
        let [made, read] = passes;
        change(&mut self.stages[from].sent[made], bytes, adds);
        change(&mut self.stages[to].received[read], bytes, adds);
        let nets = &mut self.edges[from * self.stages.len() + to][made + read];
        let before = *nets;
        change(nets, 1, adds);
        if before.min(*nets) == 0 {
            change(&mut self.stages[from].messages, 1, adds);
            change(&mut self.stages[to].messages, 1, adds);
        }
    }

    /// Recomputes the ranks that changed.
    fn refresh(&mut self) {
        for rank in 0..self.is_stale.len() {
            if std::mem::take(&mut self.is_stale[rank]) {
                self.recompute_rank(rank);
            }
        }
    }

    fn recompute_rank(&mut self, rank: usize) {
        let terms = self.terms;
        let model = terms.machine.rank_models()[rank];
        let stages = &terms.stages_of[rank];
        for stage in stages {
            self.stages[*stage].recompute = false;
        }
        if let Some(limit) = model.memory_bytes {
            let mut held = self.held(rank);
            while terms.may_recompute && held > limit {
                let saved = |stage: &usize| {
                    let in_flight = terms.flights[*stage].iter();
                    let in_flight = in_flight.map(|flight| flight.micro_batches).max();
                    let own = self.stages[*stage].own;
                    own.saturating_mul(in_flight.unwrap_or(0).saturating_sub(1))
                };
                let kept = stages.iter().copied();
                let kept = kept.filter(|stage| !self.stages[*stage].recompute);
                let most = kept.max_by_key(saved).filter(|stage| saved(stage) > 0);
                let Some(most) = most else { break };
                self.stages[most].recompute = true;
                held = self.held(rank);
            }
            self.excess[rank] = held.saturating_sub(limit);
        }
        for stage in stages {
            let sums = &self.stages[*stage];
            let again = if sums.recompute { sums.forward } else { 0 };
            // A link in each direction works in parallel with the compute, so the longer of both counts.
            let time = |pass: usize, work: u64| {
                let bytes = sums.received[pass].max(sums.sent[pass]);
                model.time(work).max(terms.machine.link.transfer(bytes))
            };
            let forward = time(FORWARD, sums.forward);
            let backward = time(BACKWARD, sums.backward + again);
            let actions = ACTIONS.saturating_add(sums.messages);
            let overhead = terms.machine.action_ns.saturating_mul(actions);
            self.stages[*stage].ns = sum([forward, backward, overhead]);
        }
    }

    /// The peak bytes of a rank, with two waiting messages of each kind.
    fn held(&self, rank: usize) -> u64 {
        let (mut always, mut transient) = (0_u64, 0);
        for index in &self.terms.stages_of[rank] {
            let stage = &self.stages[*index];
            let (kept, again) = match stage.recompute {
                true => (stage.got, stage.own),
                false => (stage.own.saturating_add(stage.got), 0),
            };
            let waiting = sum(stage.received).saturating_mul(2);
            let flights = self.terms.flights[*index].iter().copied();
            let flights = most_bytes(flights, [kept, stage.weight_gradient_bytes]);
            always = sum([always, stage.resident, waiting, flights]);
            let largest = stage.transients.last_key_value();
            let largest = largest.map_or(0, |(bytes, _)| *bytes);
            transient = transient.max(largest.saturating_add(again));
        }
        always.saturating_add(transient)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tinderbox_schedule::ScheduleKind;

    use super::*;
    use crate::partition::tests::{work, works::Random};
    use crate::{Machine, Step, predict};

    /// A random assignment whose values go from lower to higher stages.
    fn assignment(graph: &Graph, stages: usize, random: &mut Random) -> Vec<usize> {
        let mut stage_of = vec![0; graph.nodes.len()];
        for node in graph.order() {
            let low = graph.before[node]
                .iter()
                .map(|other| stage_of[*other])
                .max();
            let low = low.unwrap_or(0);
            let more = random.below(3) * random.below((stages - low) as u64);
            stage_of[node] = (low + more as usize / 2).min(stages - 1);
        }
        stage_of
    }

    fn machine() -> Machine {
        let mut machine = Machine::local(3).unwrap().with_memory_limit(1_500_000);
        machine.link.ticks_per_mib = 1_000_000;
        machine
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Any sequence of moves leaves the loads of the resulting assignment.
        #[test]
        fn shifts_leave_no_trace(shape in 0..4_u64, seed in any::<u64>(), v in 1..3_usize) {
            let work = work(shape, 24, seed);
            let step = Step::new(ScheduleKind::Interleaved1F1B, 6).with_recomputation();
            let rank_of: Vec<usize> = (0..3 * v).map(|stage| stage % 3).collect();
            let machine = machine();
            let terms = Terms::of_map(&machine, &step, &rank_of, 3);
            let graph = Graph::of_work(&work, &step);
            let mut random = Random::new(seed);
            let start = assignment(&graph, terms.stages(), &mut random);
            let mut loads = Loads::new(&graph, &terms, start);
            for _ in 0..60 {
                let node = random.below(graph.nodes.len() as u64) as usize;
                loads.shift(node, random.below(terms.stages() as u64) as usize);
            }
            let again = Loads::new(&graph, &terms, loads.stage_of().to_vec());
            prop_assert_eq!(loads.score(), again.score());
            prop_assert_eq!(loads.partition(), again.partition());
        }

        /// Groups of nodes have the loads of their nodes under the same assignment.
        #[test]
        fn contraction_preserves_loads(shape in 0..4_u64, seed in any::<u64>()) {
            let work = work(shape, 24, seed);
            let step = Step::new(ScheduleKind::OneFOneB, 6);
            let mut random = Random::new(seed);
            let machine = machine();
            let terms = Terms::of_map(&machine, &step, &[0, 1, 2], 3);
            let graph = Graph::of_work(&work, &step);
            // Ranges of the order form no cycle.
            let order = graph.order();
            let mut group_of = vec![0; order.len()];
            let mut groups = 1;
            for pair in order.windows(2) {
                groups += random.below(2) as usize;
                group_of[pair[1]] = groups - 1;
            }
            let coarse = graph.contract(&group_of, groups);
            prop_assert_eq!(coarse.order().len(), groups);
            let stage_of = assignment(&coarse, 3, &mut random);
            let fine = group_of.iter().map(|group| stage_of[*group]).collect();
            let fine = Loads::new(&graph, &terms, fine);
            let coarse = Loads::new(&coarse, &terms, stage_of);
            prop_assert_eq!(fine.score(), coarse.score());
        }

        /// Bytes, times and memory equal the simulator's, except for waiting messages.
        #[test]
        fn loads_match_the_prediction(shape in 0..4_u64, seed in any::<u64>(), zb in any::<bool>()) {
            let work = work(shape, 24, seed);
            let kind = if zb { ScheduleKind::ZbH1 } else { ScheduleKind::OneFOneB };
            let step = Step::new(kind, 6);
            let mut machine = Machine::local(3).unwrap();
            machine.action_ns = 0;
            let terms = Terms::of_machine(&machine, &step);
            let graph = Graph::of_work(&work, &step);
            let stage_of = assignment(&graph, 3, &mut Random::new(seed));
            let loads = Loads::new(&graph, &terms, stage_of);
            let found = predict(&work, &machine, &step, &loads.partition()).unwrap().prediction;
            let crossing = u128::from(found.crossing_bytes / 6);
            prop_assert_eq!(loads.score()[2], crossing);
            prop_assert_eq!(loads.score()[1], u128::from(found.bottleneck_ns));
            for rank in &found.ranks {
                let stage = &loads.stages[rank.rank.index()];
                let waiting = 2 * (stage.received[FORWARD] + stage.received[BACKWARD]);
                let expected = rank.memory.total() - rank.memory.buffers;
                prop_assert_eq!(loads.held(rank.rank.index()) - waiting, expected);
            }
        }
    }
}
