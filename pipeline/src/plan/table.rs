//! The plan as a table for people.

use std::fmt;

use comfy_table::{CellAlignment, Table, TableComponent, presets};

use super::{Plan, PlanStage};

fn mib(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / (1 << 20) as f64)
}

/// Modules of a stage in a few words: the common ends of `blocks.0.norm`, `blocks.0.attention.query`
/// are cut off, and what follows each other is joined.
fn summary(stage: &PlanStage) -> String {
    let mut names: Vec<String> = Vec::new();
    for module in &stage.modules {
        // An element of a list stands for all that is in it.
        let mut parts = module.split('.');
        let mut name = parts.next().unwrap_or("").to_owned();
        if let Some(index) = parts.next().filter(|part| part.parse::<usize>().is_ok()) {
            name = format!("{name}.{index}");
        }
        let name = if name.is_empty() {
            "(root)".into()
        } else {
            name
        };
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    names.join(" ")
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: u64 = self.stages.iter().map(|stage| stage.forward_flops).sum();
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        for between_rows in [
            TableComponent::HorizontalLines,
            TableComponent::MiddleIntersections,
        ] {
            table.remove_style(between_rows);
        }
        table.set_header([
            "stage",
            "rank",
            "modules",
            "parameters",
            "MiB",
            "boundary MiB",
            "FLOPs",
        ]);
        for stage in &self.stages {
            let replicas = match stage.replicas.len() {
                0 => String::new(),
                count => format!(" (+{count} shared)"),
            };
            table.add_row([
                stage.stage.to_string(),
                stage.rank.to_string(),
                summary(stage),
                format!("{}{replicas}", stage.parameters.len()),
                mib(stage.parameter_bytes + stage.replica_bytes),
                mib(stage.boundary_bytes),
                format!(
                    "{:.1} %",
                    100.0 * stage.forward_flops as f64 / all.max(1) as f64
                ),
            ]);
        }
        for column in [0, 1, 3, 4, 5, 6] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        write!(f, "{table}")
    }
}
