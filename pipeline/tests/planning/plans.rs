//! Plans as files and tables, and their balance.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};
use tinderbox_pipeline::schedule::{RankIndex, ScheduleKind};
use tinderbox_pipeline::{Cut, Machine, Outputs, Plan, Planner, Traceable, check_model};
use tinderbox_pipeline_tests::floats;

use crate::models::{Mlp, gpt_trace, mlp, mlp_trace};

fn three_stages() -> Plan {
    let cuts = [Cut::before("layers.1"), Cut::after("layers.2")];
    mlp_trace(4, 8, 3).plan_at(&cuts).unwrap()
}

/// From a plan with another step: as if the same stages were planned for it.
#[test]
fn the_memory_of_another_step() {
    let traces: BTreeMap<usize, _> = [4, 6, 8].map(|count| (count, gpt_trace(4, count))).into();
    let machine = Machine::local(2).unwrap();
    let cuts = [
        Cut::before("blocks.1"),
        Cut::before("blocks.2"),
        Cut::before("blocks.3"),
    ];
    let memory = |plan: &Plan| {
        let ranks = plan.prediction.ranks.iter();
        ranks.map(|rank| rank.memory).collect::<Vec<_>>()
    };
    let [first, second] = [0, 1].map(RankIndex::new);
    let places = [
        (&cuts[1..2], vec![first, second]),
        (&cuts[..], vec![first, second, first, second]),
        (&cuts[..], vec![first, second, second, first]),
    ];
    for kind in ScheduleKind::ALL {
        let mut compared = 0;
        for (cuts, ranks) in &places {
            let planned = |(count, states): (usize, u64)| {
                let planner = Planner::new(&traces[&count], &machine).schedule(kind);
                let planner = planner.cuts(cuts).optimizer_states(states);
                planner.on_ranks(ranks).without_programs().plan().ok()
            };
            let plans = [(4, 2), (8, 2), (4, 0), (6, 1)].map(planned);
            let plans: Vec<Plan> = plans.into_iter().flatten().collect();
            for (from, to) in plans
                .iter()
                .flat_map(|from| plans.iter().map(move |to| (from, to)))
            {
                let found = from.memory_with(&to.step).unwrap();
                assert_eq!(found, memory(to), "{kind}");
                compared += usize::from(from.step != to.step);
            }
        }
        assert!(compared >= 12, "{compared} of {kind}");
    }
}

