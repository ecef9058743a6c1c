//! The partitioner `chain`: compares its search with an exhaustive one, and its model with the simulator.

use tinderbox_planner::{
    Block, Infeasible, Machine, Parameter, Partition, PlannerError, Step, Value, Work, chain,
    chain_by_model, predict,
};
use tinderbox_references::{
    Numbers, Times, block, brute_force, large_case, small_case, small_step,
};
use tinderbox_schedule::{ComputeTimes, LinkCosts, Placement, ScheduleKind};

/// All positions in one search.
const ALL: usize = usize::MAX;

/// Few positions in one search, so that small chains are searched like large ones.
const FEW: usize = 3;

/// Small cases with one stage per rank: the search finds the best time, and no cuts exactly where none
/// fit.
#[test]
fn the_best_of_all_cuts_is_found() {
    let kinds = ScheduleKind::ALL.into_iter();
    let kinds = kinds.filter(|kind| kind.chunks().contains(1));
    let (mut solved, mut refused, mut again) = (0, 0, 0);
    for (kind, seed) in kinds.flat_map(|kind| (0..500).map(move |seed| (kind, seed))) {
        let mut numbers = Numbers::new(seed);
        let blocks = 1 + numbers.below(8) as usize;
        let work = small_case(blocks, &mut numbers);
        let (machine, step) = small_step(&mut numbers, kind);
        let best = brute_force(&work, &machine, &step);
        match chain_by_model(&work, &machine, &step, ALL) {
            Ok(found) => {
                solved += 1;
                again += usize::from(found.partition.recompute.contains(&true));
                assert_eq!(Some(found.model_ns), best, "{kind} {seed}");
                assert!(found.is_optimal, "{kind} {seed}");
            }
            Err(PlannerError::TooManyStages { stages, .. }) => assert!(stages > blocks),
            Err(PlannerError::Infeasible(_)) => {
                refused += 1;
                assert_eq!(best, None, "{kind} {seed}");
            }
            Err(error) => panic!("{kind} {seed}: {error}"),
        }
    }
    let enough = solved > 1500 && refused > 200 && again >= 40;
    assert!(enough, "{solved} {refused} {again}");
}

/// Chains of more blocks than positions: the cuts found fit, are not better than the optimum, and on
/// average are close to it.
#[test]
fn long_chains_are_cut_near_the_optimum() {
    let (mut solved, mut ratios) = (0, 0.0);
    for seed in 0..600 {
        let mut numbers = Numbers::new(seed);
        let blocks = 5 + numbers.below(6) as usize;
        let work = small_case(blocks, &mut numbers);
        let kind = [ScheduleKind::OneFOneB, ScheduleKind::ZbH1][seed as usize % 2];
        let (machine, step) = small_step(&mut numbers, kind);
        let best = brute_force(&work, &machine, &step);
        match chain_by_model(&work, &machine, &step, FEW) {
            Ok(found) => {
                let best = best.expect("cuts found fit");
                assert!(best <= found.model_ns && !found.is_optimal, "{seed}");
                ratios += found.model_ns as f64 / best.max(1) as f64;
                solved += 1;
            }
            Err(PlannerError::Infeasible(Infeasible::Cuts { .. })) => {}
            Err(PlannerError::Infeasible(reason)) => assert_eq!(best, None, "{seed} {reason}"),
            Err(error) => panic!("{seed}: {error}"),
        }
    }
    let mean = ratios / f64::from(solved);
    assert!(solved > 300 && mean < 1.01, "{solved} {mean}");
}

/// A chain of 700 blocks with fewer positions, compared with the optimum.
#[test]
fn positions_near_cuts_lead_to_the_optimum() {
    let machine = Machine::local(4).unwrap();
    let step = Step::new(ScheduleKind::OneFOneB, 16);
    for times in [Times::Equal, Times::Distinct, Times::Few] {
        let work = large_case(700, times, 7);
        let [few, all] = [64, 701].map(|positions| {
            let found = chain_by_model(&work, &machine, &step, positions);
            found.unwrap()
        });
        assert!(all.is_optimal && !few.is_optimal, "{times:?}");
        let ratio = few.model_ns as f64 / all.model_ns as f64;
        assert!((1.0..1.002).contains(&ratio), "{times:?} {ratio}");
    }
}

