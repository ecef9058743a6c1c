//! The programs of one stage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tinderbox_deferred::{Program, ProgramError};
use tinderbox_fake::ValueId;

use super::Cutting;
use super::parts::Parts;
use super::phase::{Phase, Sources};
use super::takes::{Readers, Taken, Takes};
use crate::schedule::{Compute, Edge, StageIndex};
use crate::trace::{JointGraph, Roles};

/// The backward of a stage, whole and in two halves.
#[derive(Clone, Debug)]
pub(crate) struct Backward {
    /// `B`.
    pub(crate) whole: Phase,
    /// `I`: what other stages wait for.
    pub(crate) input: Phase,
    /// `W`: the gradients of the stage's own parameters.
    pub(crate) weight: Phase,
    /// Bytes of a micro-batch between `F` and the backward.
    pub(crate) activation_bytes: u64,
    /// Bytes of a micro-batch between `I` and `W`.
    pub(crate) weight_gradient_bytes: u64,
}

/// All programs of one stage for one joint graph.
#[derive(Clone, Debug)]
pub(crate) struct StagePrograms {
    pub(crate) constants: Arc<Program>,
    pub(crate) forward: Phase,
    pub(crate) backward: Option<Backward>,
    /// How often each value that comes in a message is taken.
    pub(crate) received: BTreeMap<ValueId, Takes>,
    /// Values of each message that leaves, by its edge.
    pub(crate) sends: BTreeMap<Edge, Vec<ValueId>>,
    /// Values of each message that comes.
    pub(crate) receives: BTreeMap<Edge, Vec<ValueId>>,
    /// Bytes of each message that leaves.
    pub(crate) sent_bytes: BTreeMap<Edge, u64>,
    /// The loss, if it is made here.
    pub(crate) loss: Option<ValueId>,
    /// Named outputs that are made here.
    pub(crate) outputs: Vec<(String, ValueId)>,
}

impl StagePrograms {
    /// The programs of all stages; those that recompute keep what their forward read, not what it made.
    pub(crate) fn of_stages(
        joint: &JointGraph,
        roles: &Roles,
        cutting: &Cutting,
        recompute: impl IntoIterator<Item = bool>,
    ) -> Result<Vec<Self>, ProgramError> {
        let stages = recompute.into_iter().enumerate();
        let stages = stages.map(|(stage, recompute)| {
            Self::new(joint, roles, cutting, StageIndex::new(stage), recompute)
        });
        stages.collect()
    }

