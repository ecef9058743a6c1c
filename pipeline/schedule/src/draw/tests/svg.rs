//! The text of an SVG: well formed, complete, and escaped.

use std::collections::BTreeMap;

use super::samples::{measured_sample, one_f_one_b_sample, pairs_sample, split_sample};
use crate::Timeline;
use crate::draw::svg;
use crate::draw::svg::{MAX_DETAILED, svg_of_width};

/// Every tag that opens closes, in order; attributes are quoted; no text contains an unescaped `<` or `&`.
fn check_well_formed(xml: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = xml;
    while let Some(at) = rest.find('<') {
        check_text(&rest[..at]);
        let end = rest.find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed));
        } else {
            assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
            tag.split('"').skip(1).step_by(2).for_each(check_text);
            if !tag.ends_with('/') {
                open.push(tag.split(' ').next().unwrap());
            }
        }
    }
    assert_eq!((open, rest), (Vec::new(), "\n"));
}

fn check_text(text: &str) {
    for entity in text.split('&').skip(1) {
        let known = ["amp;", "lt;", "gt;", "quot;", "#39;"];
        assert!(known.iter().any(|name| entity.starts_with(name)), "{text}");
    }
}

/// The numbers of an attribute, over all elements that have it.
fn numbers(xml: &str, element: &str, attribute: &str) -> impl Iterator<Item = f64> {
    let elements = xml
        .split('<')
        .filter_map(move |tag| tag.strip_prefix(element));
    let name = format!(" {attribute}=\"");
    elements.filter_map(move |rest| {
        let value = rest.split(&name).nth(1)?;
        value.split('"').next()?.parse().ok()
    })
}

fn tasks(timeline: &Timeline) -> usize {
    let spans = timeline.ranks.iter().flat_map(|rank| &rank.spans);
    spans.map(|span| span.action.tasks().len()).sum()
}

#[test]
fn every_program_has_a_box_and_every_action_a_tooltip() {
    for timeline in [one_f_one_b_sample(4, 8), split_sample(), pairs_sample()] {
        let found = svg(&[&timeline]);
        check_well_formed(&found);
        let rows = timeline.ranks.len();
        // One rectangle is the page, and each row has one for its empty time.
        assert_eq!(found.matches("<rect").count(), tasks(&timeline) + rows + 1);
        let actions = timeline.ranks.iter().flat_map(|rank| &rank.spans);
        let drawn = actions.filter(|span| !span.action.tasks().is_empty());
        assert_eq!(found.matches("<title>").count(), drawn.count() + 1);
        assert!(found.contains("@media (prefers-color-scheme:dark)"));
        assert_eq!(svg(&[&timeline]), found);
    }
}