/// Ranks with several stages: the cuts found fit when they run, and are optimal without limits.
#[test]
fn stages_that_share_a_rank_fit_it() {
    let kinds = ScheduleKind::ALL.into_iter();
    let kinds = kinds.filter(|kind| kind.chunks().contains(2));
    let (mut solved, mut optimal) = (0, 0);
    for (kind, seed) in kinds.flat_map(|kind| (0..150).map(move |seed| (kind, seed))) {
        let mut numbers = Numbers::new(seed);
        let blocks = 2 + numbers.below(6) as usize;
        let work = small_case(blocks, &mut numbers);
        let (machine, step) = small_step(&mut numbers, kind);
        let machine = machine.with_chunks(2, kind.placement()).unwrap();
        let Ok(found) = chain(&work, &machine, &step) else {
            continue;
        };
        solved += 1;
        let predicted = predict(&work, &machine, &step, &found.partition).unwrap();
        let over = predicted.prediction.over_limit(&machine);
        assert_eq!(over, None, "{kind} {seed}");
        let best = brute_force(&work, &machine, &step);
        let mut ranks = machine.rank_models().iter();
        if ranks.all(|rank| rank.memory_bytes.is_none()) {
            assert_eq!(best, Some(found.model_ns), "{kind} {seed}");
        } else if let (Some(best), true) = (best, found.is_optimal) {
            // Limits that hold for each stage of a rank alone leave more cuts than limits that hold for all of them.
            assert!(found.model_ns <= best, "{kind} {seed}");
            optimal += 1;
        }
    }
    assert!(solved > 300 && optimal > 100, "{solved} {optimal}");
}

/// The limits of ranks hold when the schedule runs, buffers included.
#[test]
fn cuts_found_fit_when_they_run() {
    for seed in 0..400 {
        let mut numbers = Numbers::new(seed);
        let work = small_case(6, &mut numbers);
        let (machine, step) = small_step(&mut numbers, ScheduleKind::GPipe);
        let Ok(found) = chain(&work, &machine, &step) else {
            continue;
        };
        let predicted = predict(&work, &machine, &step, &found.partition).unwrap();
        assert_eq!(predicted.prediction.over_limit(&machine), None, "{seed}");
    }
}

/// One block per stage, so that the cuts are fixed.
fn stages_of(times: &[[u64; 3]]) -> Work {
    let blocks = times.iter().enumerate().map(|(at, [f, i, w])| {
        let times = ComputeTimes::new(*f, *i, *w);
        block(format!("b{at}"), times)
    });
    let values = (1..times.len()).map(|at| Value {
        bytes: 1,
        maker: at - 1,
        readers: vec![at],
        gradient_bytes: 1,
        ..Value::default()
    });
    Work {
        blocks: blocks.collect(),
        values: values.collect(),
        ..Work::default()
    }
}

/// The times of the model and of the simulator, with one block in each stage.
fn model_and_simulator(kind: ScheduleKind, size: [usize; 3], times: &[[u64; 3]]) -> [u64; 2] {
    let [ranks, chunks, micro_batches] = size;
    let machine = Machine::local(ranks).unwrap();
    let mut machine = machine.with_chunks(chunks, kind.placement()).unwrap();
    (machine.action_ns, machine.link) = (0, LinkCosts::default());
    let step = Step::new(kind, micro_batches);
    let work = stages_of(times);
    let found = chain(&work, &machine, &step).unwrap();
    let predicted = predict(&work, &machine, &step, &found.partition).unwrap();
    [found.model_ns, predicted.prediction.step_ns]
}

/// Equal stages, for every schedule with a formula.
#[test]
fn the_model_is_exact_where_formulas_are() {
    let alike = [
        [1, 1, 1],
        [2, 3, 1],
        [2, 2, 0],
        [5, 1, 1],
        [1, 5, 1],
        [3, 4, 3],
        [4, 2, 6],
        [3, 4, 7],
    ];
    let sizes = [(1, 3), (2, 2), (2, 8), (4, 4), (4, 7), (4, 9), (8, 16)];
    for kind in ScheduleKind::ALL {
        for (chunks, (ranks, micro_batches)) in (1..=3).flat_map(|v| sizes.map(|size| (v, size))) {
            if !kind.chunks().contains(chunks) {
                continue;
            }
            for times in alike {
                let is_one = times == [1, 1, 1];
                let has_formula = match kind {
                    ScheduleKind::Zbv => is_one && micro_batches >= 2 * ranks - 1,
                    ScheduleKind::DualPipeV => is_one && micro_batches >= 2 * ranks,
                    ScheduleKind::VHalf | ScheduleKind::VMin => false,
                    ScheduleKind::ZbH2 => micro_batches >= 2 * ranks - 1,
                    _ => true,
                };
                if has_formula {
                    let size = [ranks, chunks, micro_batches];
                    let all = vec![times; ranks * chunks];
                    let [model, simulator] = model_and_simulator(kind, size, &all);
                    assert_eq!(model, simulator, "{kind} {size:?} {times:?}");
                }
            }
        }
    }
}

