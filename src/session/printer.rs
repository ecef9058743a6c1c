//! Prints the events of a session.

use std::io::{IsTerminal, Write, stdout};
use std::path::Path;

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

use super::event::{Event, EventHandler, Until};
use super::position::Position;
use crate::checkpoints::SkippedCheckpoint;

/// The number of steps for each line without a terminal.
const STEPS_PER_LINE: u64 = 50;

/// The factor of the weight of earlier steps in the speed, for each step.
const DECAY: f64 = 0.9;

/// Prints a session: a progress bar with step, loss and speed, and a line for every other event. The bar is shown while the
/// first step runs. If standard output is not a terminal, it prints a line after the first step and after every 50 steps
/// instead of the bar.
///
/// In a [`World`](crate::World), the process with rank 0 prints.
///
/// A training that was resumed, with `.unit("tokens", 64.0)`:
///
/// ```text
/// resumed after step 101 from run/step-00000101
/// step 102/600 loss 2.5309 2659 tokens/s
/// step 150/600 loss 2.4138 2537 tokens/s
/// step 200/600 loss 2.2670 2479 tokens/s
/// step 200 saved to run/step-00000200
/// ```
#[derive(Debug, Default)]
#[must_use]
pub struct Printer {
    bar: Option<ProgressBar>,
    /// The first step that this training does.
    first: u64,
    until: Until,
    /// The unit of the speed, and its number for each sample.
    unit: Option<(String, f64)>,
    /// Samples and seconds of the last steps.
    recent: (f64, f64),
}

impl Printer {
    /// Creates a printer of the speed in samples per second.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the unit of the speed, and the number of units in a sample, such as `("tokens", 64.0)`.
    pub fn unit(mut self, name: impl Into<String>, per_sample: f64) -> Self {
        self.unit = Some((name.into(), per_sample));
        self
    }

    /// Shows the bar, if standard output and standard error are terminals.
    fn start(&mut self, step: u64, position: Position, until: Until) {
        (self.first, self.until) = (step + 1, until);
        if !stdout().is_terminal() {
            return;
        }
        let (bar, template) = match until.steps {
            Some(all) => (ProgressBar::new(all), "{bar:30} {msg}"),
            None => (ProgressBar::no_length(), "{spinner} {msg}"),
        };
        let style = ProgressStyle::with_template(template);
        let bar = bar.with_style(style.expect("the template is well-formed"));
        let bar = bar.with_message(self.place(step, position));
        // Draws the bar while the first step runs.
        bar.set_position(step);
        // The steps before a resume do not count for the remaining time.
        bar.reset_eta();
        self.bar = (!bar.is_hidden()).then_some(bar);
    }

    /// Returns the epoch and the step, such as `epoch 1/2 step 150/600`.
    fn place(&self, step: u64, position: Position) -> String {
        let steps = self.until.steps.map(|all| format!("/{all}"));
        let epoch = self.until.epochs.map(|all| {
            let epoch = (position.epoch + 1).min(all);
            format!("epoch {epoch}/{all} ")
        });
        let (epoch, steps) = (epoch.unwrap_or_default(), steps.unwrap_or_default());
        format!("{epoch}step {step}{steps}")
    }

    fn step(&self, step: u64, position: Position, loss: f64) {
        let (unit, per_sample) = match &self.unit {
            Some((unit, per_sample)) => (&**unit, *per_sample),
            None => ("samples", 1.0),
        };
        let (samples, seconds) = self.recent;
        let speed = samples * per_sample / seconds.max(f64::MIN_POSITIVE);
        let place = self.place(step, position);
        let text = format!("{place} loss {loss:.4} {speed:.0} {unit}/s");
        let is_first_or_last = [Some(self.first), self.until.steps].contains(&Some(step));
        match &self.bar {
            Some(bar) => {
                bar.set_position(step);
                let left = HumanDuration(bar.eta());
                let left = self.until.steps.map(|_| format!(" {left:#} left"));
                bar.set_message(text + &left.unwrap_or_default());
            }
            None if is_first_or_last || step.is_multiple_of(STEPS_PER_LINE) => self.line(&text),
            None => {}
        }
    }

    /// Prints a line, above the bar if there is one.
    fn line(&self, text: &str) {
        let print = || {
            // A closed standard output does not end the training.
            let _ = writeln!(stdout(), "{text}");
        };
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    fn skipped(&self, damaged: &SkippedCheckpoint) {
        let to = damaged.set_aside.as_deref().map(Path::display);
        let to = to.map_or_else(String::new, |to| format!(", and was moved to {to}"));
        let (step, reason) = (damaged.step, &damaged.reason);
        self.line(&format!("step {step} is damaged{to}: {reason}"));
    }
}

impl EventHandler for Printer {
    fn handle(&mut self, event: &Event) {
        match event {
            Event::Resumed {
                reason,
                step,
                dir,
                skipped,
                ..
            } => {
                if let Some(reason) = reason {
                    self.line(reason);
                }
                self.line(&format!("resumed after step {step} from {}", dir.display()));
                skipped.iter().for_each(|damaged| self.skipped(damaged));
            }
            Event::Started {
                step,
                position,
                until,
            } => self.start(*step, *position, *until),
            Event::Step {
                step,
                position,
                loss,
                samples,
                took,
                output,
                ..
            } => {
                if output.skipped {
                    self.line(&format!(
                        "step {step} changed nothing: its gradients overflow, so the loss scale is halved"
                    ));
                }
                let (old_samples, old_seconds) = self.recent;
                self.recent = (
                    old_samples * DECAY + *samples as f64,
                    old_seconds * DECAY + took.as_secs_f64(),
                );
                self.step(*step, *position, *loss);
            }
            Event::Evaluated { step, validation } => self.line(&format!(
                "step {step} validation loss {:.4} over {} samples",
                validation.loss, validation.samples
            )),
            Event::Saved { step, dir } => {
                self.line(&format!("step {step} saved to {}", dir.display()));
            }
            Event::Recovered(recovered) => self.line(&recovered.to_string()),
            Event::EpochEnded {
                epoch,
                samples,
                step,
            } => self.line(&format!(
                "epoch {} ended after step {step}, with {samples} samples",
                epoch + 1
            )),
            Event::Interrupted { step, by, dir, .. } => {
                if let Some(bar) = self.bar.take() {
                    bar.abandon();
                }
                self.line(&format!("interrupted by {by} after step {step}"));
                self.line(&match dir {
                    Some(dir) => format!("the run continues from {}", dir.display()),
                    None => "nothing was saved: a session with checkpoints can continue".to_owned(),
                });
            }
            Event::Finished { .. } => {
                if let Some(bar) = self.bar.take() {
                    bar.finish();
                }
            }
        }
    }
}
