//! Creates the graph of a part of a value from the graph of the whole.

use std::collections::{BTreeMap, HashMap, HashSet};

use burn::tensor::{DType, Device, Shape, Slice};
use burn_ir::{BaseOperationIr, CastOpIr, CreationOpIr, SliceAssignOpIr, SliceOpIr};
use serde::{Deserialize, Serialize};
use tinderbox_fake::{DynTensor, Graph, GraphBuilder, NodeId, Region, ValueId};

use super::rules::{Make, Step, step, whole};
use super::{NotSliceable, RecipeError};
use crate::program::{Draw, Draws, family, is_row_major, is_view};
use crate::random::Seed;

/// The contents of a recipe, in the order of its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Contents {
    pub(super) name: String,
    pub(super) seed: Seed,
    pub(super) output: ValueId,
    pub(super) draws: BTreeMap<NodeId, Draw>,
    /// The results that are not sliceable, though only a part of each is needed.
    #[serde(rename = "made_whole")]
    pub(super) not_sliceable: Vec<NotSliceable>,
    /// Whether the output is a view into a larger tensor: it would keep the memory of that tensor allocated.
    pub(super) is_view: bool,
    pub(super) graph: Graph,
}

/// Propagates a region of `output` back through the operations that compute it, to constants and fills, and returns the
/// recipe of the region with this name and seed.
///
/// `draw` returns the random values that a random operation of the graph generates. Time: linear in the number
/// of operations that the value depends on.
pub(super) fn push(
    (name, seed): (String, Seed),
    graph: &Graph,
    output: ValueId,
    region: &Region,
    draw: Draws<'_>,
) -> Result<Contents, RecipeError> {
    let mut writer = Writer {
        graph,
        draw,
        builder: GraphBuilder::new(),
        made: HashMap::new(),
        row_major: HashSet::new(),
        draws: BTreeMap::new(),
    };
    let mut not_sliceable = Vec::new();
    let output = if region.num_elements() == 0 {
        // A part without elements has no dependencies.
        let dtype = graph.value(output).dtype;
        zeros(&mut writer.builder, shape_of(region), dtype)
    } else {
        let demand = Demand::of(graph, output, region);
        for (value, region) in &demand.constants {
            writer.constant(*value, region)?;
        }
        for (node, step) in &demand.steps {
            writer.step(*node, step);
        }
        not_sliceable = demand.not_sliceable;
        writer.part(output, region)
    };
    let graph = writer.builder.finish()?;
    Ok(Contents {
        name,
        seed,
        output,
        draws: writer.draws,
        not_sliceable,
        is_view: is_part_of_more(&graph, output),
        graph,
    })
}

fn zeros(builder: &mut GraphBuilder, shape: Shape, dtype: DType) -> ValueId {
    let zeros = |out| family(dtype)(BaseOperationIr::Zeros(CreationOpIr { out }));
    builder.add(shape, dtype, zeros)
}

/// The needed part of each value and how it is computed, in recorded order.
#[derive(Default)]
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
        let mut demand = Self::default();
        let nodes = graph.backward_slice([output], |_| false).nodes;
        for id in nodes.into_iter().rev() {
            let node = graph.node(id);
            let step = match node.outputs() {
                [one] => match needed.get(one) {
                    Some(wanted) => step(&node.operation, wanted),
                    // Its only reader does not need it after all.
                    None => continue,
                },
                many if many.iter().any(|out| needed.contains_key(out)) => whole(&node.operation),
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
        for out in node.outputs() {
            let value = graph.value(*out);
            let shape: Vec<u64> = value.shape.iter().map(|d| *d as u64).collect();
            if needed.get(out).is_some_and(|part| !part.is_whole(&shape)) {
                self.not_sliceable.push(NotSliceable {
                    operation: node.name(),
                    shape,
                    bytes: value.bytes(),
                });
            }
        }
    }
}

/// A value of the new graph, and its region in the value of the old graph.
struct Made {
    id: ValueId,
    region: Region,
}

struct Writer<'a> {
    graph: &'a Graph,
    draw: Draws<'a>,
    builder: GraphBuilder,
    /// By the value of the old graph.
    made: HashMap<ValueId, Made>,
    /// Values of the new graph that are certainly in row-major order.
    row_major: HashSet<ValueId>,
    draws: BTreeMap<NodeId, Draw>,
}

