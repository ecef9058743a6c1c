//! Makes calls, and repeats them with the remaining processes after a process was lost.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use burn::module::Module;
use tinderbox_world::link::Instant;
use tinderbox_world::{Failure, WorldError, with_causes};

use super::pipeline::{Call, CallRecovery, Pipeline};
use crate::error::Result;
use crate::runtime::driver::{CallKind, Command, Condition, Reply};
use crate::{Batch, PipelineError, Recovered, RecoveryError};

impl<M, B> CallRecovery<M, B> {
    /// Notes a call that was made. A refused call is not noted: it has changed nothing, and no other process waits for it.
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
    /// Makes a joint call with other parts than the pipeline, for example its [`world`](crate::PipelineBuilder::world) and a
    /// store. All processes must make the call. With [recovery](crate::PipelineBuilder::recovery), the remaining processes
    /// repeat it when a process is lost, even if it has returned on some of them. It must return the same value again.
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

    /// Makes a call as [`repeatable`](Self::repeatable) does, for a call that changes the state of the pipeline, for example a
    /// restore from a store.
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

    /// Waits until all processes have made their last call before this one. Until then this process takes part in a recovery: a
    /// process that has left can no longer send its state to the others. Without
    /// [recovery](crate::PipelineBuilder::recovery), this does nothing.
    ///
    /// # Errors
    ///
    /// When the pipeline can't continue after a loss. This includes the loss of a process within this call after the others
    /// have returned from it and left; then all calls were made.
    pub fn finish(&mut self) -> Result<()> {
        match self.recovery {
            Some(_) => self.repeatable(|_| Ok(())),
            None => Ok(()),
        }
    }

    /// Returns a report of each recovery from a loss of processes.
    pub fn recovered(&self) -> &[Recovered] {
        let recovery = self.recovery.as_ref();
        recovery.map_or(&[], |recovery| &recovery.rollback.recovered)
    }

    /// Continues without lost processes, if the last error came from a call of the [world](crate::PipelineBuilder::world)
    /// itself. Returns whether it did: if so, repeat that call. Calls of the pipeline recover by themselves.
    ///
    /// # Errors
    ///
    /// [`RecoveryError::StateLost`]; when the others have continued without this process, or the remaining processes can't
    /// run the model.
    pub fn recover(&mut self) -> Result<bool> {
        match self.lost_process() {
            None => Ok(false),
            Some(failure) => self.continue_after(&failure).map(|()| true),
        }
    }

    /// Makes a call of the driver, and returns its kind of reply.
    pub(super) fn make<T: TryFrom<Reply>>(&mut self, command: Command) -> Result<T> {
        let kind = command.kind();
        let call = Call::Command(command.clone());
        let reply =
            self.with_recovery(kind, |pipeline| pipeline.driver.apply(&command), || call)?;
        let reply = T::try_from(reply).ok();
        Ok(reply.expect("a command has one kind of reply"))
    }

    /// Makes a call that is code of the caller, and waits for the other processes, because the code may not wait for them. When
    /// one process returns, all have begun the call.
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
            let repeated = again(pipeline).map(drop);
            repeated.map_err(|_: E| PipelineError::Stopped)
        };
        let noted = || Call::Repeatable(Box::new(repeat));
        self.with_recovery(kind, |pipeline| call(pipeline), noted)
    }

    /// Makes a call. If a process is lost, repeats it with the remaining processes.
    fn with_recovery<T, E: From<PipelineError>>(
        &mut self,
        kind: CallKind,
        call: impl Fn(&mut Self) -> Result<T, E>,
        noted: impl FnOnce() -> Call<M, B>,
    ) -> Result<T, E> {
        match &mut self.recovery {
            Some(recovery) if !recovery.is_running => recovery.is_running = true,
            // Without recovery, or within another call.
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

    /// Counts a change, and takes a snapshot if one is due.
    fn after_call(&mut self, kind: CallKind) -> Result<()> {
        match &mut self.recovery {
            Some(recovery) => recovery.rollback.after_call(&mut self.driver, kind),
            None => Ok(()),
        }
    }

    /// The failure of the world, if the pipeline can continue after it.
    fn lost_process(&self) -> Option<Failure> {
        self.recovery.as_ref()?.rollback.lost_process()
    }

    /// Continues after a loss, again if more processes are lost meanwhile.
    fn continue_after(&mut self, failure: &Failure) -> Result<()> {
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
            if let PipelineError::Recovery(RecoveryError::StateLost { .. }) = error {
                return result;
            }
            // The others wait for this process.
            world.fail(&with_causes(error));
            self.driver.ranks.end();
            self.driver.condition = Condition::Stopped;
        }
        result
    }

    /// Brings the remaining processes to the same version, and repeats the calls since then.
    fn go_back_and_repeat(&mut self, failure: &Failure, began: Instant) -> Result<()> {
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

    /// Repeats a call. Returns 1 if it was one training step, else 0.
    fn repeat(&mut self, call: &Call<M, B>, kind: CallKind) -> Result<u64> {
        let step = self.steps();
        let result = match call {
            Call::Command(command) => self.driver.apply(command).map(drop),
            Call::Repeatable(call) => call(self),
        };
        if !kind.changes() {
            match (self.lost_process(), &result) {
                (Some(_), _) => result?,
                // The same as after a first call: other processes may make this call for the first time.
                (None, Ok(())) => self.after_call(kind)?,
                // The first call was refused too.
                (None, Err(_)) => {}
            }
            return Ok(0);
        }
        result?;
        self.after_call(kind)?;
        Ok(u64::from(kind.is_of_all() && self.steps() == step + 1))
    }
}

#[cfg(test)]
impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Takes the snapshot of the present version again.
    pub(crate) fn renew_snapshot(&mut self) -> Result<()> {
        let taken = self.driver.take_snapshot()?;
        if let (Some(recovery), Some(kept)) = (&mut self.recovery, &mut self.driver.kept) {
            kept.renewed = taken;
            recovery.rollback.absorb(&mut self.driver);
        }
        Ok(())
    }
}
