//! Reading and writing of the word of an action.

use std::fmt;
use std::str::FromStr;

use tinderbox_ids::{MicroBatchIndex, StageIndex};

use super::cells::{last_number, parse_cell, split_digits, split_stage};
use super::error::{ParseError, WordFault, excerpt};
use crate::action::{Action, Message};
use crate::dependencies::{Edge, Endpoint, Tie};
use crate::task::{Compute, Task};

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compute(task) => task.fmt(f),
            Self::Overlap([forward, backward]) => write!(f, "{forward}&{backward}"),
            Self::Send(Message::Values { edge, micro_batch }) => {
                write!(f, "{}{micro_batch}>{}{micro_batch}", edge.from, edge.to)
            }
            Self::Receive(Message::Values { edge, micro_batch }) => {
                write!(f, "{}{micro_batch}<{}{micro_batch}", edge.to, edge.from)
            }
            Self::Send(Message::Tie(tie)) => tie.fmt(f),
            Self::Receive(Message::Tie(tie)) => write!(f, "{}U<{}U", tie.copy, tie.owner),
            Self::Send(Message::Norm { from, to }) => write!(f, "{from}N>{to}N"),
            Self::Receive(Message::Norm { from, to }) => write!(f, "{to}N<{from}N"),
            Self::Reduce { stage } => write!(f, "{stage}R{stage}"),
            Self::Sum { stage } => write!(f, "{stage}S"),
            Self::Update { stage } => write!(f, "{stage}U"),
            Self::Gather { stage } => write!(f, "{stage}G"),
        }
    }
}

impl From<Action> for String {
    fn from(action: Action) -> Self {
        action.to_string()
    }
}

impl TryFrom<String> for Action {
    type Error = ParseError;

    fn try_from(word: String) -> Result<Self, ParseError> {
        word.parse()
    }
}

impl FromStr for Action {
    type Err = ParseError;

    fn from_str(word: &str) -> Result<Self, ParseError> {
        read_word(word).map_err(|fault| ParseError::Word {
            at: None,
            word: excerpt(word),
            fault,
        })
    }
}

/// Reads a word, with a more specific error for one that is not an action.
pub(super) fn read_word(word: &str) -> Result<Action, WordFault> {
    parse_word(word).map_err(|fault| explain(word, fault))
}

/// Parses the action of a word.
pub(super) fn parse_word(word: &str) -> Result<Action, WordFault> {
    if let Some((forward, backward)) = word.split_once('&') {
        return match (parse_side(forward)?, parse_side(backward)?) {
            (Side::Task(forward), Side::Task(backward)) => Ok(Action::Overlap([forward, backward])),
            _ => Err(WordFault::Pair),
        };
    }
    if let Some((from, to)) = word.split_once('>') {
        return message(parse_side(from)?, parse_side(to)?).map(Action::Send);
    }
    if let Some((to, from)) = word.split_once('<') {
        return message(parse_side(from)?, parse_side(to)?).map(Action::Receive);
    }
    match parse_side(word)? {
        Side::Task(task) => Ok(Action::Compute(task)),
        Side::Once(stage, 'S') => Ok(Action::Sum { stage }),
        Side::Once(stage, 'U') => Ok(Action::Update { stage }),
        Side::Once(stage, 'G') => Ok(Action::Gather { stage }),
        Side::Once(..) => Err(WordFault::Norm),
        Side::Reduce(stage, number) if number == stage.index() => Ok(Action::Reduce { stage }),
        Side::Reduce(..) => Err(WordFault::OtherStage),
    }
}

/// The text on one side of a `>`, `<` or `&`, or the whole word.
enum Side {
    /// `2F5`.
    Task(Task),
    /// `2S`, `2U`, `2G`, or in a message `2N`: the stage and the letter.
    Once(StageIndex, char),
    /// `2R2`: the stage, and the number after the letter, which must be the same.
    Reduce(StageIndex, usize),
}

