//! Sessions: the losses, positions and parameters of a loop that is written by hand, bit by bit, also when a session is interrupted,
//! resumed and recovered.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::optim::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::tensor::{Device, Tensor};
use tinderbox::checkpoint::Run;
use tinderbox::error::SessionError;
use tinderbox::session::{
    DataError, Event, EventHandler, Interruption, NextBatch, SessionBuilder, TrainingData, in_order,
};
use tinderbox::world::{RankIndex, WorldOptions, with_causes};
use tinderbox::{
    Checkpoints, Deferred, Machine, Outputs, Pipeline, Plan, PlanBroadcast, Position, Recovery,
    ScheduleKind, Session, Traceable, World,
};
use tinderbox_engines::{Delays, Net, Threads};

use crate::command_line::{command, output};
use crate::models::{Case, LanguageModel, SAMPLES, deferred, trace};
use crate::plain::{LR, SEED};
use crate::resume::{start, values};

const CASE: LanguageModel<20> = LanguageModel;

type Model = <LanguageModel<20> as Case>::Model;
type Tokens = <LanguageModel<20> as Case>::Batch;

/// Samples of an epoch, whose last batch is a half.
const EPOCH: u64 = 20;
const EPOCHS: u64 = 3;
const STEPS: u64 = 9;

fn pipeline(stages: usize) -> Pipeline<Model, Tokens> {
    let model = deferred(&CASE);
    start(&CASE, &model, stages, ScheduleKind::OneFOneB, SEED)
}

fn rate(step: u64) -> f64 {
    LR / (1 + step) as f64
}

/// The first samples of a batch.
fn part((x, y): Tokens, samples: usize) -> Tokens {
    (x.narrow(0, 0, samples), y.narrow(0, 0, samples))
}

fn batch_at(at: Position) -> Option<Tokens> {
    let samples = (EPOCH - at.sample).min(SAMPLES as u64) as usize;
    let number = at.epoch * 10 + at.sample / SAMPLES as u64;
    (samples > 0).then(|| part(CASE.batch(number, &Device::flex()), samples))
}

fn validation() -> Vec<Tokens> {
    let sizes = [(71, 8), (72, 8), (73, 4)].into_iter();
    let batches = sizes.map(|(number, size)| part(CASE.batch(number, &Device::flex()), size));
    batches.collect()
}

/// A step: its number, the bits of its loss, and the position after it.
type Step = (u64, u64, Position);

/// The loop that users write.
fn by_hand(stages: usize, rate: impl Fn(u64) -> f64) -> (Vec<Step>, Vec<(String, Vec<u8>)>) {
    let mut pipeline = pipeline(stages);
    let mut steps = Vec::new();
    for epoch in 0..EPOCHS {
        for sample in [0, 8, 16] {
            let batch = batch_at(Position { epoch, sample }).unwrap();
            let output = pipeline.step(rate(pipeline.steps()), batch).unwrap();
            let sample = (sample + 8).min(EPOCH);
            let position = Position { epoch, sample };
            steps.push((pipeline.steps(), output.loss.to_bits(), position));
        }
    }
    (steps, values(&mut pipeline))
}

/// A session that notes its steps.
fn noting<'a>(stages: usize, steps: &'a mut Vec<Step>) -> SessionBuilder<'a, Model, Tokens> {
    Session::builder(pipeline(stages))
        .learning_rate(rate)
        .epochs(EPOCHS)
        .on_event(move |event: &Event| {
            if let Event::Step {
                step,
                position,
                loss,
                ..
            } = event
            {
                steps.push((*step, loss.to_bits(), *position));
            }
        })
}

fn open(dir: &Path) -> Checkpoints {
    Checkpoints::open(dir).unwrap()
}