#[test]
fn a_tooltip_names_the_action_and_its_times() {
    let found = svg(&[&measured_sample()]);
    let tooltips = found.split("<title>").skip(2).take(3);
    let tooltips = tooltips.map(|rest| rest.split('<').next().unwrap());
    let first: Vec<&str> = tooltips.collect();
    insta::assert_snapshot!(first.join("\n"), @r"
    0F0: 0 ns to 3.02 ms, 3.02 ms
    0F0&gt;1F0: 3.02 ms to 3.04 ms, 20.0 µs
    0F1: 3.04 ms to 6.06 ms, 3.02 ms
    ");
}

/// The labels of boxes do not stop at micro-batch 9: a number is as often in the picture as every other one.
#[test]
fn every_micro_batch_has_as_many_labels() {
    for (micro_batches, labels_of_each) in [(8, 8), (16, 8), (32, 8), (64, 4), (101, 0)] {
        let found = svg(&[&one_f_one_b_sample(4, micro_batches)]);
        check_well_formed(&found);
        let mut counts = BTreeMap::new();
        for rest in found.split("<text class=\"box\"").skip(1) {
            let label = rest.split(['>', '<']).nth(1).unwrap();
            *counts.entry(label.to_owned()).or_insert(0) += 1;
        }
        let numbers = 0..micro_batches * usize::from(labels_of_each > 0);
        let expected: BTreeMap<String, usize> = numbers
            .map(|number| (number.to_string(), labels_of_each))
            .collect();
        assert_eq!(counts, expected, "{micro_batches}");
    }
}

#[test]
fn two_timelines_share_one_axis() {
    let (mut measured, mut predicted) = (measured_sample(), measured_sample());
    predicted.name = "predicted <\u{7}>".to_owned();
    measured.name = "a & b".to_owned();
    let found = svg(&[&predicted, &measured]);
    check_well_formed(&found);
    for expected in [
        "<title>predicted &lt;\u{fffd}&gt; | a &amp; b</title>",
        ">predicted &lt;\u{fffd}&gt;<",
        "class=\"memory dash\"",
    ] {
        assert!(found.contains(expected), "{expected}");
    }
    assert_eq!(found.matches("class=\"track\"").count(), 6);
    // Both timelines have the same times, so every left edge occurs twice.
    let mut edges: Vec<f64> = numbers(&found, "rect", "x").collect();
    edges.sort_by(f64::total_cmp);
    let mut same = edges.chunk_by(|a, b| a == b);
    assert!(same.all(|same| same.len() % 2 == 0));
}

#[test]
fn nothing_leaves_the_picture() {
    for width in [600.0, 1200.0, 20_000.0] {
        let found = svg_of_width(&[&measured_sample(), &pairs_sample()], width);
        let right = numbers(&found, "rect", "x").zip(numbers(&found, "rect", "width").skip(1));
        assert!(right.map(|(x, w)| x + w).all(|right| right <= width));
        assert!(numbers(&found, "text", "x").all(|x| (0.0..=width).contains(&x)));
    }
}

#[test]
fn a_huge_step_is_as_large_as_its_picture() {
    let timeline = one_f_one_b_sample(2, MAX_DETAILED / 4 + 1);
    let found = svg(&[&timeline]);
    check_well_formed(&found);
    assert_eq!(found.matches("<title>").count(), 1);
    assert_eq!(found.matches("crispEdges").count(), 4);
    assert!(found.len() < 200_000, "{}", found.len());
}

#[test]
fn empty_and_invalid_timelines_are_drawn() {
    check_well_formed(&svg(&[]));
    let mut broken = measured_sample();
    broken.stage_to_rank.clear();
    for (at, span) in broken.ranks[0].spans.iter_mut().enumerate() {
        let ends = [(u64::MAX, 0), (0, u64::MAX)];
        (span.start, span.end) = ends[at % 2];
    }
    broken.ranks[0].bytes = vec![(u64::MAX, u64::MAX), (0, 0)];
    check_well_formed(&svg(&[&broken]));
    broken.ranks.clear();
    check_well_formed(&svg(&[&broken]));
}

/// A legend has the kinds that occur, in as many lines as it needs.
#[test]
fn a_legend_has_the_kinds_that_occur() {
    let legend = |timeline: &Timeline, width| {
        let found = svg_of_width(&[timeline], width);
        let entries = found.split("<text class=\"legend\"").skip(1).map(|rest| {
            let y = rest.split(" y=\"").nth(1).unwrap();
            let (y, rest) = y.split_once("\">").unwrap();
            (y.to_owned(), rest.split('<').next().unwrap().to_owned())
        });
        let entries: Vec<(String, String)> = entries.collect();
        let lines = entries.chunk_by(|a, b| a.0 == b.0).map(|line| {
            let names: Vec<&str> = line.iter().map(|(_, name)| name.as_str()).collect();
            names.join(", ")
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(legend(&one_f_one_b_sample(2, 2), 1200.0), @"forward, backward, micro-batches held, number: micro-batch");
    insta::assert_snapshot!(legend(&pairs_sample(), 600.0), @r"
    forward, backward, input gradient, weight gradient
    second stage of a rank, micro-batches held, number: micro-batch
    ");
    insta::assert_snapshot!(legend(&measured_sample(), 1200.0), @"forward, backward, update, reduce, send, memory, number: micro-batch");
}
