//! The report, as Markdown and as JSON.

use std::fmt;

use serde::Serialize;

/// All parts, and the machine that they ran on.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The description of the machine.
    pub machine: Vec<(&'static str, String)>,
    /// The parts that were run.
    pub parts: Vec<Part>,
    /// Total time in seconds.
    pub seconds: f64,
}

/// One part of the check.
#[derive(Debug, Default, Serialize)]
pub struct Part {
    /// The name of the part.
    pub name: String,
    /// The checks with their results.
    pub checks: Vec<Check>,
    /// The measurements.
    pub figures: Vec<Figure>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
    /// Time in seconds.
    pub seconds: f64,
}

/// A check and its result.
#[derive(Debug, Serialize)]
pub struct Check {
    /// The required property.
    pub asked: String,
    /// The observed result.
    pub found: String,
    /// Whether it passed.
    pub passed: bool,
}

/// A measurement.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// The name.
    pub name: String,
    /// The value.
    pub value: f64,
    /// The unit.
    pub unit: &'static str,
}

impl Part {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Records the result of a check.
    pub fn check(&mut self, asked: impl Into<String>, found: impl Into<String>, passed: bool) {
        self.checks.push(Check {
            asked: asked.into(),
            found: found.into(),
            passed,
        });
    }

    /// Records whether every bit is as expected; `wrong` is empty if it is.
    pub fn check_bits(&mut self, asked: impl Into<String>, wrong: &str) {
        let found = if wrong.is_empty() { "every bit" } else { wrong };
        self.check(asked, found, wrong.is_empty());
    }

    /// Records a measurement.
    pub fn figure(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        let name = name.into();
        self.figures.push(Figure { name, value, unit });
    }

    /// Records a remark.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Returns whether all checks of the part have passed.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed)
    }
}

impl Report {
    /// Returns whether all checks of all parts have passed.
    pub fn passed(&self) -> bool {
        self.parts.iter().all(Part::passed)
    }

    /// Serializes the report as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Whole<'a> {
            passed: bool,
            #[serde(flatten)]
            report: &'a Report,
        }
        serde_json::to_string_pretty(&Whole {
            passed: self.passed(),
            report: self,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# GPU check\n")?;
        let checks = self.parts.iter().flat_map(|part| &part.checks);
        let (all, seconds) = (checks.clone().count(), self.seconds);
        let result = match checks.filter(|check| !check.passed).count() {
            0 if all == 0 => "Nothing was checked,".to_owned(),
            0 => format!("All {all} checks passed"),
            failed => format!("**{failed} of {all} checks failed**,"),
        };
        writeln!(f, "{result} in {seconds:.0} s.\n")?;
        writeln!(f, "| machine | |\n|---|---|")?;
        for (name, value) in &self.machine {
            writeln!(f, "| {name} | {} |", cell(value))?;
        }
        self.parts.iter().try_for_each(|part| write!(f, "\n{part}"))
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "## {} ({:.1} s)", self.name, self.seconds)?;
        if !self.checks.is_empty() {
            writeln!(f, "\n| | asked | found |\n|---|---|---|")?;
        }
        for check in &self.checks {
            let mark = if check.passed { "pass" } else { "**FAIL**" };
            let (asked, found) = (cell(&check.asked), cell(&check.found));
            writeln!(f, "| {mark} | {asked} | {found} |")?;
        }
        if !self.figures.is_empty() {
            writeln!(f, "\n| figure | value | unit |\n|---|---:|---|")?;
        }
        for Figure { name, value, unit } in &self.figures {
            writeln!(f, "| {name} | {} | {unit} |", number(*value))?;
        }
        for note in &self.notes {
            writeln!(f, "\n{note}")?;
        }
        Ok(())
    }
}

/// Formats a number with significant digits, also if it is small.
pub fn number(value: f64) -> String {
    match value != 0.0 && value.abs() < 1e-2 {
        true => format!("{value:.2e}"),
        false => format!("{value:.3}"),
    }
}

/// Escapes text for a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', "<br>")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(passed: bool) -> Report {
        let mut part = Part::new("Bits");
        part.check("a | b", "two\nlines", passed);
        part.figure("speed.copy", 1.5, "GB/s");
        part.note("Measured once.");
        Report {
            machine: vec![("device", "cuda:0".into())],
            parts: vec![part],
            seconds: 2.0,
        }
    }

    #[test]
    fn one_failure_fails_all() {
        assert!(sample(true).passed());
        assert!(!sample(false).passed());
        assert!(
            sample(false)
                .to_string()
                .contains("**1 of 1 checks failed**")
        );
        let json: serde_json::Value =
            serde_json::from_str(&sample(false).to_json().unwrap()).unwrap();
        assert_eq!(json["passed"], false);
        assert_eq!(json["parts"][0]["figures"][0]["value"], 1.5);
    }

    #[test]
    fn small_numbers_have_digits() {
        let seen = [0.0, 1.93e-16, -0.005, 0.25, 1234.5].map(number);
        assert_eq!(seen, ["0.000", "1.93e-16", "-5.00e-3", "0.250", "1234.500"]);
    }

    #[test]
    fn cells_keep_their_row() {
        let text = sample(true).to_string();
        assert!(text.contains("| pass | a \\| b | two<br>lines |"), "{text}");
        assert!(text.contains("| speed.copy | 1.500 | GB/s |"), "{text}");
        assert!(text.contains("\nMeasured once.\n"), "{text}");
    }
}
