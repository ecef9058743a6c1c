//! Short texts for the modules of a stage.

use std::collections::{BTreeMap, BTreeSet};

use super::Plan;
use super::escape::visible;

/// The part of a module path that summaries show: the element of its outermost list, or its first name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Shown<'a> {
    name: &'a str,
    element: Option<usize>,
}

impl<'a> Shown<'a> {
    fn of(module: &'a str) -> Self {
        let mut end = 0;
        for part in module.split('.') {
            // Only digits are an index: `+1` is not an element of a list.
            let element = part.bytes().all(|b| b.is_ascii_digit());
            let element = part.parse().ok().filter(|_| element && end > 0);
            if element.is_some() {
                let name = &module[..end - 1];
                return Self { name, element };
            }
            end += part.len() + 1;
        }
        let (name, element) = (module.split('.').next().unwrap_or(""), None);
        Self { name, element }
    }

    fn text(&self, last: Option<usize>) -> String {
        let name = visible(self.name);
        match (self.element, last) {
            (None, _) if name.is_empty() => "(root)".to_owned(),
            (None, _) => name.into_owned(),
            (Some(element), None) => format!("{name}.{element}"),
            (Some(element), Some(last)) => format!("{name}.{element}..{last}"),
        }
    }
}

/// Returns the modules of each stage as a short text, in the order of the forward. `blocks.0.norm` and
/// `blocks.0.attention.query` are `blocks.0`; three or more consecutive elements of a list are
/// `blocks.0..7`, the last included. An element that several stages share is not part of such a range.
pub(super) fn summaries(plan: &Plan) -> Vec<String> {
    let mut stages: BTreeMap<Shown<'_>, BTreeSet<usize>> = BTreeMap::new();
    for (index, stage) in plan.stages.iter().enumerate() {
        for module in &stage.modules {
            stages.entry(Shown::of(module)).or_default().insert(index);
        }
    }
    let is_shared = |shown: &Shown<'_>| stages.get(shown).is_some_and(|on| on.len() > 1);
    let texts = plan.stages.iter();
    let texts = texts.map(|stage| described(&stage.modules, is_shared));
    texts.collect()
}

/// Returns the same text for modules or parameters, without regard to stages.
pub(super) fn summary(paths: &[&str]) -> String {
    described(paths, |_| false)
}

fn described<T: AsRef<str>>(paths: &[T], is_shared: impl Fn(&Shown<'_>) -> bool) -> String {
    let mut names: Vec<Shown<'_>> = paths.iter().map(|path| Shown::of(path.as_ref())).collect();
    names.dedup();
    let follows = |before: &Shown<'_>, next: &Shown<'_>| {
        let after = before.element.and_then(|element| element.checked_add(1));
        let is_next = before.name == next.name && after.is_some() && after == next.element;
        is_next && !is_shared(before) && !is_shared(next)
    };
    let runs = names.chunk_by(follows).flat_map(|run| match run {
        [first, _, .., last] => vec![first.text(last.element)],
        few => few.iter().map(|shown| shown.text(None)).collect(),
    });
    runs.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::samples;

    #[test]
    fn consecutive_elements_are_joined() {
        for (modules, expected) in [
            (&[][..], ""),
            (&["", "norm"], "(root) norm"),
            (
                &[
                    "tokens",
                    "blocks.0.norm",
                    "blocks.0.attention.query",
                    "blocks.1.norm",
                ],
                "tokens blocks.0 blocks.1",
            ),
            (
                &["blocks.0.norm", "head", "blocks.0.mlp"],
                "blocks.0 head blocks.0",
            ),
            (
                &["encoder.layer.0", "encoder.layer.1", "encoder.norm"],
                "encoder.layer.0 encoder.layer.1 encoder",
            ),
            (
                &[
                    "tokens",
                    "layers.0.mlp",
                    "layers.1",
                    "layers.2",
                    "layers.3.norm",
                    "head",
                ],
                "tokens layers.0..3 head",
            ),
            (
                &["a.9", "a.10", "a.11", "b.12", "a.14", "a.13"],
                "a.9..11 b.12 a.14 a.13",
            ),
            (&["a.0.b.1.c", "a.0.b.2.c"], "a.0"),
            (
                &["a.18446744073709551615", "a.0", "7"],
                "a.18446744073709551615 a.0 7",
            ),
            (&["a\u{1b}[2J.0"], "a\\u{1b}[2J.0"),
            (&[".0"], ".0"),
        ] {
            let mut plan = samples::two_stages();
            plan.stages[0].modules = modules.iter().map(|module| (*module).to_owned()).collect();
            plan.stages[1].modules.clear();
            assert_eq!(summaries(&plan), [expected, ""]);
        }
    }

    /// Two stages have a part of `blocks.3` each.
    #[test]
    fn shared_elements_are_listed_separately() {
        let mut plan = samples::two_stages();
        let blocks = |range: std::ops::RangeInclusive<usize>, last: &str| -> Vec<String> {
            let blocks = range.map(|block| format!("blocks.{block}.norm"));
            blocks.chain([last.to_owned()]).collect()
        };
        plan.stages[0].modules = blocks(0..=2, "blocks.3.attention");
        plan.stages[1].modules = blocks(3..=7, "head");
        assert_eq!(
            summaries(&plan),
            ["blocks.0..2 blocks.3", "blocks.3 blocks.4..7 head"]
        );
    }
}
