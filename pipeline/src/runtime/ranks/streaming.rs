//! A rank whose stages have their parameters only while they run.

use std::any::Any;
use std::sync::Arc;

use parking_lot::Mutex;
use tinderbox_fake::Mode;

use super::ranks::{Payload, Ranks, To};
use super::threads::Threads;
use crate::PipelineError;
use crate::error::Result;
use crate::runtime::execute::RankCall;
use crate::runtime::pass::Passes;
use crate::runtime::program::CutProgram;
use crate::runtime::round::{Reported, Round};
use crate::schedule::ScheduleMode;

/// The plans of passes, shared by the rank and by predictions. There are none until the memory of the process is measured.
pub(crate) type SharedPasses = Arc<Mutex<Option<Passes>>>;

/// One rank on a thread, which plans a pass over its stages before each round.
pub(crate) struct StreamingRank {
    thread: Threads,
    passes: SharedPasses,
}

impl StreamingRank {
    pub(crate) const fn new(thread: Threads, passes: SharedPasses) -> Self {
        Self { thread, passes }
    }
}

impl Ranks for StreamingRank {
    fn run(&mut self, round: &Arc<Round>, request: &'static str) -> Result<Vec<Reported>> {
        let part = &round.parts[0];
        let mode = match part.lists.schedule.mode {
            ScheduleMode::Training => Mode::Training,
            _ => Mode::Inference,
        };
        let cuts: Vec<&CutProgram> = round.cuts(part).collect();
        let pass = {
            let mut passes = self.passes.lock();
            let passes = passes.as_mut().ok_or(PipelineError::Stopped)?;
            passes.pass(mode, &part.lists, &cuts, round.carries.other_bytes)?
        };
        self.thread.run_pass(round, Some(&pass), request)
    }

    fn call(&mut self, request: &'static str, call: RankCall) -> Result<Vec<Box<dyn Any + Send>>> {
        self.thread.call(request, call)
    }

    fn exchange_bytes(&mut self, to: To, given: Payload) -> Result<Vec<Payload>> {
        self.thread.exchange_bytes(to, given)
    }

    fn is_aborted(&self) -> bool {
        self.thread.is_aborted()
    }

    fn end(&mut self) {
        self.thread.end();
    }
}
