//! Tests across modules: properties of every generator, and mutations of lowered lists.

mod errors;
mod formulas;
mod mutations;
mod oracle;
mod properties;
mod replicas;
mod waiting;

use super::{
    Dependencies, Edge, Endpoint, Placement, RankIndex, Schedule, ScheduleKind, StageIndex, Tie,
    forward_only_on,
};

/// GPipe with one stage per rank.
pub(crate) fn gpipe(stages: usize, micro_batches: usize) -> Schedule {
    named(ScheduleKind::GPipe, stages, micro_batches)
}

/// 1F1B with one stage per rank.
pub(crate) fn one_f_one_b(stages: usize, micro_batches: usize) -> Schedule {
    named(ScheduleKind::OneFOneB, stages, micro_batches)
}

fn named(kind: ScheduleKind, stages: usize, micro_batches: usize) -> Schedule {
    let schedule = kind.generate(stages, 1, micro_batches);
    schedule.expect("the kind has one chunk per rank, and the step is small")
}

/// Forward passes only, with one stage per rank.
pub(crate) fn forward_only(stages: usize, micro_batches: usize) -> Schedule {
    forward_only_on(&Placement::Loop.stage_to_rank(stages, 1), micro_batches)
}

fn stage(index: usize) -> StageIndex {
    StageIndex::new(index)
}

/// A chain with a skip from the first to the last stage, its gradient, and a tie both ways.
fn rich(stages: usize) -> Dependencies {
    let mut edges = Dependencies::chain(stages).edges().to_vec();
    let mut ties = Vec::new();
    if stages > 1 {
        let (first, last) = (stage(0), stage(stages - 1));
        let ends = [first, last];
        let [forwards, backwards] = [ends.map(Endpoint::forward), ends.map(Endpoint::backward)];
        edges.extend([
            Edge::new(forwards[0], forwards[1]),
            Edge::new(backwards[1], backwards[0]),
            Edge::new(forwards[0], backwards[1]),
        ]);
        ties.extend([(first, last), (last, first)].map(|(owner, copy)| Tie { owner, copy }));
    }
    Dependencies::new(stages, edges, ties)
}

/// Two ranks, four stages in a V, two micro-batches; stages 0 and 3 share a rank.
fn v_shaped() -> Schedule {
    let text = "0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1\n1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1";
    Schedule::parse("v", text).unwrap()
}

/// Three ranks with split backwards, except for the last micro-batch of the last rank.
fn zero_bubble() -> Schedule {
    let text = "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1F1 1I0 1I1 1W0 1W1\n2F0 2I0 2F1 2W0 2B1";
    Schedule::parse("zb", text).unwrap()
}
