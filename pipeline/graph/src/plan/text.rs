//! The programs of a plan's stages as text, and the values that enter, leave and bypass each stage.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_fake::{NodeId, ValueId, dtype_name};
use tinderbox_planner::{PlanProgram, PlanStage, PlanValue};

use crate::cut::{Binding, Phase, StagePrograms};
use crate::joined;
use crate::schedule::{Compute, Edge, StageIndex};
use crate::trace::{Given, JointGraph};

/// The assigned forward operations: name, outputs and module.
pub(super) fn forward(joint: &JointGraph) -> Vec<String> {
    let lines = joint.forward().nodes().iter().map(|id| {
        let node = joint.graph().node(*id);
        let made = joined(node.outputs().iter().map(|v| joint.graph().value(*v)));
        format!("{} {made}{}", node.name(), in_module(joint, *id))
    });
    lines.collect()
}

/// The maximum bytes of text in a plan. More text is slow to read for people and programs.
const MOST_TEXT_BYTES: usize = 4 << 20;

/// Adds the text of every program to the stages, unless all of them together have more than 4 MiB.
pub(super) fn add(stages: &mut [PlanStage], joint: &JointGraph, programs: &[StagePrograms]) {
    for (stage, programs) in stages.iter_mut().zip(programs) {
        let texts = Compute::ALL.into_iter().filter_map(|compute| {
            let phase = programs.phase(compute)?;
            let writer = Writer {
                joint,
                programs,
                compute,
                phase,
            };
            (!phase.nodes.is_empty()).then(|| PlanProgram {
                name: compute.name().to_owned(),
                reads: writer.reads(),
                operations: writer.operations(),
            })
        });
        stage.programs = texts.collect();
    }
    let programs = stages.iter().flat_map(|stage| &stage.programs);
    let lines = programs.flat_map(|program| program.reads.iter().chain(&program.operations));
    let bytes: usize = lines.map(String::len).sum();
    if bytes > MOST_TEXT_BYTES {
        tracing::info!(bytes, "the programs have too much text for a plan");
        stages.iter_mut().for_each(|stage| stage.programs.clear());
    }
}

/// Returns ` in ` and the path of the module of an operation; an empty text if the module is unknown.
fn in_module(joint: &JointGraph, node: NodeId) -> String {
    match joint.module_of(node) {
        None | Some("") => String::new(),
        Some(module) => format!(" in {module}"),
    }
}

/// The name of a value: the path of a parameter, the name of an input, the id of any other.
fn name_of(joint: &JointGraph, value: ValueId) -> String {
    match joint.given(value) {
        Some(Given::Parameter(position)) => joint.parameter(position).path.to_string(),
        Some(Given::Input(position)) => match joint.inputs()[position].leaf.name.as_str() {
            "" => "the batch".to_owned(),
            name => format!("batch {name}"),
        },
        Some(Given::Weight) => "the micro-batch's weight".to_owned(),
        None => value.to_string(),
    }
}

struct Writer<'a> {
    joint: &'a JointGraph,
    programs: &'a StagePrograms,
    compute: Compute,
    phase: &'a Phase,
}

