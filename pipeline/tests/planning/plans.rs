//! Plans as files and tables, and how even they are.

use tinderbox_pipeline::{Cut, Machine, Plan};

use crate::models::{gpt_trace, mlp_trace};

fn three_stages() -> Plan {
    let cuts = [Cut::before("layers.1"), Cut::after("layers.2")];
    Plan::manual(&mlp_trace(4, 8), &cuts).unwrap()
}

#[test]
fn a_plan_as_json() {
    insta::assert_snapshot!(three_stages().to_json(), @"");
}

#[test]
fn a_plan_as_a_table() {
    insta::assert_snapshot!(three_stages(), @"");
    let gpt = gpt_trace(3);
    let plan = Plan::auto(&gpt, &Machine::local(3).unwrap()).unwrap();
    insta::assert_snapshot!(plan, @"");
}

#[test]
fn the_same_model_gives_the_same_bytes() {
    assert_eq!(three_stages().to_json(), three_stages().to_json());
    let auto = || Plan::auto(&gpt_trace(3), &Machine::local(4).unwrap()).unwrap();
    assert_eq!(auto().to_json(), auto().to_json());
}

#[test]
fn a_plan_survives_its_file() {
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
    loaded.check_model(mlp_trace(4, 8).parameters()).unwrap();
}

/// The modules of each stage.
fn modules(plan: &Plan) -> Vec<String> {
    plan.stages().iter().map(|s| s.modules.join(" ")).collect()
}

#[test]
fn cuts_by_hand() {
    let trace = mlp_trace(4, 8);
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
        assert_eq!(modules(&Plan::manual(&trace, &cuts).unwrap()), expected);
    }
    // Inside a block, and around one.
    let gpt = gpt_trace(2);
    let plan = Plan::manual(
        &gpt,
        &[Cut::before("blocks.0.attention"), Cut::after("blocks.0")],
    );
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

/// The fullest stage of an automatic cut has at most its share and the largest module.
#[test]
fn an_automatic_cut_is_even() {
    let trace = gpt_trace(4);
    for stages in 2..=5 {
        let plan = Plan::auto(&trace, &Machine::local(stages).unwrap()).unwrap();
        assert_eq!(plan.stages().len(), stages);
        let share = |of: &dyn Fn(usize) -> u64| {
            let all: u64 = (0..stages).map(of).sum();
            (0..stages).map(of).max().unwrap() as f64 / all as f64
        };
        let bytes = share(&|k| plan.stages()[k].parameter_bytes);
        let flops = share(&|k| plan.stages()[k].forward_flops);
        let largest = bytes.max(flops);
        println!(
            "{stages} stages: {:.1} % bytes, {:.1} % FLOPs",
            100.0 * bytes,
            100.0 * flops
        );
        assert!(
            largest <= 1.25 / stages as f64,
            "{stages} stages: {largest}"
        );
    }
}
