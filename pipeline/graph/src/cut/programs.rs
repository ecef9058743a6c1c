//! The programs of one stage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tinderbox_deferred::{Program, ProgramError};
use tinderbox_fake::ValueId;

use super::phase::{Consumed, Consumers, Phase};
use super::{Cutting, Layout};
use crate::schedule::{Compute, Costs, Edge, StageCosts, StageIndex};
use crate::trace::JointGraph;

/// All programs of one stage for one joint graph.
#[derive(Clone, Debug)]
pub struct StagePrograms {
    pub constants: Arc<Program>,
    /// `F`, `B`, `I` and `W`: the forward, the whole backward, its values for other stages, and the gradients of the
    /// stage's own parameters.
    pub phases: [Option<Phase>; Compute::ALL.len()],
    /// Bytes of a micro-batch between `F` and the backward.
    pub activation_bytes: u64,
    /// Bytes of a micro-batch between `I` and `W`.
    pub weight_gradient_bytes: u64,
    /// The consumers of each value that is received in a message.
    pub received: BTreeMap<ValueId, Consumers>,
    /// The values of each message that is sent, by its edge.
    pub sends: BTreeMap<Edge, Vec<ValueId>>,
    /// The values of each message that is received, by its edge.
    pub receives: BTreeMap<Edge, Vec<ValueId>>,
    /// The loss, if it is computed here.
    pub loss: Option<ValueId>,
    /// The named outputs that are computed here.
    pub outputs: Vec<(String, ValueId)>,
}

impl StagePrograms {
    /// The programs of all stages. A stage that recomputes keeps the inputs of its forward and recomputes the other values.
    pub fn of_stages(
        joint: &JointGraph,
        cutting: &Cutting,
        layout: &Layout,
    ) -> Result<Vec<Self>, ProgramError> {
        let new = |stage| Self::new(joint, cutting, layout, stage);
        layout.stages().map(new).collect()
    }

    fn new(
        joint: &JointGraph,
        cutting: &Cutting,
        layout: &Layout,
        stage: StageIndex,
    ) -> Result<Self, ProgramError> {
        let graph = joint.graph();
        let forward = &cutting.forward[stage.index()];
        let backward = &cutting.backward[stage.index()];
        let sends = cutting.messages(|edge| edge.from.stage == stage);
        let receives = cutting.messages(|edge| edge.to.stage == stage);
        let whole = match layout.recompute[stage.index()] {
            false => backward.clone(),
            true => backward.with_forward(joint, forward),
        };
        let sent = sends.iter();
        let sent = sent.filter(|(edge, _)| edge.from.compute != Compute::Forward);
        let sent: BTreeSet<ValueId> = sent.flat_map(|(_, values)| values).copied().collect();
        // Both halves exist even if the schedule runs the backward whole.
        let (input, weight) = whole.split(joint, &sent);
        let parts = [forward, &whole, &input, &weight];
        let consumed = Consumed::count(joint, parts, &sends, &receives);
        let constants = consumed.constants.iter().copied();
        let nodes = graph.backward_slice(constants, |_| false).nodes;
        let constants = Program::new(graph, nodes, &[], &consumed.constants, joint.keys())?;
        let has_backward = joint.gradients().iter().any(Option::is_some);
        let mut phases = [const { None }; Compute::ALL.len()];
        for (compute, parts) in Compute::ALL.into_iter().zip(parts) {
            if compute == Compute::Forward || has_backward {
                phases[compute.slot()] = Some(consumed.phase(compute, parts)?);
            }
        }
        let kept = whole.reads.iter();
        let kept = kept.filter(|value| consumed.is_of_forward(**value, forward));
        let kept_for_weight = weight.reads.iter();
        let kept_for_weight = kept_for_weight.filter(|value| consumed.is_value(**value));
        let made_here = |value: &ValueId| forward.targets.contains(value);
        let outputs = joint.outputs().iter();
        Ok(Self {
            constants: Arc::new(constants),
            phases,
            activation_bytes: graph.bytes(kept),
            weight_gradient_bytes: graph.bytes(kept_for_weight),
            received: consumed.messages,
            sends,
            receives,
            loss: joint.loss().filter(made_here),
            outputs: outputs.filter(|(_, v)| made_here(v)).cloned().collect(),
        })
    }

    /// The parameters that the programs read.
    pub fn parameters(&self) -> BTreeSet<usize> {
        let read = self.phases.iter().flatten().flat_map(|phase| &phase.inputs);
        read.filter_map(|binding| binding.parameter()).collect()
    }