fn parse_side(text: &str) -> Result<Side, WordFault> {
    let (stage, rest) = split_stage(text)?;
    let mut rest = rest.chars();
    let letter = rest.next().ok_or(WordFault::Shape)?;
    let number = rest.as_str();
    match letter {
        'S' | 'U' | 'G' | 'N' if number.is_empty() => Ok(Side::Once(stage, letter)),
        'S' | 'U' | 'G' | 'N' => match split_digits(number) {
            (_, "") => Err(WordFault::OncePerStep { letter }),
            _ => Err(WordFault::Shape),
        },
        'R' => {
            let number = last_number(number, || format!("{stage}R{stage}"))?;
            Ok(Side::Reduce(stage, number))
        }
        _ => {
            let mut programs = Compute::ALL.into_iter();
            let found = programs.find(|compute| compute.letter() == letter);
            let compute = found.ok_or(match letter.is_alphabetic() {
                true => WordFault::Letter { letter },
                false => WordFault::Shape,
            })?;
            let number = last_number(number, || format!("{stage}{letter}0"))?;
            let micro_batch = MicroBatchIndex::new(number);
            Ok(Side::Task(Task::new(stage, compute, micro_batch)))
        }
    }
}

/// Returns the message between two sides: two programs of one micro-batch, two updates or two norms.
fn message(from: Side, to: Side) -> Result<Message, WordFault> {
    match (from, to) {
        (Side::Task(from), Side::Task(to)) if from.micro_batch == to.micro_batch => {
            let end = |task: Task| Endpoint::new(task.stage, task.compute);
            let (edge, micro_batch) = (Edge::new(end(from), end(to)), from.micro_batch);
            Ok(Message::Values { edge, micro_batch })
        }
        (Side::Once(owner, 'U'), Side::Once(copy, 'U')) => Ok(Message::Tie(Tie { owner, copy })),
        (Side::Once(from, 'N'), Side::Once(to, 'N')) => Ok(Message::Norm { from, to }),
        _ => Err(WordFault::Ends),
    }
}

/// Returns the likely mistake in a rejected word, or else the fault at which parsing ended.
fn explain(word: &str, fault: WordFault) -> WordFault {
    if word.contains(',') {
        return WordFault::Comma;
    }
    let upper = word.to_ascii_uppercase();
    if parse_word(&upper).is_ok() {
        return WordFault::LowerCase {
            instead: excerpt(&upper),
        };
    }
    if parse_cell(word).is_ok() {
        return WordFault::Cell;
    }
    if fault == WordFault::Shape && is_glued(word) {
        return WordFault::Glued;
    }
    fault
}

