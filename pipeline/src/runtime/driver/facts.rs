//! What all processes of a world have to agree on before they start.

use std::hash::Hasher;
use std::io;

use serde::Serialize;
use tinderbox_deferred::NumericFingerprint;
use twox_hash::XxHash3_64;

use super::run_settings::Training;
use crate::lists::ScheduleChoice;
use crate::runtime::loss_scale::LossScale;
use crate::runtime::ranks::{Ranks, To};
use crate::runtime::settings::Settings;
use crate::schedule::RankIndex;
use crate::trace::JointGraph;
use crate::{PipelineError, Plan, ProcessError};

/// What a pipeline was started with.
pub(crate) struct Facts<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) trace: &'a JointGraph,
    pub(crate) settings: &'a Settings,
    pub(crate) training: Training<'a>,
    pub(crate) schedule: &'a ScheduleChoice,
    pub(crate) loss_scale: Option<LossScale>,
    pub(crate) check_memory: Option<u64>,
}

impl Facts<'_> {
    /// Compares them with the facts of all other processes of a world.
    pub(crate) fn compare(&self, ranks: &mut (dyn Ranks + 'static)) -> Result<(), PipelineError> {
        if ranks.own().is_none() {
            return Ok(());
        }
        let own = NumericFingerprint::of_process();
        let all = ranks.exchange(To::All, (self.named(), own.clone()), Vec::new())?;
        let expected = &all[0].0.0;
        for (rank, ((found, numerics), _)) in all.iter().enumerate() {
            warn_of_numerics(rank, &own.differences(numerics));
            let pairs = expected.iter().zip(found);
            if let Some(((field, expected), (_, found))) = pairs.into_iter().find(|(a, b)| a != b) {
                let rank = RankIndex::new(rank);
                // Each process reports the same pair; the one that differs says so of itself.
                return Err(ranks.notified(ProcessError::OtherSettings {
                    rank,
                    field: field.clone(),
                    expected: expected.clone(),
                    found: found.clone(),
                }));
            }
        }
        Ok(())
    }

    /// The name of each fact and its value, or a digest of it.
    fn named(&self) -> Vec<(String, String)> {
        let settings = self.settings;
        let schedule = match self.schedule {
            ScheduleChoice::Named(kind) => kind.to_string(),
            lists => digest_of(format!("{lists:?}").as_bytes()),
        };
        [
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("model and forward", digest(self.trace.graph())),
            ("plan", digest_of(self.plan.to_json().as_bytes())),
            ("schedule", schedule),
            ("seed", format!("{:?}", settings.seed)),
            ("loss scale", format!("{:?}", self.loss_scale)),
            ("check of memory", format!("{:?}", self.check_memory)),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .chain(self.training.named().into_iter().map(in_words))
        .collect()
    }
}

/// Reports that the CPU of another rank rounds differently.
fn warn_of_numerics(rank: usize, classes: &[&str]) {
    if !classes.is_empty() {
        tracing::warn!(
            rank,
            classes = classes.join(", "),
            "the processor or the C library of another rank rounds differently: the bits of a step depend on which rank \
             computes what"
        );
    }
}

/// The name of a setting in words.
fn in_words((name, value): (String, String)) -> (String, String) {
    match name.as_str() {
        "micro_batches" => ("number of micro-batches".to_owned(), value),
        name => (name.replace('_', " "), value),
    }
}

/// A writer that only hashes.
struct Digest(XxHash3_64);

impl io::Write for Digest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn digest(value: &impl Serialize) -> String {
    let mut digest = Digest(XxHash3_64::with_seed(0));
    // Numbers that are not finite have no JSON and are written as null, which is enough to compare. Nothing else fails.
    let written = serde_json::to_writer(&mut digest, value);
    format!(
        "{:016x}{}",
        digest.0.finish(),
        if written.is_ok() { "" } else { "?" }
    )
}

fn digest_of(bytes: &[u8]) -> String {
    format!("{:016x}", XxHash3_64::oneshot(bytes))
}
