use super::*;
use crate::plan::tests::samples::{self, Sample};
use crate::{Machine, Step};
use tinderbox_path::ParameterPath;
use tinderbox_schedule::ScheduleKind;

fn cut(starts: &[usize], recompute: &[usize]) -> PlanFile {
    Sample {
        layers: 6,
        machine: Machine::local(starts.len()).unwrap(),
        step: Step::new(ScheduleKind::OneFOneB, 4),
        starts: starts.to_vec(),
        ranks: (0..starts.len()).collect(),
        recompute: recompute.to_vec(),
    }
    .plan()
}

#[test]
fn the_same_plan_has_no_difference() {
    let plan = samples::four_stages();
    let diff = plan.diff(&plan);
    assert!(diff.is_empty());
    assert_eq!(diff.to_string(), "the plans are the same\n");
}

#[test]
fn another_cut() {
    let diff = cut(&[0, 6], &[]).diff(&cut(&[0, 8], &[1]));
    insta::assert_snapshot!(diff, @r#"
    moves
      blocks.2.feed_forward to blocks.3.attention (4 parameters): stage 1 -> 0, rank 1 -> 0

    prediction
      step                  241 ms -> 274 ms (+13.7 %)
      idle                  18.7 % -> 23.6 %
      bottleneck's F and B  27.0 ms -> 26.8 ms (-0.7 %)

    rank 0
      busy         183 ms -> 238 ms (+29.7 %)
      bubble       58.0 ms -> 36.5 ms (-37.1 %)
      memory       291 MiB -> 355 MiB (+22.1 %)
      parameters   52.2 MiB -> 64.3 MiB (+23.1 %)
      gradients    52.2 MiB -> 64.3 MiB (+23.1 %)
      optimizer    104 MiB -> 129 MiB (+23.1 %)
      activations  48.0 MiB -> 64.0 MiB (+33.3 %)

    rank 1
      busy         209 ms -> 181 ms (-13.2 %)
      bubble       26.8 ms -> 85.1 ms (+217.4 %)
      memory       247 MiB -> 191 MiB (-22.7 %)
      parameters   69.2 MiB -> 57.1 MiB (-17.4 %)
      gradients    45.2 MiB -> 33.1 MiB (-26.7 %)
      optimizer    90.4 MiB -> 66.3 MiB (-26.7 %)
      activations  32.3 MiB -> 4.25 MiB (-86.8 %)
      transient    6.00 MiB -> 26.0 MiB (+333.3 %)

    stage 0
      modules          embedding blocks.0..2 -> embedding blocks.0..3
      parameters       12 -> 16
      parameter bytes  52.2 MiB -> 64.3 MiB (+23.1 %)
      bytes kept       24.0 MiB -> 32.0 MiB (+33.3 %)
      F                5.56 ms -> 7.86 ms (+41.4 %)
      B                11.1 ms -> 15.7 ms (+41.4 %)

    stage 1
      recompute        no -> yes
      modules          blocks.2..5 head -> blocks.3..5 head
      parameters       16 -> 12
      parameter bytes  45.2 MiB -> 33.1 MiB (-26.7 %)
      bytes kept       32.3 MiB -> 4.25 MiB (-86.8 %)
      F                9.00 ms -> 6.70 ms (-25.6 %)
      B                18.0 ms -> 20.1 ms (+11.7 %)
    "#);
}

#[test]
fn more_stages() {
    let diff = cut(&[0, 6], &[]).diff(&cut(&[0, 5, 10], &[]));
    let moves: Vec<String> = diff.moves.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(moves.join("\n"), @r"
        blocks.2.attention (2 parameters): stage 0 -> 1, rank 0 -> 1
        blocks.4.feed_forward to head (8 parameters): stage 1 -> 2, rank 1 -> 2
        ");
    let text = diff.to_string();
    assert!(text.contains("stage 2 is new"), "{text}");
    let back = cut(&[0, 5, 10], &[]).diff(&cut(&[0, 6], &[])).to_string();
    assert!(back.contains("stage 2 is gone"), "{back}");
}

#[test]
fn another_step_and_machine() {
    let before = cut(&[0, 6], &[]);
    let mut after = before.clone();
    after.step.schedule = ScheduleKind::ZbH1;
    after.step.micro_batches = 8;
    after.choice.partitioner = "manual".to_owned();
    after.machine = after.machine.with_memory(1 << 30);
    after.ties[0].copies.clear();
    insta::assert_snapshot!(before.diff(&after), @r"
        partitioner             chain -> manual
        schedule                1f1b -> zb-h1
        micro-batches           4 -> 8 (+100.0 %)
        memory limit of rank 0  none -> 1.00 GiB
        memory limit of rank 1  none -> 1.00 GiB

        ties
          embedding.weight  stage 0, copies on stage 1 -> stage 0
        ");
}

#[test]
fn another_model() {
    let before = cut(&[0, 6], &[]);
    let mut after = before.clone();
    after.parameters.remove(0);
    after.parameters[0].dtype = "bf16".to_owned();
    let text = before.diff(&after).to_string();
    insta::assert_snapshot!(text, @r"
        the plans are for different models; the first counts as planned
          1 parameter is missing (`embedding.weight`)
          1 parameter is of another shape or dtype (`embedding.bias`: f32[24576] planned, bf16[24576] found)
        ");
}

#[test]
fn modules_are_as_large_as_what_moved() {
    let before = cut(&[0, 6], &[]);
    let moved = |move_it: fn(&str) -> bool| {
        let mut after = before.clone();
        let (stays, goes) = after.stages[0]
            .parameters
            .iter()
            .cloned()
            .partition(|path| !move_it(path.as_str()));
        after.stages[0].parameters = stays;
        let goes: Vec<_> = goes;
        after.stages[1].parameters.splice(0..0, goes);
        let moves: Vec<String> = before
            .diff(&after)
            .moves
            .iter()
            .map(ToString::to_string)
            .collect();
        moves.join("\n")
    };
    insta::assert_snapshot!(moved(|path| path.starts_with("blocks.1")), @"blocks.1 (4 parameters): stage 0 -> 1, rank 0 -> 1");
    insta::assert_snapshot!(moved(|path| path == "blocks.1.attention.bias"), @"blocks.1.attention.bias (1 parameter): stage 0 -> 1, rank 0 -> 1");
    insta::assert_snapshot!(moved(|path| path.ends_with("weight")), @r"
        embedding.weight (1 parameter): stage 0 -> 1, rank 0 -> 1
        blocks.0.attention.weight (1 parameter): stage 0 -> 1, rank 0 -> 1
        blocks.0.feed_forward.weight (1 parameter): stage 0 -> 1, rank 0 -> 1
        blocks.1.attention.weight (1 parameter): stage 0 -> 1, rank 0 -> 1
        blocks.1.feed_forward.weight (1 parameter): stage 0 -> 1, rank 0 -> 1
        blocks.2.attention.weight (1 parameter): stage 0 -> 1, rank 0 -> 1
        ");
    insta::assert_snapshot!(moved(|_| true), @"embedding to blocks.2.attention (12 parameters): stage 0 -> 1, rank 0 -> 1");
}

/// Deeper than any stack of calls.
#[test]
fn made_up_paths_are_no_trouble() {
    let mut before = samples::smallest();
    let deep = "a.".repeat(100_000);
    for (index, parameter) in before.parameters.iter_mut().enumerate() {
        parameter.path = ParameterPath::new(format!("{deep}{index}"));
    }
    let paths: Vec<_> = before
        .parameters
        .iter()
        .map(|one| one.path.clone())
        .collect();
    before.stages[0].parameters = paths.clone();
    before.stages[1].parameters.clear();
    let mut after = before.clone();
    after.stages[0].parameters = paths[1..].to_vec();
    let diff = before.diff(&after);
    assert_eq!(diff.moves.len(), 1);
    assert_eq!((diff.moves[0].parameters, diff.moves[0].to), (1, None));
}
