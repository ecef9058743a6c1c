//! Tables of what crosses between stages.

use super::table::Titled;
use crate::plan::boundary::{end_text, joined, program_text, route_text};
use crate::plan::escape::visible;
use crate::plan::units::Scale;
use crate::plan::{PlanFile, TieGroup};

/// What the stages send each other per micro-batch.
pub(super) fn boundaries(plan: &PlanFile) -> Titled {
    let scale = Scale::bytes(plan.boundaries.iter().map(|boundary| boundary.bytes));
    let header = ["from", "to", "ranks", "values", scale.unit];
    let mut table = Titled::new("Boundaries, per micro-batch", &[0, 1, 2], header);
    for boundary in &plan.boundaries {
        let edge = &boundary.edge;
        table.push(vec![
            format!(
                "{} {}",
                end_text(edge.from),
                program_text(edge.from.compute)
            ),
            format!("{} {}", end_text(edge.to), program_text(edge.to.compute)),
            route_text(plan, edge),
            boundary.values.to_string(),
            scale.number(boundary.bytes),
        ]);
    }
    table
}

/// The parameters of which several stages hold copies.
pub(super) fn ties(plan: &PlanFile) -> Titled {
    let header = ["parameter", "also called", "owner", "copies"];
    let mut table = Titled::new("Parameters that several stages read", &[0, 1, 2, 3], header);
    for tie in crossing(plan) {
        let clones: Vec<_> = tie
            .clones
            .iter()
            .map(|path| visible(path.as_str()))
            .collect();
        table.push(vec![
            visible(tie.path.as_str()).into_owned(),
            clones.join(" "),
            format!("stage {}", tie.owner),
            joined("stage", &tie.copies),
        ]);
    }
    table
}

/// Ties with copies on other stages; clones within one stage cost nothing.
fn crossing(plan: &PlanFile) -> impl Iterator<Item = &TieGroup> {
    plan.ties.iter().filter(|tie| !tie.copies.is_empty())
}