#[test]
fn a_session_computes_what_a_loop_computes() {
    let (expected, parameters) = by_hand(2, rate);
    for every in [None, Some(1), Some(2)] {
        let mut steps = Vec::new();
        let mut builder = noting(2, &mut steps);
        if let Some(every) = every {
            builder = builder.evaluate_every(every, validation);
        }
        let mut session = builder.start().unwrap();
        let outcome = session.train(batch_at).unwrap();
        let end = Position {
            epoch: EPOCHS,
            sample: 0,
        };
        assert_eq!((outcome.steps, outcome.position), (STEPS, end));
        assert_eq!((outcome.samples, outcome.interrupted), (60, None));
        assert_eq!(session.position(), end);
        let validated = session.evaluate(validation()).unwrap();
        assert_eq!((validated.samples, validated.batches), (20, 3));
        let mut pipeline = session.into_pipeline();
        assert_eq!(steps, expected);
        assert_eq!(outcome.loss.unwrap().to_bits(), expected[8].1);
        assert!(values(&mut pipeline) == parameters, "{every:?}");
        // The mean over the samples of batches of different sizes.
        let mut sum = 0.0;
        for (batch, samples) in validation().into_iter().zip([8.0, 8.0, 4.0]) {
            sum += pipeline.evaluate(batch).unwrap().loss.unwrap() * samples;
        }
        assert_eq!(validated.loss, sum / 20.0);
        match every {
            None => assert_eq!(outcome.validation, None),
            Some(1) => assert_eq!(outcome.validation, Some(validated)),
            // Of step 8.
            Some(_) => assert_ne!(outcome.validation.unwrap().loss, validated.loss),
        }
    }
}

/// The name of an event and its step.
fn named(event: &Event) -> (&'static str, u64) {
    match event {
        Event::Resumed { reason, step, .. } => match reason {
            None => ("resumed", *step),
            Some(_) => ("restored", *step),
        },
        Event::Started { step, .. } => ("started", *step),
        Event::Step { step, .. } => ("step", *step),
        Event::Evaluated { step, .. } => ("evaluated", *step),
        Event::Saved { step, .. } => ("saved", *step),
        Event::Recovered(recovered) => ("recovered", recovered.step),
        Event::EpochEnded { step, .. } => ("epoch ended", *step),
        Event::Interrupted { step, .. } => ("interrupted", *step),
        Event::Finished { step, .. } => ("finished", *step),
        _ => ("other", 0),
    }
}

#[test]
fn events_saves_and_evaluations_come_in_their_order() {
    for in_background in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut events = Vec::new();
        let mut run = |steps| {
            let mut saves = open(dir.path()).every(2);
            if in_background {
                saves = saves.in_background();
            }
            let mut session = Session::builder(pipeline(2))
                .learning_rate(rate)
                .steps(steps)
                .checkpoints(saves)
                .evaluate_every(3, validation)
                .on_event(|event: &Event| events.push(named(event)))
                .start()
                .unwrap();
            session.train(batch_at).unwrap();
            drop(session);
            std::mem::take(&mut events)
        };
        assert_eq!(
            run(5),
            [
                ("started", 0),
                ("step", 1),
                ("step", 2),
                ("saved", 2),
                ("step", 3),
                ("evaluated", 3),
                ("epoch ended", 3),
                ("step", 4),
                ("saved", 4),
                ("step", 5),
                ("saved", 5),
                ("finished", 5),
            ]
        );
        assert_eq!(open(dir.path()).run().steps().unwrap(), [2, 4, 5]);
        // Nothing is left to do, and the step is saved.
        assert_eq!(run(5), [("resumed", 5), ("started", 5), ("finished", 5)]);
        assert_eq!(
            run(6),
            [
                ("resumed", 5),
                ("started", 5),
                ("step", 6),
                ("saved", 6),
                ("evaluated", 6),
                ("finished", 6),
            ]
        );
        // Its evaluation may be missing.
        assert_eq!(
            run(6),
            [
                ("resumed", 6),
                ("started", 6),
                ("evaluated", 6),
                ("finished", 6),
            ]
        );
    }
}

