//! The text form of a schedule: one row per rank, one word per action.

use std::fmt;

use super::error::{ParseError, TextPosition, WordFault, excerpt};
use super::implied::{Row, implied};
use super::words::read_word;
use crate::lists::Schedule;

/// The row of a rank without actions, since blank rows are skipped.
const IDLE: &str = "-";

/// The start of a comment, which extends to the end of its line.
const COMMENT: char = '#';

/// One row per rank, without name, counts and stage-to-rank map, which the rows imply.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, actions) in self.ranks.iter().enumerate() {
            if rank > 0 {
                writeln!(f)?;
            }
            if actions.is_empty() {
                f.write_str(IDLE)?;
            }
            for (position, action) in actions.iter().enumerate() {
                let space = if position == 0 { "" } else { " " };
                write!(f, "{space}{action}")?;
            }
        }
        Ok(())
    }
}

impl Schedule {
    /// Reads the text form: one row per rank, with the words of the [crate's docs](crate) separated by spaces.
    ///
    /// Blank rows are skipped, and so is text from a `#` to the end of its line. A rank without
    /// actions is a row with a single `-`.
    ///
    /// A stage is on the rank whose row first runs it; the number of micro-batches is inferred from the highest
    /// micro-batch. A text with a backward, reduce or update is for training. A text with any action
    /// other than compute is lowered. The result is not trusted until [`verify`](crate::verify) has accepted
    /// it. Linear in the text, times the logarithm of the number of stages.
    ///
    /// # Errors
    ///
    /// [`ParseError::Word`] for the first word that is not an action, [`ParseError::Gap`] if stages are
    /// missing; both have the position.
    pub fn parse(name: &str, text: &str) -> Result<Self, ParseError> {
        let mut rows = Vec::new();
        for (row, line) in (1..).zip(lines(text)) {
            let mut words = words(without_comment(line)).peekable();
            if words.peek().is_none() {
                continue;
            }
            let is_idle = words.clone().map(|(_, word)| word).eq([IDLE]);
            let words = words.filter(|_| !is_idle);
            let actions = words.map(|(column, word)| {
                let at = TextPosition { row, column };
                let action = match word {
                    IDLE => Err(WordFault::Dash),
                    _ => read_word(word),
                };
                let action = action.map_err(|fault| ParseError::Word {
                    at: Some(at),
                    word: excerpt(word),
                    fault,
                })?;
                Ok((at, action))
            });
            rows.push(actions.collect::<Result<Row, ParseError>>()?);
        }
        implied(name, rows)
    }
}

/// Returns the lines of a text, without their ends and the byte order mark that some editors write.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.strip_prefix('\u{feff}').unwrap_or(text).lines()
}

/// Returns a line of the text form up to its comment.
pub(super) fn without_comment(line: &str) -> &str {
    line.split(COMMENT).next().unwrap_or(line)
}

/// Returns the words of a line, each with its column.
fn words(line: &str) -> impl Iterator<Item = (usize, &str)> + Clone {
    let words = with_columns(line.split(char::is_whitespace));
    words.filter(|(_, word)| !word.is_empty())
}

/// Returns the parts of a line between single characters, each with its column.
pub(super) fn with_columns<'t>(
    parts: impl Iterator<Item = &'t str> + Clone,
) -> impl Iterator<Item = (usize, &'t str)> + Clone {
    parts.scan(1, |next, part| {
        let column = *next;
        *next += part.chars().count() + 1;
        Some((column, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dependencies, Form, RankIndex, ScheduleMode, gpipe, lower, one_f_one_b};

    #[test]
    fn a_schedule_survives_a_round_trip() {
        for schedule in [gpipe(3, 2), one_f_one_b(2, 5)] {
            let lowered = lower(&schedule, &Dependencies::chain(schedule.stages));
            for schedule in [schedule, lowered] {
                let text = format!("\n{schedule}\n\n");
                assert_eq!(Schedule::parse(&schedule.name, &text).unwrap(), schedule);
            }
        }
    }

    #[test]
    fn a_row_implies_its_stages() {
        let schedule = Schedule::parse("v", "0F0 3F0\n1F0 2F0").unwrap();
        let ranks = [0, 1, 1, 0].map(RankIndex::new);
        assert_eq!(schedule.stage_to_rank, ranks);
        assert_eq!((schedule.stages, schedule.micro_batches), (4, 1));
        assert_eq!(
            (schedule.mode, schedule.form),
            (ScheduleMode::ForwardOnly, Form::ComputeOnly)
        );
    }

    #[test]
    fn comments_blank_rows_and_idle_ranks() {
        let text = "\u{feff}# by hand, 2 stages\r\n0F0\t0F1 # warm up\r\n   \r\n -\r\n1F0 1F1#\r\n";
        let schedule = Schedule::parse("user", text).unwrap();
        insta::assert_snapshot!(schedule, @"
        0F0 0F1
        -
        1F0 1F1
        ");
        assert_eq!(schedule.world_size(), 3);
        assert_eq!(
            Schedule::parse("user", &schedule.to_string()).unwrap(),
            schedule
        );
        assert_eq!(Schedule::parse("none", " \n# -\n").unwrap().world_size(), 0);
    }

    /// The errors of texts, one per line.
    fn refusals(texts: &[&str]) -> String {
        let refusal = |text: &&str| Schedule::parse("bad", text).unwrap_err().to_string();
        texts.iter().map(refusal).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn errors_say_where() {
        let texts = [
            "0F0\n1F0 nonsense",
            "# \u{e9}\n\n\t0F0  0f1",
            "\u{feff}0F0, 0F1",
            "0F0\r\n\u{3000}1F0\u{a0}1\u{e9}0 1F1",
            "0F0 -",
            "- -",
            "0F0 4294967295F0",
            "0F0 0B0\n2F0 2B0\n3F0 3B0",
            "1F0",
            "0F0 4294967296F0",
        ];
        insta::assert_snapshot!(refusals(&texts), @"
        row 2, column 5: `nonsense` is not an action: write stage, letter F, B, I or W and micro-batch, such as `0F2`, or `0F2>1F2`, `1F2<0F2`, `0F2&1B0`, `0R0`, `0S`, `0U`, `0G`, `0U>3U`, `3U<0U`, `0N>1N`, `1N<0N`
        row 3, column 7: `0f1` is not an action: letters are upper case: write `0F1`
        row 1, column 1: `0F0,` is not an action: words are separated by spaces only: remove the commas, or read the text as CSV
        row 2, column 6: `1é0` is not an action: no action has the letter é: write F, B, I or W, or R, S, U, G or N
        row 1, column 5: `-` is not an action: it marks a rank without actions: make it the only word of its row
        row 1, column 1: `-` is not an action: it marks a rank without actions: make it the only word of its row
        row 1, column 5: this is an action of stage 4294967295, but no row runs stage 1: number the stages from 0 without a gap
        row 2, column 1: this is an action of stage 2, but no row runs stage 1: number the stages from 0 without a gap
        row 1, column 1: this is an action of stage 1, but no row runs stage 0: number the stages from 0 without a gap
        row 1, column 5: `4294967296F0` is not an action: numbers go up to 4294967295
        ");
    }
}
