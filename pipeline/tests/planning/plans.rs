//! Plans as files and tables, and how even they are.

use tinderbox_pipeline::{Cut, Machine, Plan};

use crate::models::{gpt_trace, mlp_trace};

fn three_stages() -> Plan {
    let cuts = [Cut::before("layers.1"), Cut::after("layers.2")];
    Plan::manual(&mlp_trace(4, 8), &cuts).unwrap()
}

#[test]
fn a_plan_as_json() {
    insta::assert_snapshot!(three_stages().to_json(), @r#"
    {
      "version": 1,
      "model": "e46a441bcd74c8cc58b485997a4ba754",
      "program": "training :F32[4, 8]",
      "stages": [
        {
          "stage": 0,
          "rank": 0,
          "modules": [
            "layers.0"
          ],
          "parameters": [
            "layers.0.weight",
            "layers.0.bias"
          ],
          "replicas": [],
          "parameter_bytes": 288,
          "replica_bytes": 0,
          "forward_flops": 576,
          "boundary_bytes": 128
        },
        {
          "stage": 1,
          "rank": 1,
          "modules": [
            "layers.1",
            "layers.2"
          ],
          "parameters": [
            "layers.1.weight",
            "layers.1.bias",
            "layers.2.weight",
            "layers.2.bias"
          ],
          "replicas": [],
          "parameter_bytes": 576,
          "replica_bytes": 0,
          "forward_flops": 1152,
          "boundary_bytes": 256
        },
        {
          "stage": 2,
          "rank": 2,
          "modules": [
            "layers.3"
          ],
          "parameters": [
            "layers.3.weight",
            "layers.3.bias"
          ],
          "replicas": [],
          "parameter_bytes": 288,
          "replica_bytes": 0,
          "forward_flops": 640,
          "boundary_bytes": 128
        }
      ],
      "boundaries": [
        {
          "edge": {
            "from": {
              "stage": 0,
              "compute": "forward"
            },
            "to": {
              "stage": 1,
              "compute": "forward"
            }
          },
          "values": 1,
          "bytes": 128
        },
        {
          "edge": {
            "from": {
              "stage": 1,
              "compute": "forward"
            },
            "to": {
              "stage": 2,
              "compute": "forward"
            }
          },
          "values": 1,
          "bytes": 128
        },
        {
          "edge": {
            "from": {
              "stage": 1,
              "compute": "backward"
            },
            "to": {
              "stage": 0,
              "compute": "backward"
            }
          },
          "values": 1,
          "bytes": 128
        },
        {
          "edge": {
            "from": {
              "stage": 2,
              "compute": "backward"
            },
            "to": {
              "stage": 1,
              "compute": "backward"
            }
          },
          "values": 1,
          "bytes": 128
        }
      ]
    }
    "#);
}

#[test]
fn a_plan_as_a_table() {
    insta::assert_snapshot!(three_stages(), @r#"
    ──────────────────────────────────────────────────────────────────────────────
     stage   rank   modules             parameters    MiB   boundary MiB    FLOPs 
    ══════════════════════════════════════════════════════════════════════════════
         0      0   layers.0                     2   0.00           0.00   24.3 % 
         1      1   layers.1 layers.2            4   0.00           0.00   48.6 % 
         2      2   layers.3                     2   0.00           0.00   27.0 % 
    ──────────────────────────────────────────────────────────────────────────────
    "#);
    let gpt = gpt_trace(3);
    let plan = Plan::auto(&gpt, &Machine::local(3).unwrap()).unwrap();
    insta::assert_snapshot!(plan, @r#"
    ──────────────────────────────────────────────────────────────────────────────────────
     stage   rank   modules                     parameters    MiB   boundary MiB    FLOPs 
    ══════════════════════════════════════════════════════════════════════════════════════
         0      0   tokens positions blocks.0           18   0.06           0.00   31.6 % 
         1      1   blocks.1                            16   0.05           0.01   31.5 % 
         2      2   blocks.2 norm head                  19   0.06           0.00   36.8 % 
    ──────────────────────────────────────────────────────────────────────────────────────
    "#);
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
