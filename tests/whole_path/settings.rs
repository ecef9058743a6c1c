//! A training continues with the settings that it was saved with.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::module::ParamGroup;
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::Device;
use tinderbox::checkpoint::Digest;
use tinderbox::deferred::NumericFingerprint;
use tinderbox::error::CheckpointsError;
use tinderbox::pipeline::{PipelineBuilder, StepRates};
use tinderbox::{
    Batch, Checkpoints, Clipping, Deferred, GradientSum, LossScale, Machine, MixedPrecision,
    Pipeline, ScheduleKind, Trace, Traceable,
};

use crate::models::{Case, Tied, TiedModel, deferred, trace};
use crate::plain::SEED;
use crate::resume::{train_to, values};

type TiedBatch = <Tied as Case>::Batch;
type Builder = PipelineBuilder<TiedModel, TiedBatch>;

fn builder(model: &Deferred<TiedModel>, trace: &Trace<TiedBatch>) -> Builder {
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    Pipeline::builder(model, trace, &plan)
        .optimizer(AdamWConfig::new())
        .schedule(ScheduleKind::GPipe)
        .seed(SEED)
}

/// The texts of a library's events.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<u8>>>);

impl Write for Events {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs code, and returns the warnings of this thread.
fn warnings<T>(run: impl FnOnce() -> T) -> (T, String) {
    let events = Events::default();
    let written = events.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || written.clone())
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_ansi(false)
        .finish();
    let result = tracing::subscriber::with_default(subscriber, run);
    let text = String::from_utf8(events.0.lock().unwrap().clone()).unwrap();
    (result, text)
}

/// Saves one step of a training in a directory.
fn saved(dir: &Path, start: impl FnOnce() -> Pipeline<TiedModel, TiedBatch>) {
    let mut pipeline = start();
    train_to(&mut pipeline, 1, |step, device| Tied.batch(step, device));
    let saves = Checkpoints::open(dir).unwrap();
    saves
        .describe_learning_rates("1e-2 for ever")
        .save(&mut pipeline, 0)
        .unwrap();
}

#[test]
fn other_settings_are_refused_by_name_and_nothing_changes() {
    type Change = fn(Builder) -> Builder;
    let model = deferred(&Tied);
    let own = trace(&Tied, &model, 4);
    let dir = tempfile::tempdir().unwrap();
    saved(dir.path(), || builder(&model, &own).start().unwrap());
    let cases: [(&str, Change); 6] = [
        ("optimizer", |b| {
            b.optimizer(AdamWConfig::new().with_weight_decay(0.5))
        }),
        ("gradient_sum", |b| b.gradient_sum(GradientSum::Tree(2))),
        ("clipping", |b| b.clip(Clipping::GlobalNorm(1.0))),
        ("loss_scale", |b| b.loss_scale(LossScale::dynamic())),
        ("stop_on_non_finite", |b| b.stop_on_non_finite()),
        ("gradient_hook", |b| b.on_gradients(|_, gradient| gradient)),
    ];
    let mut refused = Vec::new();
    for (name, change) in cases {
        let mut pipeline = change(builder(&model, &own)).start().unwrap();
        check(dir.path(), &mut pipeline, name, &mut refused);
    }
    // In the trace.
    let of_two = trace(&Tied, &model, 2);
    let mut pipeline = builder(&model, &of_two).start().unwrap();
    check(dir.path(), &mut pipeline, "micro_batches", &mut refused);
    let example = Tied.batch(0, &Device::flex());
    let forward = |model: &TiedModel, batch| Tied.forward(model, batch);
    let bf16 = MixedPrecision::bf16(&model)
        .trace(&example, 4, forward)
        .unwrap();
    let mut pipeline = builder(&model, &bf16).start().unwrap();
    check(dir.path(), &mut pipeline, "precision", &mut refused);
    let mut pipeline = builder(&model, &own).start().unwrap();
    pipeline
        .freeze(&ParamGroup::from_predicate("tokens"))
        .unwrap();
    check(dir.path(), &mut pipeline, "frozen", &mut refused);
    insta::assert_snapshot!(refused.join("\n"), @r#"
    `optimizer` was `"weight_decay": 0.0001` and is now `"weight_decay": 0.5`
    `gradient_sum` was `sequential` and is now `tree of 2 groups`
    `clipping` was `none` and is now `GlobalNorm(1.0)`
    `loss_scale` was `none` and is now `doubled after 2000 finite steps`
    `stop_on_non_finite` was `false` and is now `true`
    `gradient_hook` was `false` and is now `true`
    `micro_batches` was `4` and is now `2`
    `precision` was `the parameters' own` and is now `bf16 in the forward`
    `frozen` was `none` and is now `tokens.weight`
    "#);
}

/// Refuses a pipeline that has one other setting, and continues with it when this is allowed.
fn check<B: Batch>(
    dir: &Path,
    pipeline: &mut Pipeline<TiedModel, B>,
    name: &str,
    refused: &mut Vec<String>,
) {
    let before = values(pipeline);
    let open = || {
        Checkpoints::open(dir)
            .unwrap()
            .describe_learning_rates("1e-2 for ever")
    };
    let error = open().resume(pipeline).unwrap_err();
    let CheckpointsError::OtherSettings { differences, .. } = error else {
        panic!("{name}: {error}");
    };
    let names: Vec<&str> = differences.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, [name]);
    refused.push(differences[0].to_string());
    assert!(values(pipeline) == before, "{name}");
    // Another name does not allow it.
    let other = if name == "frozen" {
        "clipping"
    } else {
        "frozen"
    };
    let error = open().allow_changes([other]).resume(pipeline).unwrap_err();
    assert!(
        matches!(error, CheckpointsError::OtherSettings { .. }),
        "{error}"
    );
    let resumed = open().allow_changes([name]).resume(pipeline);
    assert_eq!(resumed.unwrap().unwrap().step, 1, "{name}");
}