/// Fewer micro-batches than ranks, where whole backwards are exact too.
#[test]
fn the_model_is_exact_below_one_round() {
    for (kind, chunks) in [
        (ScheduleKind::GPipe, 1),
        (ScheduleKind::OneFOneB, 1),
        (ScheduleKind::LoopedBfs, 3),
        (ScheduleKind::Interleaved1F1B, 2),
    ] {
        for micro_batches in 1..4 {
            let size = [4, chunks, micro_batches];
            let [model, simulator] = model_and_simulator(kind, size, &vec![[2, 3, 4]; 4 * chunks]);
            assert_eq!(model, simulator, "{kind} {size:?}");
        }
    }
}

/// Mean and largest deviation from the simulator over random stages whose times differ by up to a
/// fifth, in thousandths.
#[test]
fn the_model_is_near_the_simulator() {
    let mut table = String::new();
    for kind in ScheduleKind::ALL {
        let chunks = match kind {
            ScheduleKind::Interleaved1F1B => 2,
            _ => kind.chunks().least(),
        };
        let (mut sum, mut largest) = (0, 0);
        for seed in 0..60 {
            let mut numbers = Numbers::new(seed);
            let ranks = 2 + numbers.below(6) as usize;
            let micro_batches = 2 * ranks + numbers.below(24) as usize;
            let stages = 0..ranks * chunks;
            let times = stages.map(|_| [0; 3].map(|_| 1000 + numbers.below(200)));
            let times: Vec<[u64; 3]> = times.collect();
            let size = [ranks, chunks, micro_batches];
            let [model, simulator] = model_and_simulator(kind, size, &times);
            let off = model.abs_diff(simulator) * 1000 / simulator;
            sum += off;
            largest = largest.max(off);
        }
        table += &format!("{kind} {} {largest}\n", sum / 60);
    }
    insta::assert_snapshot!(table, @r"
    gpipe 7 34
    1f1b 2 14
    looped-bfs 7 34
    interleaved-1f1b 29 71
    zb-h1 2 9
    zb-h2 17 47
    interleaved-zb 2 9
    zbv 21 61
    v-half 42 89
    v-min 54 116
    dualpipev 26 55
    ");
}

/// A chain of blocks, each with a parameter and a value that its backward reads.
fn chain_of(blocks: usize, parameter_bytes: u64, kept_bytes: u64) -> Work {
    let mut work = stages_of(&vec![[100, 100, 100]; blocks]);
    let parameters = (0..blocks).map(|at| Parameter {
        bytes: parameter_bytes,
        is_trainable: true,
        readers: vec![at],
        ..Parameter::default()
    });
    work.parameters.extend(parameters);
    work.values.extend((0..blocks).map(|at| Value {
        bytes: kept_bytes,
        maker: at,
        keepers: vec![at],
        ..Value::default()
    }));
    work
}

fn refused(work: &Work, machine: &Machine, step: &Step) -> String {
    match chain(work, machine, step) {
        Err(PlannerError::Infeasible(reason)) => reason.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_reason_for_no_cuts_is_reported() {
    let step = Step::new(ScheduleKind::OneFOneB, 4);
    let machine = |bytes| Machine::local(3).unwrap().with_memory_limit(bytes);
    let mut large = chain_of(6, 1 << 20, 0);
    large.parameters[4].bytes = 40 << 20;
    insta::assert_snapshot!(
        refused(&large, &machine(100 << 20), &step),
        @"`b4` needs at least 160 MiB on any rank, and the largest memory limit is 100 MiB: use smaller micro-batches or finer blocks, or allow recomputation of activations"
    );
    let all = chain_of(6, 100, 0);
    insta::assert_snapshot!(
        refused(&all, &machine(700), &step),
        @"the stages need at least 2.34 KiB in total, and the memory limits of the ranks add up to 2.05 KiB: use more ranks, smaller micro-batches or an optimizer with less state"
    );
    // Rank 0 keeps three micro-batches and fits one block, rank 1 one and rank 2 two: two less than there
    // are.
    let uneven = chain_of(6, 100, 100);
    insta::assert_snapshot!(
        refused(&uneven, &machine(1100), &step),
        @"the other ranks have no memory left for the blocks from `b0` to `b2`, which need 2.05 KiB on rank 0, whose memory limit is 1.07 KiB: use more ranks, a schedule with fewer micro-batches in flight, or recomputation of activations (`may_recompute`)"
    );
    // Two messages wait at each stage; no stage is too large without them.
    let mut wide = chain_of(2, 1, 1);
    wide.values[0].bytes = 500;
    let two = Machine::local(2).unwrap().with_memory_limit(600);
    insta::assert_snapshot!(
        refused(&wide, &two, &step),
        @"found no cuts into 2 stages that fit: the closest need 1005 B on rank 1, whose memory limit is 600 B: use more ranks or smaller micro-batches, or allow recomputation of activations"
    );
}

/// Exactly the ranks whose stages fit only with recomputation recompute activations.
#[test]
fn activations_are_recomputed_where_memory_requires_it() {
    let work = chain_of(4, 0, 100);
    let machine = Machine::local(4).unwrap().with_memory_limit(250);
    let step = Step {
        may_recompute: true,
        ..Step::new(ScheduleKind::OneFOneB, 8)
    };
    let found = chain(&work, &machine, &step).unwrap();
    assert_eq!(found.partition.recompute, [true, true, false, false]);
    assert!(found.is_optimal);
}

/// Degenerate work must not panic, and results have the requested number of stages.
#[test]
fn degenerate_work_is_cut_or_refused() {
    let block = |time: u64| Block {
        backward: time,
        weight_gradient_bytes: time,
        transient_bytes: time,
        ..tinderbox_references::block("b".to_owned(), ComputeTimes::new(time, time, time))
    };
    let times = [0, 1, u64::MAX].into_iter();
    for (time, blocks) in times.flat_map(|t| [0, 1, 2, 5].map(|n| (t, n))) {
        let mut work = Work {
            blocks: vec![block(time); blocks],
            ..Work::default()
        };
        if blocks > 1 {
            work.values.push(Value {
                bytes: time,
                maker: 0,
                readers: vec![1],
                keepers: vec![0, 1],
                gradient_bytes: time,
            });
            let parameter = Parameter {
                bytes: time,
                is_trainable: true,
                readers: vec![0, 1],
                ..Parameter::default()
            };
            work.parameters = vec![parameter; 3];
        }
        for kind in ScheduleKind::ALL {
            let chunks = kind.chunks().least();
            for (ranks, m) in [1, 3].into_iter().flat_map(|p| [0, 1, 7].map(|m| (p, m))) {
                for memory in [None, Some(0), Some(u64::MAX - 1)] {
                    let mut machine = Machine::local(ranks).unwrap();
                    if let Some(bytes) = memory {
                        machine = machine.with_memory_limit(bytes);
                    }
                    machine.action_ns = time;
                    machine.link.latency = time;
                    machine.link.ticks_per_mib = time;
                    let machine = machine.with_chunks(chunks, kind.placement()).unwrap();
                    let step = Step {
                        may_recompute: true,
                        ..Step::new(kind, m)
                    };
                    for positions in [ALL, FEW] {
                        let all = chain_by_model(&work, &machine, &step, positions);
                        for found in [chain(&work, &machine, &step), all].into_iter().flatten() {
                            assert_eq!(found.partition.stages(), ranks * chunks);
                        }
                    }
                }
            }
        }
    }
    let on = |ranks: usize, work: &Work| {
        let machine = Machine::local(ranks).unwrap();
        chain(work, &machine, &Step::new(ScheduleKind::GPipe, 1))
    };
    let few = on(3, &chain_of(2, 1, 1));
    let Err(PlannerError::TooManyStages { stages, blocks }) = few else {
        panic!("{few:?}")
    };
    assert_eq!((stages, blocks), (3, 2));
    let mut wrong = chain_of(2, 1, 1);
    wrong.values[0].maker = 7;
    assert!(matches!(on(1, &wrong), Err(PlannerError::Work(_))));
}

/// A schedule for other numbers of stages than the machine has is replaced by the model of 1F1B and
/// searched lists.
#[test]
fn a_schedule_that_does_not_fit_the_ranks_is_replaced() {
    let work = large_case(12, Times::Distinct, 3);
    let machine = Machine::local(2).unwrap();
    let machine = machine.with_chunks(3, Placement::Loop).unwrap();
    let step = Step::new(ScheduleKind::Zbv, 4);
    let found = chain(&work, &machine, &step).unwrap();
    assert!(found.is_optimal);
    let Partition { stage_of, .. } = &found.partition;
    assert!(stage_of.is_sorted() && stage_of[11] == 5);
}
