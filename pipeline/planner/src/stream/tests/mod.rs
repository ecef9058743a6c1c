use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::DiskRate;

/// Ten nanoseconds per byte.
const DISK: DiskRate = DiskRate::new(100_000_000);

fn item(bytes: u64) -> StreamItem {
    let is_made = false;
    StreamItem { bytes, is_made }
}

fn visit(items: &[usize]) -> StreamVisit {
    let items = items.to_vec();
    StreamVisit {
        items,
        ..StreamVisit::default()
    }
}

/// One value for each visit, in this order.
fn order(order: &[usize]) -> Vec<StreamVisit> {
    order.iter().map(|item| visit(&[*item])).collect()
}

fn plan(sizes: &[u64], visits: Vec<StreamVisit>, budget: u64) -> StreamPlan {
    let items = sizes.iter().map(|bytes| item(*bytes)).collect();
    StreamPlan::new(items, visits, budget).unwrap()
}

/// The bytes that each visit reads in a pass, once what is in memory repeats.
fn reads(plan: &StreamPlan) -> Vec<u64> {
    let bytes = |visit| -> u64 {
        let reads = plan.reads(visit);
        reads.iter().map(|item| plan.items[*item].bytes).sum()
    };
    (0..plan.visits()).map(bytes).collect()
}

#[test]
fn a_part_stays_and_the_rest_passes() {
    // Two places are for the visit that runs and for the next visit that reads. The visits that read are apart.
    let one_way = plan(&[1; 6], order(&[0, 1, 2, 3, 4, 5]), 4);
    assert_eq!(reads(&one_way), [0, 1, 1, 1, 0, 1]);
    // All of it fits.
    let all = plan(&[1; 6], order(&[0, 1, 2, 3, 4, 5]), 6);
    assert_eq!(reads(&all), [0; 6]);
    // At the ends of a way forth and back, what was used last is used next.
    let forth_and_back = |budget| reads(&plan(&[1; 4], order(&[0, 1, 2, 3, 3, 2, 1, 0]), budget));
    assert_eq!(forth_and_back(2), [0, 1, 1, 1, 0, 1, 1, 1]);
    assert_eq!(forth_and_back(3), [0, 0, 1, 1, 0, 1, 1, 0]);
}

#[test]
fn the_largest_value_needs_its_memory_anyway() {
    // Its own visit needs the memory for it, so the other visits can keep it.
    let head = plan(&[1, 1, 1, 1, 8], order(&[0, 1, 2, 3, 4]), 10);
    assert_eq!(reads(&head), [1, 1, 1, 1, 0]);
}

/// Many reads of few bytes take longer than one of many.
#[test]
fn small_values_stay_first() {
    let large = 4 << 20;
    let visits = (0..4).map(|layer| visit(&[2 * layer, 2 * layer + 1]));
    let plan = plan(&[large, 64].repeat(4), visits.collect(), 3 * large);
    let read: Vec<usize> = (0..4).flat_map(|visit| plan.reads(visit)).collect();
    let is_large = read.iter().all(|item| item % 2 == 0);
    assert!(!read.is_empty() && is_large, "{read:?}");
}

#[test]
fn a_value_of_two_visits_is_read_once_if_it_stays() {
    let tied = plan(&[2, 1, 1, 1], order(&[0, 1, 2, 3, 0]), 4);
    assert_eq!(reads(&tied), [0, 1, 1, 1, 0]);
}

/// Forth and back, with what each visit gives to the next one and to its own way back.
#[test]
fn what_a_pass_makes_is_written_where_it_does_not_fit() {
    let made = |item: usize| 4 + item;
    let visits = [
        visit(&[0, made(0)]),
        visit(&[1, made(0), made(1)]),
        visit(&[2, made(1), made(2)]),
        visit(&[3, made(2)]),
        visit(&[2, made(1)]),
        visit(&[1, made(0)]),
        visit(&[0]),
    ];
    let mut items = vec![item(4); 4];
    items.extend([item(1); 3].map(|item| StreamItem {
        is_made: true,
        ..item
    }));
    let within = |bytes| StreamPlan::new(items.clone(), visits.to_vec(), bytes);
    let least = within(0).unwrap_err().least_bytes;
    assert_eq!(least, 6, "a parameter, what comes and what goes");
    let least = within(least).unwrap();
    // What is needed soonest stays.
    assert_eq!(least.predict(DISK, |_| 0).spilled_bytes, 1);
    assert!(least.writes(1, made(0)) && !least.writes(0, made(0)) && !least.writes(5, made(0)));
    let all = within(19).unwrap().predict(DISK, |_| 0);
    assert_eq!((all.spilled_bytes, all.read_bytes), (0, 0));
    // Rather than that they are written and read, parameters are read again.
    let more = within(14).unwrap().predict(DISK, |_| 0);
    assert_eq!(more.spilled_bytes, 0);
}

