//! Messages between ranks that are matched by tag, and a stop that wakes every wait.
//!
//! Ranks run side by side, each with a [`Mailbox`]. A driver holds the [`Crew`]: it asks all ranks for
//! something, gathers one reply from each, and when one fails it ends them all and says why. What
//! they share is an [`Abort`].
//!
//! This crate knows nothing of tensors: a message is a key and a value of any types. It is no
//! transport either. Between processes something else carries the messages; the rules are these.
//!
//! ```
//! use std::time::Duration;
//! use tinderbox_link::{Abort, Crew, CrewError, Crossbeam, Mailbox, Member, mailboxes};
//! use tinderbox_schedule::RankIndex;
//!
//! type Reply = crossbeam_channel::Sender<(RankIndex, u32)>;
//! type Link = Mailbox<&'static str, u32, Crossbeam>;
//!
//! let abort = Abort::<String, Crossbeam>::default();
//! let members = mailboxes(2, &abort, Duration::from_secs(5))
//!     .into_iter()
//!     .map(|link| Member {
//!         link,
//!         body: {
//!             let abort = abort.clone();
//!             // Both send a number to the other and reply what they got, until one gets none.
//!             move |link: &mut Link, requests: &crossbeam_channel::Receiver<(u32, Reply)>| {
//!                 let other = RankIndex::new(1 - link.rank().index());
//!                 for (number, reply) in requests {
//!                     let sent = link.send(other, "number", number);
//!                     match sent.and_then(|()| link.poll(other, "number")) {
//!                         Ok(0) => return abort.trigger(format!("rank {} got a zero", link.rank())),
//!                         Ok(got) => drop(reply.send((link.rank(), got))),
//!                         Err(error) => return abort.trigger(error.to_string()),
//!                     }
//!                 }
//!             }
//!         },
//!     })
//!     .collect();
//! let mut crew = Crew::start(&abort, members, |rank| format!("rank {rank} is lost"))?;
//! let timeout = Duration::from_secs(10);
//! let got = crew.ask(timeout, |rank, reply| (rank.index() as u32 + 1, reply))?;
//! assert_eq!(got, [2, 1]);
//! let error = crew.ask(timeout, |rank, reply| (rank.index() as u32, reply)).unwrap_err();
//! assert!(matches!(error, CrewError::Failed { reason } if reason == "rank 1 got a zero"));
//! assert!(matches!(crew.ask(timeout, |_, reply| (1, reply)), Err(CrewError::Stopped)));
//! # Ok::<(), CrewError<String>>(())
//! ```
//!
//! # The protocol
//!
//! A rank is in one of four states.
//!
//! | state | it leaves it by |
//! |---|---|
//! | idle: it waits for a request | a request, then it runs; or the driver drops the requests, then it ends |
//! | running | a poll for a message that is not there, then it waits; a reply, then it is idle; a failure, then it triggers the abort and ends |
//! | waiting for a message | the message, then it runs; the abort or its time, then it fails as above, and what it says is not kept if another said something first |
//! | ended | never |
//!
//! The driver is in one of three.
//!
//! | state | it leaves it by |
//! |---|---|
//! | ready | [`Crew::ask`] sends the requests, then it gathers; a drop closes the abort, drops the requests and joins all |
//! | gathering | a reply of every rank, then it is ready; its time, where a rank has made progress since then ([`Crew::ask_while`]), then it gathers for as long again; the abort or its time otherwise, then it closes the abort, takes the first reason, drops the requests, joins who ends soon, and has stopped |
//! | stopped | never: it refuses to ask; a new crew has new channels and a new abort |
//!
//! Four events wake somebody, and nothing else does.
//!
//! 1. A message wakes the rank that waits on its mailbox. It looks whether it is the one, and keeps it
//!    if not.
//! 2. A reply wakes the driver.
//! 3. The signal of the abort wakes every waiting rank and the driver. Who fires it: a rank that fails,
//!    after its reason is kept; the end of every rank's thread, by whatever way; the driver, before it
//!    drops the requests.
//! 4. The drop of the requests wakes the idle ranks.
//!
//! None of them is lost:
//!
//! - A wait is registered with its channel and with the signal before it looks at either for the last
//!   time ([`Channels::receive`]). So what happens before the look is seen, and what happens after it
//!   wakes. A signal stays fired, so a rank that comes late does not wait at all.
//! - Idle ranks do not listen to the signal. They need not: whoever fires it, the driver is gathering
//!   and is woken, or asks later and finds it fired, or is dropped. Each of the three drops the
//!   requests.
//! - Every thread fires the signal when it ends, with a reason of last resort, and does so before its
//!   mailbox and its requests are dropped. So a rank that finds a mailbox gone knows that the signal
//!   has fired, and a driver that finds requests gone needs no look at them.
//!
//! And the reason is the right one: it is kept before the signal fires, so who was woken speaks later
//! than who failed. Who speaks later is not heard.
//!
//! # Architecture invariants
//!
//! - The protocol touches channels, locks, threads and the clock through [`Channels`] alone, and no
//!   state outlives its values. This is what lets the tests run the very same code under a model
//!   checker.
//! - The only lock, that of the reason, is held while one value moves, never over a wait, a send or the
//!   signal.
//! - Nothing is polled, and every wait but that for a request has a deadline.
//!
//! # What is checked
//!
//! `tests/model` runs ranks, driver and clock on `shuttle`, which picks at every lock, wait and start
//! of a thread who goes on: in all orders for the smallest cases, in seeded random ones for crews of
//! two and three ranks that fail at every step of an exchange. It finds no deadlock, no thread that
//! is left, no message lost, doubled or taken for another, and no reason but that of a rank that
//! failed. The same checks are run on four protocols with one fault each, and find every fault.
//!
//! Stated and not checked: that a `select` of `crossbeam-channel` keeps the contract of [`Channels`].
//! One test holds it and the model to the same observable rules. In the model the clock is a thread: a
//! deadline passes at any moment at which somebody waits for one, whatever its duration. And a rank
//! ends early by returning there, since a panic would end the check; that a panic does the same is
//! tested on real threads.
//!
//! # Limits
//!
//! - A thread that never comes back from an operation can't be ended. The driver names its rank after
//!   the timeout and leaves the thread behind.
//! - A key names one message at a time. A second one under it is an error while the first was not asked
//!   for, and is the next message of that name afterwards.
//! - A reason that somebody takes with [`Abort::take_reason`] is gone for the driver.

mod abort;
mod channels;
mod crew;
mod error;
mod mailbox;

pub use abort::Abort;
pub use channels::{Channels, Crossbeam, Disconnected, Received, Wire};
pub use crew::{Crew, Member};
pub use error::{CrewError, MailboxError};
pub use mailbox::{Mailbox, mailboxes};
