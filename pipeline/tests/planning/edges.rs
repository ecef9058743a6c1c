//! Only required values cross between stages, directly to the stages that read them.

use tinderbox_fake::Mode;
use tinderbox_pipeline::schedule::Compute;
use tinderbox_pipeline::{Cut, Machine, Plan};

use crate::models::{gpt_trace, mlp_trace, unet_trace};

/// Boundaries as `0F>1F: values bytes`.
fn boundaries(plan: &Plan) -> Vec<String> {
    let letter = |compute: Compute| compute.letter();
    plan.boundaries
        .iter()
        .map(|b| {
            let (from, to) = (b.edge.from, b.edge.to);
            format!(
                "{}{}>{}{}: {} {}",
                from.stage,
                letter(from.compute),
                to.stage,
                letter(to.compute),
                b.values,
                b.bytes
            )
        })
        .collect()
}

/// One activation and one gradient cross every boundary.
#[test]
fn a_chain_sends_one_value_each_way() {
    for stages in 2..=6 {
        let trace = mlp_trace(6, 8, stages);
        let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
        let bytes = 4 * 8 * 4;
        let mut expected: Vec<String> = (1..stages)
            .map(|k| format!("{}F>{k}F: 1 {bytes}", k - 1))
            .chain((1..stages).map(|k| format!("{k}B>{}B: 1 {bytes}", k - 1)))
            .collect();
        expected.sort();
        let mut found = boundaries(&plan);
        found.sort();
        assert_eq!(found, expected, "{stages} stages");
        for (index, stage) in plan.stages.iter().enumerate() {
            let ends = usize::from(index > 0) + usize::from(index + 1 < stages);
            assert_eq!(stage.boundary_bytes, (ends * bytes) as u64);
        }
    }
}

/// Dropout masks, the causal mask and shapes are computed where they are read.
#[test]
fn a_transformer_sends_its_residual_stream_alone() {
    let trace = gpt_trace(4, 4);
    let cuts = [1, 2, 3].map(|k| Cut::before(format!("blocks.{k}")));
    let plan = trace.plan_at(&cuts).unwrap();
    let bytes = 2 * 16 * 32 * 4;
    let found = boundaries(&plan);
    assert_eq!(found.len(), 6, "{found:?}");
    for boundary in found {
        assert!(boundary.ends_with(&format!(": 1 {bytes}")), "{boundary}");
    }
}

#[test]
fn skips_go_directly_to_their_readers() {
    let names = ["down.1", "down.2", "up.0", "up.1", "up.2"];
    let plan = unet_trace().plan_at(&names.map(Cut::before)).unwrap();
    let bytes = 2 * 4 * 5 * 5 * 4;
    // The gradient of a skip goes to the stage that computes the other part of the same gradient.
    let forward = [(0, 1), (0, 5), (1, 2), (1, 4), (2, 3), (3, 4), (4, 5)];
    let backward = [(1, 0), (2, 1), (3, 2), (4, 2), (4, 3), (5, 1), (5, 4)];
    let word = |letter| move |(a, b)| format!("{a}{letter}>{b}{letter}: 1 {bytes}");
    let forward = forward.into_iter().map(word('F'));
    let mut expected: Vec<String> = forward.chain(backward.into_iter().map(word('B'))).collect();
    expected.sort();
    let mut found = boundaries(&plan);
    found.sort();
    assert_eq!(found, expected);
}

#[test]
fn an_evaluation_program_has_no_backward() {
    let trace = mlp_trace(3, 8, 2);
    let example = tinderbox_pipeline_tests::floats([4, 8], 0, &burn::tensor::Device::flex());
    let joint = trace.program(Mode::Inference, &example).unwrap();
    assert!(joint.gradients().iter().all(Option::is_none));
    let nodes = joint.graph().node_ids();
    assert!(nodes.into_iter().all(|node| !joint.is_backward(node)));
}
