//! The plan as one page for a browser.

mod bars;
mod stages;
mod summary;
mod table;
mod timeline;
mod traffic;

use std::fmt::{self, Write};

use super::PlanFile;
use super::escape::Html;
use super::facts::digest;

/// What is the same on every page.
const STYLE: &str = include_str!("style.css");

/// Nothing is loaded and nothing runs, whatever a name in the file says.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";

impl PlanFile {
    /// The plan as one page of HTML that needs no other file, no network and no script: summary,
    /// timeline of a step, stages with their modules and parameters, memory, boundaries, ties and
    /// programs. For light and dark screens, narrow ones and paper.
    ///
    /// The timeline is the simulator's of the plan's schedule; it is left out, with a sentence, where a
    /// step has too many programs or no schedule runs the stages. Time and memory are linear in the
    /// file and in the programs of a step, and the page has at most some megabytes beside the file's
    /// own text.
    #[must_use]
    pub fn to_html(&self) -> String {
        let mut out = String::new();
        write_page(&mut out, self).expect("a string takes all text");
        out
    }
}

fn write_page(out: &mut String, plan: &PlanFile) -> fmt::Result {
    let title = format!("Plan of model {}", digest(&plan.model));
    writeln!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">"
    )?;
    writeln!(
        out,
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <link rel=\"icon\" href=\"data:,\">"
    )?;
    writeln!(
        out,
        "<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>",
        Html(&title)
    )?;
    writeln!(
        out,
        "<a class=\"skip\" href=\"#summary\">Skip to the summary</a>"
    )?;
    writeln!(
        out,
        "<header>\n<h1>{}</h1>\n<p class=\"lead\">{}</p>",
        Html(&title),
        Html(&plan.program)
    )?;
    let sections: [Section; 7] = [
        ("summary", "Summary", summary::write),
        ("timeline", "Timeline of a step", timeline::write),
        ("stages", "Stages", stages::write),
        ("memory", "Memory", bars::write_memory),
        ("boundaries", "Boundaries", traffic::write_boundaries),
        ("ties", "Shared parameters", traffic::write_ties),
        ("programs", "Programs", stages::write_programs),
    ];
    writeln!(out, "<nav aria-label=\"Sections\">")?;
    for (id, heading, _) in sections {
        writeln!(out, "<a href=\"#{id}\">{heading}</a>")?;
    }
    writeln!(out, "</nav>\n</header>\n<main>")?;
    for (id, heading, write) in sections {
        writeln!(
            out,
            "<section id=\"{id}\" aria-labelledby=\"{id}-heading\">"
        )?;
        writeln!(out, "<h2 id=\"{id}-heading\">{heading}</h2>")?;
        write(out, plan)?;
        writeln!(out, "</section>")?;
    }
    writeln!(
        out,
        "</main>\n<footer>Predictions are those of the plan file, version {}. A micro-batch runs F, \
         then B or, in two parts, I and W.</footer>\n</body>\n</html>",
        plan.version
    )
}

/// A part of the page: its anchor, its heading and what writes it.
type Section = (
    &'static str,
    &'static str,
    fn(&mut String, &PlanFile) -> fmt::Result,
);

#[cfg(test)]
mod tests;
