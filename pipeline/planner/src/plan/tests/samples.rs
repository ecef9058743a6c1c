//! Plans of a made-up model, for the tests of views: a transformer with a tied embedding and a value
//! that skips all its blocks.

use tinderbox_ids::ParameterPath;
use tinderbox_schedule::{
    Compute, ComputeTimes, Costs, LinkCosts, Placement, RankIndex, ScheduleKind, StageIndex,
};

use super::super::{
    Boundary, PLAN_VERSION, Plan, PlanParameter, PlanProgram, PlanStage, PlanValue, TieGroup,
};
use crate::{Block, Choice, Machine, Parameter, Partition, RankModel, Step, Value, Work, predict};

const MIB: u64 = 1 << 20;

/// The parameters of a sample plan.
pub(crate) struct Sample {
    pub(crate) layers: usize,
    pub(crate) machine: Machine,
    pub(crate) step: Step,
    /// The first block of each stage; blocks are the embedding, two for each layer, and the head.
    pub(crate) starts: Vec<usize>,
    pub(crate) ranks: Vec<usize>,
    pub(crate) recompute: Vec<usize>,
}

/// Two stages on two ranks, three layers, 1F1B.
pub(crate) fn two_stages() -> Plan {
    Sample {
        layers: 3,
        machine: Machine::local(2).unwrap(),
        step: Step::new(ScheduleKind::OneFOneB, 4),
        starts: vec![0, 5],
        ranks: vec![0, 1],
        recompute: vec![],
    }
    .plan()
}

/// Four stages on four ranks of different memory and speed; one stage recomputes.
pub(crate) fn four_stages() -> Plan {
    let rank = |gib: u64, speed_permille| RankModel {
        memory_bytes: Some(gib * 1024 * MIB),
        speed_permille,
    };
    let ranks = vec![rank(1, 1000), rank(1, 1000), rank(2, 1500), rank(2, 1500)];
    let mut machine = Machine::of_ranks(ranks).unwrap();
    machine.link = LinkCosts::new(20_000, 80_000);
    Sample {
        layers: 8,
        machine,
        step: Step::new(ScheduleKind::ZbH1, 8).with_recomputation(),
        starts: vec![0, 4, 8, 13],
        ranks: vec![0, 1, 2, 3],
        recompute: vec![1],
    }
    .plan()
}

/// Eight stages on four ranks, interleaved.
pub(crate) fn eight_stages() -> Plan {
    let machine = Machine::local(4).unwrap().with_memory_limit(900 * MIB);
    Sample {
        layers: 16,
        machine: machine.with_chunks(2, Placement::Loop).unwrap(),
        step: Step::new(ScheduleKind::Interleaved1F1B, 8),
        starts: vec![0, 5, 9, 13, 17, 21, 25, 29],
        ranks: vec![0, 1, 2, 3, 0, 1, 2, 3],
        recompute: vec![],
    }
    .plan()
}

/// Stages that are not placed as a named schedule requires: the plan has its own lists.
pub(crate) fn own_lists() -> Plan {
    Sample {
        layers: 3,
        machine: Machine::local(2).unwrap(),
        step: Step::new(ScheduleKind::OneFOneB, 3),
        starts: vec![0, 2, 5],
        ranks: vec![0, 1, 0],
        recompute: vec![],
    }
    .plan()
}

/// The smallest plan.
pub(crate) fn smallest() -> Plan {
    let mut plan = Sample {
        layers: 0,
        machine: Machine::local(2).unwrap().with_memory_limit(64 * MIB),
        step: Step::new(ScheduleKind::GPipe, 2),
        starts: vec![0, 1],
        ranks: vec![0, 1],
        recompute: vec![1],
    }
    .plan();
    plan.stages[0].programs.truncate(1);
    plan
}