    /// The program for a task, if the stage has one.
    pub fn phase(&self, compute: Compute) -> Option<&Phase> {
        self.phases[compute.slot()].as_ref()
    }
}

/// The bytes of a step with these programs of all stages; everything else is zero.
pub fn step_bytes(joint: &JointGraph, stages: &[StagePrograms]) -> Costs {
    let of_stages = stages.iter().map(|programs| StageCosts {
        activation_bytes: programs.activation_bytes,
        weight_gradient_bytes: programs.weight_gradient_bytes,
        ..StageCosts::default()
    });
    let mut costs = Costs::of_stages(of_stages.collect());
    let sent = stages.iter().flat_map(|programs| &programs.sends);
    let bytes = sent.map(|(edge, values)| (*edge, joint.graph().bytes(values)));
    costs.message_bytes = bytes.collect();
    costs
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn::module::Module;
    use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
    use burn::tensor::{Device, Tensor, activation::relu};
    use tinderbox_deferred::Deferred;

    use super::super::Binding;
    use super::*;
    use crate::trace::Traceable;
    use crate::{Machine, Outputs};

    #[derive(Module, Debug)]
    struct Net {
        layers: Vec<Linear>,
        dropout: Dropout,
    }

    /// A chain of layers with dropout, cut into stages with equal numbers of layers.
    struct Cut {
        joint: Arc<JointGraph>,
        layout: Layout,
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
            // One micro-batch of two rows for each stage.
            let batch = Tensor::<2>::zeros([2 * stages, 3], &Device::flex());
            let forward = |net: &Net, x: Tensor<2>| {
                let step = |x, layer: &Linear| net.dropout.forward(relu(layer.forward(x)));
                Outputs::loss(net.layers.iter().fold(x, step).mean())
            };
            let trace = model.unwrap().trace(&batch, stages, forward).unwrap();
            let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
            // Without the operations of the plan.
            let layout = Layout::of_plan(trace.parameters(), &plan.stages).unwrap();
            let joint = trace.example_program().unwrap();
            let cutting = Cutting::new(&joint, &layout).unwrap();
            Self {
                joint,
                layout,
                cutting,
            }
        }

        fn stage(&self, index: usize, recompute: bool) -> StagePrograms {
            let mut layout = self.layout.clone();
            layout.recompute.fill(recompute);
            StagePrograms::new(&self.joint, &self.cutting, &layout, StageIndex::new(index)).unwrap()
        }
    }

    /// The backward reads each value that is kept for it, and no mask is among them, because masks are recomputed.
    #[test]
    fn a_stage_keeps_the_values_of_its_backward_and_no_masks() {
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
            let backward = programs.phase(Compute::Backward).unwrap();
            let forward = programs.phase(Compute::Forward).unwrap();
            let sent: BTreeSet<ValueId> = programs.sends.values().flatten().copied().collect();
            for (value, consumers) in &forward.outputs {
                let kept = backward.inputs.contains(&Binding::Value(*value));
                let found = [kept, sent.contains(value), programs.loss == Some(*value)];
                let count = found.iter().filter(|is_found| **is_found).count();
                assert_eq!(count, consumers.whole);
                assert!(consumers.whole > 0 && !graph.value(*value).dtype.is_bool());
                assert!(!random(*value), "{value} is recomputed");
            }
        }
    }

    /// A stage that recomputes keeps the value that it received from the previous stage, and no value that its forward
    /// computed, for a whole and for a split backward.
    #[test]
    fn a_stage_that_recomputes_keeps_received_values() {
        let cut = Cut::of(6, 3);
        let (kept, recomputed) = (cut.stage(1, false), cut.stage(1, true));
        let from_forward = |programs: &StagePrograms| {
            let sent: BTreeSet<ValueId> = programs.sends.values().flatten().copied().collect();
            let outputs = programs.phase(Compute::Forward).unwrap().outputs.iter();
            let kept = outputs.filter(|(value, consumers)| {
                let messages = usize::from(sent.contains(value));
                consumers.whole > messages || consumers.split > messages
            });
            kept.count()
        };
        assert!(from_forward(&kept) > 0);
        assert_eq!(from_forward(&recomputed), 0);
        // One input of two rows and three columns of f32.
        assert_eq!(recomputed.activation_bytes, 24);
        assert!(kept.activation_bytes > 24);
    }
}
