//! The contents of a profile, its cache, and plans with its times.

use std::cell::Cell;
use std::fs;

use burn::tensor::{Device, Int, Tensor};
use tinderbox_pipeline::{
    Machine, Outputs, Planner, Profile, ProfileError, Profiler, Trace, Traceable, calibrate,
};
use tinderbox_pipeline_tests::{floats, full_text};

use crate::models::{Mlp, gpt_trace, mlp, mlp_trace};

fn quick(trace: &Trace<Tensor<2, Int>>) -> Profiler<'_, Tensor<2, Int>> {
    Profiler::new(trace).warm_up(1).repetitions(3)
}

fn names(profile: &Profile) -> Vec<&str> {
    let names = profile.blocks.iter().map(|block| block.name.as_str());
    names.collect()
}

#[test]
fn blocks_follow_the_module_tree() {
    let trace = gpt_trace(2, 1);
    let two = quick(&trace).measure().unwrap();
    assert_eq!(
        names(&two),
        [
            "tokens",
            "positions",
            "blocks.0",
            "blocks.1",
            "norm",
            "head"
        ]
    );
    let one = quick(&trace).depth(1).measure().unwrap();
    assert_eq!(
        names(&one),
        ["tokens", "positions", "blocks", "norm", "head"]
    );
    let deep = quick(&trace)
        .depth(9)
        .basic_blocks(["MultiHeadAttention"])
        .measure()
        .unwrap();
    assert!(names(&deep).contains(&"blocks.1.attention"));
    assert!(names(&deep).contains(&"blocks.1.up"));
    assert!(!names(&deep).contains(&"blocks.1.attention.query"));
    for profile in [one, two, deep] {
        // Every operation is in one block.
        let mut next = 0;
        for block in &profile.blocks {
            assert_eq!(block.operations.0, next);
            next = block.operations.1;
            assert_eq!(block.forward.runs.clamp(1, 3), block.forward.runs);
            assert!(block.forward.median_ns > 0 && block.backward.median_ns > 0);
            assert!(block.sizes.forward_peak_bytes >= block.sizes.parameter_bytes);
        }
        let plan = Planner::new(&trace, &Machine::local(1).unwrap())
            .cuts(&[])
            .plan();
        assert_eq!(next, plan.unwrap().forward.len());
        let parameters: u64 = profile.blocks.iter().map(|b| b.sizes.parameter_bytes).sum();
        assert_eq!(parameters, trace.parameters().bytes());
    }
}

#[test]
fn a_profile_is_a_table_and_json() {
    let trace = gpt_trace(1, 1);
    let profile = quick(&trace).measure().unwrap();
    let table = profile.to_string();
    for name in names(&profile) {
        assert!(table.contains(name), "{table}");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/profile.json");
    profile.save(&path).unwrap();
    assert_eq!(Profile::load(&path).unwrap(), profile);
    fs::write(&path, format!("\u{feff}{}", profile.to_json())).unwrap();
    assert_eq!(Profile::load(&path).unwrap(), profile);
    let newer = profile
        .to_json()
        .replacen("\"version\": 1", "\"version\": 9", 1);
    fs::write(&path, newer).unwrap();
    assert_eq!(
        full_text(&Profile::load(&path).unwrap_err()),
        "the profile has version 9, but this build reads version 1: measure again"
    );
}

/// Cached measurements are reused; unreadable ones are repeated.
#[test]
fn the_cache_is_by_graph_device_and_settings() {
    let trace = gpt_trace(1, 1);
    let directory = tempfile::tempdir().unwrap();
    let measured = Cell::new(0);
    let measure = |depth| {
        measured.set(0);
        let profiler = quick(&trace).depth(depth).cache(directory.path());
        let profiler = profiler.progress(|_, _, _| measured.set(measured.get() + 1));
        let profile = profiler.measure().unwrap();
        (profile, measured.get())
    };
    let (first, blocks) = measure(2);
    assert_eq!(blocks, first.blocks.len());
    assert_eq!(measure(2), (first.clone(), 0));
    assert!(measure(1).1 > 0);
    let files = || fs::read_dir(directory.path()).unwrap();
    assert_eq!(files().count(), 2);
    for file in files() {
        let path = file.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() / 2]).unwrap();
    }
    assert_eq!(measure(2).1, blocks);
    assert_eq!(measure(2).1, 0);
    assert_eq!(files().count(), 2);
}

/// The times of a plan's stages are the medians of their blocks.
#[test]
fn plans_use_the_measured_times() {
    let trace = gpt_trace(2, 2);
    let profile = quick(&trace).measure().unwrap();
    let mut machine = Machine::local(2).unwrap();
    machine.action_ns = 0;
    let plan = Planner::new(&trace, &machine)
        .times(profile.times(&trace).unwrap())
        .plan()
        .unwrap();
    let planned = plan.stages.iter().map(|stage| stage.costs.forward);
    let planned: u64 = planned.sum();
    let measured = profile.blocks.iter().map(|block| block.forward.median_ns);
    let measured: u64 = measured.sum();
    let ratio = planned as f64 / measured as f64;
    // The times of operations are whole nanoseconds, and every stage that reads a mask computes it.
    assert!((0.99..1.1).contains(&ratio), "{planned} of {measured}");
}

#[test]
fn profiles_of_other_programs_are_refused() {
    let profile = quick(&gpt_trace(1, 1)).measure().unwrap();
    let error = profile.times(&gpt_trace(2, 1)).unwrap_err();
    assert!(matches!(error, ProfileError::OtherProgram));
    let deeper = Profile {
        depth: 3,
        ..profile
    };
    assert_eq!(
        full_text(&deeper.times(&gpt_trace(1, 1)).unwrap_err()),
        "the profile is of another program or of other blocks: measure again"
    );
}

/// Two forwards of one model: the plan of one is refused for the other.
#[test]
fn plans_of_another_forward_are_refused() {
    let model = mlp(3, 8);
    let batch = floats([8, 8], 0, &Device::flex());
    let without = |net: &Mlp, x: Tensor<2>| {
        let x = net.layers.iter().fold(x, |x, layer| layer.forward(x));
        Outputs::loss(x.mean())
    };
    let other = model.trace(&batch, 2, without).unwrap();
    let plan = Planner::new(&mlp_trace(3, 8, 2), &Machine::local(2).unwrap())
        .plan()
        .unwrap();
    let error = tinderbox_pipeline::Pipeline::builder(&model, &other, &plan)
        .start()
        .unwrap_err();
    assert_eq!(
        full_text(&error),
        "the plan can't be used\nthe plan is for another forward of this model: operation 3 is \
         `Activation.Gelu f32[4, 8] in layers.0` in the plan and `Float.Matmul f32[4, 8] in layers.1` \
         in the model; create a plan for this one"
    );
}

#[test]
fn a_machine_is_measured() {
    let machine = calibrate(&Device::flex(), 2, 1).unwrap();
    assert_eq!(machine.ranks(), 2);
    let rates = machine.rates;
    assert!(rates.flops_per_s > 1_000_000 && rates.bytes_per_s > 1_000_000);
    assert!(rates.operation_ns > 0 && machine.action_ns > 0);
    // A message may arrive before its sender has recorded the send, so its latency may be 0.
    assert!(machine.link.ticks_per_mib > 0);
    assert_eq!(Machine::from_json(&machine.to_json()).unwrap(), machine);
    assert_eq!(
        full_text(&calibrate(&Device::flex(), 0, 1).unwrap_err()),
        "a plan needs at least one rank"
    );
}
