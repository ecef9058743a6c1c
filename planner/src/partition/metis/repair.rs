//! From parts to stages that can run.

use std::collections::BTreeSet;

use super::super::acyclic::{contiguous, to_partition};
use super::super::graph::Graph;
use super::super::loads::{Loads, Objective};
use super::super::mixed::{divided, fastest, fewest, refined};
use super::super::quotient::Quotient;
use super::super::refine::{Effort, refine};
use super::super::terms::Terms;
use super::{MetisOptions, MetisRepair, kway};
use crate::{Machine, Partition, PlannerError, RankModel, Step, Work};

/// Scores of the moves after a repair.
const EFFORT: usize = 20_000;

/// Cuts the blocks into parts by METIS and makes stages of them. Built with the feature `metis`.
///
/// The parts are numbered by how early their blocks run. Time: that of METIS, and as for the mixed pipe
/// with one candidate, or the acyclic partitioner with two starts.
///
/// # Errors
///
/// [`PlannerError::Work`], [`PlannerError::TooManyStages`] for fewer blocks than parts,
/// [`PlannerError::TooLarge`] for more blocks and values than METIS can number,
/// [`PlannerError::Metis`] where METIS refuses, and what [`predict()`](crate::predict()) says where
/// the stages have no schedule.
pub fn metis(
    work: &Work,
    machine: &Machine,
    step: &Step,
    options: MetisOptions,
) -> Result<Partition, PlannerError> {
    work.check()?;
    match options.repair {
        MetisRepair::MixedPipe => mixed_pipe(work, machine, step, options),
        MetisRepair::Acyclic => one_way(work, machine, step, options),
    }
}

fn parts(
    work: &Work,
    graph: &Graph,
    ranks: &[RankModel],
    options: MetisOptions,
) -> Result<Vec<usize>, PlannerError> {
    if work.blocks.len() < ranks.len() {
        return Err(PlannerError::TooManyStages {
            stages: ranks.len(),
            blocks: work.blocks.len(),
        });
    }
    kway::parts(graph, ranks, options.imbalance_permille)
}

fn mixed_pipe(
    work: &Work,
    machine: &Machine,
    step: &Step,
    options: MetisOptions,
) -> Result<Partition, PlannerError> {
    let terms = Terms::of_machine(machine, step);
    let graph = Graph::of_work(work, step, terms.splits_backward());
    let rank_of = parts(work, &graph, machine.rank_models(), options)?;
    let ranks = machine.ranks();
    let most = ranks.saturating_mul(options.most_stages_per_rank.max(1));
    let Some(staged) = fewest(&graph, &rank_of, ranks, most) else {
        return one_way(work, machine, step, options);
    };
    let divided = divided(&graph, &staged, most);
    let staged = divided.into_iter().chain([staged]);
    let in_flight = step.micro_batches.min(ranks);
    let candidates = staged.map(|staged| {
        let staged = staged.in_order_of_use(machine.rank_models());
        refined(&graph, machine, step, &staged, in_flight).1
    });
    let (_, best) = fastest(work, machine, step, candidates)?;
    Ok(best)
}

fn one_way(
    work: &Work,
    machine: &Machine,
    step: &Step,
    options: MetisOptions,
) -> Result<Partition, PlannerError> {
    let terms = Terms::of_machine(machine, step);
    let graph = Graph::of_work(work, step, terms.splits_backward());
    // A part is a stage here, and a rank's stages share it.
    let of_stage = |rank: &usize| {
        let model = terms.ranks[*rank];
        let stages = terms.stages_of[*rank].len() as u64;
        RankModel {
            memory_bytes: model.memory_bytes.map(|bytes| bytes / stages.max(1)),
            ..model
        }
    };
    let ranks: Vec<RankModel> = terms.rank_of.iter().map(of_stage).collect();
    let mut part_of = parts(work, &graph, &ranks, options)?;
    let order = graph.order();
    renumber(&order, &mut part_of, ranks.len());
    let starts = match Quotient::of(work, &part_of).numbering(work) {
        Ok(numbers) => vec![part_of.iter().map(|part| numbers[*part]).collect()],
        Err(_) => vec![
            later(&graph, &order, &part_of),
            earlier(&graph, &order, &part_of),
            cut_again(&graph, &terms, &part_of),
        ],
    };
    let repaired = starts.into_iter().map(|mut stage_of: Vec<usize>| {
        fill(&order, &mut stage_of, terms.stages());
        let mut loads = Loads::new(&graph, &terms, stage_of);
        let objective = Objective::LargestStage;
        refine(&mut loads, &order, objective, &mut Effort(EFFORT));
        (loads.score(objective), to_partition(&loads))
    });
    let best = repaired.min_by_key(|(score, _)| *score);
    Ok(best.expect("there is at least one start").1)
}

