//! Names of files and directories. A name from a file is compared with the name that a writer would choose, so no other path is
//! ever opened.

use tinderbox_fake::Region;

use super::Role;
use crate::AttemptId;

/// The file whose presence makes a directory a checkpoint.
pub(crate) const MANIFEST_FILE: &str = "manifest.json";
/// The Hugging Face index of sharded models.
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";
/// The plan: the assignment of the model to stages.
pub(crate) const PLAN_FILE: &str = "plan.json";
const ATTEMPT: &str = ".attempt-";
const REMOVED: &str = ".removed-";
const DAMAGED: &str = "damaged-";

/// The file that marks a directory as an attempt of this crate; locked while the attempt is alive.
pub(crate) const MARKER_FILE: &str = "attempt.json";

/// Returns `model-rank-00000.safetensors`, or `model-rank-00000-00001.safetensors` for the second file of a
/// rank.
pub(crate) fn shard_file(role: Role, rank: u32, number: u32) -> String {
    match number {
        0 => format!("{role}-rank-{rank:05}.safetensors"),
        _ => format!("{role}-rank-{rank:05}-{number:05}.safetensors"),
    }
}

/// Returns `part-rank-00000.json`.
pub(crate) fn part_file(rank: u32) -> String {
    format!("part-rank-{rank:05}.json")
}

/// Returns `failed-rank-00000.txt`, the file with the reason why a rank wrote no part.
pub(crate) fn failed_file(rank: u32) -> String {
    format!("failed-rank-{rank:05}.txt")
}

/// Returns `claim-rank-00000`, the file that reserves a rank for one call, in a store where incomplete files are not visible.
pub(crate) fn claim_file(rank: u32) -> String {
    format!("claim-rank-{rank:05}")
}

/// Returns `manifest.json.tmp`, the name of a file until it is complete.
pub(crate) fn temporary(name: &str) -> String {
    format!("{name}.tmp")
}

/// Returns `step-00000100`.
pub(crate) fn step_dir(step: u64) -> String {
    format!("step-{step:08}")
}

/// Parses a directory name in the form of [`step_dir`] and returns its step.
pub(crate) fn parse_step_dir(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_dir(step) == name).then_some(step)
}

/// Returns `damaged-00000100`, or `damaged-00000100-2` for the second of a step: a checkpoint that was set
/// aside.
pub(crate) fn damaged_dir(step: u64, number: u32) -> String {
    match number {
        0 | 1 => format!("{DAMAGED}{step:08}"),
        _ => format!("{DAMAGED}{step:08}-{number}"),
    }
}

/// Parses a directory name in the form of [`damaged_dir`] and returns its step.
pub(crate) fn parse_damaged_dir(name: &str) -> Option<u64> {
    let rest = name.strip_prefix(DAMAGED)?;
    let (step, number) = rest.split_once('-').unwrap_or((rest, "1"));
    let (step, number) = (step.parse().ok()?, number.parse().ok()?);
    (damaged_dir(step, number) == name).then_some(step)
}

/// Returns `.attempt-100-0123456789abcdef0123456789abcdef`.
pub(crate) fn attempt_dir(step: u64, attempt: AttemptId) -> String {
    format!("{ATTEMPT}{step}-{attempt}")
}

/// Returns `.removed-100-0123456789abcdef0123456789abcdef`: an attempt or a step that is being removed.
pub(crate) fn removed_dir(step: u64, attempt: AttemptId) -> String {
    format!("{REMOVED}{step}-{attempt}")
}

/// Parses a directory name in the form of [`attempt_dir`] and returns its step and id.
pub(crate) fn parse_attempt_dir(name: &str) -> Option<(u64, AttemptId)> {
    parse_step_and_attempt(ATTEMPT, name)
}

/// Parses a directory name in the form of [`removed_dir`] and returns its step and id.
pub(crate) fn parse_removed_dir(name: &str) -> Option<(u64, AttemptId)> {
    parse_step_and_attempt(REMOVED, name)
}

/// Returns whether a directory has the name of an attempt, or of a removal in progress.
pub(crate) fn is_of_attempt(name: &str) -> bool {
    parse_attempt_dir(name).is_some() || parse_removed_dir(name).is_some()
}

fn parse_step_and_attempt(prefix: &str, name: &str) -> Option<(u64, AttemptId)> {
    let (step, attempt) = name.strip_prefix(prefix)?.split_once('-')?;
    let (step, attempt) = (step.parse().ok()?, attempt.parse().ok()?);
    (format!("{prefix}{step}-{attempt}") == name).then_some((step, attempt))
}

/// Returns the key of a chunk in its safetensors file: the tensor's name if the chunk is the whole tensor, otherwise name and
/// region, so that no reader mistakes a chunk for the whole tensor. Only the manifest distinguishes a chunk from a tensor with
/// such a name.
pub(crate) fn chunk_key(name: &str, shape: &[u64], region: &Region) -> String {
    match region.is_whole(shape) {
        true => name.to_owned(),
        false => format!("{name}{region}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_written_names_are_parsed() {
        for (name, step) in [
            ("step-00000100", Some(100)),
            ("step-123456789", Some(123_456_789)),
            ("step-100", None),
            ("step-+0000100", None),
            ("step-000000100", None),
            ("step-", None),
            ("step-99999999999999999999", None),
        ] {
            assert_eq!(parse_step_dir(name), step, "{name}");
        }
        for (name, step) in [
            ("damaged-00000100", Some(100)),
            ("damaged-00000100-2", Some(100)),
            ("damaged-00000100-1", None),
            ("damaged-100", None),
            ("damaged-00000100-x", None),
        ] {
            assert_eq!(parse_damaged_dir(name), step, "{name}");
        }
        let id = AttemptId::fresh();
        let name = attempt_dir(7, id);
        assert_eq!(parse_attempt_dir(&name), Some((7, id)));
        assert_eq!(parse_attempt_dir(&name.to_uppercase()), None);
        assert_eq!(parse_attempt_dir(".attempt-7-old"), None);
        assert_eq!(parse_attempt_dir(&name.replace("-7-", "-07-")), None);
    }

    #[test]
    fn a_part_has_its_region_in_its_key() {
        let rows = Region::new(vec![2, 0], vec![2, 3]).unwrap();
        assert_eq!(chunk_key("w", &[4, 3], &rows), "w[2..4, 0..3]");
        assert_eq!(chunk_key("w", &[2, 3], &Region::of_shape(&[2, 3])), "w");
    }
}
