//! Values from the backend's own generator, in recorded order.

use burn::tensor::Device;
use tinderbox_fake::{DynTensor, Graph, NodeId, ValueId};

use crate::program::{Executor, Generator, Program, RunContext, is_random};
use crate::random::Seed;
use crate::{Observer, ProgramError, Request};

/// Draws in the order in which plain Burn would, and discards values that were not requested.
pub(crate) struct InOrder<'a> {
    graph: &'a Graph,
    seed: Seed,
    /// All random operations, in recorded order.
    draws: Vec<NodeId>,
}

/// Requests whose random operations are interleaved: they are computed together.
struct Segment {
    /// Indices of the requests.
    requests: Vec<usize>,
    nodes: Vec<NodeId>,
    /// Their first and last random operation; `None` for values without any.
    draws: Option<(NodeId, NodeId)>,
}

impl<'a> InOrder<'a> {
    pub(crate) fn new(graph: &'a Graph, seed: Seed) -> Self {
        let is_random = |id: &NodeId| is_random(graph.node(*id));
        Self {
            graph,
            seed,
            draws: graph.node_ids().filter(is_random).collect(),
        }
    }

    /// Returns the requested parts of `values`, each cast before the next is computed. The caller keeps others from
    /// the backend's generator meanwhile.
    pub(crate) fn values(
        &self,
        requests: &[Request],
        values: &[ValueId],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, ProgramError> {
        let mut made: Vec<Option<DynTensor>> = vec![None; requests.len()];
        let mut drawn = 0;
        if let Some(first) = requests.first() {
            first.device.seed(self.seed.value());
        }
        for segment in self.segments(values) {
            // Unrequested draws run one at a time: all of them together may need more memory than the requests.
            let first = segment.draws.map_or(0, |(first, _)| first.index());
            while let Some(draw) = self.draws.get(drawn).filter(|draw| draw.index() < first) {
                let device = &requests[segment.requests[0]].device;
                self.run(vec![*draw], &[], device)?;
                observer.advanced(0);
                drawn += 1;
            }
            let last = segment.draws.map_or(0, |(_, last)| last.index() + 1);
            let skipped = self.draws[drawn..].iter();
            let skipped = skipped.take_while(|draw| draw.index() < last).copied();
            let mut nodes = segment.nodes;
            nodes.extend(skipped.inspect(|_| drawn += 1));
            nodes.sort_unstable();
            nodes.dedup();
            let wanted: Vec<ValueId> = segment.requests.iter().map(|at| values[*at]).collect();
            let device = &requests[segment.requests[0]].device;
            let found = self.run(nodes, &wanted, device)?;
            for (at, value) in segment.requests.into_iter().zip(found) {
                let part = requests[at].part_of(value)?;
                observer.completed(&requests[at].path, part.bytes());
                made[at] = Some(part);
            }
        }
        let made = made.into_iter();
        let made = made.map(|value| value.expect("every request is in one segment"));
        Ok(made.collect())
    }

    fn run(
        &self,
        nodes: Vec<NodeId>,
        wanted: &[ValueId],
        device: &Device,
    ) -> Result<Vec<DynTensor>, ProgramError> {
        let generator = Generator::Backend;
        let program = Program::with_generator(self.graph, nodes, &[], wanted, generator)?;
        let context = RunContext::initialization(self.seed);
        let executable = Executor::new(device)?.load(program);
        executable.run(Vec::new(), &context)
    }

    /// Returns the requests in the order of their random operations, those without any first.
    fn segments(&self, values: &[ValueId]) -> Vec<Segment> {
        let alone = values.iter().enumerate().map(|(at, value)| {
            let nodes = self.graph.backward_slice([*value], |_| false).nodes;
            let mut random = nodes.iter().filter(|id| is_random(self.graph.node(**id)));
            let first = random.next();
            let last = random.next_back().or(first);
            Segment {
                requests: vec![at],
                draws: first.copied().zip(last.copied()),
                nodes,
            }
        });
        let mut alone: Vec<Segment> = alone.collect();
        alone.sort_by_key(|segment| segment.draws);
        let mut joined: Vec<Segment> = Vec::new();
        for segment in alone {
            match joined.last_mut() {
                // It begins no earlier than the one before it.
                Some(Segment {
                    requests,
                    nodes,
                    draws: Some((_, end)),
                }) if segment.draws.is_some_and(|(begin, _)| begin <= *end) => {
                    requests.extend(segment.requests);
                    nodes.extend(segment.nodes);
                    *end = segment.draws.map_or(*end, |(_, last)| last.max(*end));
                }
                _ => joined.push(segment),
            }
        }
        joined
    }
}
