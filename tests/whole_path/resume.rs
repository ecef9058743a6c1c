//! A saved and resumed run continues bit for bit, with another number of stages.

use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::Device;
use tinderbox::checkpoint::{Retention, Run};
use tinderbox::error::{CheckpointsError, LoadError, PipelineError, StateError};
use tinderbox::pipeline::PipelineBuilder;
use tinderbox::{
    Batch, Checkpoint, Checkpoints, Deferred, LossScale, Machine, MixedPrecision, Pipeline, Plan,
    ScheduleKind, Trace, Traceable, load_module,
};

use crate::models::{Case, LanguageModel, Tied, deferred, trace};
use crate::plain::{LR, SEED, data};

const SAVED_AT: u64 = 3;
const STEPS: u64 = 7;

pub(crate) fn start<C: Case>(
    case: &C,
    model: &Deferred<C::Model>,
    stages: usize,
    schedule: ScheduleKind,
    seed: u64,
) -> Pipeline<C::Model, C::Batch> {
    let trace = trace(case, model, 4);
    let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
    builder(model, &trace, &plan, schedule, seed)
        .start()
        .unwrap()
}

fn builder<M: Module + Sync + 'static, B: Batch>(
    model: &Deferred<M>,
    trace: &Trace<B>,
    plan: &Plan,
    schedule: ScheduleKind,
    seed: u64,
) -> PipelineBuilder<M, B> {
    Pipeline::builder(model, trace, plan)
        .optimizer(AdamWConfig::new())
        .schedule(schedule)
        .seed(seed)
}

pub(crate) fn train_to<M: Module + Sync + 'static, B: Batch>(
    pipeline: &mut Pipeline<M, B>,
    steps: u64,
    batch: impl Fn(u64, &Device) -> B,
) -> Vec<Vec<f64>> {
    let mut losses = Vec::new();
    while pipeline.steps() < steps {
        let batch = batch(pipeline.steps(), &Device::flex());
        losses.push(pipeline.step(LR, batch).unwrap().micro_batch_losses);
    }
    losses
}

fn check<C: Case>(case: C) {
    let dir = tempfile::tempdir().unwrap();
    let model = deferred(&case);
    let mut first = start(&case, &model, 4, ScheduleKind::OneFOneB, SEED);
    train_to(&mut first, SAVED_AT, |step, device| {
        case.batch(step, device)
    });
    let saves = Checkpoints::open(dir.path()).unwrap().every(SAVED_AT);
    let saved = saves
        .after_step(&mut first, 1234)
        .unwrap()
        .expect("the step is due");
    let expected = train_to(&mut first, STEPS, |step, device| case.batch(step, device));
    let final_values = values(&mut first);
    drop(first);

    for (stages, schedule) in [
        (2, ScheduleKind::OneFOneB),
        (1, ScheduleKind::GPipe),
        (5, ScheduleKind::GPipe),
    ] {
        let mut again = start(&case, &model, stages, schedule, SEED);
        let resumed = saves
            .resume(&mut again)
            .unwrap()
            .expect("there is a checkpoint");
        assert_eq!((resumed.step, resumed.data_position), (SAVED_AT, 1234));
        assert_eq!(resumed.dir, saved);
        assert_eq!(
            train_to(&mut again, STEPS, |step, device| case.batch(step, device)),
            expected,
            "{stages} stages"
        );
        assert!(values(&mut again) == final_values, "{stages} stages");
    }

    // Into a plain module.
    let checkpoint = Checkpoint::open(&saved).unwrap();
    let module = load_module(&model, &checkpoint, &Device::flex()).unwrap();
    let mut resumed = start(&case, &model, 1, ScheduleKind::GPipe, SEED);
    saves.resume(&mut resumed).unwrap();
    let plain: Vec<_> = tinderbox::deferred::parameter_values(&module)
        .into_iter()
        .map(|(path, value)| (path.to_string(), data(value).as_bytes().to_vec()))
        .collect();
    let mut of_ranks = values(&mut resumed);
    of_ranks.sort();
    let mut plain = plain;
    plain.sort();
    assert!(
        plain == of_ranks,
        "the plain module holds what the pipeline holds"
    );
}

pub(crate) fn values<M: Module + Sync + 'static, B: Batch>(
    pipeline: &mut Pipeline<M, B>,
) -> Vec<(String, Vec<u8>)> {
    let module = pipeline.gather(&Device::flex()).unwrap();
    let values = tinderbox::deferred::parameter_values(&module).into_iter();
    values
        .map(|(path, value)| (path.to_string(), data(value).as_bytes().to_vec()))
        .collect()
}

#[test]
fn language_model_with_dropout() {
    check(LanguageModel::<20>);
}

