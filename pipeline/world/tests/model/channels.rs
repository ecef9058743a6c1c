//! Channels, threads and a clock under the model checker.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex as Plain};
use std::time::Duration;

use shuttle::sync::{Condvar, Mutex, MutexGuard};
use shuttle::thread::{self, JoinHandle};
use tinderbox_world::link::{Channels, Disconnected, Received};

/// A fault of these channels, to test that the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// A wait checks the signal before it is registered with it, and not again.
    LooksBeforeItRegisters,
    /// The signal wakes only one of the threads that wait for it.
    WakesOne,
    /// The thread of the second rank can't be started: an error of the system, which the protocol has to handle.
    RefusesAThread,
}

/// An environment in which the checker controls every step. Clones share its state.
///
/// Every event happens under the model's lock. A wait is registered with what can end it (its
/// channel, its signal and the clock), and only these wake it, so that another event does not hide a missing
/// wake-up.
#[derive(Clone)]
pub struct Model {
    machine: Arc<Machine>,
    fault: Fault,
}

struct Machine {
    state: Mutex<State>,
    /// A thread has ended.
    ended: Condvar,
    /// A thread waits with a deadline, or the clock is to end.
    watched: Condvar,
}

struct State {
    /// The time in ticks.
    now: u64,
    /// Waits that have a deadline, and the deadline.
    timed: Vec<(Arc<Condvar>, u64)>,
    /// Threads that have not ended.
    running: usize,
    /// Whether the clock is to end.
    is_over: bool,
}

/// Waits that an event wakes. Accessed only under the model's lock.
#[derive(Default)]
struct Waits(Vec<Arc<Condvar>>);

impl Waits {
    fn add(&mut self, wait: &Arc<Condvar>) {
        self.0.push(wait.clone());
    }

    fn remove(&mut self, wait: &Arc<Condvar>) {
        self.0.retain(|other| !Arc::ptr_eq(other, wait));
    }

    fn wake(&self, most: usize) {
        self.0.iter().take(most).for_each(|wait| wait.notify_one());
    }
}

impl Model {
    pub fn new(fault: Fault) -> Self {
        let state = State {
            now: 0,
            timed: Vec::new(),
            running: 0,
            is_over: false,
        };
        let machine = Machine {
            state: Mutex::new(state),
            ended: Condvar::new(),
            watched: Condvar::new(),
        };
        Self {
            machine: Arc::new(machine),
            fault,
        }
    }

    /// Lets a number of ticks pass, each at a time that the checker chooses while a thread waits for a deadline
    /// that has not passed. Otherwise time does not pass, so a wait that only its deadline could end is a deadlock.
    pub fn run_clock(&self, ticks: u64) {
        let clock = self.clone();
        let body = move || {
            for _ in 0..ticks {
                let mut state = clock.lock();
                while state.timed.iter().all(|(_, at)| *at <= state.now) && !state.is_over {
                    state = clock.machine.watched.wait(state).unwrap();
                }
                if state.is_over {
                    return;
                }
                state.now += 1;
                state.timed.iter().for_each(|(wait, _)| wait.notify_one());
            }
        };
        self.spawn("clock".into(), body).unwrap();
    }

    /// Number of threads that have not ended.
    pub fn running(&self) -> usize {
        self.lock().running
    }

    /// Ends the clock and waits until every thread has ended; if one never ends, the checker reports a deadlock.
    pub fn settle(&self) {
        let mut state = self.lock();
        state.is_over = true;
        self.machine.watched.notify_all();
        while state.running > 0 {
            state = self.machine.ended.wait(state).unwrap();
        }
        state.is_over = false;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.machine.state.lock().unwrap()
    }
}

/// The messages of a channel, and whether its ends still exist. Accessed only under the model's lock.
struct Queue<T> {
    messages: VecDeque<T>,
    senders: usize,
    has_receiver: bool,
    waits: Waits,
}

pub struct Sender<T> {
    queue: Arc<Plain<Queue<T>>>,
    model: Model,
}

pub struct Receiver<T> {
    queue: Arc<Plain<Queue<T>>>,
    model: Model,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        // No thread can observe an additional sender, so this is not a step of the checker.
        self.queue.lock().unwrap().senders += 1;
        Self {
            queue: self.queue.clone(),
            model: self.model.clone(),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut queue = self.queue.lock().unwrap();
        queue.senders -= 1;
        let is_last = queue.senders == 0;
        drop(queue);
        if is_last {
            let _state = self.model.lock();
            wake_all(&self.queue);
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let state = self.model.lock();
        let mut queue = self.queue.lock().unwrap();
        queue.has_receiver = false;
        let left = std::mem::take(&mut queue.messages);
        drop((queue, state));
        // Messages may contain senders, whose drop acquires the lock.
        drop(left);
    }
}

/// Wakes all threads that wait on a channel. The waits are copied, because a wake-up is a step of the checker, and a
/// plain lock must not be held during one.
fn wake_all<T>(queue: &Plain<Queue<T>>) {
    let waits = Waits(queue.lock().unwrap().waits.0.clone());
    waits.wake(usize::MAX);
}

#[derive(Clone, Default)]
pub struct Signal(Arc<Plain<(bool, Waits)>>);

pub struct Thread(JoinHandle<()>);

/// Counts a thread as ended, as its last action.
struct Running(Model);

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.running -= 1;
        self.0.machine.ended.notify_all();
    }
}