/// Interrupted after each step, and continued by another number of stages: the position is within an epoch, at its end, and after
/// its partial batch.
#[test]
fn a_session_that_is_interrupted_after_every_step_continues_with_the_same_bits() {
    let (expected, parameters) = by_hand(2, rate);
    let dir = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for number in 1..=STEPS + 1 {
        let flag = Arc::new(AtomicBool::new(false));
        let stop = flag.clone();
        let mut steps = Vec::new();
        let builder = noting(1 + number as usize % 3, &mut steps)
            .checkpoints(open(dir.path()))
            .evaluate_every(2, validation)
            .stop_flag(flag)
            .on_event(move |event: &Event| {
                if let Event::Step { .. } = event {
                    stop.store(true, Ordering::SeqCst);
                }
            });
        let mut session = builder.start().unwrap();
        assert_eq!(session.pipeline().steps(), number - 1);
        let outcome = session.train(batch_at).unwrap();
        let mut pipeline = session.into_pipeline();
        all.append(&mut steps);
        let by = (number <= STEPS).then_some(Interruption::Requested);
        assert_eq!(outcome.interrupted, by, "{number}");
        let saved = open(dir.path()).latest().unwrap().unwrap();
        assert_eq!(saved.step(), outcome.steps);
        if by.is_none() {
            assert!(values(&mut pipeline) == parameters);
        }
    }
    assert_eq!(all, expected);
}

#[test]
fn a_damaged_checkpoint_is_skipped_and_reported() {
    let (expected, _) = by_hand(2, rate);
    let dir = tempfile::tempdir().unwrap();
    let mut steps = Vec::new();
    let builder = noting(2, &mut steps).checkpoints(open(dir.path()).every(1));
    let mut session = builder.steps(5).start().unwrap();
    session.train(batch_at).unwrap();
    let newest = open(dir.path()).run().step_place(5);
    std::fs::remove_file(newest.join("manifest.json")).unwrap();
    let mut again = Vec::new();
    let mut resumed = Vec::new();
    let mut session = noting(1, &mut again)
        .checkpoints(open(dir.path()))
        .on_event(|event: &Event| {
            if let Event::Resumed {
                step,
                position,
                skipped,
                ..
            } = event
            {
                let skipped = skipped
                    .iter()
                    .map(|one| (one.step, one.set_aside.is_some()));
                resumed.push((*step, *position, skipped.collect::<Vec<_>>()));
            }
        })
        .start()
        .unwrap();
    session.train(batch_at).unwrap();
    drop(session);
    assert_eq!(resumed, [(4, expected[3].2, vec![(5, true)])]);
    assert_eq!(again, expected[4..]);
}

/// A scheduler has no position, so a resumed session lets it make the steps before.
#[test]
fn a_scheduler_continues() {
    let cosine = || {
        let config = CosineAnnealingLrSchedulerConfig::new(LR, 5).with_min_lr(LR / 100.0);
        config.init().unwrap()
    };
    let mut in_order = cosine();
    let rates: Vec<f64> = (0..STEPS).map(|_| in_order.step().base()).collect();
    let (expected, parameters) = by_hand(2, |step| rates[step as usize]);
    let dir = tempfile::tempdir().unwrap();
    let mut steps = Vec::new();
    let mut seen = Vec::new();
    for end in [4, STEPS] {
        let mut session = noting(2, &mut steps)
            .checkpoints(open(dir.path()))
            .scheduler(cosine())
            .steps(end)
            .on_event(|event: &Event| {
                if let Event::Step { rate, .. } = event {
                    seen.push(*rate);
                }
            })
            .start()
            .unwrap();
        session.train(batch_at).unwrap();
        let mut pipeline = session.into_pipeline();
        assert!(end < STEPS || values(&mut pipeline) == parameters);
    }
    assert_eq!((steps, seen), (expected, rates));
}

/// A loader that notes where it begins, and that is only asked for its batches in order.
struct Loader<'a> {
    begun: &'a mut Vec<Position>,
}

