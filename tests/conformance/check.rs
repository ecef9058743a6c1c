//! Compares a row's module with plain Burn.

use std::error::Error;
use std::fmt;
use std::sync::{Mutex, MutexGuard};

use burn::tensor::{Device, TensorData};
use tinderbox::error::TraceError;
use tinderbox::fake::Mode;

use crate::eager::{Eager, compare};
use crate::row::{Subject, Tracing};
use crate::traced::{self, Generator};

/// The result of a comparison.
#[derive(Clone, Copy)]
pub enum Verdict {
    /// Number of compared tensors, all of them bitwise equal.
    Equal(usize),
    /// The same, with random values from Burn's interpreter.
    EqualWithBackendDraws(usize),
    /// The expected error occurred.
    Refused,
    /// No comparison, for this reason.
    NotCompared(&'static str),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal(count) => write!(f, "{count} equal"),
            Self::EqualWithBackendDraws(count) => write!(f, "{count} equal, backend draws"),
            Self::Refused => write!(f, "exact error"),
            Self::NotCompared(reason) => write!(f, "not compared: {reason}"),
        }
    }
}

/// The verdicts of a row.
pub struct Report {
    /// Parameters, forward and gradients of the materialized module.
    pub materialized: Verdict,
    /// The traced forward in inference.
    pub inference: Verdict,
    /// The traced forward in training.
    pub training: Verdict,
    /// The gradients of the joint graph.
    pub gradients: Verdict,
}

/// The generator of the `flex` backend is global to the process: one row at a time seeds and draws.
static GENERATOR: Mutex<()> = Mutex::new(());

fn hold_generator() -> MutexGuard<'static, ()> {
    // It guards no data, so a panicked row leaves no inconsistent state.
    let held = GENERATOR.lock();
    held.unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Compares a row's module with plain Burn, on a plain and on an autodiff device.
pub fn check(subject: &dyn Subject) -> Result<Report, String> {
    let _held = hold_generator();
    let plain = subject.eager(&Device::flex());
    let materialized_plain = materialized(subject, &plain)?;
    let inference = match subject.tracing() {
        Tracing::Refused(expected) => refused(subject, Mode::Inference, expected)?,
        _ => {
            let found = executed(subject, Mode::Inference, &plain, Generator::None)?;
            Verdict::Equal(compare("traced forward", &plain.outputs, &found.outputs)?)
        }
    };
    if let Tracing::InferenceOnly(reason) = subject.tracing() {
        return Ok(Report {
            materialized: Verdict::Equal(materialized_plain),
            inference,
            training: Verdict::NotCompared(reason),
            gradients: Verdict::NotCompared(reason),
        });
    }

    let tracked = subject.eager(&Device::flex().autodiff());
    let trivial = |(_, gradient): &(String, TensorData)| gradient.iter::<f32>().all(|x| x == 0.0);
    if tracked.gradients.iter().all(trivial) {
        return Err("every gradient is zero: the row compares nothing".into());
    }
    let materialized = materialized_plain + materialized(subject, &tracked)?;
    let (training, gradients) = match subject.tracing() {
        Tracing::Refused(expected) => {
            let verdict = refused(subject, Mode::Training, expected)?;
            (verdict, verdict)
        }
        Tracing::DrawsInTraining => trained(subject, &tracked, Generator::Backend)?,
        Tracing::Equal | Tracing::InferenceOnly(_) => trained(subject, &tracked, Generator::None)?,
    };
    Ok(Report {
        materialized: Verdict::Equal(materialized),
        inference,
        training,
        gradients,
    })
}

/// Runs the module deferred, then materialized with the backend's generator.
fn materialized(subject: &dyn Subject, expected: &Eager) -> Result<usize, String> {
    let found = subject.materialized(&expected.device)?;
    let parameters = compare("materialized", &expected.parameters, &found.parameters)?;
    let outputs = compare("materialized forward", &expected.outputs, &found.outputs)?;
    let gradients = compare("materialized", &expected.gradients, &found.gradients)?;
    Ok(parameters + outputs + gradients)
}

fn refused(subject: &dyn Subject, mode: Mode, expected: &str) -> Result<Verdict, String> {
    match subject.traced(mode) {
        Ok(_) => Err(format!("{mode:?}: the trace is not refused")),
        Err(error) if without_origin(&error) == expected => Ok(Verdict::Refused),
        Err(error) => {
            let found = chain(&error);
            Err(format!(
                "{mode:?}: another error\nexpected: {expected}\n   found: {found}"
            ))
        }
    }
}

/// Formats an error with all of its causes, without the line of the forward, which is in this test.
fn without_origin(error: &TraceError) -> String {
    let text = chain(error);
    match error {
        TraceError::Record { source } | TraceError::BatchNorm { source, .. } => {
            text.replace(&source.origin().to_string(), "")
        }
        _ => text,
    }
}

/// Formats an error with all of its causes.
fn chain(error: &TraceError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Runs the trace of a mode on the parameters and inputs of the eager run.
fn executed(
    subject: &dyn Subject,
    mode: Mode,
    eager: &Eager,
    generator: Generator,
) -> Result<Eager, String> {
    let traced = subject.traced(mode);
    let (joint, table) = traced.map_err(|error| format!("{mode:?}: {}", chain(&error)))?;
    let parameters = eager.values.clone();
    traced::execute(&joint, &table, parameters, subject.inputs(), generator)
}

fn trained(
    subject: &dyn Subject,
    expected: &Eager,
    generator: Generator,
) -> Result<(Verdict, Verdict), String> {
    let found = executed(subject, Mode::Training, expected, generator)?;
    let outputs = compare("traced training", &expected.outputs, &found.outputs)?;
    let gradients = compare("joint graph", &expected.gradients, &found.gradients)?;
    Ok(match generator {
        Generator::None => (Verdict::Equal(outputs), Verdict::Equal(gradients)),
        Generator::Backend => (
            Verdict::EqualWithBackendDraws(outputs),
            Verdict::EqualWithBackendDraws(gradients),
        ),
    })
}