impl Channels for Model {
    type Sender<T: Send + 'static> = Sender<T>;
    type Receiver<T: Send + 'static> = Receiver<T>;
    type Signal = Signal;
    type Cell<T: Send + 'static> = Mutex<T>;
    type Thread = Thread;
    type Deadline = u64;

    fn channel<T: Send + 'static>(&self) -> (Sender<T>, Receiver<T>) {
        let queue = Arc::new(Plain::new(Queue {
            messages: VecDeque::new(),
            senders: 1,
            has_receiver: true,
            waits: Waits::default(),
        }));
        let sender = Sender {
            queue: queue.clone(),
            model: self.clone(),
        };
        let model = self.clone();
        (sender, Receiver { queue, model })
    }

    fn send<T: Send + 'static>(&self, sender: &Sender<T>, message: T) -> Result<(), Disconnected> {
        let state = self.lock();
        let mut queue = sender.queue.lock().unwrap();
        if !queue.has_receiver {
            // The message may contain a sender, whose drop acquires the lock.
            drop((queue, state));
            drop(message);
            return Err(Disconnected);
        }
        queue.messages.push_back(message);
        drop(queue);
        wake_all(&sender.queue);
        Ok(())
    }

    fn receive<T: Send + 'static>(
        &self,
        receiver: &Receiver<T>,
        stop: &Signal,
        deadline: u64,
    ) -> Received<T> {
        let mut state = self.lock();
        loop {
            if stop.0.lock().unwrap().0 {
                return Received::Stopped;
            }
            if self.fault == Fault::LooksBeforeItRegisters {
                drop(state);
                state = self.lock();
            }
            let mut queue = receiver.queue.lock().unwrap();
            if let Some(message) = queue.messages.pop_front() {
                return Received::Message(message);
            }
            if queue.senders == 0 {
                return Received::Closed;
            }
            if state.now >= deadline {
                return Received::TimedOut;
            }
            let wait = Arc::new(Condvar::new());
            queue.waits.add(&wait);
            drop(queue);
            stop.0.lock().unwrap().1.add(&wait);
            if deadline < u64::MAX {
                state.timed.push((wait.clone(), deadline));
                self.machine.watched.notify_all();
            }
            state = wait.wait(state).unwrap();
            state.timed.retain(|(other, _)| !Arc::ptr_eq(other, &wait));
            stop.0.lock().unwrap().1.remove(&wait);
            receiver.queue.lock().unwrap().waits.remove(&wait);
        }
    }

    fn signal(&self) -> Signal {
        Signal::default()
    }

    fn fire(&self, signal: &Signal) {
        let _state = self.lock();
        let mut fired = signal.0.lock().unwrap();
        if fired.0 {
            return;
        }
        fired.0 = true;
        let waits = Waits(fired.1.0.clone());
        drop(fired);
        waits.wake(match self.fault {
            Fault::WakesOne => 1,
            _ => usize::MAX,
        });
    }

    fn is_fired(&self, signal: &Signal) -> bool {
        let _state = self.lock();
        signal.0.lock().unwrap().0
    }

    fn cell<T: Send + 'static>(&self, value: T) -> Mutex<T> {
        Mutex::new(value)
    }

    fn with<T: Send + 'static, R>(&self, cell: &Mutex<T>, run: impl FnOnce(&mut T) -> R) -> R {
        run(&mut cell.lock().unwrap())
    }

    /// One tick per started second.
    fn deadline(&self, timeout: Duration) -> u64 {
        let ticks = u64::try_from(timeout.as_millis().div_ceil(1000)).unwrap_or(u64::MAX);
        match timeout == Duration::MAX {
            true => u64::MAX,
            false => self.lock().now.saturating_add(ticks),
        }
    }

    fn spawn(&self, name: String, body: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
        if self.fault == Fault::RefusesAThread && name == "rank-1" {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.lock().running += 1;
        let running = Running(self.clone());
        let body = move || {
            let _running = running;
            body();
        };
        thread::Builder::new().name(name).spawn(body).map(Thread)
    }

    fn join(&self, thread: Thread) {
        thread.0.join().unwrap();
    }
}
