//! A crew that exchanges messages as a training step does, with injected failures.

use std::fmt;
use std::time::Duration;

use tinderbox_ids::RankIndex;
use tinderbox_world::link::{
    Abort, Channels, Crew, CrewError, Mailbox, MailboxError, Member, Received, mailboxes,
};

use crate::channels::{Fault, Model, Receiver, Sender};

/// The longest wait of the driver for a round: two ticks.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(2);

/// The key of a message: round, kind and micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub usize, pub char, pub usize);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{} of round {}", self.1, self.2, self.0)
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Step {
    Send(usize, char, usize),
    Receive(usize, char, usize),
}

/// The lists of a step: forward values up the ranks, cotangents down, then a tie from the last rank to
/// the first, which closes the ring. On the way down later micro-batches are polled first, so some
/// messages always arrive early.
pub fn lists(ranks: usize, micro_batches: usize) -> Vec<Vec<Step>> {
    let last = ranks - 1;
    let list = |rank: usize| {
        let mut list = Vec::new();
        for batch in 0..micro_batches {
            list.extend((rank > 0).then(|| Step::Receive(rank - 1, 'F', batch)));
            list.extend((rank < last).then(|| Step::Send(rank + 1, 'F', batch)));
        }
        for batch in (0..micro_batches).rev() {
            list.extend((rank < last).then(|| Step::Receive(rank + 1, 'B', batch)));
            list.extend((rank > 0).then(|| Step::Send(rank - 1, 'B', micro_batches - 1 - batch)));
        }
        list.extend((rank == last).then_some(Step::Send(0, 'T', 0)));
        list.extend((rank == 0).then_some(Step::Receive(last, 'T', 0)));
        list
    };
    (0..ranks).map(list).collect()
}

/// The reason of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Injected by the test.
    Injected(usize),
    /// A message could not be sent or received: an effect of another failure, or a timeout.
    Message(usize, MailboxError<Key>),
    /// The rank ended without a reason.
    Lost(usize),
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It reports its reason.
    Says,
    /// It ends without a reason, as by a panic.
    Silent,
    /// It skips the step and continues.
    Skips,
    /// It wakes the others before it reports its reason: a fault of the protocol.
    WakesThenSays,
}

/// A test case.
#[derive(Clone, Debug)]
pub struct Case {
    pub ranks: usize,
    pub micro_batches: usize,
    /// The failures in the first round: the rank, the step and the kind.
    pub failures: Vec<(usize, usize, Failure)>,
    /// Number of ticks that pass.
    pub ticks: u64,
    /// The longest wait of a rank for a message: a tick, less than the timeout of the driver.
    pub rank_timeout: Duration,
    /// Whether the mailbox is the rank's link, as it should be, or is dropped by its body.
    pub mailbox_outlives_body: bool,
    pub fault: Fault,
}

impl Case {
    pub fn new(ranks: usize, micro_batches: usize) -> Self {
        Self {
            ranks,
            micro_batches,
            failures: Vec::new(),
            ticks: 0,
            rank_timeout: Duration::from_secs(1),
            mailbox_outlives_body: true,
            fault: Fault::None,
        }
    }

    #[must_use]
    pub fn failing(mut self, rank: usize, step: usize, failure: Failure) -> Self {
        self.failures.push((rank, step, failure));
        self
    }

    fn failure(&self, rank: usize, round: usize, step: usize) -> Option<Failure> {
        let here = |f: &&(usize, usize, Failure)| (f.0, f.1) == (rank, step) && round == 0;
        self.failures.iter().find(here).map(|failure| failure.2)
    }

    /// Runs one crew: two rounds, or one that fails. Returns its result after all threads have ended and,
    /// where a round failed, a second request was rejected.
    pub fn run(&self) -> Result<(), CrewError<Reason>> {
        self.run_on(&Model::new(self.fault))
    }

    /// Does the same as [`run`](Self::run), in an environment that may have run other crews before.
    pub fn run_on(&self, model: &Model) -> Result<(), CrewError<Reason>> {
        if self.ticks > 0 {
            model.run_clock(self.ticks);
        }
        let ended = self.rounds(model);
        if self.ticks == 0 {
            assert_eq!(model.running(), 0, "all threads are joined in time");
        }
        model.settle();
        ended
    }

