//! The numbers of micro-batches, in the order in which gradients are added.

use std::collections::BTreeMap;

use crate::action::Action;
use crate::index::{MicroBatchIndex, StageIndex};
use crate::lists::Schedule;

/// Numbers the micro-batches of a compute-only schedule in the order in which the stages end their backwards, if each stage
/// has every micro-batch once, and all have the same order.
pub(super) fn number_by_backwards(schedule: &mut Schedule) {
    let Some(numbers) = numbers(schedule) else {
        return;
    };
    let actions = schedule.ranks.iter_mut().flatten();
    for task in actions.flat_map(Action::tasks_mut) {
        task.micro_batch = numbers[task.micro_batch.index()];
    }
}

/// Returns the new number of each micro-batch.
fn numbers(schedule: &Schedule) -> Option<Vec<MicroBatchIndex>> {
    let mut orders: BTreeMap<StageIndex, Vec<MicroBatchIndex>> = BTreeMap::new();
    for task in schedule.ranks.iter().flatten().flat_map(Action::tasks) {
        if task.compute.ends_backward() {
            orders.entry(task.stage).or_default().push(task.micro_batch);
        }
    }
    let order = orders.values().next()?;
    let is_one = orders.len() == schedule.stages && orders.values().all(|other| other == order);
    // A number from a file may be arbitrary: only the words decide the memory.
    if !is_one || order.len() != schedule.micro_batches {
        return None;
    }
    let mut numbers = vec![None; order.len()];
    for (new, old) in order.iter().enumerate() {
        numbers[old.index()] = Some(MicroBatchIndex::new(new));
    }
    // A micro-batch that is there twice leaves another without a number.
    numbers.into_iter().collect()
}
