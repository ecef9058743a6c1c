//! The step in time.

use std::fmt::{self, Write};
use std::num::NonZeroU64;

use tinderbox_schedule::{TimeUnit, Timeline, draw, simulate};

use crate::plan::PlanFile;
use crate::plan::escape::Html;

/// Forwards and messages of a step above which it is not simulated for a page: it would take seconds,
/// and a micro-batch would be less than a pixel wide.
const MOST_ACTIONS: usize = 1 << 18;
/// Bytes of a picture above which it is left out: browsers become slow.
const MOST_BYTES: usize = 4 << 20;

/// Writes the picture, or why there is none.
pub(super) fn write(out: &mut String, plan: &PlanFile) -> fmt::Result {
    match picture(plan) {
        Ok(picture) => {
            writeln!(
                out,
                "<p>When each rank runs what, as the simulator has it. A box is a program with its \
                 micro-batch; the curve below a rank is the memory that it holds.</p>\n\
                 <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Timeline of a \
                 step\">\n{picture}</div>"
            )
        }
        Err(reason) => writeln!(out, "<p>The timeline is left out: {}.</p>", Html(&reason)),
    }
}

fn picture(plan: &PlanFile) -> Result<String, String> {
    check_size(plan, plan.stages.len(), plan.step.micro_batches)?;
    let timeline = timeline(plan)?;
    let title = format!("{}, predicted", timeline.name);
    let options = draw::SvgOptions {
        title: Some(title),
        ..draw::SvgOptions::default()
    };
    let picture = draw::svg(&[&timeline], &options);
    if picture.len() > MOST_BYTES {
        let size = picture.len();
        return Err(format!(
            "its picture has {size} bytes, and a page takes {MOST_BYTES} at most"
        ));
    }
    let label = format!(
        "aria-label=\"Timeline of a step: {} ranks, {} micro-batches, {}\"",
        timeline.ranks.len(),
        plan.step.micro_batches,
        crate::plan::units::time_text(timeline.makespan())
    );
    Ok(picture.replacen("role=\"img\"", &format!("role=\"img\" {label}"), 1))
}

/// Refuses steps that are too long to draw.
fn check_size(plan: &PlanFile, stages: usize, micro_batches: usize) -> Result<(), String> {
    let each = stages.saturating_add(plan.boundaries.len());
    match each.saturating_mul(micro_batches) {
        actions if actions > MOST_ACTIONS => Err(format!(
            "a step has {actions} forwards and messages, and a page shows {MOST_ACTIONS} at most"
        )),
        _ => Ok(()),
    }
}

/// The step as the simulator has it, in nanoseconds.
fn timeline(plan: &PlanFile) -> Result<Timeline, String> {
    let schedule = plan.schedule();
    let schedule = schedule.ok_or("the file has no lists that run its stages on its ranks")?;
    check_size(plan, schedule.stages, schedule.micro_batches)?;
    let found = simulate(&schedule, &plan.dependencies(), &plan.costs());
    let found = found.map_err(|fault| format!("the schedule can't run: {fault}"))?;
    Ok(found.scaled(1, NonZeroU64::MIN, TimeUnit::Nanoseconds))
}
