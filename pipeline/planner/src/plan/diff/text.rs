//! The text of a [`PlanDiff`]: the inputs of the planner first, then what it chose and predicted, in the words of the tables
//! of a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;
use tinderbox_ids::text::{count_text, human_bytes, permille, permille_text, time_text, wrapped};

use super::{Change, PlanDiff};
use crate::plan::escape::visible;
use crate::plan::model::shown;
use crate::plan::modules::summary;
use crate::plan::tables;

/// The heading of parameters that another stage owns.
const MOVES: &str = "moved parameters";
/// The fields that the planner was given.
const INPUTS: [&str; 9] = [
    "model",
    "parameters",
    "program",
    "graph",
    "structure",
    "forward",
    "samples",
    "machine",
    "step",
];
/// The fields of a stage whose changes cause the changes of others.
const MAIN: [&str; 7] = [
    "rank",
    "recompute",
    "modules",
    "parameter_bytes",
    "costs.forward",
    "costs.backward",
    "costs.activation_bytes",
];
/// The words of fields in the tables of a plan, in the order of the tables. Other fields are written as in the file.
const WORDS: &[(&str, &str)] = &[
    ("model", "model"),
    ("program", "program"),
    ("graph", "operations"),
    ("structure", "structure"),
    ("samples", "samples"),
    ("memory_bytes", "memory limit"),
    ("speed_permille", "speed"),
    ("machine.link.latency", "a message"),
    ("machine.link.ticks_per_mib", "a message, per MiB"),
    ("machine.network.link.latency", "a message between machines"),
    (
        "machine.network.link.ticks_per_mib",
        "a message between machines, per MiB",
    ),
    ("machine.action_ns", "an action"),
    ("step.schedule", "schedule"),
    ("step.micro_batches", "micro-batches"),
    ("step.replicas", "replicas"),
    ("step.may_recompute", "stages may recompute"),
    ("step.optimizer_states", "optimizer states"),
    ("choice.partitioner", "partitioner"),
    ("choice.reasons", "reasons"),
    ("step_ns", "step"),
    ("idle_permille", "idle"),
    ("lower_bound_ns", "lower bound"),
    ("bottleneck", "bottleneck"),
    ("bottleneck_ns", "bottleneck, F and B"),
    ("crossing_bytes", "messages"),
    ("rank", "rank"),
    ("modules", "modules"),
    ("parameter_bytes", "bytes of parameters"),
    ("replica_bytes", "bytes of copies"),
    ("forward_flops", "FLOPs of F"),
    ("backward_flops", "FLOPs of B"),
    ("recompute", "recomputes"),
    ("costs.forward", "F"),
    ("costs.backward", "B"),
    ("costs.input_gradient", "I"),
    ("costs.weight_gradient", "W"),
    ("costs.activation_bytes", "kept"),
    ("costs.weight_gradient_bytes", "for W"),
    ("boundary_bytes", "sent"),
    ("replicas", "copies"),
    ("busy_ns", "busy"),
    ("bubble_ns", "bubble"),
    ("memory.parameters", "memory, parameters"),
    ("memory.gradients", "memory, gradients"),
    ("memory.optimizer", "memory, optimizer"),
    ("memory.activations", "memory, activations"),
    ("memory.transient", "memory, transient"),
    ("memory.buffers", "memory, buffers"),
    ("memory.total", "memory, total"),
];
/// The number of characters after which texts are cut off.
const WIDTH: usize = 64;

