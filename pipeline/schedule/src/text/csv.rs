//! Schedules as written and read by PyTorch's `torch.distributed.pipelining`: CSV files with one row
//! per rank and one cell per time step.

use std::collections::{BTreeMap, HashSet};

use tinderbox_ids::{MicroBatchIndex, StageIndex};

use super::cells::{Cell, OVERLAP, parse_cell};
use super::error::{ParseError, TextPosition, WordFault, excerpt};
use super::implied::{Row, implied};
use super::rows::{lines, with_columns};
use super::words::parse_word;
use crate::action::Action;
use crate::lists::Schedule;
use crate::task::{Compute, Task};

impl Schedule {
    /// Reads the CSV of PyTorch's pipeline schedules, compute-only or with communication.
    ///
    /// A row is a rank and a cell a time step; empty cells, where a rank is idle, are skipped. Cells of
    /// communication (`0SEND_F1`, `1RECV_F1`, `1SEND_B1`, `0RECV_B1`), of sharding (`0UNSHARD`,
    /// `0RESHARD`, `0REDUCE_GRAD`) and of waits (`0WAIT_SEND_F1`, `1WAIT_SEND_B1`, `0WAIT_REDUCE_GRAD`) are checked and
    /// dropped, so the result is compute-only. [`lower`](crate::lower) derives messages from the plan's own edges, which
    /// include skips and ties, and a link keeps a message until it is received.
    ///
    /// Quotes and spaces around a cell are allowed. Blank lines at the end of the text are not ranks;
    /// an empty row elsewhere is a rank without actions, and so is a row with a single `""` or comma.
    ///
    /// Older releases of PyTorch had no `I`: they wrote `B` for the input gradient, and `BW` for a
    /// whole backward. In a text without any `I`, a `B` is therefore an `I` if its stage and micro-batch
    /// have a `W` too; every other `B` is whole, as in current releases.
    ///
    /// Micro-batches are numbered in the order of their backwards, because a stage adds its gradients in micro-batch order
    /// under every schedule, and PyTorch's `LoopedBFS` runs the backwards of each stage from the last micro-batch to the
    /// first. If all stages end their backwards in one order, and it is not ascending, the n-th micro-batch of that order
    /// becomes micro-batch n in forwards and backwards. The schedule is otherwise the same. If stages have different orders,
    /// the numbers of the text remain, and [`verify`](crate::verify) rejects them.
    ///
    /// Stages, counts and mode are inferred as by [`Schedule::parse`]. Linear in the text, times the logarithm
    /// of the number of stages.
    ///
    /// # Errors
    ///
    /// [`ParseError::Cell`] for the first cell that PyTorch would not write, [`ParseError::Gap`] if
    /// stages are missing; both have the position.
    pub fn parse_csv(name: &str, text: &str) -> Result<Self, ParseError> {
        let mut rows = Vec::new();
        let mut whole = HashSet::new();
        let mut blank_rows = 0;
        for (row, line) in (1..).zip(lines(text)) {
            if line.trim().is_empty() {
                blank_rows += 1;
                continue;
            }
            // The text continues, so the blank lines are ranks.
            rows.resize(rows.len() + std::mem::take(&mut blank_rows), Row::new());
            let cells = cells(line).map(|(column, cell)| (TextPosition { row, column }, cell));
            let actions = cells.filter_map(|(at, cell)| match read_cell(at, cell) {
                Ok(Cell::Derived) => None,
                Ok(Cell::Action(action)) => Some(Ok((at, action))),
                Ok(Cell::WholeBackward(task)) => {
                    whole.insert(task);
                    Some(Ok((at, Action::Compute(task))))
                }
                Err(error) => Some(Err(error)),
            });
            rows.push(actions.collect::<Result<Row, ParseError>>()?);
        }
        let mut schedule = implied(name, rows)?;
        split_backwards(&mut schedule.ranks, &whole);
        if let Some(numbers) = numbers_by_backwards(&schedule) {
            let actions = schedule.ranks.iter_mut().flatten();
            for task in actions.flat_map(Action::tasks_mut) {
                task.micro_batch = numbers[task.micro_batch.index()];
            }
        }
        Ok(schedule)
    }