impl TrainingData<Tokens> for Loader<'_> {
    fn epoch(
        &mut self,
        from: Position,
    ) -> Result<impl FnMut(Position) -> NextBatch<Tokens>, DataError> {
        self.begun.push(from);
        let mut next = from;
        Ok(move |at: Position| {
            assert_eq!(at, next);
            next.sample = (at.sample + 8).min(EPOCH);
            Ok(batch_at(at))
        })
    }
}

#[test]
fn data_may_be_an_iterator_or_a_loader() {
    let (expected, _) = by_hand(1, rate);
    let dir = tempfile::tempdir().unwrap();
    let (mut first, mut rest, mut begun) = (Vec::new(), Vec::new(), Vec::new());
    let builder = noting(1, &mut first).checkpoints(open(dir.path()));
    let mut session = builder.steps(5).start().unwrap();
    let data = in_order(|from: Position| {
        let places = [0, 8, 16]
            .into_iter()
            .skip_while(move |place| *place < from.sample);
        places.map(move |sample| {
            let epoch = from.epoch;
            batch_at(Position { epoch, sample }).ok_or("no batch")
        })
    });
    session.train(data).unwrap();
    drop(session);
    let builder = noting(1, &mut rest).checkpoints(open(dir.path()));
    let mut session = builder.start().unwrap();
    session.train(Loader { begun: &mut begun }).unwrap();
    drop(session);
    assert_eq!([first, rest].concat(), expected);
    let place = |(epoch, sample)| Position { epoch, sample };
    assert_eq!(begun, [(1, 16), (2, 0)].map(place));
}

#[test]
fn errors_are_clear() {
    let dir = tempfile::tempdir().unwrap();
    let text = |error: SessionError| {
        let text = with_causes(&error);
        text.replace(&*dir.path().to_string_lossy(), "DIR")
    };
    let model = deferred(&CASE);
    let trace = trace(&CASE, &model, 1);
    let plan = trace.plan(&Machine::local(1).unwrap()).unwrap();
    let evaluates = Pipeline::builder(&model, &trace, &plan).start().unwrap();
    let builder = || Session::builder(pipeline(1));
    let by_hand = dir.path().join("by hand");
    open(&by_hand).save(&mut pipeline(1), 7).unwrap();
    for (builder, expected) in [
        (
            Session::builder(evaluates).learning_rate(rate).steps(1),
            "the pipeline has no optimizer: call `.optimizer(...)` before `.start()` to train",
        ),
        (
            builder().learning_rate(rate).steps(0),
            "`steps` of the session is 0: set at least 1",
        ),
        (
            builder().learning_rate(rate).epochs(0).steps(4),
            "`epochs` of the session is 0: set at least 1",
        ),
        (
            builder()
                .learning_rate(rate)
                .steps(4)
                .evaluate_every(0, validation),
            "`evaluate_every` of the session is 0: set at least 1",
        ),
        (
            builder()
                .learning_rate(rate)
                .steps(4)
                .checkpoints(open(&by_hand).every(0)),
            "`every(0)` saves after no step: set at least 1, or leave it out and call `save` when a step is to be saved",
        ),
        (
            builder().learning_rate(rate),
            "the session has no end: set `steps` or `epochs`",
        ),
        (
            builder().steps(1),
            "the session has no learning rate: set `learning_rate` or `scheduler`",
        ),
        (
            builder()
                .learning_rate(rate)
                .steps(1)
                .checkpoints(open(&by_hand)),
            "DIR/by hand/step-00000000 was saved by another training loop, and its position in the data may be in another \
             unit: continue with that loop, or save to another directory",
        ),
    ] {
        assert_eq!(text(builder.start().map(drop).unwrap_err()), expected);
    }

    // Data: the step before is not lost, and the session continues.
    let saves = dir.path().join("run");
    let run = || {
        builder()
            .learning_rate(rate)
            .steps(3)
            .checkpoints(open(&saves).every(1))
    };
    let mut session = run().start().unwrap();
    let broken = |at: Position| match at.sample {
        0 => Ok(batch_at(at)),
        _ => Err("the disk is gone"),
    };
    assert_eq!(
        text(session.train(broken).unwrap_err()),
        "the training data has no batch at sample 8 of epoch 0: the disk is gone"
    );
    let error = session.train(|_: Position| None::<Tokens>).unwrap_err();
    assert_eq!(
        text(error),
        "the training data has no batch at the beginning of epoch 1: return at least one batch for each epoch, or set fewer \
         `epochs` or `steps`"
    );
    drop(session);
    let mut session = run().evaluate_every(1, Vec::<Tokens>::new).start().unwrap();
    assert_eq!(
        text(session.train(batch_at).unwrap_err()),
        "the evaluation has no batch: return at least one"
    );
    let failed = session.evaluate([Err::<Tokens, _>("the disk is gone")]);
    assert_eq!(
        text(failed.unwrap_err()),
        "a batch of the evaluation can't be loaded: the disk is gone"
    );
}

