//! What a file is, for the error of a command that expects another file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::anyhow;
use serde::de::IgnoredAny;

use super::text::name_of;

/// A kind of JSON file: fields that together only this kind has, its name, and where it is used.
type Kind = (&'static [&'static str], &'static str, &'static str);

/// The digests of runs and of replays have a JSON object in each line; the first one is looked at.
const KINDS: [Kind; 8] = [
    (
        &["stages", "prediction"],
        "a plan",
        "`tinderbox plan show` and `plan diff` read plans",
    ),
    (
        &["step", "parameters", "state"],
        "the digests of a run",
        "`tinderbox run diff` compares them",
    ),
    (
        &["micro_batch", "compute", "operations"],
        "the digests of a replay",
        "`tinderbox run diff` compares them",
    ),
    (
        &["schema", "numerics"],
        "the numerics of a machine",
        "`tinderbox run numerics` compares them",
    ),
    (
        &["ranks", "rates"],
        "a measured machine",
        "programs that plan read it",
    ),
    (
        &["stage_to_rank", "micro_batches"],
        "a schedule as JSON",
        "`tinderbox schedule show --actions` prints the rows that can be read",
    ),
    (
        &["world_size", "tensors"],
        "the manifest of a checkpoint",
        "name its directory instead",
    ),
    (
        &["model_type"],
        "the configuration of a model",
        "the commands of `tinderbox model` read the directory that contains it",
    ),
];

/// Returns the error of a file that is empty or of another kind than the wanted one; `None` if its kind is the wanted one, or
/// not known.
pub(crate) fn unexpected(path: &Path, text: &[u8], wanted: &str) -> Option<anyhow::Error> {
    let name = name_of(path);
    if text.trim_ascii().is_empty() {
        return Some(anyhow!("{name} is empty: expected {wanted}"));
    }
    let values = serde_json::Deserializer::from_slice(text);
    let mut values = values.into_iter::<BTreeMap<String, IgnoredAny>>();
    let fields = values.next()?.ok()?;
    let has_all = |names: &[&str]| names.iter().all(|name| fields.contains_key(*name));
    let (_, found, used) = KINDS.into_iter().find(|(names, ..)| has_all(names))?;
    let is_other = !wanted.contains(found);
    is_other.then(|| anyhow!("{name}: expected {wanted}, found {found}: {used}"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        ] {
            let found = unexpected(Path::new("a.json"), text.as_bytes(), "a plan");
            assert_eq!(found.unwrap().to_string(), expected);
        }
        let plan = "{\"stages\": [], \"prediction\": {}}";
        for text in [plan, "{}", "[1]", "0F0 0B0", "{\"step\":1,\"par"] {
            let found = unexpected(Path::new("a.json"), text.as_bytes(), "a plan");
            assert!(found.is_none(), "{text}");
        }
    }
}
