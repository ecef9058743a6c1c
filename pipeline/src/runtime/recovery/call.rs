//! Calls that are repeated after a loss.

use std::sync::Arc;

use burn::module::Module;

use crate::PipelineError;
use crate::batch::Batch;
use crate::runtime::pipeline::Pipeline;

/// What a call does, again.
type Redo<M, B> = dyn Fn(&mut Pipeline<M, B>) -> Result<(), PipelineError> + Send + Sync;

/// A call that may be repeated.
pub(super) struct Call<M, B> {
    /// The version that it was made with.
    version: u64,
    /// Whether it changed something.
    changes: bool,
    /// Its number, if all processes take part.
    number: Option<u64>,
    redo: Arc<Redo<M, B>>,
}

impl<M, B> Call<M, B> {
    /// Whether it has to be repeated to get from a version to the present.
    pub(super) fn is_after(&self, version: u64) -> bool {
        self.version >= version
    }
}

/// What a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime) enum Kind {
    /// All processes take part, and the state of the ranks changes.
    Changes,
    /// All processes take part, and nothing changes.
    Reads,
    /// Each process makes it by itself, and the state changes.
    ChangesHere,
    /// Each process makes it by itself, and nothing changes.
    ReadsHere,
}

impl Kind {
    const fn changes(self) -> bool {
        matches!(self, Self::Changes | Self::ChangesHere)
    }

    const fn is_of_all(self) -> bool {
        matches!(self, Self::Changes | Self::Reads)
    }
}

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Makes a call; if a rank is lost, makes it again with those that are left.
    pub(in crate::runtime) fn recovering<T>(
        &mut self,
        kind: Kind,
        call: impl Fn(&mut Self) -> Result<T, PipelineError> + Send + Sync + 'static,
    ) -> Result<T, PipelineError> {
        match &mut self.guard {
            Some(guard) if !guard.is_running => guard.is_running = true,
            // Without recovery, or a part of another call.
            _ => return call(self),
        }
        let result = self.until_made(kind, call);
        if let Some(guard) = &mut self.guard {
            guard.is_running = false;
        }
        result
    }

    fn until_made<T>(
        &mut self,
        kind: Kind,
        call: impl Fn(&mut Self) -> Result<T, PipelineError> + Send + Sync + 'static,
    ) -> Result<T, PipelineError> {
        let result = loop {
            let result = call(self);
            let kept = match (&result, kind) {
                (Ok(_), Kind::Changes) => self.after_change(),
                (Ok(_), Kind::ChangesHere) => self.count_change(),
                _ => Ok(()),
            };
            let failed = result.is_err() || kept.is_err();
            match self.can_recover().filter(|_| failed) {
                Some(failure) => self.go_on(failure)?,
                None => break kept.and(result),
            }
        };
        let redo = Arc::new(move |pipeline: &mut Self| call(pipeline).map(drop));
        self.note(kind, result.is_ok(), redo);
        result
    }

    /// Changes what the driver has, and can't fail.
    pub(in crate::runtime) fn change_driver(
        &mut self,
        change: impl Fn(&mut Self) + Send + Sync + 'static,
    ) {
        let changed = self.recovering(Kind::ChangesHere, move |pipeline| {
            change(pipeline);
            Ok(())
        });
        changed.expect("it sends nothing");
    }

    /// A call has changed the state.
    fn count_change(&mut self) -> Result<(), PipelineError> {
        if let Some(guard) = &mut self.guard {
            guard.version += 1;
        }
        Ok(())
    }

    /// A call of all has changed the state: it is kept if that is due.
    fn after_change(&mut self) -> Result<(), PipelineError> {
        self.count_change()?;
        self.keep_state()
    }

    /// Notes a call that was made.
    fn note(&mut self, kind: Kind, is_ok: bool, redo: Arc<Redo<M, B>>) {
        let Some(guard) = &mut self.guard else {
            return;
        };
        let changes = kind.changes() && is_ok;
        if kind.is_of_all() {
            guard.calls += 1;
            // Every process has made the calls before this one.
            guard.log.retain(|call| call.changes);
        }
        if guard.ranks == 1 {
            guard.log.clear();
            return;
        }
        if changes || kind.is_of_all() {
            guard.log.push(Call {
                version: guard.version - u64::from(changes),
                changes,
                number: kind.is_of_all().then_some(guard.calls),
                redo,
            });
        }
    }

    /// Makes the calls since the present version again: those that changed something, and the last one of all processes if
    /// some have not made it.
    pub(super) fn repeat(&mut self, least: u64) -> Result<(), PipelineError> {
        let Some(guard) = &mut self.guard else {
            return Ok(());
        };
        let from = guard.version;
        let calls = std::mem::take(&mut guard.log);
        let mut repeated = Ok(());
        for call in &calls {
            let is_missing = call.number.is_some_and(|number| number > least);
            if !call.is_after(from) || !(call.changes || is_missing) {
                continue;
            }
            repeated = match (call.redo)(self) {
                // It was refused before as well.
                Err(error) if call.changes || self.can_recover().is_some() => Err(error),
                _ => Ok(()),
            };
            if repeated.is_ok() && call.changes {
                repeated = match call.number {
                    Some(_) => self.after_change(),
                    None => self.count_change(),
                };
            }
            if repeated.is_err() {
                break;
            }
        }
        if let Some(guard) = &mut self.guard {
            guard.log = calls;
            let kept = guard.kept;
            guard.log.retain(|call| call.is_after(kept));
        }
        repeated
    }
}