#[test]
fn tied_parameters_are_saved_once() {
    check(Tied);
}

/// In f16, with a loss scale that has changed before the save and changes after it.
#[test]
fn mixed_precision_goes_on_with_the_factor_on_the_loss() {
    let case = LanguageModel::<20>;
    let model = deferred(&case);
    let start = |stages| {
        let example = case.batch(0, &Device::flex());
        let forward = |model: &_, batch| LanguageModel::<20>.forward(model, batch);
        let trace = MixedPrecision::f16(&model).trace(&example, 4, forward);
        let trace = trace.unwrap();
        let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
        builder(&model, &trace, &plan, ScheduleKind::OneFOneB, SEED)
            .loss_scale(LossScale::dynamic().growing_after(2))
            .start()
            .unwrap()
    };
    let batch = |step, device: &Device| case.batch(step, device);
    let dir = tempfile::tempdir().unwrap();
    let saves = Checkpoints::open(dir.path()).unwrap().every(SAVED_AT);
    let mut first = start(4);
    train_to(&mut first, SAVED_AT, batch);
    saves.after_step(&mut first, 0).unwrap();
    let at_save = first.loss_scale().unwrap();
    assert_eq!((at_save.factor(), at_save.steps()), (65_536.0, 1));
    let expected = train_to(&mut first, STEPS, batch);
    let (scale, expected_values) = (first.loss_scale(), values(&mut first));
    for stages in [1, 3] {
        let mut again = start(stages);
        // Its 16-bit copies from before the resume are discarded.
        train_to(&mut again, 1, batch);
        saves.resume(&mut again).unwrap().unwrap();
        assert_eq!(again.loss_scale(), Some(at_save));
        assert_eq!(train_to(&mut again, STEPS, batch), expected);
        assert_eq!(again.loss_scale(), scale);
        assert!(values(&mut again) == expected_values, "{stages} stages");
    }
}

#[test]
fn another_model_is_refused_with_all_differences_and_nothing_changes() {
    let dir = tempfile::tempdir().unwrap();
    let tied = deferred(&Tied);
    let mut first = start(&Tied, &tied, 2, ScheduleKind::OneFOneB, SEED);
    let saves = Checkpoints::open(dir.path()).unwrap();
    saves.save(&mut first, 0).unwrap();

    let other = deferred(&LanguageModel::<20>);
    let mut pipeline = start(
        &LanguageModel::<20>,
        &other,
        2,
        ScheduleKind::OneFOneB,
        SEED,
    );
    let before = values(&mut pipeline);
    let error = saves.resume(&mut pipeline).unwrap_err();
    let text = format!("{:#}", anyhow::Error::from(error));
    for part in [
        "missing: head.weight",
        "extra: layers.0.weight",
        "shape of tokens.weight",
    ] {
        assert!(text.contains(part), "{part} in: {text}");
    }
    assert!(values(&mut pipeline) == before);

    let checkpoint = saves.latest().unwrap().unwrap();
    let error = load_module(&other, &checkpoint, &Device::flex()).unwrap_err();
    let text = format!("{:#}", anyhow::Error::from(error));
    assert!(text.contains("extra: layers.0.weight"), "{text}");
}

#[test]
fn the_directory_of_a_step_is_not_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let model = deferred(&Tied);
    let saves = Checkpoints::open(dir.path()).unwrap();
    let saved = saves.save(&mut start(&Tied, &model, 1, ScheduleKind::GPipe, SEED), 0);
    let step = saved.unwrap();
    let error = anyhow::Error::from(Checkpoints::open(&step).unwrap_err());
    let text = format!("{error:#}");
    assert!(
        text.contains("is a checkpoint, not the directory of a run"),
        "{text}"
    );
    let listed = Run::local(&step).steps();
    assert!(matches!(listed, Err(LoadError::NotARun { path }) if path == step));
}

#[test]
fn another_seed_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = deferred(&Tied);
    let saves = Checkpoints::open(dir.path()).unwrap();
    let mut first = start(&Tied, &model, 1, ScheduleKind::GPipe, SEED);
    saves.save(&mut first, 0).unwrap();
    let mut other = start(&Tied, &model, 1, ScheduleKind::GPipe, SEED + 1);
    let error = saves.resume(&mut other).unwrap_err();
    assert!(
        matches!(error, CheckpointsError::Seed { expected: SEED, .. }),
        "{error}"
    );
}

/// Returns the files of tensors in a checkpoint whose names start with a prefix.
fn shards(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(dir).unwrap();
    let mut paths: Vec<_> = paths.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with(prefix) && name.ends_with(".safetensors")
    });
    paths.sort();
    paths
}

