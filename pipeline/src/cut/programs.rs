//! The programs of one stage.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_deferred::{Program, ProgramError};
use tinderbox_fake::ValueId;

use super::{Cutting, Parts};
use crate::schedule::{Compute, Edge, StageIndex};
use crate::trace::JointGraph;

/// Where an input of a program comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// The parameter at a position of the table.
    Parameter(usize),
    /// The tensor at a position of the batch.
    Input(usize),
    /// The weight of the micro-batch.
    Weight,
    /// The setup value at a position.
    Setup(usize),
    /// A value of the micro-batch: received, or kept from the forward.
    Value(ValueId),
}

/// One program of a stage, with where its inputs come from and where its outputs go.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) program: Program,
    pub(crate) inputs: Vec<Binding>,
    /// Values of the micro-batch that it makes, and how often each is taken later: by messages, by
    /// the backward, by the driver.
    pub(crate) outputs: Vec<(ValueId, usize)>,
    /// Gradients that it makes: position in the table, and value.
    pub(crate) gradients: Vec<(usize, ValueId)>,
}

/// All programs of one stage for one joint graph.
#[derive(Clone, Debug)]
pub(crate) struct StagePrograms {
    pub(crate) setup: Program,
    pub(crate) forward: Phase,
    pub(crate) backward: Option<Phase>,
    /// How often each value that comes in a message is taken.
    pub(crate) received: BTreeMap<ValueId, usize>,
    /// Values of each message that leaves, by its edge.
    pub(crate) sends: BTreeMap<Edge, Vec<ValueId>>,
    /// Values of each message that comes.
    pub(crate) receives: BTreeMap<Edge, Vec<ValueId>>,
    /// The loss, if it is made here.
    pub(crate) loss: Option<ValueId>,
    /// Named outputs that are made here.
    pub(crate) outputs: Vec<(String, ValueId)>,
}

impl StagePrograms {
    /// Builds the programs of a stage.
    pub(crate) fn new(
        joint: &JointGraph,
        cutting: &Cutting,
        stage: StageIndex,
    ) -> Result<Self, ProgramError> {
        let (forward, backward) = (
            &cutting.forward[stage.index()],
            &cutting.backward[stage.index()],
        );
        let messages = |keep: &dyn Fn(&Edge) -> bool| -> BTreeMap<Edge, Vec<ValueId>> {
            let edges = cutting.edges().iter().filter(|(edge, _)| keep(edge));
            edges
                .map(|(edge, values)| (*edge, values.iter().copied().collect()))
                .collect()
        };
        let sends = messages(&|edge| edge.from.stage == stage);
        let receives = messages(&|edge| edge.to.stage == stage);
        let takes = Takes::count(joint, &sends, &receives, forward, backward);

        let sources = Sources::new(joint, &takes);
        let setup_values: Vec<ValueId> = forward
            .reads
            .union(&backward.reads)
            .copied()
            .filter(|value| sources.of(*value).is_none())
            .collect();
        let setup_slice = joint
            .graph()
            .backward_slice(setup_values.iter().copied(), |_| false);
        let setup = Program::new(
            joint.graph(),
            setup_slice.nodes,
            &[],
            &setup_values,
            joint.keys(),
        )?;

        let build = |parts: &Parts, compute: Compute| -> Result<Phase, ProgramError> {
            let inputs: Vec<ValueId> = parts.reads.iter().copied().collect();
            let made: BTreeSet<ValueId> = parts
                .nodes
                .iter()
                .flat_map(|id| joint.graph().node(*id).outputs().iter().copied())
                .collect();
            let outputs: Vec<(ValueId, usize)> = takes
                .of(compute)
                .iter()
                .filter(|(value, _)| {
                    // A named output may be an input or a parameter, which no operation makes. A
                    // gradient that comes from another stage goes to the optimizer alone.
                    made.contains(value)
                        || (compute == Compute::Forward && parts.targets.contains(value))
                })
                .map(|(value, count)| (*value, *count))
                .collect();
            let gradients: Vec<(usize, ValueId)> = match compute {
                Compute::Forward => Vec::new(),
                _ => cutting.gradients_of(joint, stage),
            };
            let values: Vec<ValueId> = outputs
                .iter()
                .map(|(value, _)| *value)
                .chain(gradients.iter().map(|(_, value)| *value))
                .collect();
            let program = Program::new(
                joint.graph(),
                parts.nodes.iter().copied(),
                &inputs,
                &values,
                joint.keys(),
            )?;
            let inputs = inputs
                .iter()
                .map(|value| match sources.of(*value) {
                    Some(binding) => binding,
                    None => Binding::Setup(
                        setup_values
                            .binary_search(value)
                            .expect("every other read is set up"),
                    ),
                })
                .collect();
            Ok(Phase {
                program,
                inputs,
                outputs,
                gradients,
            })
        };
        let forward_phase = build(forward, Compute::Forward)?;
        let has_backward = joint.gradients().iter().any(Option::is_some);
        let backward_phase = match has_backward {
            true => Some(build(backward, Compute::Backward)?),
            false => None,
        };
        let made_here = |value: &ValueId| forward.targets.contains(value);
        Ok(Self {
            setup,
            forward: forward_phase,
            backward: backward_phase,
            received: takes.received(&receives),
            sends,
            receives,
            loss: joint.loss().filter(made_here),
            outputs: joint
                .outputs()
                .iter()
                .filter(|(_, v)| made_here(v))
                .cloned()
                .collect(),
        })
    }
}