    fn new(
        joint: &JointGraph,
        roles: &Roles,
        cutting: &Cutting,
        stage: StageIndex,
        recompute: bool,
    ) -> Result<Self, ProgramError> {
        let forward = &cutting.forward[stage.index()];
        let backward = &cutting.backward[stage.index()];
        let messages = |keep: &dyn Fn(&Edge) -> bool| -> BTreeMap<Edge, Vec<ValueId>> {
            let edges = cutting.edges().iter().filter(|(edge, _)| keep(edge));
            edges
                .map(|(edge, values)| (*edge, values.iter().copied().collect()))
                .collect()
        };
        let sends = messages(&|edge| edge.from.stage == stage);
        let receives = messages(&|edge| edge.to.stage == stage);
        let whole = match recompute {
            false => backward.clone(),
            true => backward.with_forward(joint, roles, forward),
        };
        let sent_backward: BTreeSet<ValueId> = sends
            .iter()
            .filter(|(edge, _)| edge.from.compute != Compute::Forward)
            .flat_map(|(_, values)| values.iter().copied())
            .collect();
        let gradients = cutting.gradients_of(joint, stage);
        let gradient_values = gradients.iter().map(|(_, value)| *value).collect();
        let (input, weight) = whole.split(joint, roles, &sent_backward, &gradient_values);
        let taken = Taken::count(
            joint,
            &Readers {
                forward,
                whole: &whole,
                input: &input,
                weight: &weight,
                sends: &sends,
                receives: &receives,
            },
        );
        let sources = Sources::new(joint, &taken, [forward, &whole, &input, &weight]);
        let slice_of_constants = joint
            .graph()
            .backward_slice(sources.constants.iter().copied(), |_| false);
        let constants = Program::new(
            joint.graph(),
            slice_of_constants.nodes,
            &[],
            &sources.constants,
            joint.keys(),
        )?;
        let constants = Arc::new(constants);
        let kept = |is_split: bool| -> Vec<(ValueId, Takes)> {
            let made = taken.backward.iter().map(|(value, takes)| (*value, *takes));
            made.filter(|(_, takes)| takes.of(is_split) > 0).collect()
        };
        let bytes = |parts: &Parts, is_kept: &dyn Fn(ValueId) -> bool| -> u64 {
            let kept = parts.reads.iter().filter(|value| is_kept(**value));
            kept.map(|value| joint.graph().value(*value).bytes()).sum()
        };
        let has_backward = joint.gradients().iter().any(Option::is_some);
        let backward = match has_backward {
            false => None,
            true => Some(Backward {
                whole: sources.phase(joint, &whole, kept(false), &gradients)?,
                input: sources.phase(joint, &input, kept(true), &[])?,
                weight: sources.phase(joint, &weight, Vec::new(), &gradients)?,
                activation_bytes: bytes(&whole, &|value| taken.is_of_forward(value, forward)),
                weight_gradient_bytes: bytes(&weight, &|value| taken.is_value(value)),
            }),
        };
        let made = taken.forward.iter().map(|(value, takes)| (*value, *takes));
        let forward_phase = sources.phase(joint, forward, made.collect(), &[])?;
        let made_here = |value: &ValueId| forward.targets.contains(value);
        let sent_bytes = sends.iter().map(|(edge, values)| {
            let bytes = values.iter().map(|v| joint.graph().value(*v).bytes()).sum();
            (*edge, bytes)
        });
        Ok(Self {
            constants,
            forward: forward_phase,
            backward,
            sent_bytes: sent_bytes.collect(),
            received: taken.messages,
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

    /// The program for a task, if the stage has one.
    pub(crate) fn phase(&self, compute: Compute) -> Option<&Phase> {
        let backward = self.backward.as_ref();
        match compute {
            Compute::Forward => Some(&self.forward),
            Compute::Backward => backward.map(|b| &b.whole),
            Compute::InputGradient => backward.map(|b| &b.input),
            Compute::WeightGradient => backward.map(|b| &b.weight),
            _ => None,
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn::module::Module;
    use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
    use burn::tensor::{Device, Tensor, activation::relu};
    use tinderbox_deferred::Deferred;

    use super::*;
    use crate::cut::{Binding, Holding, Layout, Sharing};
    use crate::partition::Chain;
    use crate::trace::{Roles, Traceable};
    use crate::{Machine, Outputs, Plan};

    #[derive(Module, Debug)]
    struct Net {
        layers: Vec<Linear>,
        dropout: Dropout,
    }

    /// A chain of layers with dropout, cut into stages of as many layers.
    struct Cut {
        joint: Arc<JointGraph>,
        roles: Roles,
        cutting: Cutting,
    }

    impl Cut {
        fn of(layers: usize, stages: usize) -> Self {
            let model = Deferred::new(move |device| Net {
                layers: (0..layers)
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
            let plan = Plan::auto(&trace, &Machine::local(stages).unwrap()).unwrap();
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
            Self {
                joint,
                roles,
                cutting,
            }
        }

        fn stage(&self, index: usize, recompute: bool) -> StagePrograms {
            let stage = StageIndex::new(index);
            StagePrograms::new(&self.joint, &self.roles, &self.cutting, stage, recompute).unwrap()
        }
    }

    /// What is kept between forward and backward: each value is read by the backward, and no mask is
    /// among them, for masks are recomputed.
    #[test]
    fn a_stage_keeps_what_its_backward_reads_and_no_masks() {
        let cut = Cut::of(4, 2);
        let (joint, graph) = (&cut.joint, cut.joint.graph());
        let random = |value: ValueId| {
            let recipe = graph.backward_slice([value], |v| joint.parameters().contains(&v));
            let forward = |id: &_| !joint.is_initialization(*id);
            let mut nodes = recipe.nodes.into_iter().filter(forward);
            nodes.all(|id| tinderbox_deferred::is_random(graph.node(id)))
        };
        for stage in 0..2 {
            let programs = cut.stage(stage, false);
            let backward = programs.backward.unwrap().whole;
            let sent: BTreeSet<ValueId> = programs.sends.values().flatten().copied().collect();
            for (value, takes) in &programs.forward.outputs {
                let kept = backward.inputs.contains(&Binding::Value(*value));
                let named = programs.loss == Some(*value);
                let takers = [kept, sent.contains(value), named];
                assert_eq!(takers.iter().filter(|taker| **taker).count(), takes.whole);
                assert!(takes.whole > 0 && !graph.value(*value).dtype.is_bool());
                assert!(!random(*value), "{value} is recomputed");
            }
        }
    }

    /// A stage that recomputes keeps what came from the stage before, and nothing that its forward made:
    /// neither for a whole backward nor for one in two halves.
    #[test]
    fn a_stage_that_recomputes_keeps_what_it_got() {
        let cut = Cut::of(6, 3);
        let (kept, recomputed) = (cut.stage(1, false), cut.stage(1, true));
        let from_forward = |programs: &StagePrograms| {
            let sent: BTreeSet<ValueId> = programs.sends.values().flatten().copied().collect();
            let outputs = programs.forward.outputs.iter();
            let kept = outputs.filter(|(value, takes)| {
                let leaves = usize::from(sent.contains(value));
                takes.whole > leaves || takes.split > leaves
            });
            kept.count()
        };
        assert!(from_forward(&kept) > 0);
        assert_eq!(from_forward(&recomputed), 0);
        // One input of two rows and three columns of f32.
        let bytes = |programs: StagePrograms| programs.backward.unwrap().activation_bytes;
        assert_eq!(bytes(recomputed), 24);
        assert!(bytes(kept) > 24);
    }
}