#[test]
fn the_error_lists_every_difference_and_what_to_do() {
    let model = deferred(&Tied);
    let (own, of_two) = (trace(&Tied, &model, 4), trace(&Tied, &model, 2));
    let dir = tempfile::tempdir().unwrap();
    saved(dir.path(), || builder(&model, &own).start().unwrap());
    let start = || builder(&model, &of_two).start().unwrap();
    let saves = Checkpoints::open(dir.path()).unwrap();
    let error = saves
        .describe_learning_rates("1e-3 for ever")
        .resume(&mut start());
    let place = dir.path().display().to_string();
    let text = error.unwrap_err().to_string().replace(&place, "run");
    insta::assert_snapshot!(text, @"run/step-00000001 was saved with other settings, and the losses would differ from a training without an interruption: `learning_rates` was `1e-2 for ever` and is now `1e-3 for ever`; `micro_batches` was `4` and is now `2`; continue with the saved settings, or name the settings that may differ in `allow_changes`");
    let saves = Checkpoints::open(dir.path()).unwrap();
    let error = saves.allow_changes(["batch"]).resume(&mut start());
    insta::assert_snapshot!(error.unwrap_err(), @"`batch` is no setting of a training, so it can't be allowed to change: the settings are average_decay, clipping, frozen, gradient_hook, gradient_sum, learning_rates, loss_scale, micro_batches, optimizer, precision, stop_on_non_finite");
}

/// A change of the optimizer needs its state to fit; this one has none.
#[test]
fn another_optimizer_is_refused_before_its_state_is_looked_at() {
    let model = deferred(&Tied);
    let trace = trace(&Tied, &model, 4);
    let dir = tempfile::tempdir().unwrap();
    let sgd = || builder(&model, &trace).optimizer(SgdConfig::new());
    saved(dir.path(), || sgd().start().unwrap());
    let saves = Checkpoints::open(dir.path()).unwrap();
    let mut pipeline = builder(&model, &trace).start().unwrap();
    let error = saves.resume(&mut pipeline).unwrap_err();
    assert!(
        matches!(error, CheckpointsError::OtherSettings { .. }),
        "{error}"
    );
    // Without an optimizer, nothing is trained, and nothing compared.
    let plan = trace.plan(&Machine::local(1).unwrap()).unwrap();
    let evaluation = Pipeline::builder(&model, &trace, &plan).seed(SEED).start();
    saves.resume(&mut evaluation.unwrap()).unwrap().unwrap();
}