impl fmt::Display for PlanDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("the plans are the same\n");
        }
        let (small, mut changes): (Vec<&Change>, Vec<&Change>) =
            self.changes.iter().partition(|change| is_small(change));
        changes.sort_by_cached_key(|change| Place::of(change).section);
        let sections = changes.chunk_by(|a, b| Place::of(a).heading == Place::of(b).heading);
        for (index, section) in sections.enumerate() {
            let heading = Place::of(section[0]).heading;
            let gap = if index > 0 { "\n" } else { "" };
            writeln!(f, "{gap}{}", visible(&heading))?;
            let lines = match heading.as_str() {
                MOVES => moves(section),
                _ => columns(section),
            };
            for line in lines {
                writeln!(f, "  {line}")?;
            }
        }
        let count = count_text(small.len(), "change");
        match (small.is_empty(), changes.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => writeln!(f, "{count} of less than 0.05 %"),
            (false, false) => writeln!(f, "\nand {count} of less than 0.05 %"),
        }
    }
}

/// Where the text shows a change.
pub(super) struct Place<'a> {
    /// The number of the section. Each rank, stage and boundary has its own heading in one of them.
    section: usize,
    heading: String,
    /// The rest of the path.
    field: &'a str,
}

impl<'a> Place<'a> {
    pub(super) fn of(change: &'a Change) -> Self {
        let path = &*change.path;
        let element = |list: &str| path.strip_prefix(list)?.split_once("].");
        let moved = path.strip_prefix("parameters[");
        let moved = moved.and_then(|rest| rest.strip_suffix("].stage"));
        let first = path.split(['.', '[']).next().unwrap_or("");
        let (section, heading, field) = if let Some(path) = moved {
            (2, MOVES.to_owned(), path)
        } else if INPUTS.contains(&first) {
            (0, "inputs".to_owned(), path)
        } else if let Some((rank, name)) = element("prediction.ranks[") {
            (4, format!("rank {rank}"), name)
        } else if let Some(name) = path.strip_prefix("prediction.") {
            (3, "prediction".to_owned(), name)
        } else if let Some((stage, name)) = element("stages[") {
            (5, format!("stage {stage}"), name)
        } else if let Some((edge, name)) = element("boundaries[") {
            (6, format!("boundary {edge}"), name)
        } else {
            (1, "plan".to_owned(), path)
        };
        Self {
            section,
            heading,
            field,
        }
    }

    /// The position of the field in the tables of a plan, and its word there.
    pub(super) fn word(&self) -> (usize, String) {
        let known = |field: &str| WORDS.iter().position(|(name, _)| *name == field);
        let of_rank = self.field.strip_prefix("machine.ranks[");
        if let Some((rank, field)) = of_rank.and_then(|rest| rest.split_once("]."))
            && let Some(at) = known(field)
        {
            return (at, format!("{} of rank {rank}", WORDS[at].1));
        }
        match known(self.field) {
            Some(at) => (at, WORDS[at].1.to_owned()),
            None => (WORDS.len(), self.field.to_owned()),
        }
    }
}

/// Whether the difference of a change is 0.0 %.
pub(super) fn is_small(change: &Change) -> bool {
    let both = [&change.before, &change.after].map(Value::as_u64);
    let (_, is_relative) = unit(&change.path);
    match both {
        [Some(from @ 1..), Some(to)] => is_relative && permille(from.abs_diff(to), from) == 0,
        _ => false,
    }
}

/// The parameters that move between each pair of stages, in one line: `blocks.4..7 head (26
/// parameters): stage 1 -> 2`.
fn moves(changes: &[&Change]) -> Vec<String> {
    let mut moves: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for change in changes {
        let stages = [&change.before, &change.after].map(Value::as_u64);
        let paths = moves.entry((stages, values(change))).or_default();
        paths.push(Place::of(change).field);
    }
    let lines = moves.iter().map(|((_, stages), paths)| {
        let count = count_text(paths.len(), "parameter");
        match paths.as_slice() {
            [path] => format!("{}: stage {stages}", visible(path)),
            paths => format!("{} ({count}): stage {stages}", summary(paths)),
        }
    });
    lines.collect()
}