/// Numbers parts by the mean place of their blocks in the order.
fn renumber(order: &[usize], part_of: &mut [usize], parts: usize) {
    let mut places = vec![(0_u128, 0_u128); parts];
    for (place, node) in order.iter().enumerate() {
        let (sum, count) = &mut places[part_of[*node]];
        *sum += place as u128;
        *count += 1;
    }
    let mut ranked: Vec<usize> = (0..parts).collect();
    ranked.sort_by_key(|part| (places[*part].0 * 1000 / places[*part].1.max(1), *part));
    let mut numbers = vec![0; parts];
    for (number, part) in ranked.into_iter().enumerate() {
        numbers[part] = number;
    }
    for part in part_of {
        *part = numbers[*part];
    }
}

/// Moves blocks that wait for a later part to that part.
fn later(graph: &Graph, order: &[usize], part_of: &[usize]) -> Vec<usize> {
    let mut stage_of = part_of.to_vec();
    for node in order {
        let before = graph.before[*node].iter().map(|other| stage_of[*other]);
        stage_of[*node] = before.fold(stage_of[*node], usize::max);
    }
    stage_of
}

/// Moves blocks that an earlier part waits for to that part.
fn earlier(graph: &Graph, order: &[usize], part_of: &[usize]) -> Vec<usize> {
    let mut stage_of = part_of.to_vec();
    for node in order.iter().rev() {
        let after = graph.after[*node].iter().map(|other| stage_of[*other]);
        stage_of[*node] = after.fold(stage_of[*node], usize::min);
    }
    stage_of
}

/// Cuts the blocks again, in an order in which they can run that finishes a part before the next one
/// where it can: balanced where moves along the flow would pile blocks up on one stage.
fn cut_again(graph: &Graph, terms: &Terms, part_of: &[usize]) -> Vec<usize> {
    let mut waits: Vec<usize> = graph.before.iter().map(Vec::len).collect();
    let starts = (0..waits.len()).filter(|node| waits[*node] == 0);
    let mut ready: BTreeSet<(usize, usize)> = starts.map(|node| (part_of[node], node)).collect();
    let mut order = Vec::with_capacity(waits.len());
    while let Some((_, node)) = ready.pop_first() {
        order.push(node);
        for later in &graph.after[node] {
            waits[*later] -= 1;
            if waits[*later] == 0 {
                ready.insert((part_of[*later], *later));
            }
        }
    }
    contiguous(graph, terms, &order)
}

/// Gives every stage a node where some have none, by moving as few borders as that takes: nodes are
/// put in a row by stage and order, and the row is cut again. Values still go from lower to higher
/// stages only.
fn fill(order: &[usize], stage_of: &mut [usize], stages: usize) {
    let mut row: Vec<usize> = order.to_vec();
    row.sort_by_key(|node| stage_of[*node]);
    let mut starts = vec![0; stages];
    for (stage, start) in starts.iter_mut().enumerate() {
        *start = row.partition_point(|node| stage_of[*node] < stage);
    }
    for stage in 1..stages {
        starts[stage] = starts[stage].max(starts[stage - 1] + 1);
    }
    for (stage, start) in starts.iter_mut().enumerate() {
        *start = (*start).min((row.len() + stage).saturating_sub(stages));
    }
    for (stage, start) in starts.iter().enumerate() {
        for node in &row[*start..] {
            stage_of[*node] = stage;
        }
    }
}
