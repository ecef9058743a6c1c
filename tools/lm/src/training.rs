//! The training loop: steps, checkpoints, signals, and recoveries.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::Device;
use tinderbox::checkpoint::{Resumed, Run};
use tinderbox::session::{EndSignal, EndSignals};
use tinderbox::{Checkpoints, World};
use tinderbox_models::text::Text;

use crate::digests::Digests;
use crate::flags::{Flags, usage};
use crate::interrupt;
use crate::report::{self, Progress, say};
use crate::settings::{LENGTH, Lm, SAMPLES, learning_rate, learning_rates};
use crate::timeline;

pub struct Trained {
    /// The loss of every micro-batch.
    pub losses: Vec<Vec<f64>>,
    /// The rate of the training, saves included.
    pub tokens_per_s: f64,
    /// The signal that ended the training before its last step.
    pub interrupted: Option<EndSignal>,
}

/// Trains to the last step or to a signal, optionally from a checkpoint, and saves as requested.
pub fn train(
    pipeline: &mut Lm,
    world: &World,
    text: &Text,
    flags: &Flags,
    device: &Device,
) -> Result<Trained> {
    let begin = resumed(pipeline, world, flags)?;
    let first = pipeline.steps();
    let saves = saves(world, flags, first)?;
    let digests = flags.digests.as_ref().filter(|_| world.is_first());
    let digests = digests.map(|path| Digests::open(path, first > 0));
    let mut training = Training {
        world,
        text,
        flags,
        device,
        saves,
        digests: digests.transpose()?,
        signals: signals(flags)?,
        progress: Progress::start(first, flags.steps, SAMPLES * LENGTH),
        begin,
        losses: Vec::new(),
        recovered: 0,
    };
    let mut interrupted = None;
    let started = Instant::now();
    while pipeline.steps() < flags.steps && interrupted.is_none() {
        interrupted = match training.step(pipeline) {
            // The state of a rank was lost too.
            Err(error) if pipeline.awaits_restore() => {
                training.go_back(pipeline, &error, first)?;
                None
            }
            stepped => stepped?,
        };
    }
    training.signals.end_at_once();
    let seconds = started.elapsed().as_secs_f64();
    training.progress.end();
    let tokens = (pipeline.steps() - first) as f64 * (SAMPLES * LENGTH) as f64;
    Ok(Trained {
        losses: training.losses,
        tokens_per_s: tokens / seconds.max(f64::MIN_POSITIVE),
        interrupted,
    })
}

/// Receives Ctrl-C, SIGTERM and the signals of `--save-on-signal`.
fn signals(flags: &Flags) -> Result<EndSignals> {
    let always = [EndSignal::Int, EndSignal::Term];
    let more = flags
        .save_on_signal
        .iter()
        .filter(|one| !always.contains(one));
    Ok(EndSignals::listen(always.iter().chain(more).copied())?)
}

/// Resumes from the checkpoint of `--resume`, if there is one, and returns the step and the position in the data.
fn resumed(pipeline: &mut Lm, world: &World, flags: &Flags) -> Result<(u64, u64)> {
    let Some(dir) = &flags.resume else {
        return Ok((0, 0));
    };
    let saves = Checkpoints::in_world(Run::local(dir), world)?;
    let saves = saves
        .allow_changes(flags.allow_changes.iter().cloned())
        .describe_learning_rates(learning_rates(flags.steps));
    match saves.resume(pipeline)? {
        Some(resumed) => {
            print_resumed(&resumed);
            Ok((resumed.step, resumed.data_position))
        }
        None => usage(&format!(
            "--resume {}: the directory contains no checkpoint",
            dir.display()
        )),
    }
}

fn print_resumed(resumed: &Resumed) {
    say!(
        "resumed at step {} from {}",
        resumed.step,
        resumed.dir.display()
    );
    for damaged in &resumed.skipped {
        let to = damaged.set_aside.as_deref().map(Path::display);
        let to = to.map_or_else(String::new, |to| format!(", and was moved to {to}"));
        say!("step {} is damaged{to}: {}", damaged.step, damaged.reason);
    }
}

/// Opens the directory of `--save`, if there is one.
fn saves(world: &World, flags: &Flags, first: u64) -> Result<Option<Checkpoints>> {
    let Some(dir) = &flags.save else {
        return Ok(None);
    };
    // An invalid directory is reported now, not after the training.
    std::fs::create_dir_all(dir).with_context(|| format!("--save {}", dir.display()))?;
    let saves = Checkpoints::in_world(Run::local(dir), world)?;
    let saves = saves
        .every(flags.save_every.unwrap_or(flags.steps))
        .allow_changes(flags.allow_changes.iter().cloned())
        .describe_learning_rates(learning_rates(flags.steps));
    if let Some(latest) = saves.latest()?.filter(|latest| latest.step() > first) {
        let dir = latest.dir().display();
        usage(&format!(
            "--save: {dir} already exists: --resume it, or use another directory"
        ));
    }
    Ok(Some(saves))
}

