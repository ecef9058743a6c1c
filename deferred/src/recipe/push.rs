//! Creates the graph of a part of a value from the graph of the whole.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use burn::tensor::{DType, Device, Shape, Slice};
use burn_ir::{
    BaseOperationIr, CastOpIr, CreationOpIr, IrVisitorMut, OperationIr, SliceAssignOpIr, SliceOpIr,
    TensorId, TensorIr, TensorStatus,
};
use tinderbox_fake::{DynTensor, Graph, GraphBuilder, NodeId, Region, TensorKind, ValueId};

use super::layout::{is_part_of_more, is_row_major};
use super::rules::{Make, Step, step, whole};
use super::{NotSliceable, RecipeError};
use crate::program::Draw;

/// The graph of a part of a value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pushed {
    pub(super) graph: Graph,
    pub(super) output: ValueId,
    pub(super) draws: BTreeMap<NodeId, Draw>,
    /// Results of which a part is needed, but which are not sliceable.
    pub(super) not_sliceable: Vec<NotSliceable>,
    /// Whether the output is a view into a larger tensor, whose memory it would keep allocated.
    pub(super) is_view: bool,
}

/// Propagates a region of `output` back through the operations that compute it, to constants and fills.
///
/// `draws` has the random values that each random operation of the graph generates. Time: linear in the number
/// of operations that the value depends on.
pub(super) fn push(
    graph: &Graph,
    output: ValueId,
    region: &Region,
    draws: &BTreeMap<NodeId, Draw>,
) -> Result<Pushed, RecipeError> {
    if region.num_elements() == 0 {
        return Ok(empty(graph, output, region));
    }
    let demand = Demand::of(graph, output, region);
    let mut writer = Writer {
        graph,
        draws,
        builder: GraphBuilder::new(),
        made: HashMap::new(),
        row_major: HashSet::new(),
        new_draws: BTreeMap::new(),
    };
    for (value, region) in &demand.constants {
        writer.constant(*value, region)?;
    }
    for (node, step) in &demand.steps {
        writer.step(*node, step)?;
    }
    let output = writer.part(output, region);
    let graph = writer.builder.finish()?;
    Ok(Pushed {
        output,
        draws: writer.new_draws,
        not_sliceable: demand.not_sliceable,
        is_view: is_part_of_more(&graph, output),
        graph,
    })
}

/// A part without elements has no dependencies.
fn empty(graph: &Graph, output: ValueId, region: &Region) -> Pushed {
    let mut builder = GraphBuilder::new();
    let out = builder.output(shape_of(region), graph.value(output).dtype);
    let id = builder.id_of(&out);
    builder.node(family(out.dtype)(BaseOperationIr::Zeros(CreationOpIr {
        out,
    })));
    Pushed {
        graph: builder.finish().expect("one node reads nothing"),
        output: id,
        draws: BTreeMap::new(),
        not_sliceable: Vec::new(),
        is_view: false,
    }
}

/// The step for no elements of an operation's result, which has no dependencies.
fn nothing(operation: &OperationIr, wanted: &Region) -> Step {
    let out = operation.outputs().next();
    let out = out
        .expect("the caller has checked that it has a result")
        .clone();
    let family = family(out.dtype);
    Step {
        out: wanted.clone(),
        inputs: operation.inputs().map(|_| None).collect(),
        make: Make::Run(Box::new(family(BaseOperationIr::Zeros(CreationOpIr {
            out,
        })))),
    }
}

/// The needed part of each value and how it is computed, in recorded order.
struct Demand {
    steps: BTreeMap<NodeId, Step>,
    constants: BTreeMap<ValueId, Region>,
    not_sliceable: Vec<NotSliceable>,
}

