//! What a simulation knows: its fibers and actions, when each is due, and which one runs next.

use std::collections::BTreeMap;
use std::time::Duration;

use derive_more::Display;

use crate::random::{Random, mixed};

/// A process: fibers that are paused together.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process(usize);

impl Process {
    /// Creates the number of a process.
    pub const fn new(number: usize) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn index(self) -> usize {
        self.0
    }
}

/// An event that fibers wait for. It has no state: a notification wakes the fibers that wait at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(u64);

/// What a fiber runs.
pub(crate) type Body<'a> = Box<dyn FnOnce() + Send + 'a>;

/// The number of a fiber, which is also the number of the event of its end.
pub(crate) type FiberId = u64;

#[derive(Debug, Display)]
#[display("`{name}` of process {process}")]
struct Member {
    name: String,
    process: Process,
    /// When it runs if nothing notifies it before; `None` if only a notification wakes it.
    due: Option<Duration>,
    waits_for: Vec<Event>,
    is_notified: bool,
}

struct Action {
    process: Process,
    body: Body<'static>,
}

/// What can run: a fiber, or an action with its time and number.
#[derive(Clone, Copy)]
enum Runnable {
    Fiber(FiberId),
    Action((Duration, u64)),
}

/// What a simulation did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// A hash of all steps: which fiber or action ran, and at which virtual time.
    pub digest: u64,
    /// How many times a fiber or an action has run.
    pub steps: u64,
    /// The virtual time when the last fiber ended.
    pub elapsed: Duration,
}

/// What runs next.
pub(crate) enum Step {
    /// A fiber.
    Fiber(FiberId),
    /// An action.
    Action(Body<'static>),
    /// Nothing: all fibers have ended.
    Ended,
}

#[derive(Default)]
pub(crate) struct State {
    /// What was done so far.
    pub(crate) report: Report,
    pub(crate) random: Random,
    fibers: BTreeMap<FiberId, Member>,
    /// Fibers that were spawned and have no stack yet.
    pub(crate) spawned: Vec<(FiberId, Body<'static>)>,
    /// By time, and in the order in which they were added.
    actions: BTreeMap<(Duration, u64), Action>,
    /// When paused processes continue.
    paused: BTreeMap<Process, Duration>,
    /// The fiber that runs, and the process of what runs.
    fiber: Option<FiberId>,
    pub(crate) process: Option<Process>,
    /// The fiber that panicked first, and the message.
    pub(crate) panic: Option<(String, String)>,
    /// Numbers of fibers, events and actions.
    next: u64,
}

impl State {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            report: Report {
                digest: mixed(seed),
                ..Report::default()
            },
            random: Random::new(seed),
            ..Self::default()
        }
    }

    pub(crate) const fn now(&self) -> Duration {
        self.report.elapsed
    }