/// Returns whether a word is stages, letters and micro-batches of several actions, such as `0F00F1`.
///
/// The boundary between them is ambiguous, so nothing is suggested.
fn is_glued(word: &str) -> bool {
    let mut letters = 0;
    let mut before = ' ';
    for c in word.chars() {
        let is_letter = "FBIWRSUG".contains(c);
        let follows = is_letter && before.is_ascii_digit();
        if !c.is_ascii_digit() && !follows {
            return false;
        }
        letters += usize::from(is_letter);
        before = c;
    }
    letters > 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_survive_a_round_trip() {
        for word in [
            "0F0", "12B345", "1I2", "1W2", "0F2>1F2", "1F2<0F2", "3B0>0W0", "2R2", "0R0", "7S",
            "7U", "7G", "0U>3U", "3U<0U", "2F5&1B3", "2F5&2I3", "0N>1N", "1N<0N",
        ] {
            assert_eq!(word.parse::<Action>().unwrap().to_string(), word);
        }
    }

    /// The errors of words, one per line.
    fn refusals(words: &[&str]) -> String {
        let refusal = |word: &&str| word.parse::<Action>().unwrap_err().to_string();
        words.iter().map(refusal).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn words_without_shape() {
        for word in [
            "",
            "0",
            "nonsense",
            "0F0 ",
            "0F0x",
            "0F0>",
            ">",
            "0F0&",
            "0F0&1B0&2B0",
            "0F0<1F0>2F0",
            "0F\u{e9}",
            "0>1F0",
            "0U-",
            "\0",
            "-",
        ] {
            let ParseError::Word { at, fault, .. } = word.parse::<Action>().unwrap_err() else {
                panic!("{word}");
            };
            assert_eq!(at, None);
            let expected = match word {
                "-" => WordFault::Sign,
                _ => WordFault::Shape,
            };
            assert_eq!(fault, expected, "{word}");
        }
        insta::assert_snapshot!(refusals(&["nonsense"]), @"`nonsense` is not an action: write stage, letter F, B, I or W and micro-batch, such as `0F2`, or `0F2>1F2`, `1F2<0F2`, `0F2&1B0`, `0R0`, `0S`, `0U`, `0G`, `0U>3U`, `3U<0U`, `0N>1N`, `1N<0N`");
    }

    #[test]
    fn letters_and_numbers() {
        let words = [
            "0X0",
            "0\u{e9}0",
            "0f0",
            "0f2>1f2",
            "0x0",
            "F0",
            "F",
            "0F",
            "2B",
            "3R",
            "0R1",
            "0U0",
            "2N1",
            "0F+1",
            "0F-1",
            "-1F0",
            "0F99999999999999999999999",
        ];
        insta::assert_snapshot!(refusals(&words), @"
        `0X0` is not an action: no action has the letter X: write F, B, I or W, or R, S, U, G or N
        `0é0` is not an action: no action has the letter é: write F, B, I or W, or R, S, U, G or N
        `0f0` is not an action: letters are upper case: write `0F0`
        `0f2>1f2` is not an action: letters are upper case: write `0F2>1F2`
        `0x0` is not an action: no action has the letter x: write F, B, I or W, or R, S, U, G or N
        `F0` is not an action: the stage is missing: begin with its number, such as in `0F2`
        `F` is not an action: the stage is missing: begin with its number, such as in `0F2`
        `0F` is not an action: the number after the letter is missing: write it out, such as in `0F0`
        `2B` is not an action: the number after the letter is missing: write it out, such as in `2B0`
        `3R` is not an action: the number after the letter is missing: write it out, such as in `3R3`
        `0R1` is not an action: a stage's gradients are summed over its own replicas: write its number twice
        `0U0` is not an action: the letter U has no micro-batch: remove the number after it
        `2N1` is not an action: the letter N has no micro-batch: remove the number after it
        `0F+1` is not an action: numbers have no sign: stages and micro-batches count from 0
        `0F-1` is not an action: numbers have no sign: stages and micro-batches count from 0
        `-1F0` is not an action: numbers have no sign: stages and micro-batches count from 0
        `0F99999999999999999999999` is not an action: numbers go up to 4294967295
        ");
    }

    #[test]
    fn sides_and_neighbours() {
        let words = [
            "0F0>1F1",
            "0F0>1U",
            "0U<1F0",
            "0R0>1R0",
            "0N>1U",
            "0N",
            "0F0&1U",
            "0F00F1",
            "0U1U",
            "0F0,0F1",
            "0F0,",
            "0SEND_F0",
            "(0F1;1B0)OVERLAP_F_B",
        ];
        insta::assert_snapshot!(refusals(&words), @"
        `0F0>1F1` is not an action: a message joins two programs for one micro-batch, two updates or two norms: write `0F2>1F2`, `0U>3U` or `0N>1N`
        `0F0>1U` is not an action: a message joins two programs for one micro-batch, two updates or two norms: write `0F2>1F2`, `0U>3U` or `0N>1N`
        `0U<1F0` is not an action: a message joins two programs for one micro-batch, two updates or two norms: write `0F2>1F2`, `0U>3U` or `0N>1N`
        `0R0>1R0` is not an action: a message joins two programs for one micro-batch, two updates or two norms: write `0F2>1F2`, `0U>3U` or `0N>1N`
        `0N>1U` is not an action: a message joins two programs for one micro-batch, two updates or two norms: write `0F2>1F2`, `0U>3U` or `0N>1N`
        `0N` is not an action: a norm is only sent and received: write `0N>1N` and `1N<0N`
        `0F0&1U` is not an action: an overlapped pair is of two programs: write `2F5&1B3`, in CSV `(2F5;1B3)OVERLAP_F_B`
        `0F00F1` is not an action: it looks like several actions: put a space between them
        `0U1U` is not an action: it looks like several actions: put a space between them
        `0F0,0F1` is not an action: words are separated by spaces only: remove the commas, or read the text as CSV
        `0F0,` is not an action: words are separated by spaces only: remove the commas, or read the text as CSV
        `0SEND_F0` is not an action: it is a cell of PyTorch's CSV: read the text as CSV
        `(0F1;1B0)OVERLAP_F_B` is not an action: it is a cell of PyTorch's CSV: read the text as CSV
        ");
    }

    proptest! {
        #[test]
        fn any_word_is_an_action_or_refused(word in "[0-9FBIWRSUGN<>&]{0,9}|\\PC{0,12}|.{0,80}") {
            match word.parse::<Action>() {
                // Leading zeros of a number are read and not written.
                Ok(action) => prop_assert_eq!(action.to_string().parse::<Action>().unwrap(), action),
                Err(error) => prop_assert!(error.to_string().len() < 1000),
            }
        }
    }
}