/// A training in progress.
struct Training<'a> {
    world: &'a World,
    text: &'a Text,
    flags: &'a Flags,
    device: &'a Device,
    saves: Option<Checkpoints>,
    digests: Option<Digests>,
    signals: EndSignals,
    progress: Progress,
    /// The step and the position in the data at which the training began.
    begin: (u64, u64),
    /// The loss of every micro-batch.
    losses: Vec<Vec<f64>>,
    /// The number of recoveries that were printed.
    recovered: usize,
}

impl Training<'_> {
    /// Runs one step, and returns a signal that has arrived.
    fn step(&mut self, pipeline: &mut Lm) -> Result<Option<EndSignal>> {
        let (flags, step) = (self.flags, pipeline.steps());
        let position = self.begin.1 + (step - self.begin.0) * SAMPLES as u64;
        let text = self.text;
        let batch = text.batch(flags.seed, position, SAMPLES, LENGTH, self.device);
        let output = pipeline.step(learning_rate(step, flags.steps), batch.clone())?;
        self.print_recovered(pipeline, step);
        let loss = output.loss;
        self.losses.push(output.micro_batch_losses);
        self.progress.step(loss);
        if let (Some(path), true) = (&flags.trace, pipeline.steps() == flags.steps) {
            let (dependencies, costs) = pipeline.costs(&batch)?;
            let measured = output.timeline.as_ref();
            let measured = measured.expect("measuring is enabled");
            timeline::write(path, pipeline.schedule(), &dependencies, costs, measured)?;
            let drawn = format!("the last step is drawn in {}", path.display());
            self.progress.line(&drawn);
        }
        if output.skipped {
            self.progress.line(&format!(
                "step {step} was skipped: its gradients overflow f16, so the loss scale is halved"
            ));
        }
        if flags.print_losses {
            self.progress.line(&format!("step {step} loss {loss:?}"));
        }
        if flags.digests.is_some() {
            // All processes make this call.
            let digest = pipeline.digest()?;
            if let Some(digests) = &mut self.digests {
                digests.add(&digest)?;
            }
        }
        self.save(pipeline, position + SAMPLES as u64)
    }

    /// Prints the recoveries that were not printed yet.
    fn print_recovered(&mut self, pipeline: &Lm, step: u64) {
        report::set_quiet(!self.world.is_first());
        let recovered = pipeline.recovered();
        for one in &recovered[self.recovered..] {
            self.progress.continue_at(step);
            self.progress.line(&one.to_string());
        }
        self.recovered = recovered.len();
    }

    /// Saves a step if it is due, or if a signal has arrived.
    fn save(&mut self, pipeline: &mut Lm, position: u64) -> Result<Option<EndSignal>> {
        let mut saved = None;
        if let Some(saves) = &self.saves
            && let Some(dir) = saves.after_step(pipeline, position)?
        {
            self.progress.line(&format!("saved {}", dir.display()));
            saved = Some(dir);
        }
        let interrupted = self.signals.received_by_any(pipeline)?;
        self.print_recovered(pipeline, pipeline.steps());
        if interrupted.is_some() {
            self.progress.leave();
            if let (Some(saves), None) = (&self.saves, &saved) {
                saved = Some(saves.save(pipeline, position)?);
            }
            let (step, save) = (pipeline.steps(), self.flags.save.as_deref());
            if self.world.is_first() {
                interrupt::report(step, self.flags.steps, saved.as_deref(), save);
            }
        }
        Ok(interrupted)
    }

    /// Continues from the last checkpoint.
    fn go_back(&mut self, pipeline: &mut Lm, error: &anyhow::Error, first: u64) -> Result<()> {
        report::set_quiet(!self.world.is_first());
        self.progress.line(&format!("{error:#}"));
        let saves = self.saves.as_ref().context("there is no --save")?;
        let resumed = saves.resume(pipeline)?.context("nothing was saved yet")?;
        print_resumed(&resumed);
        self.begin = (resumed.step, resumed.data_position);
        let steps = resumed.step.saturating_sub(first) as usize;
        self.losses.truncate(steps);
        self.progress.continue_at(resumed.step);
        Ok(())
    }
}