impl Demand {
    /// Walks from the output to the leaves. All readers of a value are recorded after its producer,
    /// so when its producer is reached, all needed parts of it are known; their bounding box is computed.
    fn of(graph: &Graph, output: ValueId, region: &Region) -> Self {
        let mut needed: BTreeMap<ValueId, Region> = BTreeMap::from([(output, region.clone())]);
        let mut demand = Self {
            steps: BTreeMap::new(),
            constants: BTreeMap::new(),
            not_sliceable: Vec::new(),
        };
        let nodes = graph.backward_slice([output], |_| false).nodes;
        for id in nodes.into_iter().rev() {
            let node = graph.node(id);
            let step = match node.outputs() {
                [one] => match needed.get(one) {
                    Some(wanted) if wanted.num_elements() == 0 => nothing(&node.operation, wanted),
                    Some(wanted) => step(&node.operation, wanted),
                    // Its only reader does not need it after all.
                    None => continue,
                },
                several if several.iter().any(|out| needed.contains_key(out)) => {
                    whole(&node.operation)
                }
                _ => continue,
            };
            if matches!(step.make, Make::Whole) {
                demand.note_whole(graph, id, &needed);
            }
            for (input, region) in node.inputs().iter().zip(&step.inputs) {
                let Some(region) = region else { continue };
                needed
                    .entry(*input)
                    .and_modify(|known| *known = known.hull(region))
                    .or_insert_with(|| region.clone());
            }
            demand.steps.insert(id, step);
        }
        let constants = needed.into_iter();
        demand.constants = constants.filter(|(v, _)| graph.is_constant(*v)).collect();
        demand.not_sliceable.reverse();
        demand
    }

    fn note_whole(&mut self, graph: &Graph, id: NodeId, needed: &BTreeMap<ValueId, Region>) {
        let node = graph.node(id);
        let parts = node.outputs().iter().filter(|out| {
            let shape = graph.value(**out).shape.iter().map(|d| *d as u64);
            let wanted = needed.get(out);
            wanted.is_some_and(|wanted| !wanted.is_whole(&shape.collect::<Vec<_>>()))
        });
        for out in parts {
            let value = graph.value(*out);
            self.not_sliceable.push(NotSliceable {
                operation: node.name(),
                shape: value.shape.iter().map(|d| *d as u64).collect(),
                bytes: value.bytes(),
            });
        }
    }
}

/// A value of the new graph, and the part of the old graph's value that it is.
struct Made {
    id: ValueId,
    region: Region,
}

struct Writer<'a> {
    graph: &'a Graph,
    draws: &'a BTreeMap<NodeId, Draw>,
    builder: GraphBuilder,
    /// By the value of the old graph.
    made: HashMap<ValueId, Made>,
    /// Values of the new graph that are certainly in row-major order.
    row_major: HashSet<ValueId>,
    new_draws: BTreeMap<NodeId, Draw>,
}

impl Writer<'_> {
    fn constant(&mut self, value: ValueId, region: &Region) -> Result<(), RecipeError> {
        let data = self.graph.constant(value);
        let data = data.expect("the demand lists constants only").clone();
        let shape: Vec<u64> = data.shape().iter().map(|d| *d as u64).collect();
        let data = match region.is_whole(&shape) {
            true => data,
            // On the CPU, whatever the device of the recipe.
            false => DynTensor::from_data(data, &Device::flex())
                .slice(region)
                .to_data()?,
        };
        let id = self.builder.constant(data);
        self.row_major.insert(id);
        let region = region.clone();
        self.made.insert(value, Made { id, region });
        Ok(())
    }

    fn step(&mut self, id: NodeId, step: &Step) -> Result<(), RecipeError> {
        let node = self.graph.node(id);
        let mut parts = VecDeque::new();
        for (input, region) in node.inputs().iter().zip(&step.inputs) {
            if let Some(region) = region {
                let mut part = self.part(*input, region);
                if matches!(step.make, Make::Whole) {
                    part = self.in_row_major_order(part);
                }
                parts.push_back((tensor_id(*input), part));
            }
        }
        if let Make::Alias = step.make {
            let (_, part) = parts.pop_front().expect("an alias has one input");
            let region = step.out.clone();
            self.made
                .insert(node.outputs()[0], Made { id: part, region });
            return Ok(());
        }
        let mut operation = match &step.make {
            Make::Run(operation) => (**operation).clone(),
            Make::Draw | Make::Whole | Make::Alias => node.operation.clone(),
        };
        let outputs = node.outputs().iter();
        let outs: Vec<TensorIr> = outputs
            .map(|out| {
                let value = self.graph.value(*out);
                let region = match step.make {
                    Make::Whole => Region::of_shape(&value.shape),
                    _ => step.out.clone(),
                };
                let tensor = self.builder.output(shape_of(&region), value.dtype);
                let id = self.builder.id_of(&tensor);
                self.made.insert(*out, Made { id, region });
                tensor
            })
            .collect();
        let inputs = parts.iter().map(|(_, part)| self.row_major.contains(part));
        if is_row_major(&operation, inputs) {
            self.row_major
                .extend(outs.iter().map(|out| self.builder.id_of(out)));
        }
        operation.visit_mut(&mut Replace {
            builder: &self.builder,
            parts,
            outs: outs.into(),
        });
        let new = self.builder.node(operation);
        if let Some(draw) = self.draws.get(&id) {
            self.new_draws.insert(new, draw.part(&step.out));
        }
        Ok(())
    }

    /// Returns the same value in row-major order: see [`layout`](super::layout).
    fn in_row_major_order(&mut self, value: ValueId) -> ValueId {
        if self.row_major.contains(&value) {
            return value;
        }
        let value = self.builder.input(value);
        let family = family(value.dtype);
        let tensor = self.builder.output(value.shape.clone(), value.dtype);
        let zeros = self.builder.id_of(&tensor);
        self.builder
            .node(family(BaseOperationIr::Zeros(CreationOpIr { out: tensor })));
        let out = self.builder.output(value.shape.clone(), value.dtype);
        let id = self.builder.id_of(&out);
        let ranges = value.shape.iter().map(|size| Slice::from(0..*size));
        let assign = SliceAssignOpIr {
            ranges: ranges.collect(),
            tensor: self.builder.input(zeros),
            value,
            out,
        };
        self.builder
            .node(family(BaseOperationIr::SliceAssign(assign)));
        self.row_major.extend([zeros, id]);
        id
    }

    /// Returns the part of a value, sliced from the part that was computed.
    fn part(&mut self, value: ValueId, region: &Region) -> ValueId {
        let made = &self.made[&value];
        if made.region == *region {
            return made.id;
        }
        let ranges = region.relative_to(&made.region).ranges();
        let tensor = self.builder.input(made.id);
        let out = self.builder.output(shape_of(region), tensor.dtype);
        let id = self.builder.id_of(&out);
        let slice = SliceOpIr {
            ranges: ranges.into_iter().map(Slice::from).collect(),
            out,
            tensor,
        };
        let family = family(slice.out.dtype);
        self.builder.node(family(BaseOperationIr::Slice(slice)));
        id
    }
}

