//! Calls that are repeated after a loss.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use burn::module::Module;

use crate::PipelineError;
use crate::batch::Batch;
use crate::runtime::pipeline::Pipeline;
use crate::runtime::remote::To;

/// After so many changes without a snapshot, the next call of all processes takes one.
const CHANGES: u64 = 64;

/// Makes a call again.
type Repeat<M, B> = dyn Fn(&mut Pipeline<M, B>) -> Result<(), PipelineError> + Send + Sync;

/// A call that may be repeated.
pub(super) struct Call<M, B> {
    /// The version that it was made with.
    version: u64,
    /// Whether it changed something.
    changes: bool,
    /// Its number, if all processes take part.
    number: Option<u64>,
    repeat: Arc<Repeat<M, B>>,
}

impl<M, B> Call<M, B> {
    /// Whether it has to be repeated to get from a version to the present.
    pub(super) fn is_after(&self, version: u64) -> bool {
        self.version >= version
    }
}

/// Who makes a call, and whether it changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime) enum CallKind {
    /// All processes take part, and the state of the ranks changes.
    Changes,
    /// All processes take part, and nothing changes.
    Reads,
    /// Each process makes it by itself, and the state changes.
    ChangesHere,
    /// Each process makes it by itself, and nothing changes.
    ReadsHere,
}

impl CallKind {
    const fn changes(self) -> bool {
        matches!(self, Self::Changes | Self::ChangesHere)
    }

