//! What a file is, for the error of a command that expects another file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Error, anyhow};
use serde::de::IgnoredAny;

use super::text::name_of;

/// Kinds of JSON files that commands read: fields that together only this kind has, its name, and where it is used.
const KINDS: [(&[&str], &str); 9] = [
    (
        &["stages", "prediction"],
        "a plan: `tinderbox plan show` and `plan diff` read plans",
    ),
    (
        &["step", "parameters", "state"],
        "the digests of a run: `tinderbox run diff` compares them",
    ),
    (
        &["micro_batch", "compute", "operations"],
        "the digests of a replay: `tinderbox run diff` compares them",
    ),
    (
        &["schema", "attempt", "numerics"],
        "the output of `tinderbox ckpt inspect --json`: `tinderbox run numerics` compares its numerics",
    ),
    (
        &["schema", "numerics"],
        "the numerics of a machine: `tinderbox run numerics` compares them",
    ),
    (
        &["schema", "rates"],
        "a machine from `tinderbox calibrate --json`: programs read it with `Machine::load`",
    ),
    (
        &["stage_to_rank", "micro_batches"],
        "a schedule as JSON: `tinderbox schedule show --actions` prints the rows that can be read",
    ),
    (
        &["xxh3_128", "body"],
        "the manifest of a checkpoint: name its directory instead",
    ),
    (
        &["model_type"],
        "the configuration of a model: the commands of `tinderbox model` read the directory that contains it",
    ),
];

/// Commands whose output no command reads, each with a field that only its output has.
const ANSWERS: [(&str, &str); 11] = [
    ("set_aside", "ckpt ls"),
    ("checkpoints", "ckpt verify"),
    ("equal_tensors", "ckpt diff"),
    ("tied", "ckpt export"),
    ("keep", "ckpt gc"),
    ("needs_force", "ckpt rm"),
    ("streamed_bytes", "model estimate"),
    ("schedules", "schedule list"),
    ("runs", "schedule verify"),
    ("changes", "plan diff"),
    ("only_in_one", "run diff"),
];

/// Returns the error of a file that is empty, or of another kind than the wanted one. Returns `None` if its kind is not known,
/// or if it has one of the fields `own`, which the wanted kind has. Of several JSON objects, such as the lines of digests, the
/// first one is looked at.
pub(crate) fn unexpected(path: &Path, text: &[u8], wanted: &str, own: &[&str]) -> Option<Error> {
    let name = name_of(path);
    if text.trim_ascii().is_empty() {
        return Some(anyhow!("{name} is empty: expected {wanted}"));
    }
    let values = serde_json::Deserializer::from_slice(text);
    let mut values = values.into_iter::<BTreeMap<String, IgnoredAny>>();
    let fields = values.next()?.ok()?;
    let has = |field: &str| fields.contains_key(field);
    let mut answers = ANSWERS.into_iter();
    if let Some((_, command)) = answers.find(|(field, _)| has("schema") && has(field)) {
        let found = format!("the output of `tinderbox {command} --json`");
        let error = anyhow!("{name}: expected {wanted}, found {found}, which no command reads");
        return Some(error);
    }
    if own.iter().any(|field| has(field)) {
        return None;
    }
    let mut kinds = KINDS.into_iter();
    let (_, found) = kinds.find(|(fields, _)| fields.iter().all(|field| has(field)))?;
    Some(anyhow!("{name}: expected {wanted}, found {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, wanted: &str, own: &[&str]) -> Option<String> {
        let found = unexpected(Path::new("a.json"), text.as_bytes(), wanted, own);
        found.map(|error| error.to_string())
    }

    #[test]
    fn a_file_is_named_as_what_it_is() {
        for (text, expected) in [
            (" \n", "a.json is empty: expected a plan"),
            (
                "{\"step\":1,\"parameters\":[],\"state\":[]}\n{\"step\"",
                "a.json: expected a plan, found the digests of a run: `tinderbox run diff` compares them",
            ),
            (
                "{\"architectures\": [], \"model_type\": \"gpt2\"}",
                "a.json: expected a plan, found the configuration of a model: the commands of `tinderbox model` read the \
                 directory that contains it",
            ),
            (
                "{\"schema\": 1, \"ranks\": [], \"rates\": {}}",
                "a.json: expected a plan, found a machine from `tinderbox calibrate --json`: programs read it with `Machine::load`",
            ),
            (
                "{\"schema\": 1, \"changes\": []}",
                "a.json: expected a plan, found the output of `tinderbox plan diff --json`, which no command reads",
            ),
        ] {
            let found = found(text, "a plan", &["prediction"]);
            assert_eq!(found.as_deref(), Some(expected));
        }
        let plan = "{\"stages\": [], \"prediction\": {}}";
        for text in [plan, "{}", "[1]", "0F0 0B0", "{\"step\":1,\"par"] {
            assert_eq!(found(text, "a plan", &["prediction"]), None, "{text}");
        }
        // The words do not decide.
        assert!(found(plan, "weights, not a plan", &[]).is_some());
    }
}