/// The values that are read most often fill a second memory.
#[test]
fn what_is_read_may_stay_in_another_memory() {
    let plan = plan(&[4, 4, 4, 4, 3], order(&[0, 1, 2, 3, 4, 3, 2, 1, 0]), 8);
    let read: Vec<usize> = (0..9).flat_map(|visit| plan.reads(visit)).collect();
    let twice = |item: usize| read.iter().filter(|of| **of == item).count() == 2;
    assert!(twice(1) && twice(2), "{read:?}");
    let all = plan.second_tier(100, |_| true);
    assert_eq!(all, read.iter().copied().collect());
    assert_eq!(plan.second_tier(8, |_| true), [1, 2].into());
    assert!(!plan.second_tier(100, |item| item != 1).contains(&1));
    assert_eq!(plan.second_tier(2, |_| true), [].into());
}

#[test]
fn a_limit_below_the_largest_visit_is_an_error() {
    let items = vec![item(5), item(7)];
    let mut visits = order(&[0, 1]);
    visits[1].other_bytes = 3;
    let error = StreamPlan::new(items, visits, 9).unwrap_err();
    assert_eq!((error.visit, error.least_bytes), (1, 10));
}

#[test]
fn a_pass_takes_the_longer_of_reading_and_computing() {
    let within = |budget: u64| plan(&[10; 8], order(&[0, 1, 2, 3, 4, 5, 6, 7]), budget);
    let predicted = |compute_ns: u64, budget: u64| within(budget).predict(DISK, |_| compute_ns);
    // Reading takes 100 for each of the six that do not stay, or of all.
    let slow_reads = predicted(30, 40);
    assert_eq!((slow_reads.pass_ns, slow_reads.read_ns), (600, 600));
    assert_eq!((slow_reads.read_bytes, slow_reads.kept_bytes), (60, 20));
    assert_eq!(predicted(300, 40).pass_ns, 8 * 300);
    // Without memory to read ahead, both times are added.
    assert_eq!(predicted(30, 10).pass_ns, 8 * 130);
    assert_eq!(predicted(30, 80).pass_ns, 8 * 30);
    // A fourth of the cores are busy while each of the six is read, for 100.
    let disk = DiskRate {
        busy_permille: 250,
        ..DISK
    };
    let busy = within(40).predict(disk, |_| 300);
    assert_eq!((busy.read_ns, busy.compute_ns), (600, 8 * 300));
    assert_eq!(busy.pass_ns, 8 * 300 + 6 * 25);
}

/// The fewest bytes that a pass can read, over all choices of the values that stay: a value that stays uses its memory until
/// its next visit, and the memory for reading ahead remains.
fn fewest(plan: &StreamPlan) -> u64 {
    let visits = plan.visits.len();
    let mut gaps = Vec::new();
    for (index, visit) in plan.visits.iter().enumerate() {
        for item in &visit.items {
            let next = (1..=visits).find(|after| {
                let later = &plan.visits[(index + after) % visits];
                later.items.contains(item)
            });
            gaps.push((*item, index, next.unwrap_or(visits)));
        }
    }
    let total: u64 = gaps.iter().map(|gap| plan.items[gap.0].bytes).sum();
    let fits = |chosen: u32| {
        let is_kept = |number: usize| chosen & 1 << number != 0;
        let mut read = vec![0; visits];
        let present = plan.visits.iter().map(|visit| {
            let bytes = visit.items.iter().map(|item| plan.items[*item].bytes);
            bytes.sum::<u64>() + visit.other_bytes
        });
        let mut present: Vec<u64> = present.collect();
        let needed = present.clone();
        for (number, (item, from, length)) in gaps.iter().enumerate() {
            let bytes = plan.items[*item].bytes;
            match is_kept(number) {
                true => (1..*length).for_each(|after| present[(from + after) % visits] += bytes),
                false => read[(from + length) % visits] += bytes,
            }
        }
        (0..visits).all(|at| {
            let ahead = (1..visits).map(|after| read[(at + after) % visits]);
            let ahead = ahead.into_iter().find(|bytes| *bytes > 0).unwrap_or(0);
            let is_possible = needed[at] + ahead <= plan.budget_bytes;
            present[at] + if is_possible { ahead } else { 0 } <= plan.budget_bytes
        })
    };
    let fitting = (0..1_u32 << gaps.len()).filter(|chosen| fits(*chosen));
    let saved = fitting.map(|chosen| {
        let gaps = gaps.iter().enumerate();
        let kept = gaps.filter(|(number, _)| chosen & 1 << number != 0);
        kept.map(|(_, gap)| plan.items[gap.0].bytes).sum::<u64>()
    });
    total - saved.max().unwrap_or(0)
}

