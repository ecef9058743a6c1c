//! Runs fibers.

use std::any::Any;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use generator::Gn;

use crate::error::SimulationError;
use crate::handle::{Entered, Handle};
use crate::state::{Body, FiberId, Process, Report, Step};

/// The stack of a fiber. Pages that it does not touch use no memory.
const STACK_BYTES: usize = 1 << 20;

/// Longer than most programs take: one that has not ended by then repeats something forever, such as heartbeats.
const TIME_LIMIT: Duration = Duration::from_secs(60 * 60);

/// Half a minute of real time: a program that takes more steps repeats something while no time passes.
const STEP_LIMIT: u64 = 10_000_000;

/// Fibers that are about to run.
#[derive(derive_more::Debug)]
#[must_use]
pub struct Simulation<'a> {
    seed: u64,
    #[debug(skip)]
    handle: Handle,
    #[debug(skip)]
    stack_bytes: usize,
    #[debug(skip)]
    time_limit: Duration,
    #[debug("{} fibers", bodies.len())]
    bodies: Vec<(FiberId, Body<'a>)>,
}

impl<'a> Simulation<'a> {
    /// Creates a simulation in which a seed decides every choice.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            handle: Handle::new(seed),
            stack_bytes: STACK_BYTES,
            time_limit: TIME_LIMIT,
            bodies: Vec::new(),
        }
    }

    /// Gives every fiber a stack of this size. Default: 1 MiB.
    pub const fn stack_bytes(mut self, stack_bytes: usize) -> Self {
        self.stack_bytes = stack_bytes;
        self
    }

    /// Ends with an error at this virtual time. Default: an hour.
    pub const fn time_limit(mut self, time_limit: Duration) -> Self {
        self.time_limit = time_limit;
        self
    }

    /// Returns the handle of the simulation, for what is created before it runs.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Adds a fiber that runs from the start. Unlike those that fibers [spawn](Handle::spawn), it may borrow.
    pub fn start(
        &mut self,
        process: Process,
        name: impl Into<String>,
        body: impl FnOnce() + Send + 'a,
    ) {
        let fiber = self.handle.state().add_fiber(process, name.into());
        self.bodies.push((fiber, Box::new(body)));
    }

    /// Runs all fibers, and those that they start, until every one has ended.
    ///
    /// # Errors
    ///
    /// The first panic of a fiber; fibers that wait forever, or have not ended at the time limit.
    ///
    /// # Panics
    ///
    /// Within another simulation.
    pub fn run(mut self) -> Result<Report, SimulationError> {
        let _entered = Entered::new(&self.handle);
        let result = self.run_all();
        // They may have handles, whose state has them.
        let actions = self.handle.state().take_actions();
        drop(actions);
        result
    }

    fn run_all(&mut self) -> Result<Report, SimulationError> {
        // An even number: an odd one makes the crate fill the stack, to measure how much of it is used.
        let words = self.stack_bytes.div_ceil(2 * size_of::<usize>()) * 2;
        // One that is dropped while it is suspended unwinds by a panic, in destructors that may wait.
        let mut stacks = ManuallyDrop::new(BTreeMap::new());
        loop {
            let spawned = std::mem::take(&mut self.handle.state().spawned).into_iter();
            let spawned = spawned.map(|(fiber, body)| (fiber, body as Body<'a>));
            for (fiber, body) in self.bodies.drain(..).chain(spawned) {
                let stack = Gn::<()>::new_opt(words, guarded(&self.handle, body));
                stacks.insert(fiber, stack);
            }
            match self.step()? {
                Step::Fiber(fiber) => {
                    let stack = stacks.get_mut(&fiber);
                    let stack = stack.expect("a fiber that has not ended has a stack");
                    let resumed = catch_unwind(AssertUnwindSafe(|| {
                        stack.resume();
                        stack.is_done()
                    }));
                    match resumed {
                        Ok(false) => continue,
                        Ok(true) => drop(stacks.remove(&fiber)),
                        Err(_) => {
                            // The body catches all panics: this one is the guard page's. What is on the stack is left alone.
                            std::mem::forget(stacks.remove(&fiber));
                            let message = "it needs a larger stack".to_owned();
                            self.handle.state().fail(message);
                        }
                    }
                    self.handle.state().end(fiber);
                }
                Step::Action(action) => guarded(&self.handle, action)(),
                Step::Ended => {
                    drop(ManuallyDrop::into_inner(stacks));
                    return Ok(self.handle.state().report);
                }
            }
        }
    }

    /// Chooses what runs next, unless the simulation has failed.
    fn step(&self) -> Result<Step, SimulationError> {
        let (seed, mut state) = (self.seed, self.handle.state());
        if let Some((fiber, message)) = state.panic.take() {
            return Err(SimulationError::Panicked {
                seed,
                now: state.now(),
                fiber,
                message,
            });
        }
        let step = match state.report.steps < STEP_LIMIT {
            true => state.step(self.time_limit),
            false => None,
        };
        step.ok_or_else(|| SimulationError::Endless {
            seed,
            now: state.now(),
            steps: state.report.steps,
            fibers: state.left(),
        })
    }
}

/// Returns a body that notes its panic instead of passing it on.
fn guarded<'a>(handle: &Handle, body: Body<'a>) -> Body<'a> {
    let handle = handle.clone();
    Box::new(move || {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
            handle.state().fail(message(&*panic));
        }
    })
}

/// Returns the message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}
