//! Detects the form of a text.

use super::error::ParseError;
use super::rows::{lines, without_comment};
use crate::lists::Schedule;

impl Schedule {
    /// Reads a text in either form. The forms are distinguished as follows.
    ///
    /// - A text with a comma before any `#` of its line is CSV ([`Schedule::parse_csv`]): no
    ///   word of the text form contains a comma.
    /// - Otherwise it is in the text form ([`Schedule::parse`]). A CSV file with at most one cell per row
    ///   has no comma; its compute cells are words with the same meaning, its other cells are reported as
    ///   errors, and blank lines are not ranks.
    ///
    /// # Errors
    ///
    /// The errors of the detected form.
    pub fn parse_any(name: &str, text: &str) -> Result<Self, ParseError> {
        if lines(text).any(|line| without_comment(line).contains(',')) {
            return Self::parse_csv(name, text);
        }
        Self::parse(name, text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Dependencies, gpipe, lower};

    #[test]
    fn every_form_is_detected() {
        let schedule = gpipe(2, 3);
        for text in [
            schedule.to_csv(),
            schedule.to_string(),
            format!("# all forwards, then all backwards {{\n{schedule}"),
        ] {
            assert_eq!(
                Schedule::parse_any("gpipe", &text).unwrap(),
                schedule,
                "{text}"
            );
        }
        let lowered = lower(&schedule, &Dependencies::chain(2));
        let text = lowered.to_string();
        assert_eq!(Schedule::parse_any("gpipe", &text).unwrap(), lowered);
        assert_eq!(Schedule::parse_any("user", "0F0").unwrap().name, "user");
    }

    #[test]
    fn mixed_forms_are_refused() {
        let texts = [
            "0F0, 0F1>1F1\n1F0",
            "# cells\n0F0,0F1",
            "0F0 0F1, 0B0",
            "0SEND_F0\n1RECV_F0",
            "(0F1;1B0)OVERLAP_F_B",
            "[\"0F0\"]",
        ];
        let refusal = |text: &str| Schedule::parse_any("mixed", text).unwrap_err().to_string();
        insta::assert_snapshot!(texts.map(refusal).join("\n"), @r#"
        row 1, column 6: `0F1>1F1` is not a cell of a schedule: it is a word of the text form: separate the words by spaces, not by commas
        row 1, column 1: `# cells` is not a cell of a schedule: CSV has no comments: remove it
        row 1, column 1: `0F0 0F1` is not a cell of a schedule: a cell has one action: separate two by a comma, or all of them by spaces only
        row 1, column 1: `0SEND_F0` is not an action: it is a cell of PyTorch's CSV: read the text as CSV
        row 1, column 1: `(0F1;1B0)OVERLAP_F_B` is not an action: it is a cell of PyTorch's CSV: read the text as CSV
        row 1, column 1: `["0F0"]` is not an action: write stage, letter F, B, I or W and micro-batch, such as `0F2`, or `0F2>1F2`, `1F2<0F2`, `0F2&1B0`, `0R0`, `0S`, `0U`, `0G`, `0U>3U`, `3U<0U`, `0N>1N`, `1N<0N`
        "#);
    }

    /// Texts that resemble a schedule in one of the forms, and texts that don't.
    fn any_text() -> impl Strategy<Value = String> {
        let close = "([0-9]{1,3}|[0-9]{18,22}|[0-9]{1,2}[FBIW][0-9]|SEND_F|[(;)]|OVERLAP_F_B|[-#,\"{&<> \n\r\t\0]){0,40}";
        prop_oneof![
            close.boxed(),
            "(?s).{0,200}".boxed(),
            any::<String>().boxed(),
            "[0-3][FB][0-9]{1,20}([ ,\n][0-3][FB][0-9]{1,20}){0,20}".boxed(),
        ]
    }

    proptest! {
        #[test]
        fn no_text_panics_or_grows(text in any_text()) {
            let results = [
                Schedule::parse_any("any", &text),
                Schedule::parse("any", &text),
                Schedule::parse_csv("any", &text),
            ];
            for result in results {
                match result {
                    Ok(schedule) => {
                        let (words, rows) = (schedule.action_count(), schedule.world_size());
                        prop_assert!(words * 2 <= text.len() && rows <= text.len());
                        prop_assert!(schedule.stages <= 2 * words);
                        prop_assert_eq!(schedule.stage_to_rank.len(), schedule.stages);
                        prop_assert_eq!(
                            &Schedule::parse("any", &schedule.to_string()).unwrap().ranks,
                            &schedule.ranks
                        );
                    }
                    Err(error) => prop_assert!(error.to_string().len() < 1200),
                }
            }
        }
    }

    #[test]
    fn large_texts_are_read_in_linear_time() {
        let row = "0F0 ".repeat(250_000);
        assert_eq!(
            Schedule::parse_any("long", &row).unwrap().action_count(),
            250_000
        );
        let csv = format!("0F0{}", ",".repeat(1 << 20));
        assert_eq!(Schedule::parse_any("idle", &csv).unwrap().action_count(), 1);
        let word = "9".repeat(1 << 20);
        for text in [
            word.clone(),
            format!("0F{word},"),
            format!("{word}F0&"),
            "(".repeat(1 << 20),
        ] {
            let error = Schedule::parse_any("huge", &text).unwrap_err();
            assert!(error.to_string().len() < 1000);
        }
    }
}