#[test]
fn an_evaluation_without_a_loss_is_an_error() {
    let device = Device::flex();
    let model = Deferred::new(|device: &Device| LinearConfig::new(4, 4).init(device)).unwrap();
    let ones = || Tensor::<2>::ones([2, 4], &device);
    let forward = |layer: &Linear, (x, y): (Tensor<2>, Option<Tensor<2>>)| {
        let output = layer.forward(x);
        match y {
            Some(y) => Outputs::loss((output - y).powf_scalar(2.0).mean()),
            None => Outputs::none().with("y", output),
        }
    };
    let trace = model.trace(&(ones(), Some(ones())), 1, forward).unwrap();
    let plan = trace.plan(&Machine::local(1).unwrap()).unwrap();
    let pipeline = Pipeline::builder(&model, &trace, &plan).optimizer(AdamWConfig::new());
    let session = Session::builder(pipeline.start().unwrap());
    let mut session = session.learning_rate(rate).steps(1).start().unwrap();
    let error = session.evaluate([(ones(), None)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the forward returns no loss for a batch of the evaluation: give the batch what the loss needs, such as its targets"
    );
}

/// A library prints nothing: only the printer does.
#[test]
fn only_the_printer_prints() {
    let src = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../src"));
    for folder in ["session", "generate"] {
        for entry in std::fs::read_dir(src.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let code = std::fs::read_to_string(&path).unwrap();
            let lines = code.lines().filter(|line| !line.trim().starts_with("///"));
            let text: Vec<&str> = lines.take_while(|line| *line != "#[cfg(test)]").collect();
            let prints = ["print!(", "println!(", "stdout", "stderr"];
            let prints = prints.iter().any(|word| text.join("\n").contains(word));
            assert_eq!(prints, path.ends_with("printer.rs"), "{}", path.display());
        }
    }
}

/// The example saves, continues with another number of stages, and prints lines where there is no terminal. It runs in any
/// directory.
#[test]
fn the_example_continues() {
    // The beginning of the text is enough: a tenth of it is evaluated at the end.
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data/shakespeare.txt");
    let text = std::fs::read_to_string(text).unwrap();
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("text.txt"), &text[..40_000]).unwrap();
    let dir = home.path().join("saves");
    std::fs::create_dir(&dir).unwrap();
    let saves = dir.to_str().unwrap();
    let run = |stages: &str, more: &[&str]| {
        let steps = ["--steps", "3", "--stages", stages, "--text", "text.txt"];
        let mut command = command("train_lm", &[&steps[..], more].concat());
        let output = output(command.current_dir(&home));
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{printed}{errors}");
        printed
    };
    let saving = ["--save", saves, "--save-every", "2"];
    let printed = run("2", &saving);
    let figure = |printed: &str, name: &str| {
        let start = format!("figure train_lm.{name} ");
        let figure = printed.lines().find_map(|line| line.strip_prefix(&start));
        let value = figure.and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
        value.filter(|value| value.is_finite())
    };
    assert!(printed.contains("\nstep 1/3 loss "), "{printed}");
    assert!(printed.contains("\nstep 2 saved to "), "{printed}");
    assert!(printed.contains("\nstep 3/3 loss "), "{printed}");
    assert!(figure(&printed, "tokens_per_s").is_some(), "{printed}");
    let loss = figure(&printed, "val_loss");
    assert!(loss.is_some(), "{printed}");
    std::fs::remove_dir_all(dir.join("step-00000003")).unwrap();
    let again = run("3", &saving);
    assert!(again.contains("\nresumed after step 2 from "), "{again}");
    assert_eq!(figure(&again, "val_loss"), loss, "{again}");
}

