//! The tables of a plan: stages, ranks, memory, boundaries and ties.

use std::collections::BTreeMap;
use std::fmt;

use comfy_table::{ColumnConstraint, ContentArrangement};
use tinderbox_ids::text::{Scale, human_bytes, permille_text, share_text};
use tinderbox_schedule::arithmetic::sum;
use tinderbox_schedule::draw::{BUBBLE, IDLE};
use tinderbox_schedule::{Compute, Edge, Endpoint, RankIndex, StageIndex};

use super::escape::visible;
use super::modules::summaries;
use super::{Plan, PlanStage};
use crate::{RankMemory, RankPrediction, table};

/// The width in columns for which tables are formatted.
pub(super) const WIDTH: usize = 80;

/// A table with a title.
pub(super) struct Table {
    title: String,
    columns: Vec<Column>,
}

struct Column {
    name: String,
    is_number: bool,
    cells: Vec<String>,
}

impl Table {
    fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            columns: Vec::new(),
        }
    }

    /// Adds a column, unless all its cells are empty.
    fn column(mut self, name: &str, is_number: bool, cells: impl Iterator<Item = String>) -> Self {
        let (name, cells) = (name.to_owned(), cells.collect::<Vec<_>>());
        if cells.iter().any(|cell| !cell.is_empty()) {
            self.columns.push(Column {
                name,
                is_number,
                cells,
            });
        }
        self
    }

    fn words(self, name: &str, cells: impl IntoIterator<Item = impl ToString>) -> Self {
        self.column(name, false, cells.into_iter().map(|cell| cell.to_string()))
    }

    fn numbers(self, name: &str, cells: impl IntoIterator<Item = impl ToString>) -> Self {
        self.column(name, true, cells.into_iter().map(|cell| cell.to_string()))
    }

    /// Adds a column of numbers in the unit of a scale, which is part of its name.
    fn scaled(self, name: &str, scale: Scale, values: impl IntoIterator<Item = u64>) -> Self {
        let name = format!("{name} {}", scale.unit);
        let cells = values.into_iter().map(|value| scale.number(value));
        self.column(name.trim_start(), true, cells)
    }

    /// Adds a column of bytes in their own scale.
    fn bytes(self, name: &str, values: impl IntoIterator<Item = u64> + Clone) -> Self {
        self.scaled(name, Scale::bytes(values.clone()), values)
    }
}

/// Formats title and table for the terminal, after an empty line; nothing if there are no rows.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.columns.iter();
        let Some(first) = self.columns.first() else {
            return Ok(());
        };
        let rows = (0..first.cells.len()).map(|row| {
            let columns = columns.clone();
            columns.map(move |column| visible(&column.cells[row]))
        });
        let header = columns.clone().map(|column| &column.name);
        let mut layout = table(header, rows, |at| self.columns[at].is_number);
        layout.set_content_arrangement(ContentArrangement::Dynamic);
        layout.set_width(WIDTH as u16);
        for (shown, column) in layout.column_iter_mut().zip(columns) {
            shown.set_padding((0, 1));
            if column.is_number {
                // A number is never broken into two lines; words are.
                shown.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        writeln!(f, "\n{}\n{}", self.title, layout.trim_fmt())
    }
}

/// The modules and parameters of each stage.
pub(super) fn stages(plan: &Plan) -> Table {
    let stages = || plan.stages.iter();
    let flops = |stage: &PlanStage| stage.forward_flops.saturating_add(stage.backward_flops);
    let all = sum(stages().map(flops));
    let parameters = stages().map(|stage| match stage.copies.len() {
        0 => stage.parameters.len().to_string(),
        shared => format!("{} (+{shared} shared)", stage.parameters.len()),
    });
    let recompute = stages().map(|stage| if stage.recompute { "recomputes" } else { "" });
    Table::new("Stages")
        .numbers("stage", stages().map(|stage| stage.stage))
        .numbers("rank", stages().map(|stage| stage.rank))
        .words("modules", summaries(plan))
        .numbers("parameters", parameters)
        .bytes("", stages().map(PlanStage::held_bytes))
        .numbers("FLOPs", stages().map(|stage| share_text(flops(stage), all)))
        .words("backward", recompute)
}

/// The costs of each stage per micro-batch.
pub(super) fn costs(plan: &Plan) -> Table {
    let costs = || plan.stages.iter().map(|stage| &stage.costs);
    let times = |compute: Compute| costs().map(move |costs| costs.time(compute));
    let scale = Scale::times(Compute::ALL.into_iter().flat_map(times));
    let mut table = Table::new("One micro-batch on each stage");
    table = table.numbers("stage", plan.stages.iter().map(|stage| stage.stage));
    for compute in Compute::ALL {
        let name = compute.letter().to_string();
        table = table.scaled(&name, scale, times(compute));
    }
    table
        .bytes("kept", costs().map(|costs| costs.activation_bytes))
        .bytes("for W", costs().map(|costs| costs.weight_gradient_bytes))
        .bytes("sent", plan.stages.iter().map(|stage| stage.boundary_bytes))
}