    /// Writes the compute actions in the format that PyTorch's `_load_csv(..., format="compute_only")` reads.
    ///
    /// One row per rank, one cell per action, with `I` for an input gradient and
    /// `(2F5;1B3)OVERLAP_F_B` for an overlapped pair, which older releases of PyTorch don't support. There are no cells
    /// for idle time, which depends on costs and not on the list, and none for messages. A rank without actions is a
    /// row with a single `""`. Rows end with a line feed.
    pub fn to_csv(&self) -> String {
        let row = |actions: &Vec<Action>| {
            let cells: Vec<String> = actions.iter().filter_map(written_cell).collect();
            match cells.is_empty() {
                true => "\"\"\n".to_owned(),
                false => cells.join(",") + "\n",
            }
        };
        self.ranks.iter().map(row).collect()
    }
}

/// Returns an action as a cell, or `None` if it is not a compute action.
fn written_cell(action: &Action) -> Option<String> {
    match action {
        Action::Compute(task) => Some(task.to_string()),
        Action::Overlap([forward, backward]) => Some(format!("({forward};{backward}{OVERLAP}")),
        _ => None,
    }
}

/// Returns the cells of a line that are not empty, without spaces and quotes, each with its column.
///
/// No cell of a schedule contains a comma, a quote or a line end, so splitting at the commas reads
/// everything that PyTorch writes. A general CSV parser would be a dependency for quoted cells that
/// are rejected anyway, and would not return the column.
fn cells(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let cells = with_columns(line.split(',')).map(|(column, cell)| {
        let quoted = cell.trim();
        let inside = quoted.strip_prefix('"');
        let inside = inside.and_then(|cell| cell.strip_suffix('"'));
        let inside = inside.unwrap_or(quoted).trim();
        let before = cell.split(inside).next().unwrap_or_default();
        (column + before.chars().count(), inside)
    });
    cells.filter(|(_, cell)| !cell.is_empty())
}

/// Reads a cell, with a more specific error for one that is not valid.
fn read_cell(at: TextPosition, cell: &str) -> Result<Cell, ParseError> {
    parse_cell(cell).map_err(|fault| ParseError::Cell {
        at,
        cell: excerpt(cell),
        fault: explain(cell, fault),
    })
}

/// Returns the likely mistake in a rejected cell, or else the fault at which parsing ended.
fn explain(cell: &str, fault: WordFault) -> WordFault {
    if cell.starts_with('#') {
        return WordFault::Comment;
    }
    if parse_word(cell).is_ok() {
        return WordFault::Word;
    }
    if cell.contains(char::is_whitespace) {
        return WordFault::Space;
    }
    let upper = cell.to_ascii_uppercase();
    if parse_cell(&upper).is_ok() {
        return WordFault::LowerCase {
            instead: excerpt(&upper),
        };
    }
    match fault {
        WordFault::Shape => WordFault::CellShape,
        fault => fault,
    }
}

/// Turns each `B` that has a `W` into an `I`, in a text in PyTorch's older letters.
///
/// A `B` in `whole` was written as `BW`; a `W` in addition to it is an error, reported by the verifier.
fn split_backwards(ranks: &mut [Vec<Action>], whole: &HashSet<Task>) {
    let mut split = HashSet::new();
    for task in ranks.iter().flatten().flat_map(Action::tasks) {
        match task.compute {
            Compute::InputGradient => return,
            Compute::WeightGradient => {
                let compute = Compute::Backward;
                split.insert(Task { compute, ..*task });
            }
            _ => (),
        }
    }
    let actions = ranks.iter_mut().flatten();
    for task in actions.flat_map(Action::tasks_mut) {
        if split.contains(&*task) && !whole.contains(&*task) {
            task.compute = Compute::InputGradient;
        }
    }
}