/// A signal ends the session of the example after its step. The checkpoint of that step is there, and the exit code names the
/// signal. The example has its text in any directory.
#[cfg(unix)]
#[test]
fn a_signal_ends_the_example_after_its_step() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    let dir = tempfile::tempdir().unwrap();
    let saves = ["--save", dir.path().to_str().unwrap(), "--save-every", "1"];
    let steps = ["--steps", "100000", "--stages", "2"];
    let mut training = command("train_lm", &[steps, saves].concat());
    training.current_dir(dir.path()).stdout(Stdio::piped());
    let mut child = training.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut lines = lines.map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("step 1 saved to ")));
    let id = child.id().to_string();
    let sent = Command::new("kill").args(["-s", "INT", &id]).status();
    assert!(sent.unwrap().success());
    let rest: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    let saved = open(dir.path()).latest().unwrap().unwrap().step();
    let ended = format!("interrupted by SIGINT after step {saved}");
    assert!(rest.contains(&ended), "{rest:?}");
}

/// Runs a program as every process of a world of threads.
fn on_world<R: Send>(size: usize, program: impl Fn(World, &Net) -> R + Sync) -> Vec<R> {
    let mut options = WorldOptions::default();
    options.heartbeat = Duration::from_millis(50);
    options.call_timeout = Duration::from_secs(20);
    Threads::run(size, Delays::default(), &options, program).unwrap()
}

/// The events of one process, also if it has not rank 0.
struct ForAll<F>(F);

impl<F: FnMut(&Event)> EventHandler for ForAll<F> {
    fn handle(&mut self, event: &Event) {
        (self.0)(event);
    }

    fn is_for_all(&self) -> bool {
        true
    }
}

