//! The plan file and all its views together: files are read back unchanged, and no file that can be
//! read makes a view panic.

mod damage;
pub(super) mod samples;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tinderbox_schedule::RankIndex;

use super::{PLAN_VERSION, Plan};
use crate::PlanFileError;

fn samples() -> [Plan; 5] {
    [
        samples::smallest(),
        samples::two_stages(),
        samples::four_stages(),
        samples::eight_stages(),
        samples::own_lists(),
    ]
}

/// Shows a plan in every view; returns the length of the text.
fn show(plan: &Plan) -> usize {
    let texts = [plan.to_string(), plan.programs_text(&[]), plan.to_json()];
    texts.iter().map(String::len).sum()
}

/// The pointers to all values below one.
pub(super) fn places(value: &Value, here: String, all: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                places(field, format!("{here}/{name}"), all);
            }
        }
        Value::Array(entries) => {
            for (index, entry) in entries.iter().enumerate() {
                places(entry, format!("{here}/{index}"), all);
            }
        }
        _ => {}
    }
    all.push(here);
}

#[test]
fn a_plan_is_read_back_byte_by_byte() {
    for plan in samples() {
        let json = plan.to_json();
        let read = Plan::from_json(&json).unwrap();
        assert_eq!(read, plan);
        assert_eq!(read.to_json(), json);
        // With the byte order mark that some editors write.
        let marked = Plan::from_json(&format!("\u{feff}{json}"));
        assert_eq!(marked.unwrap(), plan);
    }
}

#[test]
fn views_are_the_same_every_time() {
    for (first, second) in samples().iter().zip(&samples()) {
        assert_eq!(first.to_json(), second.to_json());
        assert_eq!(first.to_string(), second.to_string());
    }
}

/// The golden file of a version: there is one of each version that was ever written.
fn golden(version: u32) -> PathBuf {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    golden.join(format!("plan-version-{version}.json"))
}

/// A plan with every optional field that this version added.
fn with_strategy() -> Plan {
    Plan {
        strategy: Some("the fewest bytes between ranks".to_owned()),
        ..samples::four_stages()
    }
}

/// `TINDERBOX_WRITE_GOLDEN=<directory>` makes this test write the file of the current version there.
#[test]
fn plans_of_this_version_have_not_changed() {
    let json = with_strategy().to_json();
    let golden = golden(PLAN_VERSION);
    if let Ok(target) = std::env::var("TINDERBOX_WRITE_GOLDEN") {
        fs::create_dir_all(&target).unwrap();
        let name = golden.file_name().unwrap();
        fs::write(Path::new(&target).join(name), &json).unwrap();
    }
    assert_eq!(fs::read_to_string(&golden).unwrap(), json);
    assert_eq!(Plan::load(&golden).unwrap(), with_strategy());
}

#[test]
fn plans_of_version_2_are_read_and_written_in_this_version() {
    let plan = Plan::load(golden(2)).unwrap();
    assert_eq!(plan, samples::four_stages());
    let text = fs::read_to_string(golden(2)).unwrap();
    let written = text.replacen("\"version\": 2,", "\"version\": 3,", 1);
    assert_eq!(plan.to_json(), written);
}

#[test]
fn a_strategy_is_shown_and_is_a_difference() {
    let (plan, other) = (with_strategy(), samples::four_stages());
    let shown = plan.to_string();
    assert!(shown.contains("\nstrategy     the fewest bytes between ranks\n"));
    let changes = other.diff(&plan).changes;
    let paths: Vec<&str> = changes.iter().map(|one| one.path.as_str()).collect();
    assert_eq!(paths, ["strategy"]);
}

#[test]
fn several_shards_are_refused() {
    for shards in [0, 2, usize::MAX] {
        let mut plan = samples::two_stages();
        plan.step.shards = shards;
        let error = Plan::from_json(&plan.to_json()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "the plan divides every stage into {shards} shards, and this version runs no shards: create the plan with one shard"
            )
        );
    }
    let one = samples::two_stages().to_json();
    assert!(!one.contains("shards"));
}

#[test]
fn other_versions_are_refused_before_their_fields_are_read() {
    for version in [0, 1, PLAN_VERSION + 1, u32::MAX] {
        let text = format!("{{\"version\": {version}, \"stages\": \"elsewhere\"}}");
        let error = Plan::from_json(&text).unwrap_err();
        assert!(
            matches!(error, PlanFileError::Version { found, .. } if found == version),
            "{error:?}"
        );
        let expected = format!(
            "the plan has version {version} and this build reads versions 2 to 3: create the plan again"
        );
        assert_eq!(error.to_string(), expected);
    }
    let (text_version, negative) = ("{\"version\": \"2\"}", "{\"version\": -1}");
    for text in ["", "{}", "[]", "2", text_version, negative, "\u{0}"] {
        let error = Plan::from_json(text).unwrap_err();
        let is_json = matches!(error, PlanFileError::Json { .. });
        assert!(is_json, "{text}: {error:?}");
    }
}

#[test]
fn stages_and_ranks_are_numbered_without_gaps() {
    let refused = |change: fn(&mut Plan)| {
        let mut plan = samples::two_stages();
        change(&mut plan);
        let read = Plan::from_json(&plan.to_json());
        read.unwrap_err().to_string()
    };
    insta::assert_snapshot!(refused(|plan| plan.stages.clear()), @"the stages of the plan are not numbered from 0 in order");
    insta::assert_snapshot!(refused(|plan| plan.stages.swap(0, 1)), @"the stages of the plan are not numbered from 0 in order");
    insta::assert_snapshot!(refused(|plan| plan.stages[0].rank = plan.stages[1].rank), @"rank 0 has no stage: the ranks of a plan are numbered from 0 without gaps");
    insta::assert_snapshot!(refused(|plan| plan.stages[1].rank = RankIndex::new(usize::MAX)), @"rank 1 has no stage: the ranks of a plan are numbered from 0 without gaps");
}

/// Lists of a file that are no lists, or place the stages on other ranks.
#[test]
fn only_lists_of_the_stages_are_a_schedule() {
    for (lists, is_valid) in [
        ("garbage", false),
        ("", false),
        ("0F0 0B0\n1F0 1B0", false),
        ("0F0 2F0 0B0 2B0", false),
        ("0F0 2F0 2B0 0B0\n1F0 1B0", true),
    ] {
        let mut plan = samples::own_lists();
        plan.lists = Some(lists.to_owned());
        assert_eq!(plan.lists_of_step().is_some(), is_valid, "{lists}");
    }
}

#[test]
fn missing_files_are_named() {
    let error = Plan::load("no/such/plan.json").unwrap_err().to_string();
    assert_eq!(error, "the plan file no/such/plan.json can't be read");
    let saved = samples::smallest().save("no/such/plan.json");
    let error = saved.unwrap_err().to_string();
    assert_eq!(error, "the plan file no/such/plan.json can't be written");
}