    const fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) const fn event(&mut self) -> Event {
        Event(self.number())
    }

    pub(crate) const fn end_of(fiber: FiberId) -> Event {
        Event(fiber)
    }

    pub(crate) fn is_alive(&self, fiber: FiberId) -> bool {
        self.fibers.contains_key(&fiber)
    }

    pub(crate) fn add_fiber(&mut self, process: Process, name: String) -> FiberId {
        let fiber = self.number();
        let member = Member {
            name,
            process,
            due: Some(self.now()),
            waits_for: Vec::new(),
            is_notified: false,
        };
        self.fibers.insert(fiber, member);
        fiber
    }

    pub(crate) fn add_action(&mut self, process: Process, at: Duration, body: Body<'static>) {
        let number = self.number();
        self.actions.insert((at, number), Action { process, body });
    }

    pub(crate) fn pause(&mut self, process: Process, duration: Duration) {
        let until = self.now().saturating_add(duration);
        let paused = self.paused.entry(process).or_default();
        *paused = until.max(*paused);
    }

    fn paused_until(&self, process: Process) -> Duration {
        self.paused.get(&process).copied().unwrap_or_default()
    }

    pub(crate) fn notify(&mut self, event: Event) {
        let now = self.now();
        let waiting = self.fibers.values_mut();
        for member in waiting.filter(|member| member.waits_for.contains(&event)) {
            member.due = Some(now);
            member.is_notified = true;
            member.waits_for.clear();
        }
    }

    /// The fiber that runs waits from now on. Returns it; `None` if an action runs.
    pub(crate) fn suspend(
        &mut self,
        events: &[Event],
        timeout: Option<Duration>,
    ) -> Option<FiberId> {
        let (fiber, now) = (self.fiber?, self.now());
        let member = self.fibers.get_mut(&fiber)?;
        member.due = timeout.and_then(|timeout| now.checked_add(timeout));
        member.waits_for.clear();
        member.waits_for.extend_from_slice(events);
        member.is_notified = false;
        Some(fiber)
    }

    pub(crate) fn is_notified(&self, fiber: FiberId) -> bool {
        self.fibers
            .get(&fiber)
            .is_some_and(|member| member.is_notified)
    }

    pub(crate) fn end(&mut self, fiber: FiberId) {
        self.fibers.remove(&fiber);
        self.notify(Self::end_of(fiber));
    }

    /// What runs panicked. The first panic is kept.
    pub(crate) fn fail(&mut self, message: String) {
        let member = self.fiber.and_then(|fiber| self.fibers.get(&fiber));
        let process = self.process.map_or(0, Process::index);
        let action = || format!("an action of process {process}");
        let name = member.map_or_else(action, ToString::to_string);
        self.panic.get_or_insert((name, message));
    }

    /// Chooses what runs next, and lets time pass up to a limit if nothing can run now. Returns `None` if fibers are left
    /// that nothing wakes by then.
    pub(crate) fn step(&mut self, limit: Duration) -> Option<Step> {
        loop {
            if self.fibers.is_empty() {
                return Some(Step::Ended);
            }
            self.postpone();
            let count = self.runnable().count();
            if count > 0 {
                let chosen = match count {
                    1 => 0,
                    _ => self.random.below(count as u64) as usize,
                };
                let chosen = self.runnable().nth(chosen)?;
                return self.begin(chosen);
            }
            self.report.elapsed = self.next_time().filter(|next| *next <= limit)?;
        }
    }

    /// Actions of paused processes wait until these continue, in their order.
    fn postpone(&mut self) {
        let due = self.actions.range(..=(self.now(), u64::MAX));
        let late = due.filter_map(|(key, action)| {
            let until = self.paused_until(action.process);
            (until > self.now()).then_some((*key, until))
        });
        for (key, until) in late.collect::<Vec<_>>() {
            if let Some(action) = self.actions.remove(&key) {
                self.actions.insert((until, key.1), action);
            }
        }
    }

    /// All fibers and actions that can run now.
    fn runnable(&self) -> impl Iterator<Item = Runnable> {
        let is_due = |member: &Member| self.due(member).is_some_and(|due| due <= self.now());
        let fibers = self.fibers.iter().filter(move |(_, member)| is_due(member));
        let fibers = fibers.map(|(fiber, _)| Runnable::Fiber(*fiber));
        let actions = self.actions.range(..=(self.now(), u64::MAX));
        fibers.chain(actions.map(|(key, _)| Runnable::Action(*key)))
    }

    fn due(&self, member: &Member) -> Option<Duration> {
        let until = self.paused_until(member.process);
        member.due.map(|due| due.max(until))
    }

    fn next_time(&self) -> Option<Duration> {
        let fibers = self.fibers.values().filter_map(|member| self.due(member));
        let action = self.actions.keys().next().map(|(at, _)| *at);
        fibers.chain(action).min()
    }

    fn begin(&mut self, chosen: Runnable) -> Option<Step> {
        let (Runnable::Fiber(number) | Runnable::Action((_, number))) = chosen;
        self.report.steps += 1;
        for value in [number, self.now().as_nanos() as u64] {
            self.report.digest = mixed(self.report.digest ^ value);
        }
        match chosen {
            Runnable::Fiber(fiber) => {
                let member = self.fibers.get_mut(&fiber)?;
                member.waits_for.clear();
                self.fiber = Some(fiber);
                self.process = Some(member.process);
                Some(Step::Fiber(fiber))
            }
            Runnable::Action(key) => {
                let action = self.actions.remove(&key)?;
                self.fiber = None;
                self.process = Some(action.process);
                Some(Step::Action(action.body))
            }
        }
    }

    /// Takes what does not run any more.
    pub(crate) fn take_actions(&mut self) -> Vec<Body<'static>> {
        let actions = std::mem::take(&mut self.actions).into_values();
        actions.map(|action| action.body).collect()
    }

    /// The fibers that are left, with what each waits for.
    pub(crate) fn left(&self) -> Vec<String> {
        let waits = |member: &Member| match self.due(member) {
            None => format!("{member} waits forever"),
            Some(due) if due > self.now() => format!("{member} waits until {due:?}"),
            Some(_) => format!("{member} can run"),
        };
        self.fibers.values().map(waits).collect()
    }
}