impl Sample {
    pub(crate) fn plan(self) -> Plan {
        let work = work(self.layers);
        let ranks: Vec<RankIndex> = self.ranks.iter().copied().map(RankIndex::new).collect();
        let stages = 0..ranks.len();
        let recompute = stages.clone().map(|stage| self.recompute.contains(&stage));
        let blocks = work.blocks.len();
        let partition = Partition::contiguous(blocks, &self.starts, ranks, recompute.collect());
        let found = predict(&work, &self.machine, &self.step, &partition).unwrap();
        let named = found.schedule.name == self.step.schedule.name();
        let costs = &found.costs.costs;
        let boundaries = costs.message_bytes.iter().map(|(edge, bytes)| Boundary {
            edge: *edge,
            values: (*bytes).div_ceil(4 * MIB) as usize,
            bytes: *bytes,
        });
        let boundaries: Vec<Boundary> = boundaries.collect();
        let stages = stages.map(|index| stage(&work, &partition, index, costs, &boundaries));
        let parameters = (0..work.parameters.len()).map(|index| parameter(&work, index));
        let forward = work.blocks.iter();
        let forward =
            forward.map(|block| format!("Module.Linear f32[8, 128, 512] in {}", block.name));
        Plan {
            version: PLAN_VERSION,
            model: format!("5f3c9a1e{blocks:024}"),
            graph: "07ab41c2d9e8f6350b1a7c4d2e9f8061".to_owned(),
            structure: "c1d2e3f405162738495a6b7c8d9e0f10".to_owned(),
            samples: None,
            program: "training: tokens i64[8, 128], targets i64[8, 128]".to_owned(),
            choice: Choice {
                partitioner: "chain".to_owned(),
                reasons: vec!["the blocks form a chain, of which every cut was tried".to_owned()],
            },
            strategy: None,
            lists: (!named).then(|| found.schedule.to_string()),
            prediction: found.prediction,
            parameters: parameters.collect(),
            forward: forward.collect(),
            ties: ties(&work, &partition),
            stages: stages.collect(),
            boundaries,
            machine: self.machine,
            step: self.step,
        }
    }
}

/// The blocks of a transformer.
fn work(layers: usize) -> Work {
    let mut work = Work::default();
    let mut add = |name: String, micros: u64, bytes: u64| {
        let times = ComputeTimes::new(micros * 1000, micros * 1100, micros * 900);
        let readers = vec![work.blocks.len()];
        work.blocks.push(Block {
            weight_gradient_bytes: 2 * MIB,
            transient_bytes: 6 * MIB,
            ..Block::of_times(name, times)
        });
        let parameters = [bytes, bytes / 256].map(|bytes| Parameter {
            bytes,
            cast_bytes: 0,
            is_trainable: true,
            readers: readers.clone(),
        });
        work.parameters.extend(parameters);
    };
    add("embedding".to_owned(), 60, 24 * MIB);
    for layer in 0..layers {
        add(format!("blocks.{layer}.attention"), 900, 4 * MIB);
        add(format!("blocks.{layer}.feed_forward"), 1400, 8 * MIB);
    }
    add("head".to_owned(), 700, MIB);
    let last = work.blocks.len() - 1;
    work.parameters[0].readers.push(last);
    for maker in 0..last {
        work.values.push(Value {
            bytes: 4 * MIB,
            maker,
            readers: vec![maker + 1],
            keepers: vec![maker, maker + 1],
            gradient_bytes: 4 * MIB,
        });
    }
    // The mask, through which no gradient flows back.
    work.values.push(Value {
        bytes: MIB / 4,
        maker: 0,
        readers: vec![last],
        keepers: vec![last],
        gradient_bytes: 0,
    });
    work
}

fn path(work: &Work, index: usize) -> ParameterPath {
    let block = &work.blocks[work.parameters[index].readers[0]].name;
    let leaf = ["weight", "bias"][index % 2];
    ParameterPath::new(format!("{block}.{leaf}"))
}

fn parameter(work: &Work, index: usize) -> PlanParameter {
    let elements = usize::try_from(work.parameters[index].bytes / 4).unwrap();
    PlanParameter {
        path: path(work, index),
        shape: match index.is_multiple_of(2) {
            true => vec![512, elements / 512],
            false => vec![elements],
        },
        dtype: "f32".to_owned(),
    }
}

fn stages_of(work: &Work, partition: &Partition, parameter: usize) -> Vec<usize> {
    let readers = work.parameters[parameter].readers.iter();
    let mut stages: Vec<usize> = readers.map(|block| partition.stage_of[*block]).collect();
    stages.dedup();
    stages
}

