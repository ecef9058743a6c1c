//! Names of files and directories. A name that is read is compared with the one that would be written,
//! so no other name is ever opened.

use tinderbox_fake::Region;

use super::{AttemptId, Role};

/// The file that makes a directory a checkpoint.
pub(crate) const MANIFEST_FILE: &str = "manifest.json";
/// The Hugging Face index of sharded models.
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";
/// How the model was cut into stages.
pub(crate) const PLAN_FILE: &str = "plan.json";
const ATTEMPT: &str = ".attempt-";
const REMOVED: &str = ".removed-";
const DAMAGED: &str = "damaged-";

/// The file that proves that an attempt directory is ours; locked while the attempt lives.
pub(crate) const MARKER_FILE: &str = "attempt.json";

/// `model-rank-00000.safetensors`, and `model-rank-00000-00001.safetensors` for the second of a rank.
pub(crate) fn shard_file_name(role: Role, rank: u32, number: u32) -> String {
    match number {
        0 => format!("{role}-rank-{rank:05}.safetensors"),
        _ => format!("{role}-rank-{rank:05}-{number:05}.safetensors"),
    }
}

/// `part-rank-00000.json`.
pub(crate) fn part_file_name(rank: u32) -> String {
    format!("part-rank-{rank:05}.json")
}

/// `failed-rank-00000.txt`: why a rank wrote no part.
pub(crate) fn failed_file_name(rank: u32) -> String {
    format!("failed-rank-{rank:05}.txt")
}

/// `claim-rank-00000`: in a store where files appear only when they are whole, which call writes for a rank.
pub(crate) fn claim_file_name(rank: u32) -> String {
    format!("claim-rank-{rank:05}")
}

/// `manifest.json.tmp`: what a file is called until it is whole.
pub(crate) fn temporary_name(name: &str) -> String {
    format!("{name}.tmp")
}

/// `step-00000100`.
pub(crate) fn step_dir_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step of a directory name that [`step_dir_name`] made.
pub(crate) fn parse_step_dir_name(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_dir_name(step) == name).then_some(step)
}

/// `damaged-00000100`, and `damaged-00000100-2` for the second of a step: a checkpoint that was set aside.
pub(crate) fn damaged_dir_name(step: u64, number: u32) -> String {
    match number {
        0 | 1 => format!("{DAMAGED}{step:08}"),
        _ => format!("{DAMAGED}{step:08}-{number}"),
    }
}

/// The step of a directory name that [`damaged_dir_name`] made.
pub(crate) fn parse_damaged_dir_name(name: &str) -> Option<u64> {
    let rest = name.strip_prefix(DAMAGED)?;
    let (step, number) = rest.split_once('-').unwrap_or((rest, "1"));
    let (step, number) = (step.parse().ok()?, number.parse().ok()?);
    (damaged_dir_name(step, number) == name).then_some(step)
}

/// `.attempt-100-0123456789abcdef0123456789abcdef`.
pub(crate) fn attempt_dir_name(step: u64, attempt: AttemptId) -> String {
    format!("{ATTEMPT}{step}-{attempt}")
}

/// `.removed-100-0123456789abcdef0123456789abcdef`: what was an attempt or a step, and is going away.
pub(crate) fn removed_dir_name(step: u64, attempt: AttemptId) -> String {
    format!("{REMOVED}{step}-{attempt}")
}

/// The step and id of a directory name that [`attempt_dir_name`] made.
pub(crate) fn parse_attempt_dir_name(name: &str) -> Option<(u64, AttemptId)> {
    parse_step_and_attempt(ATTEMPT, name)
}

/// The step and id of a directory name that [`removed_dir_name`] made.
pub(crate) fn parse_removed_dir_name(name: &str) -> Option<(u64, AttemptId)> {
    parse_step_and_attempt(REMOVED, name)
}

fn parse_step_and_attempt(prefix: &str, name: &str) -> Option<(u64, AttemptId)> {
    let (step, attempt) = name.strip_prefix(prefix)?.split_once('-')?;
    let (step, attempt) = (step.parse().ok()?, attempt.parse().ok()?);
    (format!("{prefix}{step}-{attempt}") == name).then_some((step, attempt))
}

/// The key of a chunk in its safetensors file: the tensor's name where the chunk is the whole tensor,
/// else name and region, so that no reader takes a part for the whole.
pub(crate) fn chunk_key(name: &str, shape: &[u64], region: &Region) -> String {
    if region.is_whole(shape) {
        name.to_owned()
    } else {
        format!("{name}{region}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_only_what_it_writes() {
        for (name, step) in [
            ("step-00000100", Some(100)),
            ("step-123456789", Some(123_456_789)),
            ("step-100", None),
            ("step-+0000100", None),
            ("step-000000100", None),
            ("step-", None),
            ("step-99999999999999999999", None),
        ] {
            assert_eq!(parse_step_dir_name(name), step, "{name}");
        }
        for (name, step) in [
            ("damaged-00000100", Some(100)),
            ("damaged-00000100-2", Some(100)),
            ("damaged-00000100-1", None),
            ("damaged-100", None),
            ("damaged-00000100-x", None),
        ] {
            assert_eq!(parse_damaged_dir_name(name), step, "{name}");
        }
        let id = AttemptId::fresh();
        let name = attempt_dir_name(7, id);
        assert_eq!(parse_attempt_dir_name(&name), Some((7, id)));
        assert_eq!(parse_attempt_dir_name(&name.to_uppercase()), None);
        assert_eq!(parse_attempt_dir_name(".attempt-7-old"), None);
        assert_eq!(parse_attempt_dir_name(&name.replace("-7-", "-07-")), None);
    }

    #[test]
    fn a_part_has_its_region_in_its_key() {
        let rows = Region::new(vec![2, 0], vec![2, 3]).unwrap();
        assert_eq!(chunk_key("w", &[4, 3], &rows), "w[2..4, 0..3]");
        assert_eq!(chunk_key("w", &[2, 3], &Region::of_shape(&[2, 3])), "w");
    }
}