/// Returns the new numbers of the micro-batches of a compute-only schedule: in the order in which the stages end their
/// backwards, if each stage has every micro-batch once, and all have the same order.
fn numbers_by_backwards(schedule: &Schedule) -> Option<Vec<MicroBatchIndex>> {
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
    // A repeated micro-batch leaves another one without a number.
    numbers.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{Dependencies, Form, ScheduleKind, ScheduleMode, lower, one_f_one_b, verify};

    /// Reads a text and compares the result with the text form.
    fn check(csv: &str, expected: &str) {
        let schedule = Schedule::parse_csv("torch", csv).unwrap();
        assert_eq!(schedule, Schedule::parse("torch", expected).unwrap());
    }

    /// The same, for a schedule that a chain of stages can run, also after lowering.
    fn check_runs(csv: &str, expected: &str) {
        check(csv, expected);
        let schedule = Schedule::parse_csv("torch", csv).unwrap();
        assert_eq!(
            (schedule.mode, schedule.form),
            (ScheduleMode::Training, Form::ComputeOnly)
        );
        let chain = Dependencies::chain(schedule.stages);
        assert_eq!(verify(&schedule, &chain), Ok(()));
        assert_eq!(verify(&lower(&schedule, &chain), &chain), Ok(()));
    }

    #[test]
    fn one_f_one_b_with_idle_time() {
        check_runs(
            "0F0,0F1,,,0B0,0F2,0B1,0F3,0B2,,0B3\n,1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3,,\n",
            &one_f_one_b(2, 4).to_string(),
        );
    }

    #[test]
    fn one_f_one_b_with_communication() {
        check_runs(
            "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0F3,\
             0SEND_F3,0RECV_B2,0B2,0RECV_B3,0B3,0REDUCE_GRAD,0RESHARD\r\n\
             1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RECV_F2,1F2,1B2,\
             1SEND_B2,1RECV_F3,1F3,1B3,1SEND_B3,1REDUCE_GRAD,1RESHARD\r\n",
            &one_f_one_b(2, 4).to_string(),
        );
    }

    /// As PyTorch 2.15 writes it: every send and every reduction has a wait.
    #[test]
    fn one_f_one_b_with_waits() {
        check_runs(
            "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0RECV_B1,0B1,0WAIT_SEND_F1,\
             0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\r\n\
             1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,\
             1RESHARD,1WAIT_SEND_B0,1WAIT_SEND_B1\r\n",
            &one_f_one_b(2, 2).to_string(),
        );
    }

    /// The order of the backwards is the order of the gradients, which are added from micro-batch 0 on.
    #[test]
    fn backwards_from_the_last_micro_batch_on() {
        check_runs(
            "0F0,0F1,0F2,2F0,2F1,2F2,,,2B2,2B1,2B0,0B2,0B1,0B0\n\
             ,1F0,1F1,1F2,3F0,3F1,3F2,3B2,3B1,3B0,1B2,1B1,1B0\n",
            "0F2 0F1 0F0 2F2 2F1 2F0 2B0 2B1 2B2 0B0 0B1 0B2\n\
             1F2 1F1 1F0 3F2 3F1 3F0 3B0 3B1 3B2 1B0 1B1 1B2",
        );
        // The weight gradients have the order, and what comes before them has any.
        check_runs(
            "0F0,0F1,0I0,0I1,0W1,0W0\n1F0,1F1,1I0,1B1,1W0\n",
            "0F1 0F0 0I1 0I0 0W0 0W1\n1F1 1F0 1I1 1B0 1W1",
        );
        // Without one order of all stages, or without every micro-batch, the numbers are the text's.
        for (csv, expected) in [
            (
                "0F0,0F1,0B1,0B0\n1F0,1F1,1B0,1B1",
                "0F0 0F1 0B1 0B0\n1F0 1F1 1B0 1B1",
            ),
            ("0F0,0F1,0B1,0B1", "0F0 0F1 0B1 0B1"),
            ("0F0,0F1,0F2,0B1,0B0", "0F0 0F1 0F2 0B1 0B0"),
            ("0F1,0F0,1F1,1F0,1B1,1B0", "0F1 0F0 1F1 1F0 1B1 1B0"),
            ("0F1,0F0", "0F1 0F0"),
        ] {
            check(csv, expected);
            let schedule = Schedule::parse_csv("torch", csv).unwrap();
            let refused = verify(&schedule, &Dependencies::chain(schedule.stages)).is_err();
            assert_eq!(refused, csv.contains('B'), "{csv}");
        }
    }

    /// Two ranks with two stages each, and backwards that are split on the first.
    #[test]
    fn interleaved_zero_bubble() {
        check_runs(
            "0F0,0F1,2F0,,2F1,2I0,2W0,2I1,2W1,0I0,0W0,0I1,0W1\n\
             ,1F0,1F1,3F0,3B0,3F1,3B1,,1B0,1B1\n",
            "0F0 0F1 2F0 2F1 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1\n\
             1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
        );
    }

    /// The stages of two ranks in a V, so that messages between stages 1 and 2 don't exist.
    #[test]
    fn dual_pipe_v_with_overlap() {
        check_runs(
            "0F0,0F1,3F0,3I0,3W0,\"(3F1;0B0)OVERLAP_F_B\",3B1,0B1\n\
             1F0,2F0,1F1,2B0,(2F1;1B0)OVERLAP_F_B,2B1,1B1\n",
            "0F0 0F1 3F0 3I0 3W0 3F1&0B0 3B1 0B1\n1F0 2F0 1F1 2B0 2F1&1B0 2B1 1B1",
        );
    }

    #[test]
    fn letters_of_older_releases() {
        check_runs(
            "0F0,0F1,0SEND_F1_1RECV_B0,0BW0,0B1,0W1\n1F0,1B0,1F1,1B1,1W0,1W1\n",
            "0F0 0F1 0B0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1",
        );
        // If there is an `I`, and after `BW`, a `B` with a `W` is a mistake that stays visible.
        for csv in ["0F0,0B0,0W0,0F1,0I1,0W1", "0F0,0BW0,0W0"] {
            let schedule = Schedule::parse_csv("mixed", csv).unwrap();
            let error = verify(&schedule, &Dependencies::chain(1)).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("keep `B`, or `I` and `W`"), "{text}");
        }
    }

    #[test]
    fn rows_without_actions() {
        check(
            "0F0,\n\n\"\"\n,,\n 1F0 , \" 1F1 \"\n\n \r\n",
            "0F0\n-\n-\n-\n1F0 1F1",
        );
        check("\u{feff}0F0", "0F0");
        check("1RECV_F0\n0F0", "-\n0F0");
        check("\n\n", "");
        check("", "");
    }

    #[test]
    fn errors_say_where() {
        let texts = [
            "0F0,0F1\n1F0,,nonsense",
            "\u{feff}0F0, \" 0f1\"",
            "0F0,\u{e9},0F1",
            "0F0,0F",
            "0F0,0F1 0F2",
            "0F0,0F0>1F0",
            "0F0,0U",
            "0F0,\"0F1",
            "0F0,(0F1;1B0;2B0)OVERLAP_F_B",
            "0F0,(0F1)OVERLAP_F_B",
            "0F0,0F99999999999999999999",
            "0F0,0OFFLOAD3",
            "0F0,(0F1;1B0)OVERLAP_F_I",
            "0F0,0WAIT_SEND_F",
            "0F0,0OFFLOAD3x",
            "rank,0F0",
            "0F0\n,2F0",
        ];
        let refusal = |text: &str| Schedule::parse_csv("bad", text).unwrap_err().to_string();
        insta::assert_snapshot!(texts.map(refusal).join("\n"), @r#"
        row 2, column 6: `nonsense` is not a cell of a schedule: write it as PyTorch does, such as `0F2`, `(0F2;1B0)OVERLAP_F_B`, `0SEND_F2` or `0UNSHARD`
        row 1, column 8: `0f1` is not a cell of a schedule: letters are upper case: write `0F1`
        row 1, column 5: `é` is not a cell of a schedule: write it as PyTorch does, such as `0F2`, `(0F2;1B0)OVERLAP_F_B`, `0SEND_F2` or `0UNSHARD`
        row 1, column 5: `0F` is not a cell of a schedule: the number after the letter is missing: write it out, such as in `0F0`
        row 1, column 5: `0F1 0F2` is not a cell of a schedule: a cell has one action: separate two by a comma, or all of them by spaces only
        row 1, column 5: `0F0>1F0` is not a cell of a schedule: it is a word of the text form: separate the words by spaces, not by commas
        row 1, column 5: `0U` is not a cell of a schedule: it is a word of the text form: separate the words by spaces, not by commas
        row 1, column 5: `"0F1` is not a cell of a schedule: write it as PyTorch does, such as `0F2`, `(0F2;1B0)OVERLAP_F_B`, `0SEND_F2` or `0UNSHARD`
        row 1, column 5: `(0F1;1B0;2B0)OVERLAP_F_B` is not a cell of a schedule: write it as PyTorch does, such as `0F2`, `(0F2;1B0)OVERLAP_F_B`, `0SEND_F2` or `0UNSHARD`
        row 1, column 5: `(0F1)OVERLAP_F_B` is not a cell of a schedule: an overlapped pair is of two programs: write `2F5&1B3`, in CSV `(2F5;1B3)OVERLAP_F_B`
        row 1, column 5: `0F99999999999999999999` is not a cell of a schedule: numbers go up to 4294967295
        row 1, column 5: `0OFFLOAD3` is not a cell of a schedule: the name OFFLOAD is unknown: if your release of PyTorch writes it, write the file with `_dump_csv(filename, format="compute_only")`, which has no such names, or remove the cell
        row 1, column 5: `(0F1;1B0)OVERLAP_F_I` is not a cell of a schedule: the name OVERLAP_F_I is unknown: if your release of PyTorch writes it, write the file with `_dump_csv(filename, format="compute_only")`, which has no such names, or remove the cell
        row 1, column 5: `0WAIT_SEND_F` is not a cell of a schedule: the number after the letter is missing: write it out, such as in `0WAIT_SEND_F0`
        row 1, column 5: `0OFFLOAD3x` is not a cell of a schedule: write it as PyTorch does, such as `0F2`, `(0F2;1B0)OVERLAP_F_B`, `0SEND_F2` or `0UNSHARD`
        row 1, column 1: `rank` is not a cell of a schedule: write it as PyTorch does, such as `0F2`, `(0F2;1B0)OVERLAP_F_B`, `0SEND_F2` or `0UNSHARD`
        row 2, column 2: this is an action of stage 2, but no row runs stage 1: number the stages from 0 without a gap
        "#);
    }

    #[test]
    fn written_as_pytorch_reads_it() {
        let text = "0F0 0F1 3F0 3I0 3W0 3F1&0B0 3B1 0B1\n-\n1F0 2F0 1F1 2B0 2F1&1B0 2B1 1B1";
        let schedule = Schedule::parse("v", text).unwrap();
        insta::assert_snapshot!(schedule.to_csv(), @r#"
        0F0,0F1,3F0,3I0,3W0,(3F1;0B0)OVERLAP_F_B,3B1,0B1
        ""
        1F0,2F0,1F1,2B0,(2F1;1B0)OVERLAP_F_B,2B1,1B1
        "#);
        let lowered = lower(&schedule, &Dependencies::chain(4));
        assert_eq!(lowered.to_csv(), schedule.to_csv());
    }

    /// Lists in arbitrary order: of every micro-batch on every stage a forward and a
    /// backward, whole or split, some of them as pairs.
    fn any_lists() -> impl Strategy<Value = String> {
        let tasks = (1..5_usize, 1..5_usize).prop_flat_map(|(stages, micro_batches)| {
            let splits = prop::collection::vec(any::<bool>(), stages * micro_batches);
            let words = splits.prop_map(move |splits| {
                let words = splits.iter().enumerate().flat_map(|(index, &split)| {
                    let (s, k) = (index / micro_batches, index % micro_batches);
                    let backward: &[char] = if split { &['I', 'W'] } else { &['B'] };
                    let letters = std::iter::once(&'F').chain(backward);
                    letters
                        .map(move |letter| format!("{s}{letter}{k}"))
                        .collect::<Vec<_>>()
                });
                words.collect::<Vec<_>>()
            });
            words.prop_shuffle()
        });
        (
            tasks,
            prop::collection::vec(any::<(bool, prop::sample::Index)>(), 32),
            1..4_usize,
        )
            .prop_map(|(words, draws, ranks)| {
                let mut rows = vec![String::new(); ranks];
                for (word, (pair, rank)) in words.iter().zip(draws.iter().cycle()) {
                    let row = &mut rows[rank.index(ranks)];
                    let mark = if *pair && !row.is_empty() && !row.contains('&') {
                        "&"
                    } else {
                        " "
                    };
                    row.push_str(mark);
                    row.push_str(word);
                }
                let idle = |row: &String| {
                    if row.trim().is_empty() {
                        "-".into()
                    } else {
                        row.clone()
                    }
                };
                rows.iter().map(idle).collect::<Vec<String>>().join("\n")
            })
    }

    /// Returns the number that each micro-batch has in another schedule, if the two are otherwise the same.
    fn renumbered(
        from: &Schedule,
        to: &Schedule,
    ) -> Option<BTreeMap<MicroBatchIndex, MicroBatchIndex>> {
        let tasks = |schedule: &Schedule| {
            let actions = schedule.places().flat_map(|at| {
                let tasks = at.action.tasks().to_vec();
                tasks
                    .into_iter()
                    .map(move |task| (at.rank, at.position, task))
            });
            actions.collect::<Vec<_>>()
        };
        let mut numbers = BTreeMap::new();
        let (from, to) = (tasks(from), tasks(to));
        for ((rank, position, old), new) in from.iter().zip(&to) {
            let micro_batch = *numbers.entry(old.micro_batch).or_insert(new.2.micro_batch);
            if (
                *rank,
                *position,
                Task {
                    micro_batch,
                    ..*old
                },
            ) != *new
            {
                return None;
            }
        }
        let distinct: HashSet<_> = numbers.values().collect();
        (from.len() == to.len() && distinct.len() == numbers.len()).then_some(numbers)
    }

    proptest! {
        #[test]
        fn lists_survive_a_round_trip(text in any_lists()) {
            let schedule = Schedule::parse("any", &text).unwrap();
            let csv = schedule.to_csv();
            let read = Schedule::parse_csv("any", &csv).unwrap();
            prop_assert!(renumbered(&schedule, &read).is_some(), "{schedule}\n{read}");
            prop_assert_eq!(&Schedule::parse_csv("any", &read.to_csv()).unwrap(), &read);
            let idle = csv.replace(',', ",, ").replace('\n', ",\r\n");
            prop_assert_eq!(&Schedule::parse_csv("any", &idle).unwrap(), &read);
        }

        /// A schedule that can run is read as it is, and with any other numbers of its micro-batches, too.
        #[test]
        fn any_numbers_of_micro_batches_are_read(
            kind in prop::sample::select(ScheduleKind::ALL.to_vec()),
            ranks in 1..5_usize,
            order in (1..9_usize).prop_flat_map(|count| Just((0..count).collect::<Vec<_>>()).prop_shuffle()),
        ) {
            let chunks = kind.chunks().least();
            let Ok(schedule) = kind.generate(ranks, chunks, order.len()) else {
                return Ok(());
            };
            let csv = schedule.to_csv();
            prop_assert_eq!(&Schedule::parse_csv(&schedule.name, &csv).unwrap(), &schedule);
            let mut shuffled = schedule.clone();
            for action in shuffled.ranks.iter_mut().flatten() {
                let tasks = match action {
                    Action::Compute(task) => std::slice::from_mut(task),
                    Action::Overlap(tasks) => tasks,
                    _ => continue,
                };
                for task in tasks {
                    task.micro_batch = MicroBatchIndex::new(order[task.micro_batch.index()]);
                }
            }
            prop_assert_eq!(&Schedule::parse_csv(&schedule.name, &shuffled.to_csv()).unwrap(), &schedule);
        }
    }
}