fn ties(work: &Work, partition: &Partition) -> Vec<TieGroup> {
    let tied = (0..work.parameters.len()).filter(|index| work.parameters[*index].readers.len() > 1);
    let groups = tied.map(|index| {
        let stages = stages_of(work, partition, index);
        TieGroup {
            path: path(work, index),
            clones: vec![ParameterPath::new("head.tied")],
            owner: StageIndex::new(stages[0]),
            copies: stages[1..].iter().copied().map(StageIndex::new).collect(),
        }
    });
    groups.collect()
}

fn stage(
    work: &Work,
    partition: &Partition,
    index: usize,
    costs: &Costs,
    boundaries: &[Boundary],
) -> PlanStage {
    let of = |owned: bool| {
        (0..work.parameters.len()).filter(move |parameter| {
            let mut stages = stages_of(work, partition, *parameter).into_iter();
            let at = stages.position(|stage| stage == index);
            at.is_some_and(|at| (at == 0) == owned)
        })
    };
    let paths = |owned| of(owned).map(|parameter| path(work, parameter)).collect();
    let bytes = |owned| of(owned).map(|index| work.parameters[index].bytes).sum();
    let values = |here: fn(usize, usize, usize) -> bool| {
        let values = work.values.iter().enumerate();
        let crossing = values.filter_map(|(number, value)| {
            let from = partition.stage_of[value.maker];
            let to = partition.stage_of[*value.readers.last()?];
            (from < to && here(from, to, index)).then(|| plan_value(work, number, from, to))
        });
        crossing.collect::<Vec<_>>()
    };
    let blocks = 0..work.blocks.len();
    let blocks = blocks.filter(|block| partition.stage_of[*block] == index);
    let blocks: Vec<usize> = blocks.collect();
    let own = || blocks.iter().map(|block| &work.blocks[*block]);
    let forward_flops = own().map(|block| block.forward * 50).sum();
    let sent = boundaries.iter();
    let sent = sent.filter(|boundary| boundary.edge.from.stage.index() == index);
    PlanStage {
        stage: StageIndex::new(index),
        rank: partition.stage_to_rank[index],
        modules: own().map(|block| block.name.clone()).collect(),
        parameters: paths(true),
        copies: paths(false),
        parameter_bytes: bytes(true),
        copy_bytes: bytes(false),
        forward_flops,
        backward_flops: 2 * forward_flops,
        boundary_bytes: sent.map(|boundary| boundary.bytes).sum(),
        recompute: partition.recompute[index],
        operations: vec![(10 * blocks[0], 10 * (blocks[blocks.len() - 1] + 1))],
        costs: costs.stages[index],
        live_in: values(|_, to, here| to == here),
        live_out: values(|from, _, here| from == here),
        bypassing: values(|from, to, here| from < here && here < to),
        programs: [Compute::Forward, Compute::Backward]
            .map(|compute| program(work, &blocks, compute))
            .to_vec(),
    }
}

fn plan_value(work: &Work, number: usize, from: usize, to: usize) -> PlanValue {
    let value = &work.values[number];
    PlanValue {
        name: format!("v{}", 10 * number + 9),
        made_by: format!("add in {}", work.blocks[value.maker].name),
        from: StageIndex::new(from),
        to: StageIndex::new(to),
        shape: vec![8, 128, usize::try_from(value.bytes / 4096).unwrap()],
        dtype: "f32".to_owned(),
        bytes: value.bytes,
    }
}

fn program(work: &Work, blocks: &[usize], compute: Compute) -> PlanProgram {
    let made = match compute {
        Compute::Forward => "kept",
        _ => "freed",
    };
    let operations = blocks.iter().map(|block| {
        let (result, operand, name) = (10 * block + 9, 10 * block, &work.blocks[*block].name);
        format!("v{result} = matmul(v{operand}) in {name}; {made}")
    });
    PlanProgram {
        name: compute.name().to_owned(),
        reads: vec![format!("v{}: f32[8, 128, 1024]", 10 * blocks[0])],
        operations: operations.collect(),
    }
}
