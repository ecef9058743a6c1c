//! The figures that matter most, and what the plan is for.

use std::fmt::{self, Write};

use crate::plan::PlanFile;
use crate::plan::escape::Html;
use crate::plan::facts::{outcome, purpose};
use crate::plan::memory;
use crate::plan::units::{bytes_text, count_text, permille_text, share_text, time_text};

/// Writes the section.
pub(super) fn write(out: &mut String, plan: &PlanFile) -> fmt::Result {
    let prediction = &plan.prediction;
    let bound = time_text(prediction.lower_bound_ns);
    let stages = count_text(plan.stages.len(), "stage");
    let crossing = match plan.boundaries.len() {
        1 => "over 1 boundary".to_owned(),
        count => format!("over {count} boundaries"),
    };
    writeln!(out, "<ul class=\"tiles\">")?;
    tile(
        out,
        "Step",
        &time_text(prediction.step_ns),
        &format!("{stages} on {}", count_text(plan.ranks(), "rank")),
    )?;
    tile(
        out,
        "Ranks idle",
        &permille_text(prediction.idle_permille),
        "of all ranks' time",
    )?;
    tile(
        out,
        "Above the lower bound",
        &permille_text(prediction.gap_permille()),
        &format!("no plan takes less than {bound}"),
    )?;
    tile(
        out,
        "Bottleneck",
        &format!("stage {}", prediction.bottleneck),
        &format!("{} of F and B", time_text(prediction.bottleneck_ns)),
    )?;
    let fullest = memory::of_ranks(plan)
        .into_iter()
        .max_by_key(|held| held.total);
    if let Some(held) = fullest {
        let more = match held.limit {
            Some(limit) => format!("rank {}, {} full", held.rank, share_text(held.total, limit)),
            None => format!("rank {}, no limit", held.rank),
        };
        tile(out, "Most memory", &bytes_text(held.total), &more)?;
    }
    tile(
        out,
        "Between ranks",
        &bytes_text(prediction.crossing_bytes),
        &crossing,
    )?;
    writeln!(out, "</ul>\n<dl class=\"facts\">")?;
    for fact in purpose(plan).iter().chain(&outcome(plan)) {
        writeln!(out, "<dt>{}</dt>", fact.name)?;
        for line in &fact.lines {
            writeln!(out, "<dd>{}</dd>", Html(line))?;
        }
    }
    writeln!(out, "</dl>")
}

fn tile(out: &mut String, what: &str, value: &str, more: &str) -> fmt::Result {
    writeln!(
        out,
        "<li><span class=\"what\">{}</span> <span class=\"value\">{}</span> <span \
         class=\"more\">{}</span></li>",
        Html(what),
        Html(value),
        Html(more)
    )
}
