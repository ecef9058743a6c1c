//! The scheduler compared with the named schedules, and its errors.

use tinderbox_ids::with_causes;
use tinderbox_references::{Setting, settings};
use tinderbox_schedule::{
    Action, Auto, AutoOptions, Compute, ComputeTimes, Costs, Dependencies, Edge, Endpoint,
    RankIndex, StageCosts, StageIndex, auto, peak_bytes, simulate,
};

const TIMES: ComputeTimes = ComputeTimes::new(10, 10, 10);

fn ranks(of: &[usize]) -> Vec<RankIndex> {
    of.iter().copied().map(RankIndex::new).collect()
}

/// Solves a setting and checks the properties of every solution.
fn solve(setting: &Setting) -> Auto {
    let Setting {
        name,
        dependencies,
        costs,
        ..
    } = setting;
    let options = AutoOptions {
        memory_limits: setting.memory_limits.as_deref(),
        ..AutoOptions::default()
    };
    let map = &setting.stage_to_rank;
    let found = auto(map, setting.micro_batches, dependencies, costs, options).unwrap();
    let timeline = simulate(&found.schedule, dependencies, costs).unwrap();
    assert_eq!(timeline.makespan(), found.makespan, "{name}");
    let limits = setting.memory_limits.as_deref().unwrap_or(&[]);
    let mut peaks = peak_bytes(&found.schedule, costs).into_iter().zip(limits);
    assert!(peaks.all(|(peak, limit)| peak <= *limit), "{name}");
    assert!(found.lower_bound <= found.makespan, "{name}");
    found
}

/// Returns the median of some ratios.
fn median(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

/// Never slower than the best named schedule that fits, and faster if stages differ and memory
/// is scarce.
#[test]
fn the_grid() {
    let (mut ratios, mut gaps, mut hard) = (Vec::new(), Vec::new(), Vec::new());
    for setting in settings() {
        let found = solve(&setting);
        let best = found.best_named;
        let (kind, named) = best.expect("one named schedule fits each setting");
        let (makespan, name) = (found.makespan, &setting.name);
        assert!(makespan <= named, "{name}: {kind} takes {named}");
        let ratio = found.makespan as f64 / named as f64;
        ratios.push(ratio);
        gaps.push(found.makespan as f64 / found.lower_bound as f64);
        if setting.is_unequal && setting.is_binding {
            hard.push(ratio);
        }
    }
    assert_eq!(ratios.len(), 200);
    let count = hard.len();
    assert!(count >= 30, "{count} settings are unequal and bound");
    let least = ratios.iter().copied().fold(f64::MAX, f64::min);
    let (all, gap, hard) = (median(ratios), median(gaps), median(hard));
    println!("to the best named: median {all:.4}, least {least:.4}, unequal and bound {hard:.4}");
    println!("to the lower bound: median {gap:.4}");
    assert!(hard <= 0.97, "median {hard} of unequal and bound");
    assert!(all <= 0.985, "median {all}");
    assert!(gap <= 1.01, "median {gap} of the lower bound");
}

/// A single rank never waits, and holds one micro-batch at a time.
#[test]
fn one_rank_alone() {
    for (stages, expected) in [
        (1, "0F0 0B0 0F1 0B1"),
        (2, "0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1"),
    ] {
        let costs = Costs::uniform(stages, TIMES);
        let chain = Dependencies::chain(stages);
        let map = vec![RankIndex::new(0); stages];
        let found = auto(&map, 2, &chain, &costs, AutoOptions::default()).unwrap();
        assert_eq!(found.schedule.to_string().trim(), expected);
        assert_eq!(found.makespan, found.lower_bound);
    }
}

/// If a whole backward takes less time than its parts, the last rank only splits the last one, whose
/// first part another rank waits for.
#[test]
fn a_cheap_whole_backward_stays_whole() {
    let stage = StageCosts {
        backward: 12,
        ..StageCosts::of(TIMES)
    };
    let costs = Costs::of_stages(vec![stage; 2]);
    let map = ranks(&[0, 1]);
    let chain = Dependencies::chain(2);
    let found = auto(&map, 8, &chain, &costs, AutoOptions::default()).unwrap();
    let last = found.schedule.actions(RankIndex::new(1)).iter();
    let tasks = last.flat_map(Action::tasks);
    let split = tasks.filter(|task| task.compute == Compute::WeightGradient);
    assert!(split.count() <= 1);
    let (_, named) = found.best_named.unwrap();
    assert!(found.makespan <= named);
}

/// A map of no named schedule.
#[test]
fn any_map_has_a_schedule() {
    let costs = Costs::uniform(5, TIMES);
    let map = ranks(&[0, 2, 2, 1, 0]);
    let chain = Dependencies::chain(5);
    let found = auto(&map, 6, &chain, &costs, AutoOptions::default()).unwrap();
    assert_eq!((found.best_named, &*found.schedule.name), (None, "auto"));
    let timeline = simulate(&found.schedule, &chain, &costs).unwrap();
    assert_eq!(timeline.makespan(), found.makespan);
}

#[test]
fn errors_say_what_is_missing() {
    let mut costs = Costs::uniform(3, TIMES);
    costs.stages[1].resident_bytes = 70;
    let chain = Dependencies::chain(3);
    let limits = [80, 70, 80];
    let options = AutoOptions {
        memory_limits: Some(&limits),
        ..AutoOptions::default()
    };
    let error = |map: &[usize], m: usize, dependencies: &Dependencies, costs: &Costs| {
        with_causes(&auto(&ranks(map), m, dependencies, costs, options).unwrap_err())
    };
    let forward = |stage| Endpoint::forward(StageIndex::new(stage));
    let ends = [(0, 1), (1, 2), (2, 0)].map(|(a, b)| [a, b].map(forward));
    let cycle = ends.map(|[from, to]| Edge::new(from, to));
    let texts = [
        error(&[0, 1, 2], 4, &chain, &costs),
        error(&[0, 1, 2], 0, &chain, &costs),
        error(&[0, 1], 4, &chain, &costs),
        error(&[0, 1, 1 << 40], 4, &chain, &costs),
        error(&[0, 1, 2], 4, &chain, &Costs::uniform(2, TIMES)),
        error(&[0, 1, 2], 1, &Dependencies::new(3, cycle, []), &costs),
    ];
    insta::assert_snapshot!(texts.join("\n"), @r"
    rank 1 holds 71 bytes with one micro-batch in flight, and 70 is its limit: make the micro-batches smaller, give the rank fewer layers, or raise its limit
    there is no schedule for these stages: a schedule of 3 stages and 0 micro-batches has nothing to run: give it at least one of each
    there is no schedule for these stages: the stage-to-rank map has 2 entries for 3 stages: give one per stage
    there is no schedule for these stages: stage 2 is on rank 4294967295, but there are lists for 3 ranks: add the list or correct the stage-to-rank map
    there is no schedule for these stages: there are costs of 2 stages for a schedule of 3: give one per stage
    there is no schedule for these stages: deadlock, no rank of this cycle can continue: `0F0` (rank 0, position 0) waits for `2F0` (rank 2, position 0), `2F0` (rank 2, position 0) waits for `1F0` (rank 1, position 0), `1F0` (rank 1, position 0) waits for `0F0` (rank 0, position 0); move one of the awaited actions before the action at which its own rank waits
    ");
}