impl Writer<'_> {
    fn constant(&mut self, value: ValueId, region: &Region) -> Result<(), RecipeError> {
        let data = self.graph.constant(value);
        let data = data.expect("the demand lists constants only").clone();
        let shape: Vec<u64> = data.shape().iter().map(|d| *d as u64).collect();
        let data = match region.is_whole(&shape) {
            true => data,
            // On the CPU, also if the recipe runs on another device.
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

    fn step(&mut self, id: NodeId, step: &Step) {
        let node = self.graph.node(id);
        let mut parts = Vec::new();
        for (input, region) in node.inputs().iter().zip(&step.inputs) {
            if let Some(region) = region {
                let part = self.part(*input, region);
                parts.push(match step.make {
                    Make::Whole => self.in_row_major_order(part),
                    Make::Run(_) | Make::Alias => part,
                });
            }
        }
        let operation = match &step.make {
            Make::Run(operation) => &**operation,
            Make::Whole => &node.operation,
            Make::Alias => {
                let id = parts.pop().expect("an alias has one input");
                let region = step.out.clone();
                self.made.insert(node.outputs()[0], Made { id, region });
                return;
            }
        };
        let mut outs = Vec::new();
        for out in node.outputs() {
            let value = self.graph.value(*out);
            let region = match step.make {
                Make::Whole => Region::of_shape(&value.shape),
                _ => step.out.clone(),
            };
            let id = self.builder.declare(shape_of(&region), value.dtype);
            self.made.insert(*out, Made { id, region });
            outs.push(id);
        }
        let inputs = parts.iter().map(|part| self.row_major.contains(part));
        if is_row_major(operation, inputs) {
            self.row_major.extend(&outs);
        }
        let new = self.builder.copy(operation, &parts, &outs);
        if let Some(draw) = (self.draw)(id) {
            self.draws.insert(new, draw.part(&step.out));
        }
    }

    /// Returns the same value in row-major order.
    ///
    /// The result of an operation that is not sliceable may depend on more than values: `flex` sums the elements of a tensor
    /// in row-major order in another order than the elements of a view. Whether a value is a view depends on its other uses,
    /// which differ from region to region.
    fn in_row_major_order(&mut self, value: ValueId) -> ValueId {
        if self.row_major.contains(&value) {
            return value;
        }
        let value = self.builder.input(value);
        let (shape, dtype) = (value.shape.clone(), value.dtype);
        let zeros = zeros(&mut self.builder, shape.clone(), dtype);
        let tensor = self.builder.input(zeros);
        let ranges = shape.iter().map(|size| Slice::from(0..*size)).collect();
        let id = self.builder.add(shape, dtype, |out| {
            family(dtype)(BaseOperationIr::SliceAssign(SliceAssignOpIr {
                ranges,
                tensor,
                value,
                out,
            }))
        });
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
        let ranges = ranges.into_iter().map(Slice::from).collect();
        let tensor = self.builder.input(made.id);
        let dtype = tensor.dtype;
        self.builder.add(shape_of(region), dtype, |out| {
            family(dtype)(BaseOperationIr::Slice(SliceOpIr {
                ranges,
                out,
                tensor,
            }))
        })
    }
}

/// Appends a cast of a recipe's result.
pub(super) fn cast(recipe: Contents, dtype: DType) -> Result<Contents, RecipeError> {
    let known = recipe.graph.value(recipe.output);
    if known.dtype == dtype {
        return Ok(recipe);
    }
    let shape = known.shape.clone();
    let mut builder = GraphBuilder::from(recipe.graph);
    let input = builder.input(recipe.output);
    let cast = |out| family(dtype)(BaseOperationIr::Cast(CastOpIr { input, out }));
    let output = builder.add(shape, dtype, cast);
    Ok(Contents {
        graph: builder.finish()?,
        output,
        // The result of a cast is not a view.
        is_view: false,
        ..recipe
    })
}

/// Returns whether a value is a view into memory that is larger than it.
fn is_part_of_more(graph: &Graph, value: ValueId) -> bool {
    let bytes = graph.value(value).bytes();
    let mut at = value;
    while let Some(node) = graph.value(at).producer.map(|id| graph.node(id)) {
        if !is_view(&node.operation) {
            return false;
        }
        at = node.inputs()[0];
        if graph.value(at).bytes() > bytes {
            return true;
        }
    }
    false
}

fn shape_of(region: &Region) -> Shape {
    let dims: Vec<usize> = region.size().iter().map(|d| *d as usize).collect();
    Shape::from(dims)
}
