//! A difference in lines.

use std::fmt;

use super::{BoundaryChange, Change, Figure, ParameterMove, PlanDiff, RankChange, StagePlace};
use crate::plan::boundary::{end_text, joined, program_text};
use crate::plan::escape::visible;
use crate::plan::memory::PARTS;
use crate::plan::units::count_text;

impl fmt::Display for PlanDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("the plans are the same\n");
        }
        let mut text = Vec::new();
        if let Some(model) = &self.model {
            let heading = "the plans are for different models; the first counts as planned";
            text.push(section(heading, model.kinds()));
        }
        text.push(lines(&self.purpose));
        text.push(self.moves());
        text.push(section("ties", lines(&self.ties)));
        text.push(section(
            "boundaries, per micro-batch",
            lines(&self.boundaries()),
        ));
        text.push(section("prediction", lines(&self.prediction)));
        for change in &self.ranks {
            text.push(section(
                &format!("rank {}", change.rank),
                lines(&rank(change)),
            ));
        }
        for change in &self.stages {
            text.push(section(
                &format!("stage {}", change.stage),
                lines(&main(&change.changes)),
            ));
        }
        if self.reordered {
            text.push(vec![
                "the same entries in another order or number".to_owned(),
            ]);
        }
        let parts = text
            .iter()
            .filter(|part| !part.is_empty())
            .map(|part| part.join("\n"));
        writeln!(f, "{}", parts.collect::<Vec<_>>().join("\n\n"))
    }
}

impl PlanDiff {
    /// Stages that came and went, and what moved between stages.
    fn moves(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (stages, how) in [(&self.added_stages, "new"), (&self.removed_stages, "gone")] {
            if !stages.is_empty() {
                let verb = if stages.len() == 1 { "is" } else { "are" };
                lines.push(format!("{} {verb} {how}", joined("stage", stages)));
            }
        }
        lines.extend(self.moves.iter().map(ToString::to_string));
        section("moves", lines)
    }

    fn boundaries(&self) -> Vec<Change> {
        let changes = self.boundaries.iter().flat_map(boundary);
        changes.collect()
    }
}

/// The changes of a boundary: its bytes and, where these are the same, its values.
fn boundary(change: &BoundaryChange) -> Vec<Change> {
    let end = |end| format!("{} {}", end_text(end), program_text(end.compute));
    let what = format!("{} -> {}", end(change.edge.from), end(change.edge.to));
    let of = |bytes: bool| {
        let figure = |boundary: &Option<crate::Boundary>| match (boundary, bytes) {
            (None, _) => Figure::None,
            (Some(boundary), true) => Figure::Bytes(boundary.bytes),
            (Some(boundary), false) => Figure::count(boundary.values),
        };
        (figure(&change.before), figure(&change.after))
    };
    let (before, after) = of(true);
    let bytes = Change::of(what.clone(), before, after);
    let (before, after) = of(false);
    let values = || Change::of(format!("{what}, values"), before, after);
    bytes.or_else(values).into_iter().collect()
}

/// The changes of a rank.
fn rank(change: &RankChange) -> Vec<Change> {
    let of = |what: &str, figure: &dyn Fn(&crate::RankPrediction) -> Figure| {
        let side =
            |side: &Option<crate::RankPrediction>| side.as_ref().map_or(Figure::None, figure);
        Change::of(what, side(&change.before), side(&change.after))
    };
    let mut changes = vec![
        of("busy", &|rank| Figure::Nanoseconds(rank.busy_ns)),
        of("bubble", &|rank| Figure::Nanoseconds(rank.bubble_ns)),
        of("memory", &|rank| Figure::Bytes(rank.memory.total())),
    ];
    for (name, bytes) in PARTS {
        changes.push(of(name, &|rank| Figure::Bytes(bytes(&rank.memory))));
    }
    changes.into_iter().flatten().collect()
}

/// What people look for in the changes of a stage; the others mostly follow from these, and are told
/// where there are none of these.
fn main(changes: &[Change]) -> Vec<Change> {
    const MAIN: [&str; 8] = [
        "rank",
        "recompute",
        "modules",
        "parameters",
        "parameter bytes",
        "bytes kept",
        "F",
        "B",
    ];
    let is_main = |change: &&Change| MAIN.contains(&change.what.as_str());
    let main: Vec<Change> = changes.iter().filter(is_main).cloned().collect();
    match main.is_empty() {
        true => changes.to_vec(),
        false => main,
    }
}

/// Changes with their names in a column.
fn lines(changes: &[Change]) -> Vec<String> {
    let names: Vec<_> = changes.iter().map(|change| visible(&change.what)).collect();
    let width = names
        .iter()
        .map(|name| name.chars().count())
        .max()
        .unwrap_or(0);
    let lines = changes.iter().zip(&names);
    lines
        .map(|(change, name)| format!("{name:<width$}  {change}"))
        .collect()
}

/// Lines below a heading; nothing where there are none.
fn section(heading: &str, lines: Vec<String>) -> Vec<String> {
    match lines.is_empty() {
        true => lines,
        false => {
            let below = lines.iter().map(|line| format!("  {line}"));
            [heading.to_owned()].into_iter().chain(below).collect()
        }
    }
}

/// `blocks.4 to blocks.7 (24 parameters): stage 1 -> 2`.
impl fmt::Display for ParameterMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = count_text(self.parameters, "parameter");
        f.write_str(&visible(&self.first))?;
        if let Some(last) = &self.last {
            write!(f, " to {}", visible(last))?;
        }
        let stage = |place: Option<StagePlace>| match place {
            Some(place) => place.stage.to_string(),
            None => "none".to_owned(),
        };
        write!(
            f,
            " ({count}): stage {} -> {}",
            stage(self.from),
            stage(self.to)
        )?;
        match (self.from, self.to) {
            (Some(from), Some(to)) if from.rank != to.rank => {
                write!(f, ", rank {} -> {}", from.rank, to.rank)
            }
            _ => Ok(()),
        }
    }
}