impl Cutting {
    /// Gradients that a stage makes for the parameters that it owns. Clones of a parameter share
    /// its gradient: it is taken once.
    fn gradients_of(&self, joint: &JointGraph, stage: StageIndex) -> Vec<(usize, ValueId)> {
        let mut seen = BTreeSet::new();
        (0..self.paths.len())
            .filter(|index| self.owners[*index] == stage)
            .filter(|index| seen.insert(joint.parameters()[*index]))
            .filter_map(|index| Some((index, joint.gradients()[index]?)))
            .collect()
    }
}

/// How often each value of a micro-batch is taken at a stage, by who has it made.
struct Takes {
    forward: BTreeMap<ValueId, usize>,
    backward: BTreeMap<ValueId, usize>,
    /// Values that come in messages or that the forward makes: a setup value that is a named output
    /// is taken too, and is none of these.
    of_micro_batch: BTreeSet<ValueId>,
}

impl Takes {
    fn count(
        joint: &JointGraph,
        sends: &BTreeMap<Edge, Vec<ValueId>>,
        receives: &BTreeMap<Edge, Vec<ValueId>>,
        forward: &Parts,
        backward: &Parts,
    ) -> Self {
        let mut takes = Self {
            forward: BTreeMap::new(),
            backward: BTreeMap::new(),
            of_micro_batch: BTreeSet::new(),
        };
        let coming: BTreeSet<ValueId> = receives.values().flatten().copied().collect();
        let mut made_forward: BTreeSet<ValueId> = BTreeSet::new();
        for id in &forward.nodes {
            made_forward.extend(joint.graph().node(*id).outputs());
        }
        for (edge, values) in sends {
            let of = match edge.from.compute {
                Compute::Forward => &mut takes.forward,
                _ => &mut takes.backward,
            };
            values
                .iter()
                .for_each(|value| *of.entry(*value).or_default() += 1);
        }
        // The loss and each named output are read once by the driver.
        let named = joint.outputs().iter().map(|(_, value)| *value);
        for value in named
            .chain(joint.loss())
            .filter(|v| forward.targets.contains(v))
        {
            *takes.forward.entry(value).or_default() += 1;
        }
        for value in &forward.reads {
            if coming.contains(value) {
                *takes.forward.entry(*value).or_default() += 1;
            }
        }
        for value in &backward.reads {
            if made_forward.contains(value) || forward.reads.contains(value) {
                if made_forward.contains(value) || coming.contains(value) {
                    *takes.forward.entry(*value).or_default() += 1;
                }
            } else if coming.contains(value) {
                *takes.backward.entry(*value).or_default() += 1;
            }
        }
        takes.of_micro_batch = made_forward;
        takes.of_micro_batch.extend(coming);
        takes
    }

    fn of(&self, compute: Compute) -> &BTreeMap<ValueId, usize> {
        match compute {
            Compute::Forward => &self.forward,
            _ => &self.backward,
        }
    }

    fn is_value(&self, value: ValueId) -> bool {
        self.of_micro_batch.contains(&value)
    }

