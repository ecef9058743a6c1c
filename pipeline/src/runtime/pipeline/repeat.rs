//! Makes calls, and makes them again with the processes that are left after one was lost.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use burn::module::Module;
use tinderbox_link::Instant;
use tinderbox_world::{Failure, WorldError, with_causes};

use super::pipeline::{Call, CallRecovery, Pipeline, REPLY};
use crate::batch::Batch;
use crate::runtime::driver::{CallKind, Command, Condition, Recovered, Reply};
use crate::runtime::recovery::{CallLog, Rollback};
use crate::{PipelineError, RecoveryError};

impl<M, B> CallRecovery<M, B> {
    pub(super) fn new(rollback: Rollback) -> Self {
        Self {
            rollback,
            log: CallLog::new(),
            is_running: false,
        }
    }

    /// Notes a call that was made. One that was refused is not: it has changed nothing, and sent nothing that others wait for.
    fn note(&mut self, kind: CallKind, call: Call<M, B>) {
        let rollback = &mut self.rollback;
        if kind.is_of_all() {
            rollback.count_call();
            self.log.drop_reads();
        }
        self.log.prune(rollback.oldest());
        match rollback.has_others() {
            false => self.log.clear(),
            true if kind == CallKind::ReadsHere => {}
            true => (self.log).add(call, kind, rollback.version, rollback.calls),
        }
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
        self.make_repeatable(CallKind::Reads, call)
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
        self.make_repeatable(CallKind::Changes, call)
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

    /// Returns what happened each time that processes were lost, and the pipeline went on.
    pub fn recovered(&self) -> &[Recovered] {
        let recovery = self.recovery.as_ref();
        recovery.map_or(&[], |recovery| &recovery.rollback.recovered)
    }

    /// Continues without processes that were lost, if the last error was one of a call of the
    /// [world](crate::PipelineBuilder::world) itself, and returns whether it did: repeat that call then. Calls of the pipeline do this
    /// by themselves.
    ///
    /// # Errors
    ///
    /// [`RecoveryError::StateLost`]; when the others have gone on without this process, or the processes that are left can't
    /// run the model.
    pub fn recover(&mut self) -> Result<bool, PipelineError> {
        match self.lost_process() {
            None => Ok(false),
            Some(failure) => self.continue_after(&failure).map(|()| true),
        }
    }

    /// Makes a call of the driver, and returns its kind of reply.
    pub(super) fn make<T: TryFrom<Reply>>(&mut self, command: Command) -> Result<T, PipelineError> {
        let kind = command.kind();
        let call = Call::Command(command.clone());
        let reply =
            self.with_recovery(kind, |pipeline| pipeline.driver.apply(&command), || call)?;
        Ok(T::try_from(reply).ok().expect(REPLY))
    }

    /// Makes a call that is code of the caller, which may not wait for the other processes, and waits for them: what one process
    /// has returned from, all have begun.
    fn make_repeatable<T, E: From<PipelineError>>(
        &mut self,
        kind: CallKind,
        call: impl Fn(&mut Self) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<T, E> {
        let call = Arc::new(move |pipeline: &mut Self| {
            let result = call(pipeline);
            if pipeline.recovery.is_none() {
                return result;
            }
            let all = pipeline.driver.ranks.wait_for_all();
            let value = result?;
            all?;
            Ok(value)
        });
        let again = call.clone();
        let repeat = move |pipeline: &mut Self| {
            // The reason is the failure of the world.
            again(pipeline)
                .map(drop)
                .map_err(|_: E| PipelineError::Stopped)
        };
        self.with_recovery(
            kind,
            |pipeline| call(pipeline),
            || Call::Repeatable(Box::new(repeat)),
        )
    }

    /// Makes a call; if a process is lost, makes it again with those that are left.
    fn with_recovery<T, E: From<PipelineError>>(
        &mut self,
        kind: CallKind,
        call: impl Fn(&mut Self) -> Result<T, E>,
        noted: impl FnOnce() -> Call<M, B>,
    ) -> Result<T, E> {
        match &mut self.recovery {
            Some(recovery) if !recovery.is_running => recovery.is_running = true,
            // Without recovery, or a part of another call.
            _ => return call(self),
        }
        let result = catch_unwind(AssertUnwindSafe(|| self.retried(kind, call)));
        if let Some(recovery) = &mut self.recovery {
            recovery.is_running = false;
            if let Ok(Ok(_)) = &result {
                recovery.note(kind, noted());
            }
        }
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn retried<T, E: From<PipelineError>>(
        &mut self,
        kind: CallKind,
        call: impl Fn(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            let result = call(self);
            let kept = match result.is_ok() {
                true => self.after_call(kind),
                false => Ok(()),
            };
            let failed = result.is_err() || kept.is_err();
            match self.lost_process().filter(|_| failed) {
                Some(failure) => self.continue_after(&failure)?,
                None => {
                    kept?;
                    return result;
                }
            }
        }
    }

    /// Takes the snapshot of the present version again.
    #[cfg(test)]
    pub(crate) fn renew_snapshot(&mut self) -> Result<(), PipelineError> {
        let taken = self.driver.take_snapshot()?;
        if let (Some(recovery), Some(kept)) = (&mut self.recovery, &mut self.driver.kept) {
            kept.renewed = taken;
            recovery.rollback.absorb(&mut self.driver);
        }
        Ok(())
    }

    /// Counts a change, and takes a snapshot if one is due.
    fn after_call(&mut self, kind: CallKind) -> Result<(), PipelineError> {
        match &mut self.recovery {
            Some(recovery) => recovery.rollback.after_call(&mut self.driver, kind),
            None => Ok(()),
        }
    }

    /// The failure of the world, if it is one that the pipeline can continue after.
    fn lost_process(&self) -> Option<Failure> {
        self.recovery.as_ref()?.rollback.lost_process()
    }

    /// Continues, again and again if more processes are lost meanwhile.
    fn continue_after(&mut self, failure: &Failure) -> Result<(), PipelineError> {
        let began = Instant::now();
        let Some(recovery) = &mut self.recovery else {
            return Ok(());
        };
        let was_running = std::mem::replace(&mut recovery.is_running, true);
        let world = recovery.rollback.world.clone();
        let result = loop {
            let result = self.go_back_and_repeat(failure, began);
            let is_final = matches!(
                &result,
                Ok(())
                    | Err(PipelineError::Recovery(RecoveryError::StateLost { .. })
                        | PipelineError::World(
                            WorldError::GivenUp { .. } | WorldError::TooFewLeft { .. }
                        ))
            );
            if is_final || self.lost_process().is_none() {
                break result;
            }
        };
        if let Some(recovery) = &mut self.recovery {
            recovery.is_running = was_running;
        }
        if let Err(error) = &result {
            tracing::error!(%error, "the pipeline can't continue by itself");
            if !matches!(
                error,
                PipelineError::Recovery(RecoveryError::StateLost { .. })
            ) {
                // The others wait for this process.
                world.fail(&with_causes(error));
                self.driver.ranks.end();
                self.driver.condition = Condition::Stopped;
            }
        }
        result
    }

    /// Brings the processes that are left to the same version, and repeats the calls since then.
    fn go_back_and_repeat(
        &mut self,
        failure: &Failure,
        began: Instant,
    ) -> Result<(), PipelineError> {
        let Some(recovery) = &mut self.recovery else {
            return Ok(());
        };
        let went_back = (recovery.rollback).go_back(&mut self.driver, failure, began);
        if let Err(PipelineError::Recovery(RecoveryError::StateLost { .. })) = went_back {
            recovery.log.clear();
        }
        let (mut recovered, least) = went_back?;
        let version = recovery.rollback.version;
        for entry in recovery.log.to_repeat(version, least) {
            recovered.repeated += self.repeat(&entry.call, entry.kind)?;
        }
        if let Some(recovery) = &mut self.recovery {
            (recovered.step, recovered.took) = (self.driver.state.step, began.elapsed());
            recovery.rollback.report(recovered);
            recovery.log.prune(recovery.rollback.oldest());
        }
        Ok(())
    }

    /// Makes a call again; returns the number of training steps that it has made, of several one.
    fn repeat(&mut self, call: &Call<M, B>, kind: CallKind) -> Result<u64, PipelineError> {
        let step = self.steps();
        let result = match call {
            Call::Command(command) => self.driver.apply(command).map(drop),
            Call::Repeatable(call) => call(self),
        };
        if !kind.changes() {
            match (self.lost_process(), &result) {
                (Some(_), _) => result?,
                // As where it is made for the first time: others may make it so.
                (None, Ok(())) => self.after_call(kind)?,
                // It was refused then as well.
                (None, Err(_)) => {}
            }
            return Ok(0);
        }
        result?;
        self.after_call(kind)?;
        let is_step = kind.is_of_all() && self.steps() == step + 1;
        Ok(u64::from(is_step))
    }
}
