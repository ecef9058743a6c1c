//! Messages between ranks, matched by key, and a stop signal that wakes every wait.
//!
//! Each rank runs on a thread of its own and has a [`Mailbox`]. A driver owns the [`Crew`]: it sends a request to all
//! ranks, collects one reply from each, and when one fails, stops all of them and returns the reason. Ranks and driver
//! share an [`Abort`].
//!
//! Code that builds on this module waits, reads the time and starts threads with [`Awaited`], [`Instant`] and [`Thread`], so
//! that a simulation can run it too.
//!
//! The module does not depend on tensors: a message is a key and a value of any types. It does not transport messages
//! between processes; another transport has to follow the rules below.
//!
//! ```
//! use std::time::Duration;
//! use tinderbox_world::link::{Abort, Channels, Crew, CrewError, Host, Mailbox, Member, Received, mailboxes};
//! use tinderbox_world::link::{Receiver, Sender};
//! use tinderbox_ids::RankIndex;
//!
//! type Reply = Sender<(RankIndex, u32)>;
//! type Link = Mailbox<&'static str, u32>;
//!
//! let abort: Abort<String> = Abort::default();
//! let members = mailboxes(2, &abort, Duration::from_secs(5))
//!     .into_iter()
//!     .map(|link| Member {
//!         link,
//!         body: {
//!             let abort = abort.clone();
//!             // Each sends a number to the other and replies with the received one, until one receives a zero.
//!             move |link: &mut Link, requests: &Receiver<(u32, Reply)>| {
//!                 let other = RankIndex::new(1 - link.rank().index());
//!                 let never = Host.deadline(Duration::MAX);
//!                 let next = || Host.receive(requests, abort.signal(), never);
//!                 while let Received::Message((number, reply)) = next() {
//!                     let sent = link.send(other, "number", number);
//!                     match sent.and_then(|()| link.poll(other, "number")) {
//!                         Ok(0) => return abort.trigger(format!("rank {} got a zero", link.rank())),
//!                         Ok(got) => drop(Host.send(&reply, (link.rank(), got))),
//!                         Err(error) => return abort.trigger(error.to_string()),
//!                     }
//!                 }
//!             }
//!         },
//!     })
//!     .collect();
//! let lost = |rank| format!("rank {rank} is lost");
//! let mut crew = Crew::start_at(RankIndex::new(0), &abort, members, lost)?;
//! let timeout = Duration::from_secs(10);
//! let mut send = |plus: u32| {
//!     crew.ask_while(timeout, || false, |rank, reply| (rank.index() as u32 + plus, reply))
//! };
//! assert_eq!(send(1)?, [2, 1]);
//! let error = send(0).unwrap_err();
//! assert!(matches!(error, CrewError::Failed { reason } if reason == "rank 1 got a zero"));
//! assert!(matches!(send(1), Err(CrewError::Stopped)));
//! # Ok::<(), CrewError<String>>(())
//! ```
//!
//! # The protocol
//!
//! A rank is in one of four states.
//!
//! | state | transitions |
//! |---|---|
//! | idle: waits for a request | a request → running; the driver drops the requests → ended |
//! | running | a poll for a message that has not arrived → waiting; a reply → idle; a failure: triggers the abort → ended |
//! | waiting for a message | the message → running; the abort or the timeout: fails as above (its reason is ignored if an earlier one is stored) → ended |
//! | ended | none |
//!
//! The driver is in one of three states.
//!
//! | state | transitions |
//! |---|---|
//! | ready | [`Crew::ask_while`]: sends the requests → gathering; a drop: closes the abort, drops the requests and joins all threads |
//! | gathering | a reply of every rank → ready; the timeout, if a rank has made progress since the last one → gathering for another timeout; the abort, or the timeout otherwise: closes the abort, takes the first reason, drops the requests, joins the threads that end soon → stopped |
//! | stopped | none: requests are rejected; a new crew has new channels and a new abort |
//!
//! Exactly five events wake a thread of the protocol:
//!
//! 1. A message wakes the rank that waits on its mailbox. If the rank waits for another message, it stores this
//!    one.
//! 2. A reply wakes the driver.
//! 3. The signal of the abort wakes every waiting rank and the driver. It is fired by a rank that fails,
//!    after its reason is stored; by every rank's thread when it ends, for any reason; and by the driver, before it
//!    drops the requests.
//! 4. Dropping the requests wakes the idle ranks.
//! 5. The announcement of a thread's end wakes the driver while it stops the ranks.
//!
//! No wake-up is lost:
//!
//! - A wait is registered with its channel and with the signal before it checks either for the last
//!   time ([`Channels::receive`]). An event before the check is seen, and an event after it wakes the
//!   thread. A signal stays fired, so a later wait returns immediately.
//! - Idle ranks do not wait for the signal. When it is fired, the driver is gathering and is woken, or sends its next
//!   request later and finds the signal fired, or is dropped. In each of the three cases it drops the requests.
//! - Every thread fires the signal when it ends, with a fallback reason, and does so before its
//!   mailbox and its requests are dropped. A rank that finds a mailbox closed can therefore assume that the signal
//!   has fired, and the driver need not check whether the receivers of its requests still exist.
//!
//! The reason is the reason of the first failure: it is stored before the signal fires, so a rank that was woken by the
//! signal reports later, and later reasons are ignored.
//!
//! # Modules
//!
//! In order: a module uses only those before it. `error` is not in the list: it may name types of any module.
//!
//! ```text
//! clock channels abort mailbox crew
//! ```
//!
//! # Architecture invariants
//!
//! - The protocol uses channels, locks, threads and the clock only through [`Channels`], and has no
//!   global state, so the tests can run the same code under a model checker.
//! - The only lock of the protocol, the lock of the reason, is held while one value is moved, and never during a wait, a send
//!   or the firing of the signal.
//! - Nothing is polled, and every wait has a deadline, except the wait for a request and the join when a crew is dropped.
//!
//! # What is checked
//!
//! `tests/model` runs ranks, driver and clock on `shuttle`, which chooses the thread to run at every lock, wait and
//! start of a thread: all orders for the smallest cases, and seeded random orders for crews of
//! two and three ranks that fail at every step of an exchange. It finds no deadlock, no thread that
//! is not joined, no message lost, duplicated or confused with another, and no reason except the reason of a rank that
//! failed. The same checks run on four protocols with one fault each, and find every fault.
//!
//! Not model-checked: that a `select` of `crossbeam-channel` satisfies the contract of [`Channels`].
//! One test checks it, the channels of a simulation and the model against the same observable rules. In the model the clock
//! is a thread: a deadline may pass at any time while a thread waits for one, whatever its duration. An early return models
//! the panic of a rank, since a panic would end the check. A test on operating system threads shows that a panic has the
//! same effect.
//!
//! # Limits
//!
//! - A thread inside an operation that never returns can't be stopped. The driver reports its rank after
//!   the timeout and detaches the thread.
//! - A key identifies one message at a time. A second message with the same key is an error while the first has not
//!   been polled; afterwards it is the next message with that key.
//! - A reason that was taken with [`Abort::take_reason`] is no longer available to the driver.

mod abort;
mod channels;
mod clock;
mod crew;
mod error;
mod mailbox;

pub use abort::Abort;
pub use channels::{Channels, Disconnected, Host, Received, Receiver, Sender, Signal};
pub use clock::{Awaited, Instant, Thread, is_simulated};
pub use crew::{Crew, Member};
pub use error::{CrewError, MailboxError};
pub use mailbox::{Mailbox, mailboxes};