/// The times of each rank in a step, and its memory limit.
pub(super) fn ranks(plan: &Plan) -> Table {
    let ranks = || plan.prediction.ranks.iter();
    let scale = Scale::times(ranks().flat_map(|rank| [rank.busy_ns, rank.bubble_ns]));
    let mut models = plan.machine.rank_models().iter();
    let is_mixed = models.any(|model| model.speed_permille != 1000);
    let speed = |rank: &RankPrediction| match is_mixed {
        true => permille_text(plan.machine.rank(rank.rank).speed_permille),
        false => String::new(),
    };
    let mut stages: BTreeMap<RankIndex, Vec<String>> = BTreeMap::new();
    for PlanStage { stage, rank, .. } in &plan.stages {
        stages.entry(*rank).or_default().push(stage.to_string());
    }
    let stages = |rank: &RankPrediction| {
        let own = stages.get(&rank.rank);
        own.map_or(String::new(), |own| own.join(" "))
    };
    let step_ns = plan.prediction.step_ns;
    let idle = |rank: &RankPrediction| share_text(step_ns.saturating_sub(rank.busy_ns), step_ns);
    let title = format!("One step on each rank\n{IDLE}\n{BUBBLE}");
    let table = Table::new(title)
        .numbers("rank", ranks().map(|rank| rank.rank))
        .words("stages", ranks().map(stages))
        .numbers("speed", ranks().map(speed))
        .scaled("busy", scale, ranks().map(|rank| rank.busy_ns))
        .scaled("bubble", scale, ranks().map(|rank| rank.bubble_ns))
        .numbers("idle", ranks().map(idle));
    // The table of the memory has no space for them.
    let limit = |rank: &RankPrediction| plan.machine.rank(rank.rank).memory_bytes;
    let limits = ranks().map(|rank| limit(rank).map_or(String::new(), human_bytes));
    let full = ranks().map(|rank| {
        let share = |limit| share_text(rank.memory.total(), limit);
        limit(rank).map_or(String::new(), share)
    });
    table.numbers("limit", limits).numbers("full", full)
}

/// The memory of each rank at its peak.
pub(super) fn memory(plan: &Plan) -> Table {
    let ranks = || plan.prediction.ranks.iter();
    let scale = Scale::bytes(ranks().map(|rank| rank.memory.total()));
    let title = format!("Memory of each rank at its peak, {}", scale.unit);
    let mut table = Table::new(title).numbers("rank", ranks().map(|rank| rank.rank));
    for (name, bytes) in RankMemory::PARTS {
        table = table.numbers(name, ranks().map(|rank| scale.number(bytes(&rank.memory))));
    }
    table.numbers(
        "total",
        ranks().map(|rank| scale.number(rank.memory.total())),
    )
}

/// The values that the stages exchange per micro-batch.
pub(super) fn boundaries(plan: &Plan) -> Table {
    let all = || plan.boundaries.iter();
    let end = |end: Endpoint| format!("stage {} {}", end.stage, end.compute.name());
    Table::new("Boundaries, per micro-batch")
        .words("from", all().map(|one| end(one.edge.from)))
        .words("to", all().map(|one| end(one.edge.to)))
        .words("ranks", all().map(|one| route_text(plan, &one.edge)))
        .numbers("values", all().map(|one| one.values))
        .bytes("", all().map(|one| one.bytes))
}

/// The parameters that several stages hold. Clones within one stage cost nothing.
pub(super) fn ties(plan: &Plan) -> Table {
    let all = || plan.ties.iter().filter(|tie| !tie.copies.is_empty());
    let clones = all().map(|tie| {
        let paths: Vec<&str> = tie.clones.iter().map(|path| path.as_str()).collect();
        paths.join(" ")
    });
    Table::new("Parameters that several stages read")
        .words("parameter", all().map(|tie| &tie.path))
        .words("also called", clones)
        .words("owner", all().map(|tie| format!("stage {}", tie.owner)))
        .words("copies", all().map(|tie| joined(&tie.copies)))
}

/// The ranks of an edge: `0 -> 1`, or `within 0`.
fn route_text(plan: &Plan, edge: &Edge) -> String {
    let rank = |end: Endpoint| plan.stages.get(end.stage.index()).map(|stage| stage.rank);
    match (rank(edge.from), rank(edge.to)) {
        (Some(from), Some(to)) if from == to => format!("within {from}"),
        (Some(from), Some(to)) => format!("{from} -> {to}"),
        _ => "no such stage".to_owned(),
    }
}

/// A list of stages: `stage 1`, `stages 1 and 4`. The tables leave out empty ones.
fn joined(stages: &[StageIndex]) -> String {
    let texts: Vec<String> = stages.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [firsts @ .., last] if !firsts.is_empty() => {
            format!("stages {} and {last}", firsts.join(", "))
        }
        one => format!("stage {}", one.concat()),
    }
}
