//! A pipeline computes the same as plain Burn: loss, every gradient, and the parameters after three steps,
//! bit for bit, for every number of ranks and chunks, schedule and number of micro-batches, with and without
//! recomputation.

use std::collections::BTreeMap;

use burn::optim::AdamWConfig;
use burn::tensor::{Device, TensorData};
use tinderbox::pipeline::ScheduleChoice;
use tinderbox::schedule::{AutoOptions, Placement, Schedule, auto, peak_bytes, simulate};
use tinderbox::{Deferred, Machine, Pipeline, Plan, Planner, ScheduleKind, Trace};
use tinderbox_models::split::split;

use crate::models::{
    Case, LanguageModel, Mlp, SAMPLES, StraightThrough, Tied, UNet, deferred, trace,
};
use crate::plain::{LR, Run, SEED, data, train};

const STEPS: u64 = 3;

/// The micro-batches of every step, as used by the reference.
pub fn micro_batches<C: Case>(case: &C, count: usize) -> Vec<Vec<(C::Batch, usize)>> {
    let device = Device::flex().autodiff();
    (0..STEPS)
        .map(|step| {
            let batch = case.batch(step, &device);
            split(&batch, count)
        })
        .collect()
}

/// Trains in a pipeline, with the micro-batches of the trace.
pub fn run<C: Case>(
    case: &C,
    model: &Deferred<C::Model>,
    trace: &Trace<C::Batch>,
    plan: &Plan,
    schedule: impl Into<ScheduleChoice>,
) -> Run {
    let device = Device::flex();
    let mut pipeline = Pipeline::builder(model, trace, plan)
        .optimizer(AdamWConfig::new())
        .schedule(schedule)
        .seed(SEED)
        .keep_gradients()
        .start()
        .unwrap();
    let mut run = Run::default();
    for step in 0..STEPS {
        let output = pipeline.step(LR, case.batch(step, &device)).unwrap();
        run.losses.push(output.micro_batch_losses);
        if step == 0 {
            run.gradients = from_ranks(&mut pipeline, |stage| {
                stage
                    .gradients()
                    .map(|(p, g)| (p.to_string(), data(g.clone())))
                    .collect()
            });
        }
    }
    run.parameters = from_ranks(&mut pipeline, |stage| {
        stage
            .parameters()
            .values()
            .map(|(p, v)| (p.to_string(), data(v)))
            .collect()
    });
    run
}

fn from_ranks<C, B>(
    pipeline: &mut Pipeline<C, B>,
    read: impl Fn(&tinderbox::pipeline::Stage) -> Vec<(String, TensorData)> + Send + Sync + 'static,
) -> BTreeMap<String, TensorData>
where
    C: burn::module::Module + Sync + 'static,
    B: tinderbox::Batch,
{
    let found = pipeline
        .on_ranks(move |_, stages| stages.iter().flat_map(&read).collect::<Vec<_>>())
        .unwrap();
    found.into_iter().flatten().collect()
}

pub fn assert_same(found: &Run, expected: &Run, what: &str) {
    assert_eq!(found.losses, expected.losses, "losses, {what}");
    for (name, found, expected) in [
        ("gradients", &found.gradients, &expected.gradients),
        ("parameters", &found.parameters, &expected.parameters),
    ] {
        let paths = |run: &BTreeMap<String, TensorData>| run.keys().cloned().collect::<Vec<_>>();
        assert_eq!(paths(found), paths(expected), "{name}, {what}");
        for (path, expected) in expected {
            assert_eq!(
                found[path].shape(),
                expected.shape(),
                "{name} of {path}, {what}"
            );
            assert!(
                found[path].as_bytes() == expected.as_bytes(),
                "{name} of {path} differ, {what}: {}",
                largest_difference(&found[path], expected),
            );
        }
    }
}

/// Returns max|a-b| / max|b|.
fn largest_difference(a: &TensorData, b: &TensorData) -> f64 {
    let scale = b
        .iter::<f64>()
        .map(f64::abs)
        .fold(f64::MIN_POSITIVE, f64::max);
    let pairs = a.iter::<f64>().zip(b.iter::<f64>());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / scale
}

fn check<C: Case>(case: C) {
    let model = deferred(&case);
    for count in [1, 2, 5, SAMPLES] {
        let expected = train(&case, &model, &micro_batches(&case, count));
        assert!(!expected.gradients.is_empty());
        check_every_cut(&case, &model, count, &expected);
    }
}

/// One to four ranks, every schedule and one or two chunks per rank produce the expected run.
pub fn check_every_cut<C: Case>(
    case: &C,
    model: &Deferred<C::Model>,
    count: usize,
    expected: &Run,
) {
    let trace = trace(case, model, count);
    for ranks in 1..=4 {
        for (chunks, placement) in [
            (1, Placement::Loop),
            (2, Placement::Loop),
            (2, Placement::V),
        ] {
            let machine = Machine::local(ranks).unwrap();
            let machine = machine.with_chunks(chunks, placement).unwrap();
            let plan = trace.plan(&machine).unwrap();
            for kind in kinds(chunks, placement) {
                let found = run(case, model, &trace, &plan, kind);
                let what = format!("{ranks} ranks of {chunks}, {kind}, {count} micro-batches");
                assert_same(&found, expected, &what);
            }
        }
    }
}

/// Returns the schedules for this number and placement of stages per rank.
fn kinds(chunks: usize, placement: Placement) -> impl Iterator<Item = ScheduleKind> {
    ScheduleKind::ALL
        .into_iter()
        .filter(move |kind| kind.placement() == placement && kind.chunks().contains(chunks))
}

#[test]
fn multilayer_perceptron() {
    check(Mlp::<0>);
}

#[test]
fn language_model() {
    check(LanguageModel::<0>);
}