/// Changes with their words in a column, in the order of the tables of a plan. For a stage, only the changes that cause the
/// others if there are any, and the number of the others.
fn columns(changes: &[&Change]) -> Vec<String> {
    let is_main = |change: &&Change| MAIN.contains(&Place::of(change).field);
    let (mut main, mut others) = changes.iter().copied().partition::<Vec<_>, _>(is_main);
    if main.is_empty() {
        std::mem::swap(&mut main, &mut others);
    }
    let rows = main.into_iter().map(|change| {
        let (order, word) = Place::of(change).word();
        (order, visible(&word).into_owned(), values(change))
    });
    let mut rows: Vec<(usize, String, String)> = rows.collect();
    rows.sort_by_key(|(order, ..)| *order);
    let widths = rows.iter().map(|(_, word, _)| word.chars().count());
    let width = widths.max().unwrap_or(0);
    let lines = rows.iter().flat_map(|(_, word, values)| {
        // Without the indentation, and the gap between the columns.
        let rest = tables::WIDTH.saturating_sub(width + 4);
        let (words, mut name) = (values.split(' '), word.as_str());
        let lines = wrapped(words, " ", rest).into_iter();
        lines.map(move |values| {
            let name = std::mem::take(&mut name);
            format!("{name:<width$}  {values}")
        })
    });
    let count = count_text(others.len(), "other change");
    let rest = (!others.is_empty()).then(|| format!("and {count}"));
    lines.chain(rest).collect()
}

/// `241 ms -> 274 ms (+13.7 %)`; values of the same text are written in full.
fn values(change: &Change) -> String {
    let both = [&change.before, &change.after];
    if both.iter().any(|value| value[0].is_string()) {
        return strings(both);
    }
    let (unit, is_relative) = unit(&change.path);
    let texts = both.map(|value| match (value, value.as_u64()) {
        (Value::Null, _) => "none".to_owned(),
        (_, Some(number)) => unit(number),
        (Value::String(text), _) if !text.is_empty() => short(text),
        _ => short(&value.to_string()),
    });
    let [before, after] = match texts[0] == texts[1] {
        true => both.map(|value| visible(&value.to_string()).into_owned()),
        false => texts,
    };
    if is_relative && let [Some(from @ 1..), Some(to)] = both.map(Value::as_u64) {
        let sign = if to < from { '-' } else { '+' };
        let percent = permille_text(permille(from.abs_diff(to), from));
        return format!("{before} -> {after} ({sign}{percent})");
    }
    format!("{before} -> {after}")
}

/// The format of the numbers of a field, and whether their difference is shown as a percentage.
fn unit(path: &str) -> (fn(u64) -> String, bool) {
    let mut names = path.rsplit('.');
    let (field, parent) = (names.next().unwrap_or(""), names.next().unwrap_or(""));
    if parent == "memory" || field == "bytes" || field.ends_with("_bytes") {
        (human_bytes, true)
    } else if matches!(parent, "costs" | "link") || field.ends_with("_ns") {
        (time_text, true)
    } else if field.ends_with("_permille") {
        (permille_text, false)
    } else {
        (|number| number.to_string(), false)
    }
}

/// The differences of two lists of strings: `added blocks.3.attention; removed head`.
fn strings(lists: [&Value; 2]) -> String {
    let [before, after] = lists.map(|list| {
        let strings = list.as_array().into_iter().flatten();
        strings.filter_map(Value::as_str).collect::<Vec<_>>()
    });
    let sides = [("added", &after, &before), ("removed", &before, &after)];
    let sides = sides.into_iter().filter_map(|(how, list, other)| {
        let other: BTreeSet<_> = other.iter().collect();
        let only = list.iter().filter(|text| !other.contains(text));
        let only: Vec<_> = only.map(|text| short(text)).collect();
        (!only.is_empty()).then(|| format!("{how} {}", shown(only)))
    });
    let sides: Vec<_> = sides.collect();
    match sides.is_empty() {
        true => "in another order or number".to_owned(),
        false => sides.join("; "),
    }
}

/// The beginning of a text.
fn short(text: &str) -> String {
    match text.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}\u{2026}", visible(&text[..end])),
        None => visible(text).into_owned(),
    }
}
