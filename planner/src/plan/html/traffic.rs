//! What crosses between stages.

use std::fmt::{self, Write};

use super::table::{Cell, Table};
use crate::plan::PlanFile;
use crate::plan::boundary::{end_text, joined, program_text, route_text};
use crate::plan::units::Scale;

/// Writes the boundaries.
pub(super) fn write_boundaries(out: &mut String, plan: &PlanFile) -> fmt::Result {
    if plan.boundaries.is_empty() {
        return writeln!(out, "<p>Nothing crosses between stages.</p>");
    }
    let scale = Scale::bytes(plan.boundaries.iter().map(|boundary| boundary.bytes));
    let header = ["from", "to", "ranks", "values"]
        .map(str::to_owned)
        .into_iter();
    let rows = plan.boundaries.iter().map(|boundary| {
        let edge = &boundary.edge;
        let cells = vec![
            Cell::Words(format!(
                "{} {}",
                end_text(edge.from),
                program_text(edge.from.compute)
            )),
            Cell::Words(format!(
                "{} {}",
                end_text(edge.to),
                program_text(edge.to.compute)
            )),
            Cell::Words(route_text(plan, edge)),
            Cell::Number(boundary.values.to_string()),
            Cell::Number(scale.number(boundary.bytes)),
        ];
        ("", cells)
    });
    Table {
        caption: "What stages send each other per micro-batch",
        header: header.chain([scale.unit.to_owned()]).collect(),
        rows: rows.collect(),
    }
    .write(out)
}

/// Writes the ties.
pub(super) fn write_ties(out: &mut String, plan: &PlanFile) -> fmt::Result {
    let crossing = plan.ties.iter().filter(|tie| !tie.copies.is_empty());
    let rows = crossing.map(|tie| {
        let clones: Vec<&str> = tie.clones.iter().map(|path| path.as_str()).collect();
        let cells = vec![
            Cell::Words(tie.path.to_string()),
            Cell::Words(clones.join(" ")),
            Cell::Words(format!("stage {}", tie.owner)),
            Cell::Words(joined("stage", &tie.copies)),
        ];
        ("", cells)
    });
    let table = Table {
        caption: "The owner updates a shared parameter and sends it to the copies",
        header: ["parameter", "also called", "owner", "copies"]
            .map(str::to_owned)
            .to_vec(),
        rows: rows.collect(),
    };
    match table.rows.is_empty() {
        true => writeln!(out, "<p>No parameter is read on several stages.</p>"),
        false => table.write(out),
    }
}