impl Writer<'_> {
    /// The inputs of the program.
    fn reads(&self) -> Vec<String> {
        let inputs = self.phase.program.inputs().iter().zip(&self.phase.inputs);
        let lines = inputs.map(|(value, binding)| {
            let origin = match binding {
                Binding::Given(Given::Parameter(_)) => "parameter".to_owned(),
                Binding::Given(_) => "micro-batch".to_owned(),
                Binding::Constant(_) => "constant".to_owned(),
                Binding::Value(id) => self.origin(*id),
            };
            format!("{}, {origin}", self.named(*value))
        });
        lines.collect()
    }

    /// The name and type of a value.
    fn named(&self, value: ValueId) -> String {
        let known = self.joint.graph().value(value);
        format!("{}: {known}", name_of(self.joint, value))
    }

    /// The origin of a value of the micro-batch.
    fn origin(&self, value: ValueId) -> String {
        let edges = self.programs.receives.iter();
        let mut from = edges.filter(|(_, values)| values.contains(&value));
        match from.next() {
            Some((edge, _)) => format!("from stage {}", edge.from.stage),
            None => "kept".to_owned(),
        }
    }

    fn operations(&self) -> Vec<String> {
        let graph = self.joint.graph();
        let last_use = self.last_uses();
        let kept = self.destinations();
        let name = |value: &ValueId| name_of(self.joint, *value);
        let names = |values: &[ValueId]| joined(values.iter().map(name));
        let lines = self.phase.nodes.iter().enumerate().map(|(index, id)| {
            let node = graph.node(*id);
            let made = joined(node.outputs().iter().map(|value| self.named(*value)));
            let destinations = node.outputs().iter().filter_map(|value| kept.get(value));
            let mut notes: Vec<String> = destinations.cloned().collect();
            let operands = node.inputs().iter().chain(node.outputs());
            let operands: BTreeSet<ValueId> = operands.copied().collect();
            let freed = |value: &ValueId| last_use.get(value) == Some(&index);
            let freed: Vec<ValueId> = operands.into_iter().filter(freed).collect();
            if !freed.is_empty() {
                notes.push(format!("frees {}", names(&freed)));
            }
            let notes = match notes.is_empty() {
                true => String::new(),
                false => format!("; {}", notes.join(", ")),
            };
            let (name, inputs) = (node.name(), names(node.inputs()));
            let module = in_module(self.joint, *id);
            format!("{made} = {name}({inputs}){module}{notes}")
        });
        lines.collect()
    }

    /// The operation after which each value is freed. Values that are kept, sent or read by other programs are left out.
    fn last_uses(&self) -> BTreeMap<ValueId, usize> {
        let mut last_uses = self.phase.last_uses(self.joint);
        let given = self.phase.program.inputs().iter().zip(&self.phase.inputs);
        // The forward frees no input. A backward frees the values that were kept for it.
        let frees_kept = matches!(self.compute, Compute::Backward | Compute::WeightGradient);
        let stays = given.filter_map(|(value, binding)| match binding {
            Binding::Value(_) if frees_kept => None,
            _ => Some(*value),
        });
        for value in stays {
            last_uses.remove(&value);
        }
        last_uses.retain(|value, _| !self.joint.graph().is_constant(*value));
        last_uses
    }

    /// The uses of the values that leave the program.
    fn destinations(&self) -> BTreeMap<ValueId, String> {
        let is_forward = |compute: Compute| compute == Compute::Forward;
        let is_here = |edge: &Edge| is_forward(edge.from.compute) == is_forward(self.compute);
        let outputs = self.phase.outputs.iter().map(|(value, consumers)| {
            let sends = self.programs.sends.iter();
            let sends = sends.filter(|(edge, values)| is_here(edge) && values.contains(value));
            let stages: BTreeSet<StageIndex> = sends.map(|(edge, _)| edge.to.stage).collect();
            let sent = stages.iter().map(|stage| format!("sent to stage {stage}"));
            let mut words: Vec<String> = sent.collect();
            let outputs = self.programs.outputs.iter();
            let named = outputs.filter(|(_, known)| known == value);
            words.extend(named.map(|(name, _)| format!("output `{name}`")));
            if self.programs.loss == Some(*value) {
                words.push("the loss".to_owned());
            }
            if consumers.whole.max(consumers.split) > words.len() {
                words.push("kept for the backward".to_owned());
            }
            words.join(", ")
        });
        let (joint, phase) = (self.joint, self.phase);
        let path = |at: &usize| name_of(joint, joint.parameters()[*at]);
        let gradients = phase.gradients.iter();
        let gradients = gradients.map(|at| format!("the gradient of {}", path(at)));
        let updates = phase.updates.iter();
        let updates = updates.map(|at| format!("the new value of {}", path(at)));
        let carried = phase.carried.iter();
        let carried = carried.map(|at| format!("carried `{}`", joint.inputs()[*at].leaf.name));
        let texts = outputs.chain(gradients).chain(updates).chain(carried);
        let mut destinations: BTreeMap<ValueId, Vec<String>> = BTreeMap::new();
        for (value, text) in phase.program.outputs().zip(texts) {
            destinations.entry(value).or_default().push(text);
        }
        let texts = destinations.into_iter();
        let texts = texts.map(|(value, words)| (value, words.join(", ")));
        texts.collect()
    }
}

/// Adds the values of every stage's boundaries.
pub(super) fn add_values(stages: &mut [PlanStage], joint: &JointGraph, programs: &[StagePrograms]) {
    // The stage that computes each value, and the stages that receive it.
    let mut ways: BTreeMap<ValueId, (usize, BTreeSet<usize>)> = BTreeMap::new();
    for (edge, values) in programs.iter().flat_map(|programs| &programs.sends) {
        if edge.from.compute == Compute::Forward {
            for value in values {
                let from = edge.from.stage.index();
                let way = ways.entry(*value).or_insert((from, BTreeSet::new()));
                way.1.insert(edge.to.stage.index());
            }
        }
    }
    for (value, (from, to)) in ways {
        let last = to.last().copied().unwrap_or(from);
        let described = describe(joint, value, from, last);
        for (index, stage) in stages.iter_mut().enumerate().take(last + 1).skip(from) {
            let list = if index == from {
                &mut stage.live_out
            } else if to.contains(&index) {
                &mut stage.live_in
            } else {
                &mut stage.bypassing
            };
            list.push(described.clone());
        }
    }
}

fn describe(joint: &JointGraph, value: ValueId, from: usize, to: usize) -> PlanValue {
    let known = joint.graph().value(value);
    let made_by = known
        .producer
        .map(|node| joint.graph().node(node).name() + &in_module(joint, node));
    PlanValue {
        name: value.to_string(),
        made_by: made_by.unwrap_or_default(),
        from: StageIndex::new(from),
        to: StageIndex::new(to),
        shape: known.shape.iter().copied().collect(),
        dtype: dtype_name(known.dtype).to_owned(),
        bytes: known.bytes(),
    }
}
