//! The cell of a CSV file, an action in the words of PyTorch's `torch.distributed.pipelining`; and the numbers in cells and
//! words, which are digits without a sign, within 32 bits.

use tinderbox_ids::{MicroBatchIndex, StageIndex};

use super::error::{WordFault, excerpt};
use crate::action::Action;
use crate::task::{Compute, Task};

/// The suffix of the cell of an overlapped pair.
pub(super) const OVERLAP: &str = ")OVERLAP_F_B";

/// The meaning of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell {
    /// `0F1`, `(0F1;1B0)OVERLAP_F_B`: a compute action.
    Action(Action),
    /// `0BW1`: a whole backward, where `B` is the input gradient.
    WholeBackward(Task),
    /// `0SEND_F1`, `0WAIT_SEND_F1`, `0UNSHARD`: an action that lowering derives, or a wait that other actions imply.
    Derived,
}

/// Parses a cell without spaces and quotes around it.
pub(super) fn parse_cell(cell: &str) -> Result<Cell, WordFault> {
    let Some(inside) = cell.strip_prefix('(') else {
        return parse_single(cell);
    };
    let pair = inside.strip_suffix(OVERLAP);
    let pair = pair.ok_or_else(|| {
        let name = inside.rsplit_once(')').map_or("", |(_, name)| name);
        match parse_single(&format!("0{name}0")) {
            Err(fault @ WordFault::UnknownName { .. }) => fault,
            _ => WordFault::CellShape,
        }
    })?;
    let (forward, backward) = pair.split_once(';').ok_or(WordFault::Pair)?;
    // Pairs don't nest, so an untrusted cell can't cause deep recursion.
    let [forward, backward] = [forward, backward].map(|cell| parse_single(cell.trim()));
    match (forward?, backward?) {
        (Cell::Action(Action::Compute(forward)), Cell::Action(Action::Compute(backward))) => {
            Ok(Cell::Action(Action::Overlap([forward, backward])))
        }
        _ => Err(WordFault::Pair),
    }
}

/// Parses a cell that is not a pair.
fn parse_single(cell: &str) -> Result<Cell, WordFault> {
    let (stage, rest) = split_stage(cell)?;
    let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_');
    let (name, number) = rest.split_at(end.unwrap_or(rest.len()));
    let micro_batch = |number| last_number(number, || format!("{stage}{name}0"));
    let task = |compute| {
        let micro_batch = MicroBatchIndex::new(micro_batch(number)?);
        Ok::<_, WordFault>(Task::new(stage, compute, micro_batch))
    };
    let action = |compute| task(compute).map(|task| Cell::Action(Action::Compute(task)));
    match name {
        "F" => action(Compute::Forward),
        "B" => action(Compute::Backward),
        "I" => action(Compute::InputGradient),
        "W" => action(Compute::WeightGradient),
        "BW" => task(Compute::Backward).map(Cell::WholeBackward),
        "UNSHARD" | "RESHARD" | "REDUCE_GRAD" | "WAIT_REDUCE_GRAD" if number.is_empty() => {
            Ok(Cell::Derived)
        }
        "UNSHARD" | "RESHARD" | "REDUCE_GRAD" | "WAIT_REDUCE_GRAD" | "RECV_F" | "RECV_B"
        | "WAIT_SEND_F" | "WAIT_SEND_B" => micro_batch(number).map(|_| Cell::Derived),
        "SEND_F" | "SEND_B" => {
            let (digits, receive) = split_digits(number);
            match receive.strip_prefix('_') {
                Some(receive) => micro_batch(digits).and_then(|_| check_receive(receive)),
                None => micro_batch(number).map(|_| ()),
            }?;
            Ok(Cell::Derived)
        }
        "OVERLAP_F_B" => Err(WordFault::Pair),
        // The name of an action that another release of PyTorch may have.
        _ if name.starts_with(|c: char| c.is_ascii_uppercase())
            && split_digits(number).1.is_empty() =>
        {
            let name = excerpt(name);
            Err(WordFault::UnknownName { name })
        }
        _ => Err(WordFault::CellShape),
    }
}

/// Checks the second half of `0SEND_F1_2RECV_B0`, a send and a receive that PyTorch once batched.
fn check_receive(cell: &str) -> Result<(), WordFault> {
    let (stage, rest) = split_stage(cell)?;
    let mut names = ["RECV_F", "RECV_B"].into_iter();
    let number = names.find_map(|name| rest.strip_prefix(name));
    let number = number.ok_or(WordFault::CellShape)?;
    last_number(number, || format!("{stage}RECV_F0")).map(|_| ())
}

/// Returns the digits at the start of a text, and the rest.
pub(super) fn split_digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

/// Returns the stage at the start of a word, and the rest, which is not empty.
pub(super) fn split_stage(word: &str) -> Result<(StageIndex, &str), WordFault> {
    let (stage, rest) = split_digits(word);
    if stage.is_empty() {
        return Err(without_stage(rest));
    }
    if rest.is_empty() {
        return Err(WordFault::Shape);
    }
    Ok((StageIndex::new(value(stage)?), rest))
}

/// Returns the fault of a word that does not begin with a digit.
fn without_stage(word: &str) -> WordFault {
    if word.starts_with(['+', '-']) {
        return WordFault::Sign;
    }
    let digits = word.trim_start_matches(|c: char| c.is_ascii_uppercase() || c == '_');
    if digits.len() < word.len() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return WordFault::NoStage;
    }
    WordFault::Shape
}