/// The values of the visits, in every pass, with the bytes that are in memory at each time.
fn run(
    plan: &StreamPlan,
    ahead: usize,
    start: &BTreeSet<usize>,
) -> Result<Vec<u64>, TestCaseError> {
    let mut state = StreamState::new(Arc::new(plan.clone()), start);
    let mut in_memory: Vec<usize> = state.kept().iter().copied().collect();
    let mut written = BTreeSet::new();
    let count = plan.visits();
    let mut read = vec![0; 3];
    let mut ready = 0;
    for visit in 0..3 * count {
        loop {
            // A reader that is slower than it may be.
            if ready > visit && ready - visit >= ahead {
                break;
            }
            match state.step() {
                StreamStep::Read { item, visit } => {
                    in_memory.push(item);
                    if plan.items[item].is_made {
                        let was_written = written.contains(&(visit as usize / count, item));
                        prop_assert!(was_written, "value {item} is read before it is written");
                    }
                    read[(visit as usize / count).min(2)] += plan.items[item].bytes;
                }
                StreamStep::Ready { visit } => {
                    ready = visit as usize + 1;
                    let index = visit as usize % count;
                    let made = plan.items_of(index).iter();
                    in_memory.extend(made.filter(|item| {
                        let mut visits = plan.visits.iter();
                        let first = visits.position(|visit| visit.items.contains(item));
                        plan.items[**item].is_made && first == Some(index)
                    }));
                }
                StreamStep::Wait => break,
            }
        }
        let index = visit % count;
        prop_assert!(ready > visit, "visit {visit} waits for ever");
        let bytes: u64 = in_memory.iter().map(|item| plan.items[*item].bytes).sum();
        // Memory for the values that the next visit computes may be reserved already, all of it or a part.
        let next = ready % count;
        let made = plan.items_of(next).iter();
        let made = made.filter(|item| plan.makes(next, **item));
        let made: u64 = made.map(|item| plan.items[*item].bytes).sum();
        let reserved = state.present_bytes().checked_sub(bytes);
        prop_assert!(reserved.is_some_and(|reserved| reserved <= made));
        prop_assert!(state.present_bytes() + plan.visits[index].other_bytes <= plan.budget_bytes);
        for (item, stays) in plan.items_of(index).iter().zip(plan.stays(index)) {
            let place = in_memory.iter().position(|of| of == item);
            prop_assert!(place.is_some(), "visit {visit} lacks value {item}");
            if !stays {
                in_memory.remove(place.unwrap());
            }
            let mut later = plan.visits[index + 1..].iter();
            let has_later = later.any(|visit| visit.items.contains(item));
            let is_new = !written.contains(&(visit / count, *item));
            let is_written = plan.items[*item].is_made && !stays && has_later && is_new;
            prop_assert_eq!(plan.writes(index, *item), is_written);
            if is_written {
                written.insert((visit / count, *item));
            }
        }
        state.finish();
    }
    Ok(read)
}

type Given = (Vec<(u64, bool)>, Vec<(usize, usize, u64)>, u64);

/// Some values, some of them computed by the pass, and visits of up to two values.
fn cases() -> impl Strategy<Value = Given> {
    let sizes = prop::collection::vec((1_u64..9, prop::bool::weighted(0.3)), 1..6);
    let visits = prop::collection::vec((0_usize..6, 0_usize..6, 0_u64..4), 1..7);
    (sizes, visits, 0_u64..30)
}

fn case((sizes, visits, spare): Given) -> StreamPlan {
    let visits = visits.into_iter().map(|(first, second, other_bytes)| {
        let items: BTreeSet<usize> = [first % sizes.len(), second % sizes.len()].into();
        StreamVisit {
            items: items.into_iter().collect(),
            other_bytes,
        }
    });
    let visits: Vec<StreamVisit> = visits.collect();
    let items = sizes.iter().map(|(bytes, is_made)| StreamItem {
        is_made: *is_made,
        ..item(*bytes)
    });
    let items: Vec<StreamItem> = items.collect();
    match StreamPlan::new(items.clone(), visits.clone(), 0) {
        Err(error) => StreamPlan::new(items, visits, error.least_bytes + spare).unwrap(),
        Ok(plan) => plan,
    }
}

proptest! {
    #[test]
    fn a_visit_has_its_values_and_the_limit_holds(
        given in cases(),
        ahead in 1_usize..4,
        start in prop::collection::btree_set(0_usize..6, 0..6),
    ) {
        let plan = case(given);
        let start = start.into_iter().filter(|item| *item < plan.items.len()).collect();
        let read = run(&plan, ahead, &start)?;
        // After the first pass, the bytes that the plan promises.
        prop_assert_eq!(read[1], reads(&plan).iter().sum::<u64>());
        let predicted = plan.predict(DISK, |_| 5);
        prop_assert_eq!(predicted.read_bytes, read[1]);
        prop_assert!(predicted.peak_bytes <= plan.budget_bytes);
        prop_assert!(predicted.pass_ns >= predicted.read_ns.max(predicted.compute_ns));
        let write_ns = DISK.read_ns(predicted.spilled_bytes);
        prop_assert!(predicted.pass_ns <= predicted.read_ns + predicted.compute_ns + write_ns);
    }

    /// One size, one way or forth and back: no choice reads more than one value less.
    #[test]
    fn nothing_reads_less(count in 1_usize..7, budget in 2_u64..9, is_back in any::<bool>()) {
        let mut visits: Vec<usize> = (0..count).collect();
        if is_back {
            visits.extend((0..count).rev());
        }
        let plan = plan(&vec![1; count], order(&visits), budget);
        prop_assert!(reads(&plan).iter().sum::<u64>() <= fewest(&plan) + 1);
    }
}
