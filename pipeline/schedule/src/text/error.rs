//! Errors of reading a text, with the position and the fix.

use std::fmt;

use derive_more::Display;
use thiserror::Error;

use tinderbox_ids::StageIndex;

/// The position of a word in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[display("row {row}, column {column}")]
pub struct TextPosition {
    /// The line, from one.
    pub row: usize,
    /// The character of the line, from one.
    pub column: usize,
}

/// An error of reading a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// A word that is not an action.
    #[error("{}`{}` is not an action: {fault}", prefix(*at), Shown(word))]
    Word {
        /// The position of the word; `None` if it was read alone.
        at: Option<TextPosition>,
        /// The word, truncated to its first 40 characters.
        word: String,
        /// The fault of the word.
        fault: WordFault,
    },
    /// A cell of a CSV file that is not an action.
    #[error("{at}: `{}` is not a cell of a schedule: {fault}", Shown(cell))]
    Cell {
        /// The position of the cell, after spaces and a quote.
        at: TextPosition,
        /// The cell, truncated to its first 40 characters.
        cell: String,
        /// The fault of the cell.
        fault: WordFault,
    },
    /// A stage that no row runs, below one that a row runs.
    #[error(
        "{at}: this is an action of stage {found}, but no row runs stage {stage}: number the \
         stages from 0 without a gap"
    )]
    Gap {
        /// The lowest stage that no row runs.
        stage: StageIndex,
        /// The next stage that a row runs.
        found: StageIndex,
        /// The position of the first action of that stage.
        at: TextPosition,
    },
}

/// The fault of one word or cell.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WordFault {
    /// It does not have the shape of a word.
    #[error(
        "write stage, letter F, B, I or W and micro-batch, such as `0F2`, or `0F2>1F2`, `1F2<0F2`, \
         `0F2&1B0`, `0R0`, `0S`, `0U`, `0G`, `0U>3U`, `3U<0U`, `0N>1N`, `1N<0N`"
    )]
    Shape,
    /// It does not have the shape of a cell.
    #[error(
        "write it as PyTorch does, such as `0F2`, `(0F2;1B0)OVERLAP_F_B`, `0SEND_F2` or `0UNSHARD`"
    )]
    CellShape,
    /// A cell of the right shape, with a name that no known release of PyTorch writes.
    #[error(
        "the name {name} is unknown: if your release of PyTorch writes it, write the file with \
         `_dump_csv(filename, format=\"compute_only\")`, which has no such names, or remove the cell"
    )]
    UnknownName {
        /// The name, truncated to its first 40 characters.
        name: String,
    },
    /// A letter that no action has.
    #[error("no action has the letter {letter}: write F, B, I or W, or R, S, U, G or N")]
    Letter {
        /// The letter.
        letter: char,
    },
    /// It would be right in upper case.
    #[error("letters are upper case: write `{instead}`")]
    LowerCase {
        /// The word in upper case, truncated to its first 40 characters.
        instead: String,
    },
    /// The stage is missing.
    #[error("the stage is missing: begin with its number, such as in `0F2`")]
    NoStage,
    /// The number after the letter is missing.
    #[error("the number after the letter is missing: write it out, such as in `{example}`")]
    NoNumber {
        /// A word that has one.
        example: String,
    },
    /// A number after a letter that has none.
    #[error("the letter {letter} has no micro-batch: remove the number after it")]
    OncePerStep {
        /// The letter.
        letter: char,
    },
    /// A reduce with the number of another stage.
    #[error("a stage's gradients are summed over its own replicas: write its number twice")]
    OtherStage,
    /// A number with a plus or minus.
    #[error("numbers have no sign: stages and micro-batches count from 0")]
    Sign,
    /// A number that does not fit 32 bits.
    #[error("numbers go up to {}", u32::MAX)]
    TooLarge,
    /// Several actions without a space.
    #[error("it looks like several actions: put a space between them")]
    Glued,
    /// A comma in the text form.
    #[error("words are separated by spaces only: remove the commas, or read the text as CSV")]
    Comma,
    /// A space within a cell.
    #[error("a cell has one action: separate two by a comma, or all of them by spaces only")]
    Space,
    /// A comment in a CSV file.
    #[error("CSV has no comments: remove it")]
    Comment,
    /// The two ends of a message are inconsistent.
    #[error(
        "a message joins two programs for one micro-batch, two updates or two norms: write \
         `0F2>1F2`, `0U>3U` or `0N>1N`"
    )]
    Ends,
    /// A norm that is not sent or received.
    #[error("a norm is only sent and received: write `0N>1N` and `1N<0N`")]
    Norm,
    /// A pair that is not of two programs.
    #[error(
        "an overlapped pair is of two programs: write `2F5&1B3`, in CSV `(2F5;1B3)OVERLAP_F_B`"
    )]
    Pair,
    /// A dash in addition to other words.
    #[error("it marks a rank without actions: make it the only word of its row")]
    Dash,
    /// A cell of a CSV file in the text form.
    #[error("it is a cell of PyTorch's CSV: read the text as CSV")]
    Cell,
    /// A word of the text form in a CSV file.
    #[error("it is a word of the text form: separate the words by spaces, not by commas")]
    Word,
}

/// Returns the position in front of a message, if there is one.
fn prefix(at: Option<TextPosition>) -> String {
    at.map_or_else(String::new, |at| format!("{at}: "))
}

/// A word from an untrusted file: control and invisible characters are escaped.
struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\'' | '"' | '\\' => write!(f, "{c}"),
            _ => write!(f, "{}", c.escape_debug()),
        })
    }
}

/// The maximum length in characters of a word in an error: more than any real action has, and short
/// enough for one line.
const EXCERPT_CHARS: usize = 40;

/// Returns a word as errors store it.
pub(super) fn excerpt(word: &str) -> String {
    match word.char_indices().nth(EXCERPT_CHARS) {
        Some((end, _)) => format!("{}...", &word[..end]),
        None => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(word: &str, expected: &str) {
        let shown = Shown(&excerpt(word)).to_string();
        assert_eq!(shown, expected);
    }

    #[test]
    fn untrusted_words_are_truncated_and_escaped() {
        check("0F0", "0F0");
        check("0\u{e9}0\"'\\", "0\u{e9}0\"'\\");
        check("a\0b\u{1b}[31m\u{202e}", "a\\0b\\u{1b}[31m\\u{202e}");
        check(&"\u{e9}".repeat(40), &"\u{e9}".repeat(40));
        check(&"\u{e9}".repeat(41), &format!("{}...", "\u{e9}".repeat(40)));
    }
}