    const fn is_of_all(self) -> bool {
        matches!(self, Self::Changes | Self::Reads)
    }
}

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Makes a call of all processes that is not one of the pipeline alone, such as one of its [`world`](crate::PipelineBuilder::world)
    /// and store. With [recovery](crate::PipelineBuilder::recovery), those that are left make it again when a process is lost,
    /// also after it has returned to some of them: it has to return the same then.
    ///
    /// # Errors
    ///
    /// The error of the call; when the pipeline can't continue after a loss.
    pub fn repeatable<T, E: From<PipelineError>>(
        &mut self,
        call: impl Fn(&mut Self) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<T, E> {
        self.recovering(CallKind::Reads, move |pipeline| pipeline.of_all(&call))
    }

    /// As [`repeatable`](Self::repeatable), for a call that changes the state of the pipeline, such as a restore from a store.
    ///
    /// # Errors
    ///
    /// As [`repeatable`](Self::repeatable).
    pub fn repeatable_change<T, E: From<PipelineError>>(
        &mut self,
        call: impl Fn(&mut Self) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<T, E> {
        self.recovering(CallKind::Changes, move |pipeline| pipeline.of_all(&call))
    }

    /// Waits until all processes have made their last call before this one. Until then this process takes part when another one is
    /// lost: one that has left has no state to give to the others any more. Without
    /// [recovery](crate::PipelineBuilder::recovery) it does nothing.
    ///
    /// # Errors
    ///
    /// When the pipeline can't continue after a loss: also if a process is lost within this call and the others have returned from
    /// it and left. All calls were made then.
    pub fn finish(&mut self) -> Result<(), PipelineError> {
        match self.recovery {
            Some(_) => self.repeatable(|_| Ok(())),
            None => Ok(()),
        }
    }

    /// Makes a call that may not wait for the other processes, and waits for them: what one process has returned from, all
    /// have begun.
    fn of_all<T, E: From<PipelineError>>(
        &mut self,
        call: impl Fn(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let result = call(self);
        if self.recovery.is_none() {
            return result;
        }
        let all = self.crew.exchange(To::All, (), Vec::new());
        let value = result?;
        all?;
        Ok(value)
    }

    /// Makes a call; if a process is lost, makes it again with those that are left.
    pub(in crate::runtime) fn recovering<T, E: From<PipelineError>>(
        &mut self,
        kind: CallKind,
        call: impl Fn(&mut Self) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<T, E> {
        match &mut self.recovery {
            Some(recovery) if !recovery.is_running => recovery.is_running = true,
            // Without recovery, or a part of another call.
            _ => return call(self),
        }
        let result = catch_unwind(AssertUnwindSafe(|| self.retried(kind, call)));
        if let Some(recovery) = &mut self.recovery {
            recovery.is_running = false;
        }
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn retried<T, E: From<PipelineError>>(
        &mut self,
        kind: CallKind,
        call: impl Fn(&mut Self) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<T, E> {
        let result = loop {
            let result = call(self);
            let kept = match result.is_ok() {
                true => self.after_call(kind),
                false => Ok(()),
            };
            let failed = result.is_err() || kept.is_err();
            match self.lost_process().filter(|_| failed) {
                Some(failure) => self.go_on(failure)?,
                None => {
                    kept?;
                    break result;
                }
            }
        };
        if result.is_ok() {
            let repeat = move |pipeline: &mut Self| {
                // The reason is the failure of the world.
                call(pipeline).map(drop).map_err(|_| PipelineError::Stopped)
            };
            self.note(kind, Arc::new(repeat));
        }
        result
    }

    /// Changes what the driver has, and can't fail.
    pub(in crate::runtime) fn change_driver(
        &mut self,
        change: impl Fn(&mut Self) + Send + Sync + 'static,
    ) {
        let changed = self.recovering(CallKind::ChangesHere, move |pipeline| {
            change(pipeline);
            Ok::<(), PipelineError>(())
        });
        changed.expect("it sends nothing");
    }

    /// Counts a change, and takes a snapshot if one is due.
    fn after_call(&mut self, kind: CallKind) -> Result<(), PipelineError> {
        let Some(recovery) = &mut self.recovery else {
            return Ok(());
        };
        if kind.changes() {
            recovery.version += 1;
        }
        let since = recovery.version - recovery.ledger.newest_own().min(recovery.version);
        let every = recovery.settings.every;
        // After a loss, at once.
        let is_old = since >= CHANGES.max(every) || recovery.ledger.kept.is_none();
        let is_due = match kind {
            CallKind::Changes => self.step.is_multiple_of(every) || is_old,
            CallKind::Reads => is_old,
            CallKind::ChangesHere | CallKind::ReadsHere => false,
        };
        match is_due && !self.is_averaged {
            true => self.take_snapshot(),
            false => Ok(()),
        }
    }

    /// Notes a call that was made. One that was refused is not: it has changed nothing, and sent nothing that others wait for.
    fn note(&mut self, kind: CallKind, repeat: Arc<Repeat<M, B>>) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        if kind.is_of_all() {
            recovery.calls += 1;
            // Every process has made the calls before this one, and has this ledger.
            recovery.log.retain(|call| call.changes);
            if recovery.ledger.kept.is_some() {
                recovery.earlier.clear();
            }
            recovery.prune();
        }
        if recovery.ledger.processes == 1 {
            recovery.log.clear();
            return;
        }
        if kind != CallKind::ReadsHere {
            recovery.log.push(Call {
                version: recovery.version - u64::from(kind.changes()),
                changes: kind.changes(),
                number: kind.is_of_all().then_some(recovery.calls),
                repeat,
            });
        }
    }

    /// Makes the calls since the present version again: those that changed something, and the last one of all processes if
    /// some have made fewer than this process. Returns the number of training steps among them.
    pub(super) fn repeat(&mut self, least: u64) -> Result<u64, PipelineError> {
        let Some(recovery) = &mut self.recovery else {
            return Ok(0);
        };
        let from = recovery.version;
        let calls = std::mem::take(&mut recovery.log);
        let mut steps = Ok(0);
        for call in &calls {
            let is_missing = call.number.is_some_and(|number| number > least);
            if call.is_after(from) && (call.changes || is_missing) {
                steps = steps.and_then(|steps| Ok(steps + self.repeat_one(call)?));
            }
        }
        if let Some(recovery) = &mut self.recovery {
            recovery.log = calls;
            recovery.prune();
        }
        steps
    }

    fn repeat_one(&mut self, call: &Call<M, B>) -> Result<u64, PipelineError> {
        let step = self.step;
        let result = (call.repeat)(self);
        if !call.changes {
            match (self.lost_process(), &result) {
                (Some(_), _) => result?,
                // As where it is made for the first time: others may make it so.
                (None, Ok(())) => self.after_call(CallKind::Reads)?,
                // It was refused then as well.
                (None, Err(_)) => {}
            }
            return Ok(0);
        }
        result?;
        self.after_call(match call.number {
            Some(_) => CallKind::Changes,
            None => CallKind::ChangesHere,
        })?;
        let is_step = call.number.is_some() && self.step == step + 1;
        Ok(u64::from(is_step))
    }
}