/// Returns the number after a letter, up to the end of the word.
///
/// `example` returns a word that has such a number, for the error.
pub(super) fn last_number(
    text: &str,
    example: impl FnOnce() -> String,
) -> Result<usize, WordFault> {
    if text.is_empty() {
        return Err(WordFault::NoNumber { example: example() });
    }
    if text.starts_with(['+', '-']) {
        return Err(WordFault::Sign);
    }
    match split_digits(text) {
        (digits, "") => value(digits),
        _ => Err(WordFault::Shape),
    }
}

/// Returns the value of one or more digits.
fn value(digits: &str) -> Result<usize, WordFault> {
    let value: u32 = digits.parse().map_err(|_| WordFault::TooLarge)?;
    Ok(value as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(cell: &str, expected: Result<Cell, WordFault>) {
        assert_eq!(parse_cell(cell), expected, "{cell}");
    }

    fn action(word: &str) -> Cell {
        Cell::Action(word.parse().unwrap())
    }

    #[test]
    fn programs_and_pairs() {
        for word in ["0F1", "1I2", "1W2", "12B345"] {
            check(word, Ok(action(word)));
        }
        check("(0F1;1B0)OVERLAP_F_B", Ok(action("0F1&1B0")));
        check("( 0F1 ; 1I0 )OVERLAP_F_B", Ok(action("0F1&1I0")));
        let whole = action("3B4");
        let Cell::Action(Action::Compute(task)) = whole else {
            panic!("{whole:?}")
        };
        check("3BW4", Ok(Cell::WholeBackward(task)));
    }

    #[test]
    fn communication_sharding_and_waits_are_derived() {
        for cell in [
            "0SEND_F0",
            "1RECV_F0",
            "1SEND_B12",
            "0RECV_B12",
            "0SEND_F1_2RECV_B0",
            "2SEND_B3_1RECV_F5",
            "0UNSHARD",
            "0RESHARD",
            "0REDUCE_GRAD",
            "0UNSHARD3",
            "7REDUCE_GRAD0",
            "0WAIT_SEND_F0",
            "12WAIT_SEND_B34",
            "0WAIT_REDUCE_GRAD",
            "3WAIT_REDUCE_GRAD1",
        ] {
            check(cell, Ok(Cell::Derived));
        }
    }

    #[test]
    fn other_cells_are_refused() {
        let example = |example: &str| WordFault::NoNumber {
            example: example.to_owned(),
        };
        let unknown = |name: &str| WordFault::UnknownName {
            name: name.to_owned(),
        };
        for (cell, fault) in [
            ("", WordFault::Shape),
            ("7", WordFault::Shape),
            ("0X1", unknown("X")),
            ("0FB1", unknown("FB")),
            ("0SEND_W1", unknown("SEND_W")),
            ("0WAIT_RECV_F1", unknown("WAIT_RECV_F")),
            ("0OFFLOAD", unknown("OFFLOAD")),
            ("(0F1;1B0)OVERLAP_F_I", unknown("OVERLAP_F_I")),
            ("(0F1;1OFFLOAD0)OVERLAP_F_B", unknown("OFFLOAD")),
            ("0OFFLOADx", WordFault::CellShape),
            ("0OFFLOAD1_2RECV_F1", WordFault::CellShape),
            ("0_1", WordFault::CellShape),
            ("0SEND_F1_2OFFLOAD1", WordFault::CellShape),
            ("0WAIT_SEND_F", example("0WAIT_SEND_F0")),
            ("0WAIT_SEND_F1_2RECV_B0", WordFault::Shape),
            ("0OVERLAP_F_B", WordFault::Pair),
            ("F1", WordFault::NoStage),
            ("SEND_F1", WordFault::NoStage),
            ("-1F0", WordFault::Sign),
            ("1F-1", WordFault::Sign),
            ("0F", example("0F0")),
            ("4SEND_F", example("4SEND_F0")),
            ("4SEND_F_1RECV_B0", WordFault::CellShape),
            ("4SEND_F1_1RECV_B", example("1RECV_F0")),
            ("4SEND_F1_1SEND_B0", WordFault::CellShape),
            ("4SEND_F1_", WordFault::Shape),
            ("0RECV_F1_0SEND_B1", WordFault::Shape),
            ("0UNSHARDx", WordFault::Shape),
            ("0F1x", WordFault::Shape),
            ("0F18446744073709551616", WordFault::TooLarge),
            ("(0F1;1B0)", WordFault::CellShape),
            ("(0F1;1B0)OVERLAP", unknown("OVERLAP")),
            ("(0F1;1B0)SEND_F", WordFault::CellShape),
            ("(0F1;1B0", WordFault::CellShape),
            ("(0F1)OVERLAP_F_B", WordFault::Pair),
            ("()OVERLAP_F_B", WordFault::Pair),
            ("(0F1;0UNSHARD)OVERLAP_F_B", WordFault::Pair),
            ("(0F1;1B0;2B0)OVERLAP_F_B", WordFault::Shape),
            ("((0F1;1B0)OVERLAP_F_B;1B0)OVERLAP_F_B", WordFault::Shape),
        ] {
            check(cell, Err(fault));
        }
    }
}