    fn rounds(&self, model: &Model) -> Result<(), CrewError<Reason>> {
        let mut crew = self.start(model)?;
        for round in 0..2 {
            if let Err(error) = ask(&mut crew, round) {
                let again = ask(&mut crew, round);
                assert!(matches!(again, Err(CrewError::Stopped)), "{again:?}");
                return Err(error);
            }
        }
        Ok(())
    }

    fn start(&self, model: &Model) -> Result<RingCrew, CrewError<Reason>> {
        let abort = Abort::new(model.clone());
        let ends = mailboxes(self.ranks, &abort, self.rank_timeout);
        let lists = lists(self.ranks, self.micro_batches);
        let members = ends.into_iter().zip(lists).map(|(mailbox, list)| {
            let rank = Rank {
                index: mailbox.rank().index(),
                list,
                case: self.clone(),
                abort: abort.clone(),
                model: model.clone(),
            };
            let (link, moved) = match self.mailbox_outlives_body {
                true => (Some(mailbox), None),
                false => (None, Some(mailbox)),
            };
            let body = move |link: &mut Option<RingMailbox>, requests: &Receiver<Request>| {
                let mut moved = moved;
                let mailbox = link.as_mut().or(moved.as_mut()).unwrap();
                rank.serve(mailbox, requests);
            };
            Member { link, body }
        });
        let first = RankIndex::new(0);
        let lost = |rank: RankIndex| Reason::Lost(rank.index());
        Crew::start_at(first, &abort, members.collect(), lost)
    }
}

type RingMailbox = Mailbox<Key, (usize, Key), Model>;
type RingCrew = Crew<Request, Reason, Model>;

struct Request {
    round: usize,
    reply: Sender<(RankIndex, usize)>,
}

/// Checks that every rank replies with its own number.
fn ask(crew: &mut RingCrew, round: usize) -> Result<(), CrewError<Reason>> {
    let make = |_, reply| Request { round, reply };
    let replies = crew.ask_while(DRIVER_TIMEOUT, || false, make)?;
    assert!(replies.iter().copied().eq(0..crew.ranks()), "{replies:?}");
    Ok(())
}

struct Rank {
    index: usize,
    list: Vec<Step>,
    case: Case,
    abort: Abort<Reason, Model>,
    model: Model,
}

impl Rank {
    fn serve(self, mailbox: &mut RingMailbox, requests: &Receiver<Request>) {
        let model = &self.model;
        let (never, forever) = (model.signal(), model.deadline(Duration::MAX));
        while let Received::Message(request) = model.receive(requests, &never, forever) {
            let Request { round, reply } = request;
            if self.round(round, mailbox).is_none() {
                return;
            }
            // The driver may have stopped waiting.
            let _ = model.send(&reply, (RankIndex::new(self.index), self.index));
        }
    }

    /// Returns `None` when the rank is to end.
    fn round(&self, round: usize, mailbox: &mut RingMailbox) -> Option<()> {
        for (number, step) in self.list.iter().enumerate() {
            match self.case.failure(self.index, round, number) {
                Some(Failure::Skips) => continue,
                Some(failure) => {
                    self.fail(failure);
                    return None;
                }
                None => {}
            }
            if let Err(error) = self.step(*step, round, mailbox) {
                self.abort.trigger(Reason::Message(self.index, error));
                return None;
            }
        }
        let left: Vec<_> = mailbox.unclaimed().collect();
        assert!(left.is_empty(), "left after round {round}: {left:?}");
        Some(())
    }

    fn step(
        &self,
        step: Step,
        round: usize,
        mailbox: &mut RingMailbox,
    ) -> Result<(), MailboxError<Key>> {
        match step {
            Step::Send(to, kind, number) => {
                let key = Key(round, kind, number);
                mailbox.send(RankIndex::new(to), key, (self.index, key))
            }
            Step::Receive(from, kind, number) => {
                let key = Key(round, kind, number);
                let got = mailbox.poll(RankIndex::new(from), key)?;
                assert_eq!(got, (from, key), "a message matches its key");
                Ok(())
            }
        }
    }

    fn fail(&self, failure: Failure) {
        let reason = Reason::Injected(self.index);
        match failure {
            Failure::Says => self.abort.trigger(reason),
            Failure::Silent | Failure::Skips => {}
            Failure::WakesThenSays => {
                self.model.fire(self.abort.signal());
                self.abort.trigger(reason);
            }
        }
    }
}
