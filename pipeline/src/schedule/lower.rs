//! Lowering: from compute actions to everything that a rank executes.

use super::action::{Action, Message};
use super::dependencies::Dependencies;
use super::index::{GroupIndex, RankIndex};
use super::lists::{Form, Mode, Schedule};

/// Adds sends, receives, reduces and updates to the compute actions of a schedule.
///
/// - A send stands right behind the program that makes the values, a receive right before the
///   program that reads them: links buffer, so an early send costs nothing and a late receive waits
///   least.
/// - Stages on one rank need no message: the values stay where they are.
/// - A training list ends with the reduces of the rank's stages, then their updates, then the tied
///   values that come in. Reduces come first because a clip by the norm of all gradients needs them
///   all; they stand in stage order so that ranks of several groups meet in one order; tied values
///   come last, so two stages that own each other's ties do not wait for each other.
///
/// What the schedule had besides compute is derived anew, so lowering twice is lowering once. A list
/// that cannot run lowers to one that [`verify`](super::verify) refuses. Linear in actions and
/// messages.
#[must_use]
pub fn lower(schedule: &Schedule, dependencies: &Dependencies) -> Schedule {
    let mut lowered = schedule.compute_only();
    lowered.form = Form::Lowered;
    lowered.ranks = (0..lowered.world_size())
        .map(|rank| lower_rank(&lowered, dependencies, RankIndex::new(rank)))
        .collect();
    lowered
}

/// The whole list of one rank, from its compute actions.
fn lower_rank(schedule: &Schedule, dependencies: &Dependencies, rank: RankIndex) -> Vec<Action> {
    let mut list = Vec::new();
    for action in schedule.actions(rank) {
        for task in action.tasks() {
            for edge in dependencies.read_by(*task) {
                if schedule.has_edge(edge) && schedule.are_apart(edge.from.stage, edge.to.stage) {
                    let message = Message::Values {
                        edge,
                        micro_batch: task.micro_batch,
                    };
                    list.push(Action::Receive(message));
                }
            }
        }
        list.push(*action);
        for task in action.tasks() {
            for edge in dependencies.made_by(*task) {
                if schedule.has_edge(edge) && schedule.are_apart(edge.from.stage, edge.to.stage) {
                    let message = Message::Values {
                        edge,
                        micro_batch: task.micro_batch,
                    };
                    list.push(Action::Send(message));
                }
            }
        }
    }
    if schedule.mode == Mode::Training {
        end_step(schedule, dependencies, rank, &mut list);
    }
    list
}

/// What follows the last backward of a rank.
fn end_step(
    schedule: &Schedule,
    dependencies: &Dependencies,
    rank: RankIndex,
    list: &mut Vec<Action>,
) {
    let ties = || {
        let all = dependencies.ties().iter();
        all.filter(|tie| schedule.are_apart(tie.owner, tie.replica))
            .copied()
    };
    for stage in schedule.stages_of(rank) {
        list.push(Action::Reduce {
            stage,
            group: GroupIndex::new(stage.index()),
        });
    }
    for stage in schedule.stages_of(rank) {
        list.push(Action::Update { stage });
        let owned = ties().filter(|tie| tie.owner == stage);
        list.extend(owned.map(|tie| Action::Send(Message::Tie(tie))));
    }
    let copied = ties().filter(|tie| schedule.rank_of(tie.replica) == Some(rank));
    list.extend(copied.map(|tie| Action::Receive(Message::Tie(tie))));
}

#[cfg(test)]
mod tests {
    use super::super::{Edge, Endpoint, StageIndex, Tie, forward_only, one_f_one_b};
    use super::*;

    #[test]
    fn a_chain() {
        let lowered = lower(&one_f_one_b(2, 2), &Dependencies::chain(2));
        insta::assert_snapshot!(lowered, @r"
        0F0 0F0>1F0 0F1 0F1>1F1 0B0<1B0 0B0 0B1<1B1 0B1 0R0 0U
        1F0<0F0 1F0 1B0 1B0>0B0 1F1<0F1 1F1 1B1 1B1>0B1 1R1 1U
        ");
    }

    #[test]
    fn evaluation_sends_forward_values_only() {
        let lowered = lower(&forward_only(3, 2), &with_skip_and_tie());
        insta::assert_snapshot!(lowered, @r"
        0F0 0F0>1F0 0F0>2F0 0F1 0F1>1F1 0F1>2F1
        1F0<0F0 1F0 1F0>2F0 1F1<0F1 1F1 1F1>2F1
        2F0<0F0 2F0<1F0 2F0 2F1<0F1 2F1<1F1 2F1
        ");
    }

    #[test]
    fn a_skip_goes_straight_to_its_consumer_and_a_tie_comes_last() {
        let lowered = lower(&one_f_one_b(3, 1), &with_skip_and_tie());
        insta::assert_snapshot!(lowered, @r"
        0F0 0F0>1F0 0F0>2F0 0B0<1B0 0B0<2B0 0B0 0R0 0U 0U>2U
        1F0<0F0 1F0 1F0>2F0 1B0<2B0 1B0 1B0>0B0 1R1 1U
        2F0<0F0 2F0<1F0 2F0 2B0 2B0>0B0 2B0>1B0 2R2 2U 2U<0U
        ");
    }

    #[test]
    fn stages_on_one_rank_exchange_nothing() {
        let schedule = Schedule::parse("v", "0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0").unwrap();
        let lowered = lower(&schedule, &Dependencies::chain(4));
        insta::assert_snapshot!(lowered, @r"
        0F0 0F0>1F0 3F0<2F0 3F0 3B0 3B0>2B0 0B0<1B0 0B0 0R0 3R3 0U 3U
        1F0<0F0 1F0 2F0 2F0>3F0 2B0<3B0 2B0 1B0 1B0>0B0 1R1 2R2 1U 2U
        ");
    }

    #[test]
    fn a_split_backward_sends_from_its_first_half() {
        let schedule = Schedule::parse("zb", "0F0 0I0 0W0\n1F0 1I0 1W0").unwrap();
        let lowered = lower(&schedule, &Dependencies::chain(2));
        insta::assert_snapshot!(lowered, @r"
        0F0 0F0>1F0 0B0<1B0 0I0 0W0 0R0 0U
        1F0<0F0 1F0 1I0 1B0>0B0 1W0 1R1 1U
        ");
    }

    #[test]
    fn lowering_twice_is_lowering_once() {
        let once = lower(&one_f_one_b(3, 4), &with_skip_and_tie());
        assert_eq!(lower(&once, &with_skip_and_tie()), once);
    }

    /// Three stages; stage 2 also reads what stage 0 made, and shares a parameter with it.
    fn with_skip_and_tie() -> Dependencies {
        let [first, last] = [0, 2].map(StageIndex::new);
        let skip = Edge {
            from: Endpoint::forward(first),
            to: Endpoint::forward(last),
        };
        let gradient = Edge {
            from: Endpoint::backward(last),
            to: Endpoint::backward(first),
        };
        let chain = Dependencies::chain(3);
        let edges = chain.edges().iter().copied().chain([skip, gradient]);
        Dependencies::new(
            3,
            edges,
            [Tie {
                owner: first,
                replica: last,
            }],
        )
    }
}
