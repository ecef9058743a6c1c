//! The file form of a schedule: JSON with every field, actions as their words.

use super::error::ParseError;
use super::rows::without_mark;
use crate::lists::Schedule;

impl Schedule {
    /// Reads the file form, with all fields as [`Schedule::to_json`] writes them.
    ///
    /// Unlike a text, it contains name, counts, mode and form. They are not compared with the
    /// lists here: the result is not trusted until [`verify`](crate::verify) has accepted it.
    ///
    /// # Errors
    ///
    /// [`ParseError::Json`] with line and column, whose source has what was expected.
    pub fn from_json(text: &str) -> Result<Self, ParseError> {
        serde_json::from_str(without_mark(text)).map_err(|source| ParseError::Json { source })
    }

    /// Writes the file form, on one line: all fields, and each action as its word.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("fields and words are text, numbers and lists")
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::{Dependencies, gpipe, lower};

    #[test]
    fn a_schedule_survives_a_round_trip() {
        let schedule = lower(&gpipe(2, 2), &Dependencies::chain(2));
        let text = schedule.to_json();
        assert_eq!(Schedule::from_json(&text).unwrap(), schedule);
        assert_eq!(
            Schedule::from_json(&format!("\u{feff} {text}\n")).unwrap(),
            schedule
        );
    }

    #[test]
    fn errors_say_where() {
        let good = gpipe(1, 1).to_json();
        let texts = [
            String::new(),
            "{\n  \"name\": 3".to_owned(),
            good.replace("0F0", "0f0"),
            good.replace("gpipe\",", "gpipe\",\n"),
            good.replace("\"stages\":1", "\"stages\":-1"),
            good.replace("\"stages\":1,", ""),
            format!("{good}}}"),
            "[".repeat(100_000),
        ];
        let refusal = |text: &String| match Schedule::from_json(text) {
            Ok(_) => "accepted".to_owned(),
            Err(error) => format!("{error}: {}", error.source().unwrap()),
        };
        let refusals: Vec<String> = texts.iter().map(refusal).collect();
        insta::assert_snapshot!(refusals.join("\n"), @"
        row 1, column 0: this is not the JSON of a schedule: EOF while parsing a value at line 1 column 0
        row 2, column 11: this is not the JSON of a schedule: invalid type: integer `3`, expected a string at line 2 column 11
        row 1, column 121: this is not the JSON of a schedule: `0f0` is not an action: letters are upper case: write `0F0` at line 1 column 121
        accepted
        row 1, column 67: this is not the JSON of a schedule: invalid value: integer `-1`, expected usize at line 1 column 67
        row 1, column 118: this is not the JSON of a schedule: missing field `stages` at line 1 column 118
        row 1, column 130: this is not the JSON of a schedule: trailing characters at line 1 column 130
        row 1, column 1: this is not the JSON of a schedule: invalid type: sequence, expected a string at line 1 column 1
        ");
    }
}
