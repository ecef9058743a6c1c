//! What can be wrong with a text, in words that show the place and the way out.

use std::fmt;

use derive_more::Display;
use thiserror::Error;

use crate::index::StageIndex;

/// Where a word begins in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[display("row {row}, column {column}")]
pub struct TextPosition {
    /// The line, from one.
    pub row: usize,
    /// The character of the line, from one.
    pub column: usize,
}

/// Why a text is no schedule.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// A word that is no action.
    #[error("{}`{}` is no action: {fault}", prefix(*at), Shown(word))]
    Word {
        /// Where it begins; `None` if it was read alone.
        at: Option<TextPosition>,
        /// The word, cut after its first 40 characters.
        word: String,
        /// What is wrong with it.
        fault: WordFault,
    },
    /// A cell of a CSV file that is no action.
    #[error("{at}: `{}` is no cell of a schedule: {fault}", Shown(cell))]
    Cell {
        /// Where it begins, behind spaces and a quote.
        at: TextPosition,
        /// The cell, cut after its first 40 characters.
        cell: String,
        /// What is wrong with it.
        fault: WordFault,
    },
    /// A stage that nothing runs, below one that something runs.
    #[error(
        "{at}: an action of stage {found} stands here, but no row runs stage {stage}: number the \
         stages from 0 without a gap"
    )]
    Gap {
        /// The lowest stage that nothing runs.
        stage: StageIndex,
        /// The next stage that something runs.
        found: StageIndex,
        /// Where the first action of that stage stands.
        at: TextPosition,
    },
    /// JSON that is not that of a schedule.
    #[error(
        "row {}, column {}: this is not the JSON of a schedule",
        .source.line(),
        .source.column()
    )]
    Json {
        /// What went wrong.
        source: serde_json::Error,
    },
}

/// What is wrong with one word or cell.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WordFault {
    /// It has the shape of no word.
    #[error(
        "write stage, letter F, B, I or W and micro-batch, such as `0F2`, or `0F2>1F2`, `1F2<0F2`, \
         `0F2&1B0`, `0R0`, `0U`, `0U>3U`, `3U<0U`, `0N>1N`, `1N<0N`"
    )]
    Shape,
    /// It has the shape of no cell.
    #[error(
        "write it as PyTorch does, such as `0F2`, `(0F2;1B0)OVERLAP_F_B`, `0SEND_F2` or `0UNSHARD`"
    )]
    CellShape,
    /// A letter that no action has.
    #[error("no action has the letter {letter}: write F, B, I or W, or R, U or N")]
    Letter {
        /// The letter.
        letter: char,
    },
    /// It would be right in upper case.
    #[error("letters are upper case: write `{instead}`")]
    LowerCase {
        /// The word in upper case, cut after its first 40 characters.
        instead: String,
    },
    /// It begins with the letter.
    #[error("the stage is missing: begin with its number, such as in `0F2`")]
    NoStage,
    /// It ends with a letter that has a number behind it.
    #[error("the number behind the letter is missing: write it out, such as in `{example}`")]
    NoNumber {
        /// A word that has one.
        example: String,
    },
    /// A number behind a letter that has none.
    #[error("no number stands behind the letter {letter}, which has no micro-batch: remove it")]
    OncePerStep {
        /// The letter.
        letter: char,
    },
    /// A number with a plus or minus.
    #[error("numbers have no sign: stages and micro-batches count from 0")]
    Sign,
    /// A number that the machine's integers don't hold.
    #[error("numbers go up to {}", usize::MAX)]
    TooLarge,
    /// Several actions without a space.
    #[error("it looks like several actions: put a space between them")]
    Glued,
    /// A comma in the text form.
    #[error("spaces alone part the words: remove the commas, or read the text as CSV")]
    Comma,
    /// A space within a cell.
    #[error("a cell holds one action: part two by a comma, or all of them by spaces alone")]
    Space,
    /// A comment in a CSV file.
    #[error("CSV has no comments: remove it")]
    Comment,
    /// The two ends of a message don't fit.
    #[error(
        "a message joins two programs for one micro-batch, two updates or two norms: write \
         `0F2>1F2`, `0U>3U` or `0N>1N`"
    )]
    Ends,
    /// A norm that is not sent or received.
    #[error("a norm is only sent and received: write `0N>1N` and `1N<0N`")]
    Norm,
    /// A pair of something besides two programs.
    #[error(
        "an overlapped pair is of two programs: write `2F5&1B3`, in CSV `(2F5;1B3)OVERLAP_F_B`"
    )]
    Pair,
    /// A dash beside other words.
    #[error("it says that a rank does nothing: leave it alone in its row")]
    Dash,
    /// A cell of a CSV file in the text form.
    #[error("it is a cell of PyTorch's CSV: read the text as CSV")]
    Cell,
    /// A word of the text form in a CSV file.
    #[error("it is a word of the text form: part the words by spaces and not by commas")]
    Word,
}

/// The position in front of a message, where there is one.
fn prefix(at: Option<TextPosition>) -> String {
    at.map_or_else(String::new, |at| format!("{at}: "))
}

/// A word of a stranger's file: what a terminal would obey or hide is escaped.
struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\'' | '"' | '\\' => write!(f, "{c}"),
            _ => write!(f, "{}", c.escape_debug()),
        })
    }
}

/// The most characters of a word that an error keeps: more than any sensible action has, and short
/// enough for one line.
const EXCERPT_CHARS: usize = 40;

/// A word as errors keep it.
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
    fn words_of_strangers_are_cut_and_escaped() {
        check("0F0", "0F0");
        check("0\u{e9}0\"'\\", "0\u{e9}0\"'\\");
        check("a\0b\u{1b}[31m\u{202e}", "a\\0b\\u{1b}[31m\\u{202e}");
        check(&"\u{e9}".repeat(40), &"\u{e9}".repeat(40));
        check(&"\u{e9}".repeat(41), &format!("{}...", "\u{e9}".repeat(40)));
    }
}
