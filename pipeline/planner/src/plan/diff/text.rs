//! The text of a [`PlanDiff`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;
use tinderbox_ids::text::{count_text, human_bytes, permille, permille_text, time_text};

use super::{Change, PlanDiff};
use crate::plan::escape::visible;
use crate::plan::model::shown;
use crate::plan::modules::summary;

/// The heading of parameters that another stage owns.
const MOVES: &str = "moved parameters";
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
/// The number of characters after which texts are cut off.
const WIDTH: usize = 64;

impl fmt::Display for PlanDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("the plans are the same\n");
        }
        let mut changes: Vec<&Change> = self.changes.iter().collect();
        changes.sort_by_cached_key(|change| place(change).0);
        let sections = changes.chunk_by(|one, next| place(one).1 == place(next).1);
        for (index, section) in sections.enumerate() {
            let (_, heading, _) = place(section[0]);
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
        Ok(())
    }
}

/// The section of a change, its heading, and the rest of the path.
fn place(change: &Change) -> (usize, String, &str) {
    let after = |prefix| change.path.strip_prefix(prefix);
    let element = |list| after(list)?.split_once("].");
    let owned = || after("parameters[")?.strip_suffix("].stage");
    if let Some(path) = owned() {
        (1, MOVES.to_owned(), path)
    } else if let Some((rank, name)) = element("prediction.ranks[") {
        (3, format!("rank {rank}"), name)
    } else if let Some(name) = after("prediction.") {
        (2, "prediction".to_owned(), name)
    } else if let Some((stage, name)) = element("stages[") {
        (4, format!("stage {stage}"), name)
    } else if let Some((edge, name)) = element("boundaries[") {
        (5, format!("boundary {edge}"), name)
    } else {
        (0, "plan".to_owned(), &change.path)
    }
}

/// The parameters that move between each pair of stages, in one line: `blocks.4..7 head (26
/// parameters): stage 1 -> 2`.
fn moves(changes: &[&Change]) -> Vec<String> {
    let mut moves: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for change in changes {
        let stages = [&change.before, &change.after].map(Value::as_u64);
        let paths = moves.entry((stages, values(change))).or_default();
        paths.push(place(change).2);
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

/// Changes with their names in a column. For a stage, only the changes that cause the others if there
/// are any, and the number of the others.
fn columns(changes: &[&Change]) -> Vec<String> {
    let is_main = |change: &&Change| MAIN.contains(&place(change).2);
    let (mut main, mut others) = changes.iter().copied().partition::<Vec<_>, _>(is_main);
    if main.is_empty() {
        std::mem::swap(&mut main, &mut others);
    }
    let name = |change: &Change| visible(place(change).2).into_owned();
    let widths = main.iter().map(|change| name(change).chars().count());
    let width = widths.max().unwrap_or(0);
    let lines = main.iter();
    let lines = lines.map(|change| format!("{:<width$}  {}", name(change), values(change)));
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
