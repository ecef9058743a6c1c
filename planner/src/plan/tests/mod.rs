//! The plan file and all its views together: files are read back unchanged, and no file that can be
//! read makes a view panic.

mod damage;
mod html;
pub(super) mod samples;

use std::fs;
use std::path::Path;

use super::{PLAN_VERSION, PlanFile};
use crate::PlanFileError;

fn samples() -> [PlanFile; 5] {
    [
        samples::smallest(),
        samples::two_stages(),
        samples::four_stages(),
        samples::eight_stages(),
        samples::own_lists(),
    ]
}

/// Shows a plan in every view; returns the length of the text.
fn show(plan: &PlanFile) -> usize {
    let texts = [
        plan.to_string(),
        plan.programs_text(&[]),
        plan.to_dot(),
        plan.to_html(),
        plan.to_json(),
    ];
    texts.iter().map(String::len).sum()
}

#[test]
fn a_plan_is_read_back_byte_by_byte() {
    for plan in samples() {
        let json = plan.to_json();
        let read = PlanFile::from_json(&json).unwrap();
        assert_eq!(read, plan);
        assert_eq!(read.to_json(), json);
        // With the byte order mark that some editors write.
        let marked = PlanFile::from_json(&format!("\u{feff}{json}"));
        assert_eq!(marked.unwrap(), plan);
    }
}

#[test]
fn views_are_the_same_every_time() {
    for (first, second) in samples().iter().zip(&samples()) {
        assert_eq!(first.to_json(), second.to_json());
        assert_eq!(first.to_string(), second.to_string());
        assert_eq!(first.to_dot(), second.to_dot());
        assert_eq!(first.to_html(), second.to_html());
    }
}

/// A file of each version that was ever written; `TINDERBOX_WRITE_GOLDEN=<directory>` makes this test write
/// the file of the current version there.
#[test]
fn plans_of_this_version_have_not_changed() {
    let json = samples::four_stages().to_json();
    let name = format!("plan-version-{PLAN_VERSION}.json");
    if let Ok(target) = std::env::var("TINDERBOX_WRITE_GOLDEN") {
        fs::create_dir_all(&target).unwrap();
        fs::write(Path::new(&target).join(&name), &json).unwrap();
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    assert_eq!(fs::read_to_string(&golden).unwrap(), json);
    assert_eq!(PlanFile::load(&golden).unwrap(), samples::four_stages());
}

#[test]
fn other_versions_are_refused_before_their_fields_are_read() {
    for version in [0, PLAN_VERSION - 1, PLAN_VERSION + 1, u32::MAX] {
        let text = format!("{{\"version\": {version}, \"stages\": \"elsewhere\"}}");
        let error = PlanFile::from_json(&text).unwrap_err();
        assert!(
            matches!(error, PlanFileError::Version { found, .. } if found == version),
            "{error:?}"
        );
    }
    for text in [
        "",
        "{}",
        "[]",
        "2",
        "{\"version\": \"2\"}",
        "{\"version\": -1}",
        "\u{0}",
    ] {
        let error = PlanFile::from_json(text).unwrap_err();
        assert!(
            matches!(error, PlanFileError::Json { .. }),
            "{text}: {error:?}"
        );
    }
}

#[test]
fn stages_and_ranks_are_numbered_without_gaps() {
    let refused = |change: fn(&mut PlanFile)| {
        let mut plan = samples::two_stages();
        change(&mut plan);
        PlanFile::from_json(&plan.to_json())
            .unwrap_err()
            .to_string()
    };
    insta::assert_snapshot!(refused(|plan| plan.stages.clear()), @"the stages of the plan are not numbered from 0 in order");
    insta::assert_snapshot!(refused(|plan| plan.stages.swap(0, 1)), @"the stages of the plan are not numbered from 0 in order");
    insta::assert_snapshot!(refused(|plan| plan.stages[0].rank = plan.stages[1].rank), @"rank 0 has no stage: the ranks of a plan are numbered from 0 without gaps");
    insta::assert_snapshot!(
        refused(|plan| plan.stages[1].rank = tinderbox_schedule::RankIndex::new(usize::MAX)), @"rank 1 has no stage: the ranks of a plan are numbered from 0 without gaps"
    );
}

#[test]
fn missing_files_are_named() {
    let error = PlanFile::load("no/such/plan.json").unwrap_err().to_string();
    assert_eq!(error, "the plan file no/such/plan.json can't be read");
    let error = samples::smallest()
        .save("no/such/plan.json")
        .unwrap_err()
        .to_string();
    assert_eq!(error, "the plan file no/such/plan.json can't be written");
}
