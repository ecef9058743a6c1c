//! Pages: complete, well formed and harmless.

use tinderbox_schedule::ScheduleKind;

use super::samples::{self, Sample};
use crate::plan::PlanFile;
use crate::{Machine, Step};

/// Checks that every element is closed where it should be; returns the names of all.
fn elements(page: &str) -> Vec<String> {
    const VOID: [&str; 2] = ["meta", "link"];
    let (mut open, mut all) = (Vec::new(), Vec::new());
    let mut rest = page
        .strip_prefix("<!doctype html>")
        .expect("a page has a doctype");
    while let Some(at) = rest.find('<') {
        assert!(
            !rest[..at].contains('>') || open.last().is_some_and(|name| name == "style"),
            "{}",
            &rest[..at]
        );
        let end = at + rest[at..].find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
        let name = tag
            .split([' ', '/'])
            .find(|part| !part.is_empty())
            .unwrap_or_default();
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "{tag}");
        } else {
            all.push(name.to_owned());
            if !tag.ends_with('/') && !VOID.contains(&name) {
                open.push(name.to_owned());
            }
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?}");
    all
}

fn count(page: &str, name: &str) -> usize {
    elements(page).iter().filter(|one| *one == name).count()
}

#[test]
fn pages_have_all_parts() {
    for (plan, pictures) in [
        (samples::smallest(), 2 + 8 + 1),
        (samples::four_stages(), 2 + 8 + 1),
        (samples::own_lists(), 2 + 8 + 1),
    ] {
        let page = plan.to_html();
        assert_eq!(count(&page, "section"), 7, "{page}");
        assert_eq!(
            count(&page, "svg"),
            pictures,
            "bars, their keys and the timeline"
        );
        assert_eq!(count(&page, "details"), 2 * plan.stages.len());
        for stage in &plan.stages {
            for path in stage.parameters.iter().chain(&stage.copies) {
                assert!(page.contains(&format!("<li>{path} ")), "{path}");
            }
            for program in &stage.programs {
                for line in &program.operations {
                    assert!(page.contains(line.as_str()), "{line}");
                }
            }
        }
    }
}

#[test]
fn pages_load_nothing() {
    for plan in [samples::two_stages(), samples::eight_stages()] {
        let page = plan.to_html();
        for forbidden in [
            "<script", "<img", "<iframe", "@import", "url(", "src=", "https://",
        ] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        // The SVG namespace is not loaded.
        let addresses = page.matches("http://").count();
        assert_eq!(
            addresses,
            page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count()
        );
    }
}

/// Every text of the file is a script.
#[test]
fn names_cannot_leave_their_text() {
    const EVIL: &str = "</pre><script>alert(\"1\" & '2')</script>";
    let mut plan = samples::own_lists();
    let mut json: serde_json::Value = serde_json::from_str(&plan.to_json()).unwrap();
    let step = json["step"].clone();
    let placement = json["machine"]["placement"].clone();
    let boundaries = json["boundaries"].clone();
    replace(&mut json, EVIL);
    json["step"] = step;
    json["machine"]["placement"] = placement;
    json["boundaries"] = boundaries;
    plan = PlanFile::from_json(&json.to_string()).unwrap();
    let page = plan.to_html();
    assert!(!page.contains("<script"), "{page}");
    assert!(page.matches("&lt;script&gt;").count() > 50);
    assert_eq!(count(&page, "section"), 7);
    assert!(
        page.contains("The timeline is left out: the file has no valid compute lists"),
        "{page}"
    );
}

/// Replaces every text.
fn replace(value: &mut serde_json::Value, by: &str) {
    match value {
        serde_json::Value::String(text) => *text = by.to_owned(),
        serde_json::Value::Array(all) => all.iter_mut().for_each(|one| replace(one, by)),
        serde_json::Value::Object(all) => all.values_mut().for_each(|one| replace(one, by)),
        _ => {}
    }
}

fn large(micro_batches: usize) -> PlanFile {
    Sample {
        layers: 64,
        machine: Machine::local(64).unwrap().with_memory(1 << 30),
        step: Step::new(ScheduleKind::OneFOneB, micro_batches),
        starts: (0..64).map(|stage| 2 * stage).collect(),
        ranks: (0..64).collect(),
        recompute: vec![],
    }
    .plan()
}

#[test]
fn large_plans_have_pages_of_some_megabytes() {
    let plan = large(512);
    let page = plan.to_html();
    assert!(page.len() < 6 << 20, "{}", page.len());
    assert!(page.contains("aria-label=\"1f1b: 64 ranks, 512 micro-batches, predicted\""));
    let mut larger = plan;
    larger.step.micro_batches = 1400;
    let page = larger.to_html();
    assert!(
        page.contains("a step has 268800 forwards and messages, and a page shows at most 262144")
    );
    assert!(page.len() < 1 << 20, "{}", page.len());
}

#[test]
fn ranks_over_their_limit_are_highlighted() {
    let mut plan = samples::two_stages();
    assert!(!plan.to_html().contains("class=\"limit\""));
    // 267 MiB on rank 0, 99 MiB on rank 1.
    for (limit_mib, over) in [(300, 0), (200, 1), (90, 2)] {
        plan.machine = plan.machine.with_memory(limit_mib << 20);
        let page = plan.to_html();
        assert_eq!(page.matches("class=\"limit\"").count(), 2);
        assert_eq!(page.matches("class=\"over\"").count(), over, "{limit_mib}");
    }
}

#[test]
fn empty_sections_have_a_sentence() {
    let mut plan = samples::smallest();
    plan.boundaries.clear();
    plan.ties.clear();
    plan.prediction.ranks.clear();
    for stage in &mut plan.stages {
        stage.programs.clear();
        stage.modules.clear();
    }
    let page = plan.to_html();
    for expected in [
        "Nothing crosses between stages",
        "No parameter is read on several stages",
        "predicts no ranks",
        "without the text of its programs",
        ": no modules<",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
}

/// For inspection in a browser, and for `scripts/check-plan-page`.
#[test]
fn pages_are_written_to_the_requested_folder() {
    let Ok(folder) = std::env::var("TINDERBOX_WRITE_PAGES") else {
        return;
    };
    for (name, plan) in [
        ("two", samples::two_stages()),
        ("four", samples::four_stages()),
        ("eight", samples::eight_stages()),
        ("lists", samples::own_lists()),
        ("large", large(512)),
    ] {
        std::fs::write(format!("{folder}/{name}.html"), plan.to_html()).unwrap();
        std::fs::write(format!("{folder}/{name}.dot"), plan.to_dot()).unwrap();
        std::fs::write(format!("{folder}/{name}.json"), plan.to_json()).unwrap();
    }
}
