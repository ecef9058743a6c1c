//! The symbolic run: all ranks run their lists, and wait where a real run would.

use std::collections::BTreeSet;

use tinderbox_ids::RankIndex;

use crate::error::{VerifyError, Wait};
use crate::lists::Form;

use super::links::{Need, Waits};

/// Runs the lists, and visits the rank and the position of every action in an order in which the actions can run. The visit
/// of a send has its wait, if the links make it wait.
///
/// A rank that waits is checked again only when the action that it waits for has run, so
/// the cost is linear in actions and edges times micro-batches, times the logarithm of the number
/// of ranks. Whether the run completes does not depend on the order in which ranks are advanced,
/// because an action that can run stays able to run, with links of every model: only the rank itself fills the link that
/// its next send waits for.
///
/// # Errors
///
/// [`VerifyError::Deadlock`] when no rank can advance.
pub(super) fn run(
    waits: &Waits<'_>,
    mut visitor: impl FnMut(RankIndex, usize, Option<Need>),
) -> Result<(), VerifyError> {
    let lists = &waits.table.schedule.ranks;
    let mut heads = vec![0; lists.len()];
    // Per rank, the ranks that wait for it: the head at which it satisfies the wait, then the waiting rank.
    let mut waiting = vec![BTreeSet::new(); lists.len()];
    let mut ready: Vec<usize> = (0..lists.len()).rev().collect();
    while let Some(rank) = ready.pop() {
        while heads[rank] < lists[rank].len() {
            if let Some(need) = blocker(waits, &heads, rank) {
                waiting[need.rank].insert((need.head(), rank));
                break;
            }
            let need = waits.of_send(rank, heads[rank]);
            visitor(RankIndex::new(rank), heads[rank], need);
            heads[rank] += 1;
        }
        while let Some(&(head, waiter)) = waiting[rank].first()
            && head <= heads[rank]
        {
            waiting[rank].pop_first();
            ready.push(waiter);
        }
    }
    let mut ends = heads.iter().zip(lists);
    if ends.all(|(head, list)| *head == list.len()) {
        return Ok(());
    }
    let (cycle, link) = (find_cycle(waits, &heads), waits.link);
    Err(VerifyError::Deadlock { cycle, link })
}

/// Returns the wait of the action at the head of a rank's list.
fn blocker(waits: &Waits<'_>, heads: &[usize], rank: usize) -> Option<Need> {
    let (table, head) = (waits.table, heads[rank]);
    let action = table.schedule.ranks[rank].get(head)?;
    let is_open = |need: &Need| heads[need.rank] < need.head();
    match table.schedule.form {
        // In a lowered list only sends and receives wait.
        Form::Lowered => waits.need(rank, head).filter(is_open),
        Form::ComputeOnly => action.tasks().iter().find_map(|task| {
            let producers = table.producers(*task);
            let mut needs = producers.map(|(rank, at)| Need::new(rank.index(), at, true));
            needs.find(is_open)
        }),
    }
}

/// Returns a cycle of waiting ranks, from the lowest of its ranks on.
///
/// Each blocked rank waits for exactly one action of another blocked rank, so
/// following the waits from any of them leads to a rank seen before.
fn find_cycle(waits: &Waits<'_>, heads: &[usize]) -> Vec<Wait> {
    let blocker = |rank| blocker(waits, heads, rank);
    let Some(mut rank) = (0..heads.len()).find(|&rank| blocker(rank).is_some()) else {
        return Vec::new();
    };
    let mut path: Vec<Wait> = Vec::new();
    let mut seen = vec![None; heads.len()];
    while let (None, Some(need)) = (seen[rank], blocker(rank)) {
        seen[rank] = Some(path.len());
        let place = |rank, at| waits.table.schedule.place(RankIndex::new(rank), at);
        path.push(Wait {
            waiting: place(rank, heads[rank]),
            awaited: place(need.rank, need.position),
        });
        rank = need.rank;
    }
    path.drain(..seen[rank].unwrap_or(0));
    let lowest = (0..path.len()).min_by_key(|at| path[*at].waiting.rank);
    path.rotate_left(lowest.unwrap_or(0));
    path
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::super::links::Links;
    use super::super::table::Table;
    use super::*;
    use crate::{
        Action, Dependencies, Edge, Endpoint, LinkModel, Schedule, StageIndex, VerifyError, gpipe,
        lower, one_f_one_b, verify,
    };

    /// Every action appears once, after all that it waits for, also if ranks are visited against
    /// the flow.
    #[test]
    fn the_order_puts_producers_first() {
        let mut backwards = one_f_one_b(4, 6);
        backwards.ranks.reverse();
        backwards.stage_to_rank.reverse();
        let chain = Dependencies::chain(4);
        for schedule in [gpipe(4, 3), one_f_one_b(4, 6), backwards] {
            for schedule in [lower(&schedule, &chain), schedule] {
                let table = Table::build(&schedule, &chain).unwrap();
                let mut done = HashSet::new();
                let links = Links {
                    model: LinkModel::Unbounded,
                    message_bytes: &BTreeMap::new(),
                };
                let waits = Waits::new(&table, &links).unwrap();
                let mut order = Vec::new();
                let visitor = |rank, position, _| order.push((rank, position));
                run(&waits, visitor).unwrap();
                for (rank, position) in order {
                    let action = schedule.ranks[rank.index()][position];
                    for task in action.tasks() {
                        assert!(
                            table
                                .producers(*task)
                                .all(|producer| done.contains(&producer))
                        );
                    }
                    if let Action::Receive(message) = action {
                        let sender = table.rank(message.sender());
                        let sent = table.position(&Action::Send(message)).unwrap();
                        assert!(done.contains(&(sender, sent)));
                    }
                    assert!(position == 0 || done.contains(&(rank, position - 1)));
                    assert!(done.insert((rank, position)));
                }
                assert_eq!(done.len(), schedule.action_count());
            }
        }
    }

    /// A plan whose edges form a cycle: both ranks wait at the actions that the other awaits.
    #[test]
    fn a_cycle_of_edges_is_a_deadlock_in_every_order() {
        let [first, second] = [0, 1].map(|stage| Endpoint::forward(StageIndex::new(stage)));
        let edges = [Edge::new(first, second), Edge::new(second, first)];
        let circular = Dependencies::new(2, edges, []);
        let schedule = Schedule::parse("cycle", "0F0\n1F0").unwrap();
        for schedule in [lower(&schedule, &circular), schedule] {
            let error = verify(&schedule, &circular).unwrap_err();
            let VerifyError::Deadlock { cycle, .. } = error else {
                panic!("{error}")
            };
            assert_eq!(cycle.len(), 2);
            assert!(cycle.iter().all(|wait| wait.waiting.position == 0));
        }
    }
}