/// What a process of a world has seen.
struct Seen {
    steps: Vec<Step>,
    /// As the process with rank 0.
    as_first: Vec<(&'static str, u64)>,
    parameters: Vec<(String, Vec<u8>)>,
}

/// Trains as a process of a world that continues when others are lost; `kill` decides before each step whether the process is cut
/// off. Returns `None` then.
fn train_in_world(
    world: &World,
    net: &Net,
    dir: &Path,
    mut kill: impl FnMut(u64) -> bool,
) -> Option<Seen> {
    let own = world.rank();
    let model = deferred(&CASE);
    let trace = trace(&CASE, &model, 4);
    let plan = Plan::broadcast(world, || trace.plan(&Machine::local(world.size())?));
    let pipeline = Pipeline::builder(&model, &trace, &plan.unwrap())
        .optimizer(AdamWConfig::new())
        .seed(SEED)
        .world(world)
        .recovery(Recovery::default());
    let saves = Checkpoints::in_world(Run::local(dir), world).unwrap();
    let (mut steps, mut as_first) = (Vec::new(), Vec::new());
    let mut session = Session::builder(pipeline.start().unwrap())
        .learning_rate(rate)
        .epochs(EPOCHS)
        .checkpoints(saves.every(2))
        .stop_flag(Arc::default())
        .on_event(|event: &Event| as_first.push(named(event)))
        .on_event(ForAll(|event: &Event| {
            if let Event::Step {
                step,
                position,
                loss,
                ..
            } = event
            {
                steps.push((*step, loss.to_bits(), *position));
            }
        }))
        .start()
        .unwrap();
    let trained = session.train(|at: Position| {
        if kill(at.epoch * 3 + at.sample / 8) {
            net.kill(own);
            return Err("it is cut off");
        }
        Ok(batch_at(at))
    });
    if let Err(SessionError::Data { .. }) = &trained {
        return None;
    }
    trained.unwrap();
    let mut pipeline = session.into_pipeline();
    let parameters = values(&mut pipeline);
    pipeline.finish().unwrap();
    Some(Seen {
        steps,
        as_first,
        parameters,
    })
}

#[test]
fn every_process_of_a_world_runs_the_same_session() {
    let (expected, parameters) = by_hand(1, rate);
    let dir = tempfile::tempdir().unwrap();
    let found = on_world(3, |world, net| {
        train_in_world(&world, net, dir.path(), |_| false)
    });
    for (rank, seen) in found.into_iter().flatten().enumerate() {
        assert_eq!(seen.steps, expected, "rank {rank}");
        assert!(seen.parameters == parameters, "rank {rank}");
        assert_eq!(seen.as_first.is_empty(), rank > 0);
    }
    let steps = Run::local(dir.path()).steps().unwrap();
    assert_eq!(steps, [2, 4, 6, 8, 9]);
}

/// Another process reports the events when the first one is lost.
#[test]
fn a_session_continues_when_a_process_is_lost() {
    let (expected, parameters) = by_hand(1, rate);
    for killed in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let found = on_world(3, |world, net| {
            let own = world.rank();
            let kill = |step| own == RankIndex::new(killed) && step == 4;
            train_in_world(&world, net, dir.path(), kill)
        });
        let found: Vec<Seen> = found.into_iter().flatten().collect();
        assert_eq!(found.len(), 2);
        for (number, seen) in found.iter().enumerate() {
            assert_eq!(seen.steps, expected, "{killed} is lost");
            assert!(seen.parameters == parameters, "{killed} is lost");
            assert_eq!(seen.as_first.is_empty(), number > 0);
        }
        let as_first = &found[0].as_first;
        let recovered = as_first.iter().filter(|(name, _)| *name == "recovered");
        assert_eq!(recovered.count(), 1, "{as_first:?}");
        assert_eq!(as_first[0].0, "started");
        assert_eq!(as_first.last(), Some(&("finished", STEPS)));
        assert_eq!(as_first.contains(&("step", 1)), killed > 0);
    }
}

/// A rank is lost together with its keeper: the session goes back to its checkpoint by itself, with the position in the data.
#[test]
fn a_session_goes_back_to_its_checkpoint_when_a_state_is_lost() {
    const LOST_AT: u64 = 5;
    let (expected, parameters) = by_hand(1, rate);
    let dir = tempfile::tempdir().unwrap();
    let trained = Barrier::new(4);
    let found = on_world(4, |world, net| {
        let own = world.rank().index();
        let mut is_first_time = true;
        let kill = |step| {
            if step != LOST_AT || !std::mem::take(&mut is_first_time) {
                return false;
            }
            // All have what they wait for then.
            trained.wait();
            [1, 2].contains(&own)
        };
        train_in_world(&world, net, dir.path(), kill)
    });
    let found: Vec<Seen> = found.into_iter().flatten().collect();
    assert_eq!(found.len(), 2);
    for seen in &found {
        // The fifth step is trained again, after the one that was saved.
        let again = expected[..5].iter().chain(&expected[4..]);
        assert!(seen.steps.iter().eq(again), "{:?}", seen.steps);
        assert!(seen.parameters == parameters);
    }
    let restored = ("restored", 4);
    assert!(
        found[0].as_first.contains(&restored),
        "{:?}",
        found[0].as_first
    );
}