    fn received(&self, receives: &BTreeMap<Edge, Vec<ValueId>>) -> BTreeMap<ValueId, usize> {
        let coming = receives.values().flatten();
        let count = |value: &ValueId| {
            let forward = self.forward.get(value).copied().unwrap_or(0);
            forward + self.backward.get(value).copied().unwrap_or(0)
        };
        coming.map(|value| (*value, count(value))).collect()
    }
}

/// Tells where an input comes from.
struct Sources<'a> {
    given: BTreeMap<ValueId, Binding>,
    takes: &'a Takes,
}

impl<'a> Sources<'a> {
    fn new(joint: &JointGraph, takes: &'a Takes) -> Self {
        let mut given = BTreeMap::from([(joint.weight(), Binding::Weight)]);
        for (index, input) in joint.inputs().iter().enumerate() {
            given.insert(input.value, Binding::Input(index));
        }
        // Clones share a value: the first holds it.
        for (index, value) in joint.parameters().iter().enumerate().rev() {
            given.insert(*value, Binding::Parameter(index));
        }
        Self { given, takes }
    }

    /// `None` for a setup value.
    fn of(&self, value: ValueId) -> Option<Binding> {
        let given = self.given.get(&value).copied();
        given.or_else(|| self.takes.is_value(value).then_some(Binding::Value(value)))
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
    use burn::tensor::{Device, Tensor, activation::relu};
    use tinderbox_deferred::Deferred;

    use super::*;
    use crate::cut::{Holding, Layout, Sharing};
    use crate::partition::Chain;
    use crate::trace::{Roles, Traceable};
    use crate::{Machine, Outputs, Plan};

    #[derive(Module, Debug)]
    struct Net {
        layers: Vec<Linear>,
        dropout: Dropout,
    }

    /// What is kept between forward and backward: each value is read by the backward, and no mask is
    /// among them, for masks are made again.
    #[test]
    fn a_stage_keeps_what_its_backward_reads_and_no_masks() {
        let model = Deferred::new(|device| Net {
            layers: (0..4)
                .map(|_| LinearConfig::new(3, 3).init(device))
                .collect(),
            dropout: DropoutConfig::new(0.5).init(),
        });
        let example = Tensor::<2>::zeros([2, 3], &Device::flex());
        let forward = |net: &Net, x: Tensor<2>| {
            let step = |x, layer: &Linear| net.dropout.forward(relu(layer.forward(x)));
            Outputs::loss(net.layers.iter().fold(x, step).mean())
        };
        let trace = model.unwrap().trace(&example, forward).unwrap();
        let plan = Plan::auto(&trace, &Machine::local(2).unwrap()).unwrap();
        let table = trace.parameters();
        let holdings = plan.stages().iter().map(|stage| Holding {
            owned: stage.parameters.clone(),
            replicas: Vec::new(),
        });
        let layout = Layout::new(table, holdings.collect(), Sharing::Decided).unwrap();
        let joint = trace.example_program().unwrap();
        let roles = Roles::of(&joint);
        let chain = Chain::new(&joint, &roles, table);
        let cutting = Cutting::new(&joint, &roles, &chain, table, &layout).unwrap();
        let graph = joint.graph();
        let random = |value: ValueId| {
            let recipe = graph.backward_slice([value], |v| joint.parameters().contains(&v));
            let forward = |id: &_| !joint.is_initialization(*id);
            let mut nodes = recipe.nodes.into_iter().filter(forward);
            nodes.all(|id| tinderbox_deferred::is_random(graph.node(id)))
        };
        for stage in (0..2).map(StageIndex::new) {
            let programs = StagePrograms::new(&joint, &cutting, stage).unwrap();
            let backward = programs.backward.unwrap();
            let sent: BTreeSet<ValueId> = programs.sends.values().flatten().copied().collect();
            for (value, takes) in &programs.forward.outputs {
                let kept = backward.inputs.contains(&Binding::Value(*value));
                let named = programs.loss == Some(*value);
                let takers = [kept, sent.contains(value), named];
                assert_eq!(takers.iter().filter(|taker| **taker).count(), *takes);
                assert!(*takes > 0 && !graph.value(*value).dtype.is_bool());
                assert!(!random(*value), "{value} is made again");
            }
        }
    }
}