/// Inserts the tensors of the new graph into an operation of the old one.
struct Replace<'a> {
    builder: &'a GraphBuilder,
    /// The old id and the new value of each remaining input, in the operation's order.
    parts: VecDeque<(TensorId, ValueId)>,
    outs: VecDeque<TensorIr>,
}

impl IrVisitorMut for Replace<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        if tensor.status == TensorStatus::NotInit {
            *tensor = self
                .outs
                .pop_front()
                .expect("the operation has an output for each tensor");
            return;
        }
        // An operation may be visited in another order than it lists its inputs.
        let at = self.parts.iter().position(|(id, _)| *id == tensor.id);
        let part = at.and_then(|at| self.parts.remove(at));
        let (_, value) = part.expect("there is a part for each input");
        *tensor = self.builder.input(value);
    }
}

/// Appends a cast of a graph's output.
pub(super) fn cast(pushed: Pushed, dtype: DType) -> Result<Pushed, RecipeError> {
    let known = pushed.graph.value(pushed.output);
    if known.dtype == dtype {
        return Ok(pushed);
    }
    let shape = known.shape.clone();
    let mut builder = GraphBuilder::from(pushed.graph);
    let input = builder.input(pushed.output);
    let out = builder.output(shape, dtype);
    let output = builder.id_of(&out);
    builder.node(OperationIr::BaseFloat(BaseOperationIr::Cast(CastOpIr {
        input,
        out,
    })));
    Ok(Pushed {
        graph: builder.finish()?,
        output,
        // The result of a cast has memory of its own.
        is_view: false,
        ..pushed
    })
}

fn tensor_id(value: ValueId) -> TensorId {
    TensorId::new(value.index() as u64)
}

fn shape_of(region: &Region) -> Shape {
    let dims: Vec<usize> = region.size().iter().map(|d| *d as usize).collect();
    Shape::from(dims)
}

/// Returns the family of base operations for tensors of a dtype.
fn family(dtype: DType) -> fn(BaseOperationIr) -> OperationIr {
    match TensorKind::of(dtype) {
        TensorKind::Float => OperationIr::BaseFloat,
        TensorKind::Int => OperationIr::BaseInt,
        TensorKind::Bool => OperationIr::BaseBool,
    }
}