/// The text of many groups is short, and the last one still counts.
#[test]
fn many_groups_of_optimizers_are_compared() {
    let model = deferred(&Tied);
    let trace = trace(&Tied, &model, 4);
    let text = |last: f32| {
        let groups = (0..200).fold(builder(&model, &trace), |builder, number| {
            let decay = if number == 199 { last } else { 0.1 };
            let config = AdamWConfig::new().with_weight_decay(decay);
            builder.optimizer_group(ParamGroup::from_predicate("tokens"), config)
        });
        groups.start().unwrap().run_settings()["optimizer"].clone()
    };
    let (one, other) = (text(0.1), text(0.2));
    assert!(one != other && one == text(0.1));
    assert!(one.len() < 10_000, "{} bytes", one.len());
}

#[test]
fn the_last_learning_rates_are_saved() {
    let model = deferred(&Tied);
    let trace = trace(&Tied, &model, 4);
    let dir = tempfile::tempdir().unwrap();
    saved(dir.path(), || builder(&model, &trace).start().unwrap());
    let saves = Checkpoints::open(dir.path()).unwrap();
    let mut pipeline = builder(&model, &trace).start().unwrap();
    let resumed = saves.resume(&mut pipeline).unwrap().unwrap();
    let rates = StepRates {
        base: crate::plain::LR,
        others: BTreeMap::new(),
    };
    assert_eq!(resumed.learning_rates, Some(rates.clone()));
    // Before another step, the next save has them as well.
    assert_eq!(pipeline.last_learning_rates(), Some(rates));
}

/// Changes the manifest of the saved step.
fn edit(dir: &Path, change: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) {
    let path = dir.join("step-00000001/manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    let mut whole: serde_json::Value = serde_json::from_str(&text).unwrap();
    let body = whole["body"].as_object_mut().unwrap();
    change(body);
    let body = serde_json::to_string(body).unwrap();
    let digest = Digest::of(body.as_bytes());
    fs::write(
        &path,
        format!(r#"{{"xxh3_128":"{digest}","body":{body}}}"#) + "\n",
    )
    .unwrap();
}

#[test]
fn checkpoints_of_earlier_versions_resume_with_a_warning() {
    let model = deferred(&Tied);
    let (own, of_two) = (trace(&Tied, &model, 4), trace(&Tied, &model, 2));
    let dir = tempfile::tempdir().unwrap();
    saved(dir.path(), || builder(&model, &own).start().unwrap());
    edit(dir.path(), |manifest| {
        manifest.insert("minor".into(), 2.into());
        manifest.remove("settings").unwrap();
        manifest.remove("numerics").unwrap();
    });
    let resume = |builder: Builder| {
        let mut pipeline = builder.start().unwrap();
        warnings(|| Checkpoints::open(dir.path()).unwrap().resume(&mut pipeline))
    };
    let (resumed, warned) = resume(builder(&model, &own));
    assert_eq!(resumed.unwrap().unwrap().step, 1);
    assert!(warned.contains("optimizer"), "{warned}");
    assert!(warned.contains("not compared"), "{warned}");
    // They have the number of micro-batches.
    let (refused, _) = resume(builder(&model, &of_two));
    let error = refused.unwrap_err();
    assert!(
        matches!(error, CheckpointsError::OtherSettings { .. }),
        "{error}"
    );
}

#[test]
fn another_processor_is_named_by_what_it_computes() {
    let model = deferred(&Tied);
    let trace = trace(&Tied, &model, 4);
    let dir = tempfile::tempdir().unwrap();
    saved(dir.path(), || builder(&model, &trace).start().unwrap());
    let resume = || {
        let mut pipeline = builder(&model, &trace).start().unwrap();
        let saves = Checkpoints::open(dir.path()).unwrap();
        let saves = saves.describe_learning_rates("1e-2 for ever");
        warnings(|| saves.resume(&mut pipeline).unwrap().unwrap()).1
    };
    assert_eq!(resume(), "");
    edit(dir.path(), |manifest| {
        let numerics = manifest["numerics"].as_object_mut().unwrap();
        assert_eq!(
            numerics.len(),
            NumericFingerprint::of_process().classes().len()
        );
        numerics.insert("tanh".into(), "0".into());
        numerics.insert("sums".into(), "0".into());
    });
    let warned = resume();
    assert!(warned.contains(r#"classes="sums, tanh""#), "{warned}");
}