/// Values are replaced while they are read, so damage leaves a mixture, which is never used.
#[test]
fn a_flipped_byte_in_any_shard_is_found_and_named_and_nothing_uses_the_mixture() {
    let dir = tempfile::tempdir().unwrap();
    let model = deferred(&Tied);
    let mut pipeline = start(&Tied, &model, 3, ScheduleKind::OneFOneB, SEED);
    train_to(&mut pipeline, 1, |step, device| Tied.batch(step, device));
    let saves = Checkpoints::open(dir.path()).unwrap();
    let saved = saves.save(&mut pipeline, 0).unwrap();
    let at_save = values(&mut pipeline);
    let expected = train_to(&mut pipeline, 2, |step, device| Tied.batch(step, device));
    let shards = shards(&saved, "");
    assert_eq!(shards.len(), 6, "parameters and state of three ranks");
    for shard in shards {
        let whole = std::fs::read(&shard).unwrap();
        let mut bytes = whole.clone();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&shard, &bytes).unwrap();
        let error = saves.resume(&mut pipeline).unwrap_err();
        assert!(matches!(error, CheckpointsError::Mixed { .. }), "{error}");
        let text = format!("{:#}", anyhow::Error::from(error));
        let file = shard.file_name().unwrap().to_string_lossy().into_owned();
        assert!(text.contains(&file), "{file} in: {text}");
        assert!(text.contains("it is unusable"), "{text}");

        let batch = || Tied.batch(1, &Device::flex());
        let refused = [
            pipeline.step(LR, batch()).map(drop).unwrap_err(),
            pipeline.evaluate(batch()).map(drop).unwrap_err(),
            pipeline.gather(&Device::flex()).map(drop).unwrap_err(),
            pipeline.on_ranks(|_, _| ()).map(drop).unwrap_err(),
        ];
        for error in refused {
            assert!(
                matches!(error, PipelineError::State(StateError::Mixed)),
                "{error}"
            );
        }
        let before = std::fs::read_dir(dir.path()).unwrap().count();
        saves.save(&mut pipeline, 0).unwrap_err();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), before);

        // The pipeline is usable again after a complete restore.
        std::fs::write(&shard, &whole).unwrap();
        saves.resume(&mut pipeline).unwrap().unwrap();
        assert!(values(&mut pipeline) == at_save, "{file}");
        let losses = train_to(&mut pipeline, 2, |step, device| Tied.batch(step, device));
        assert_eq!(losses, expected, "{file}");
    }
}

/// A pipeline without an optimizer reads no optimizer state: here it has no readable byte.
#[test]
fn an_evaluation_reads_no_optimizer_state() {
    let dir = tempfile::tempdir().unwrap();
    let model = deferred(&Tied);
    let mut trained = start(&Tied, &model, 3, ScheduleKind::OneFOneB, SEED);
    train_to(&mut trained, 1, |step, device| Tied.batch(step, device));
    let saves = Checkpoints::open(dir.path()).unwrap();
    let saved = saves.save(&mut trained, 0).unwrap();
    let states = shards(&saved, "state-");
    assert_eq!(states.len(), 3);
    for state in states {
        let bytes = std::fs::read(&state).unwrap();
        let damaged: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        std::fs::write(&state, damaged).unwrap();
    }
    for stages in [1, 2] {
        let trace = trace(&Tied, &model, stages);
        let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
        let mut evaluates = Pipeline::builder(&model, &trace, &plan)
            .seed(SEED)
            .start()
            .unwrap();
        let resumed = saves.resume(&mut evaluates).unwrap().unwrap();
        assert_eq!((resumed.step, resumed.skipped), (1, Vec::new()));
        assert!(values(&mut evaluates) == values(&mut trained));
        let mut trains = start(&Tied, &model, stages, ScheduleKind::GPipe, SEED);
        let error = saves.resume(&mut trains).unwrap_err();
        assert!(matches!(error, CheckpointsError::Mixed { .. }), "{error}");
    }
}

/// The checkpoints of a run that another optimizer may continue.
fn to_change(dir: &Path) -> Checkpoints {
    let saves = Checkpoints::open(dir).unwrap();
    saves.allow_changes(["optimizer", "micro_batches"])
}