#[test]
fn u_shaped_network_with_skips() {
    check(UNet);
}

#[test]
fn head_that_reads_the_embedding() {
    check(Tied);
}

#[test]
fn straight_through_estimator() {
    check(StraightThrough);
}

/// Every schedule runs in some case of the matrix.
#[test]
fn the_matrix_has_every_schedule() {
    let of = |(chunks, placement)| kinds(chunks, placement).collect::<Vec<_>>();
    let settings = [
        (1, Placement::Loop),
        (2, Placement::Loop),
        (2, Placement::V),
    ];
    let tried: Vec<ScheduleKind> = settings.into_iter().flat_map(of).collect();
    for kind in ScheduleKind::ALL {
        assert!(tried.contains(&kind), "{kind}");
    }
}

/// Lists that no generator creates: two ranks in a V, whole and split backwards, a pair, forwards of later
/// micro-batches first on one rank.
const WRITTEN: &str = "
    0F0 0F1 3F0 3F1&3I0 0F2 3W0 3B1 3F2 0B0 3I2 0I1 0W1 3W2 0B2
    1F0 2F0 1F1 2F1 2B0 1F2&2I1 1B0 2F2 2W1 1B1 2B2 1I2 1W2
";

#[test]
fn a_schedule_that_a_user_wrote() {
    let case = LanguageModel::<0>;
    let model = deferred(&case);
    let schedule = Schedule::parse("mine", WRITTEN).unwrap();
    let count = schedule.micro_batches;
    let trace = trace(&case, &model, count);
    let machine = Machine::local(2).unwrap();
    let machine = machine.with_chunks(2, Placement::V).unwrap();
    let plan = trace.plan(&machine).unwrap();
    let expected = train(&case, &model, &micro_batches(&case, count));
    let found = run(&case, &model, &trace, &plan, schedule);
    assert_same(&found, &expected, "written by hand");
}

/// PyTorch's LoopedBFS runs its backwards from the last micro-batch to the first.
#[test]
fn a_schedule_that_pytorch_wrote() {
    let case = LanguageModel::<0>;
    let model = deferred(&case);
    let text =
        include_str!("../../pipeline/schedule/tests/golden/torch-2.15.0/LoopedBFS-2x2x4.comms.csv");
    let schedule = Schedule::parse_csv("LoopedBFS", text).unwrap();
    let count = schedule.micro_batches;
    let trace = trace(&case, &model, count);
    let machine = Machine::local(2).unwrap();
    let machine = machine.with_chunks(2, Placement::Loop).unwrap();
    let plan = trace.plan(&machine).unwrap();
    let expected = train(&case, &model, &micro_batches(&case, count));
    let found = run(&case, &model, &trace, &plan, schedule);
    assert_same(&found, &expected, "written by PyTorch");
}

/// From a measured step to its own lists, under a memory limit: the schedule that `auto` finds trains the
/// same.
#[test]
fn an_automatic_schedule() {
    let case = LanguageModel::<0>;
    let model = deferred(&case);
    let count = 5;
    let trace = trace(&case, &model, count);
    let expected = train(&case, &model, &micro_batches(&case, count));
    for (chunks, placement, kind) in [
        (1, Placement::Loop, ScheduleKind::ZbH1),
        (2, Placement::V, ScheduleKind::Zbv),
    ] {
        let machine = Machine::local(2).unwrap();
        let machine = machine.with_chunks(chunks, placement).unwrap();
        let plan = trace.plan(&machine).unwrap();
        let mut measured = Pipeline::builder(&model, &trace, &plan)
            .optimizer(AdamWConfig::new())
            .schedule(kind)
            .measure()
            .start()
            .unwrap();
        let batch = case.batch(0, &Device::flex());
        let step = measured.step(LR, batch.clone()).unwrap().timeline.unwrap();
        assert_eq!(step.micro_batches(), count);
        assert!(
            step.ranks
                .iter()
                .all(|rank| rank.peak_bytes() > 0 && rank.busy() > 0)
        );
        let (dependencies, costs) = measured.costs(&batch).unwrap();
        let costs = costs.with_times([&step]);
        let simulated = kind.generate(2, chunks, count).unwrap();
        let limits = peak_bytes(&simulated, &costs);
        let options = AutoOptions {
            memory_limits: Some(&limits),
            ..AutoOptions::default()
        };
        let map = plan.stage_to_rank();
        let found = auto(&map, count, &dependencies, &costs, options).unwrap();
        let named = simulate(&simulated, &dependencies, &costs)
            .unwrap()
            .makespan();
        assert!(found.makespan <= named, "{} > {named}", found.makespan);
        let run = run(&case, &model, &trace, &plan, found.schedule);
        assert_same(&run, &expected, &format!("auto, {placement:?}"));
    }
}

/// A stage that recomputes its activations computes the same, including dropout, because masks are keyed.
#[test]
fn recomputed_activations() {
    fn check<C: Case>(case: C) {
        let model = deferred(&case);
        let trace = trace(&case, &model, 5);
        let machine = Machine::local(3).unwrap();
        let plan = trace.plan(&machine).unwrap();
        for kind in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1] {
            let expected = run(&case, &model, &trace, &plan, kind);
            for stages in [vec![0], vec![1, 2], vec![0, 1, 2]] {
                let planner = Planner::new(&trace, &machine);
                let plan = planner.recompute(|stage| stages.contains(&stage));
                let plan = plan.plan().unwrap();
                let found = run(&case, &model, &trace, &plan, kind);
                assert_same(&found, &expected, &format!("{kind}, {stages:?} recomputed"));
            }
        }
    }
    check(Mlp::<30>);
    check(LanguageModel::<30>);
    check(UNet);
    check(Tied);
    check(StraightThrough);
}
