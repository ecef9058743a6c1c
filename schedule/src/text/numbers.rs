//! The numbers of a word: digits only, no sign, within 32 bits.

use super::error::WordFault;
use crate::index::StageIndex;

/// Returns the digits at the start of a text, and the rest.
pub(super) fn split_digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
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