/// The checkpoint of another optimizer is rejected before anything is read.
#[test]
fn the_state_of_another_optimizer_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let model = deferred(&Tied);
    let mut adam = start(&Tied, &model, 2, ScheduleKind::GPipe, SEED);
    train_to(&mut adam, 1, |step, device| Tied.batch(step, device));
    let saves = Checkpoints::open(dir.path()).unwrap();
    let saved = saves.save(&mut adam, 0).unwrap();
    for shard in shards(&saved, "") {
        let bytes = std::fs::read(&shard).unwrap();
        std::fs::write(&shard, bytes.iter().map(|byte| !byte).collect::<Vec<_>>()).unwrap();
    }
    let trace = trace(&Tied, &model, 2);
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let sgd = Pipeline::builder(&model, &trace, &plan).optimizer(SgdConfig::new());
    let mut sgd = sgd.seed(SEED).start().unwrap();
    let before = values(&mut sgd);
    let error = to_change(dir.path()).resume(&mut sgd).unwrap_err();
    assert!(matches!(error, CheckpointsError::Fit { .. }), "{error}");
    assert!(values(&mut sgd) == before);
    sgd.step(LR, Tied.batch(0, &Device::flex())).unwrap();
}

/// Moments that start at zero in the middle of a run change the run.
#[test]
fn a_checkpoint_without_state_is_refused_where_the_optimizer_keeps_one() {
    let dir = tempfile::tempdir().unwrap();
    let model = deferred(&Tied);
    let trace = trace(&Tied, &model, 2);
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let sgd = || {
        let sgd = Pipeline::builder(&model, &trace, &plan).optimizer(SgdConfig::new());
        sgd.seed(SEED).start().unwrap()
    };
    let mut saved = sgd();
    assert!(!saved.keeps_optimizer_state());
    train_to(&mut saved, 1, |step, device| Tied.batch(step, device));
    let saves = Checkpoints::open(dir.path()).unwrap();
    saves.save(&mut saved, 0).unwrap();
    let mut adam = start(&Tied, &model, 2, ScheduleKind::GPipe, SEED);
    assert!(adam.keeps_optimizer_state());
    let before = values(&mut adam);
    let error = to_change(dir.path()).resume(&mut adam).unwrap_err();
    assert!(
        matches!(error, CheckpointsError::NoOptimizerState { .. }),
        "{error}"
    );
    assert!(values(&mut adam) == before);
    let mut again = sgd();
    assert_eq!(saves.resume(&mut again).unwrap().unwrap().step, 1);
}

/// With a loss scale, every step may have been skipped: then there is no state to save yet.
#[test]
fn a_scaled_run_without_state_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let model = deferred(&Tied);
    let trace = trace(&Tied, &model, 2);
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let scaled = || {
        let builder = Pipeline::builder(&model, &trace, &plan).seed(SEED);
        builder.loss_scale(LossScale::dynamic())
    };
    // As after steps that were all skipped, there is a scale and no state.
    let mut saved = scaled().optimizer(SgdConfig::new()).start().unwrap();
    train_to(&mut saved, 1, |step, device| Tied.batch(step, device));
    let saves = Checkpoints::open(dir.path()).unwrap();
    saves.save(&mut saved, 0).unwrap();
    let mut adam = scaled().optimizer(AdamWConfig::new()).start().unwrap();
    let resumed = to_change(dir.path()).resume(&mut adam);
    assert_eq!(resumed.unwrap().unwrap().step, 1);
}

#[test]
fn a_save_in_the_background_holds_the_values_of_its_step() {
    let case = LanguageModel::<20>;
    let dir = tempfile::tempdir().unwrap();
    let model = deferred(&case);
    let batch = |step, device: &Device| case.batch(step, device);
    let mut pipeline = start(&case, &model, 3, ScheduleKind::OneFOneB, SEED);
    let saves = Checkpoints::open(dir.path()).unwrap();
    let saves = saves
        .every(1)
        .keep(Retention::newest(2).and_every(4))
        .in_background();
    assert!(saves.wait().unwrap().is_none());
    let mut expected = Vec::new();
    for step in 1..=STEPS {
        train_to(&mut pipeline, step, batch);
        let dir = saves.after_step(&mut pipeline, step).unwrap().unwrap();
        assert!(dir.ends_with(format!("step-{step:08}")));
        // The next step starts while this one is saved.
        expected.push((step, values(&mut pipeline)));
    }
    assert_eq!(
        saves.wait().unwrap().unwrap(),
        saves.run().step_place(STEPS)
    );
    assert_eq!(saves.run().steps().unwrap(), [4, 6, 7]);
    for (step, expected) in expected {
        let Ok(checkpoint) = saves.run().open(step) else {
            continue;
        };
        let module = load_module(&model, &checkpoint, &Device::flex()).unwrap();
        let found = tinderbox::deferred::parameter_values(&module).into_iter();
        let found: Vec<_> = found
            .map(|(path, value)| (path.to_string(), data(value).as_bytes().to_vec()))
            .collect();
        assert!(found == expected, "step {step}");
    }
}