#[test]
fn a_plan_as_a_table() {
    insta::assert_snapshot!(three_stages(), @r#"
    model        e46a441bcd74, 8 parameters, 1.12 KiB
    program      training :F32[4, 8], operations fd65de5b4514
    machine      3 ranks, no memory limit
                 a message takes 5.00 µs, an action 3.00 µs besides its work
    schedule     1f1b, 3 micro-batches
    partitioner  manual
                 cut by hand before `layers.1`, after `layers.2`

    step         249 µs, of which the ranks are idle 54.2 %
    lower bound  76.9 µs, so the step is at most 223.3 % above the optimum
    bottleneck   stage 1, 33.9 µs of F and B per micro-batch
    messages     1.50 KiB between ranks per step

    Stages
    ────────────────────────────────────────────────────────
    stage  rank  modules            parameters    B   FLOPs
    ════════════════════════════════════════════════════════
        0     0  layers.0                    2  288  18.2 %
        1     1  layers.1 layers.2           4  576  54.5 %
        2     2  layers.3                    2  288  27.3 %
    ────────────────────────────────────────────────────────

    One micro-batch on each stage
    ───────────────────────────────────────────────────────────
    stage   F µs   B µs   I µs   W µs  kept B  for W B  sent B
    ═══════════════════════════════════════════════════════════
        0   6.13   7.74   0.00   7.74     128      256     128
        1  12.26  21.61   9.22  12.38     512      512     256
        2   9.18  19.98  13.79   6.19     384      256     128
    ───────────────────────────────────────────────────────────

    One step on each rank
    idle: the part of the step in which a rank runs nothing
    bubble: the idle time of a rank between its first and its last action
    ─────────────────────────────────────────
    rank  stages  busy µs  bubble µs    idle
    ═════════════════════════════════════════
       0  0          75.2      173.3  69.7 %
       1  1         144.8       65.5  41.7 %
       2  2         121.1       26.7  51.3 %
    ─────────────────────────────────────────

    Memory of each rank at its peak, KiB
    ───────────────────────────────────────────────────────────────────────────────
    rank  parameters  gradients  optimizer  activations  transient  buffers  total
    ═══════════════════════════════════════════════════════════════════════════════
       0       0.281      0.281      0.563        0.375      0.250    0.125  1.875
       1       0.563      0.563      1.125        1.000      0.531    0.250  4.031
       2       0.281      0.281      0.563        0.375      0.406    0.125  2.031
    ───────────────────────────────────────────────────────────────────────────────

    Boundaries, per micro-batch
    ────────────────────────────────────────────────────────
    from              to                ranks   values    B
    ════════════════════════════════════════════════════════
    stage 0 forward   stage 1 forward   0 -> 1       1  128
    stage 1 forward   stage 2 forward   1 -> 2       1  128
    stage 1 backward  stage 0 backward  1 -> 0       1  128
    stage 2 backward  stage 1 backward  2 -> 1       1  128
    ────────────────────────────────────────────────────────
    "#);
}

#[test]
fn the_same_model_produces_the_same_bytes() {
    assert_eq!(three_stages().to_json(), three_stages().to_json());
    let auto = || gpt_trace(3, 4).plan(&Machine::local(4).unwrap()).unwrap();
    assert_eq!(auto().to_json(), auto().to_json());
}

#[test]
fn a_plan_is_read_back_unchanged() {
    let path = std::env::temp_dir().join(format!("tinderbox-plan-{}.json", std::process::id()));
    let plan = three_stages();
    plan.save(&path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let loaded = Plan::load(&path);
    std::fs::remove_file(&path).unwrap();
    let loaded = loaded.unwrap();
    assert_eq!(loaded, plan);
    assert_eq!(loaded.to_json(), text);
    assert!(text.ends_with("}\n"));
    check_model(&loaded, mlp_trace(4, 8, 3).parameters()).unwrap();
}

/// The modules of each stage.
fn modules(plan: &Plan) -> Vec<String> {
    plan.stages.iter().map(|s| s.modules.join(" ")).collect()
}

#[test]
fn cuts_by_hand() {
    let trace = mlp_trace(4, 8, 3);
    for (cuts, expected) in [
        (vec![], vec!["layers.0 layers.1 layers.2 layers.3"]),
        (
            vec![Cut::before("layers.2")],
            vec!["layers.0 layers.1", "layers.2 layers.3"],
        ),
        (
            vec![Cut::after("layers.2")],
            vec!["layers.0 layers.1 layers.2", "layers.3"],
        ),
        (
            vec![Cut::after("layers.0"), Cut::before("layers.3")],
            vec!["layers.0", "layers.1 layers.2", "layers.3"],
        ),
    ] {
        assert_eq!(modules(&trace.plan_at(&cuts).unwrap()), expected);
    }
    // Inside a block, and around one.
    let gpt = gpt_trace(2, 3);
    let plan = gpt.plan_at(&[Cut::before("blocks.0.attention"), Cut::after("blocks.0")]);
    assert_eq!(
        modules(&plan.unwrap()),
        [
            "tokens positions blocks.0.norm_1",
            "blocks.0.attention.query blocks.0.attention.key blocks.0.attention.value \
             blocks.0.attention.output blocks.0.norm_2 blocks.0.up blocks.0.down",
            "blocks.1.norm_1 blocks.1.attention.query blocks.1.attention.key \
             blocks.1.attention.value blocks.1.attention.output blocks.1.norm_2 blocks.1.up \
             blocks.1.down norm head",
        ]
    );
}

/// A module that the forward does not read belongs to the stage of its neighbours, and moves no cut.
#[test]
fn unread_parameters_stay_with_their_module() {
    let half = |net: &Mlp, x: Tensor<2>| {
        // The second layer, and the bias of the third.
        let x = net.layers[0].forward(x).matmul(net.layers[2].weight.val());
        Outputs::loss(net.layers[3].forward(x).mean())
    };
    let example = floats([4, 8], 0, &Device::flex());
    let trace = mlp(4, 8).trace(&example, 1, half).unwrap();
    let plan = trace.plan_at(&[Cut::before("layers.2")]).unwrap();
    assert_eq!(modules(&plan), ["layers.0 layers.1", "layers.2 layers.3"]);
    let owned = |k: usize| {
        let paths = plan.stages[k].parameters.iter();
        paths.map(|p| p.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        owned(0),
        [
            "layers.0.weight",
            "layers.1.weight",
            "layers.1.bias",
            "layers.0.bias"
        ]
    );
    assert_eq!(
        owned(1),
        [
            "layers.2.weight",
            "layers.2.bias",
            "layers.3.weight",
            "layers.3.bias"
        ]
    );
}
