//! The driver: it asks ranks, gathers their replies, and ends them.

use std::fmt;
use std::time::Duration;

use tinderbox_schedule::RankIndex;

use crate::abort::Abort;
use crate::channels::{Channels, Received};
use crate::error::CrewError;

/// How long a stop waits for ranks that compute. A rank that waits for anything ends at once; one
/// that is inside an operation ends when it is done, and the error does not wait that long.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// One rank before it is started.
#[derive(Clone, Copy, Debug)]
pub struct Member<L, B> {
    /// Its link to the others. It outlives the body: the rank's end is announced before the link is
    /// dropped, so that others learn the reason and not that a mailbox is gone.
    pub link: L,
    /// What the rank does: it serves requests until no more can come. To fail, it triggers the
    /// crew's [`Abort`] and returns.
    pub body: B,
}

/// Ranks on threads, one each, and the driver's side of the protocol. Dropping it ends the ranks and
/// joins their threads.
///
/// `Q` is what the driver asks for, `E` why a rank fails.
pub struct Crew<Q: Send + 'static, E: Send + 'static, C: Channels> {
    requests: Vec<C::Sender<Q>>,
    /// `None` where the thread was joined.
    threads: Vec<Option<C::Thread>>,
    ends: C::Receiver<RankIndex>,
    abort: Abort<E, C>,
    /// Set by the first error.
    is_stopped: bool,
}

impl<Q: Send + 'static, E: Send + 'static, C: Channels> Crew<Q, E, C> {
    /// Starts a thread per member, in the order of the ranks. `lost` is the reason of a rank that ends
    /// without one, as by a panic.
    ///
    /// A rank that fails triggers `abort`; a request that it drops without a reply is otherwise one
    /// that the driver waits for until its time is up.
    ///
    /// # Errors
    ///
    /// When a thread can't be started; those that were are ended.
    pub fn start<L: Send + 'static, B: FnOnce(&mut L, &C::Receiver<Q>) + Send + 'static>(
        abort: &Abort<E, C>,
        members: Vec<Member<L, B>>,
        lost: fn(RankIndex) -> E,
    ) -> Result<Self, CrewError<E>> {
        let channels = abort.channels();
        let (announce, ends) = channels.channel();
        let mut crew = Self {
            requests: Vec::new(),
            threads: Vec::new(),
            ends,
            abort: abort.clone(),
            is_stopped: false,
        };
        for (rank, Member { link, body }) in members.into_iter().enumerate() {
            let rank = RankIndex::new(rank);
            let (sender, requests) = channels.channel();
            let end = End {
                rank,
                abort: abort.clone(),
                lost,
                announce: announce.clone(),
            };
            let run = move || {
                let mut link = link;
                let requests = requests;
                // Declared last, so dropped first, by a panic too.
                let _end = end;
                body(&mut link, &requests);
            };
            let thread = channels
                .spawn(format!("rank-{rank}"), run)
                .map_err(|source| CrewError::Spawn { rank, source })?;
            crew.requests.push(sender);
            crew.threads.push(Some(thread));
        }
        Ok(crew)
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.threads.len()
    }

    /// Sends every rank a request and gathers one reply from each, in the order of the ranks. `make`
    /// gets a rank and the sender of its reply.
    ///
    /// # Errors
    ///
    /// When a rank fails, with its reason; when one does not reply within `timeout`; when the crew has
    /// stopped before. After an error all ranks have been told to end, and threads that did so within
    /// half a second are joined; a rank that is stuck in an operation is left behind.
    pub fn ask<R: Send + 'static>(
        &mut self,
        timeout: Duration,
        make: impl FnMut(RankIndex, C::Sender<(RankIndex, R)>) -> Q,
    ) -> Result<Vec<R>, CrewError<E>> {
        self.ask_while(timeout, || false, make)
    }

    /// As [`ask`](Self::ask), for as long as the ranks make progress: whenever `timeout` has passed, `progressed`
    /// returns whether any rank has made progress since it was called before, and if so, the driver waits for another
    /// `timeout`. A rank that stalls while others make progress is named once they have replied.
    ///
    /// # Errors
    ///
    /// As there; ranks that stall are stopped between one and two timeouts later.
    pub fn ask_while<R: Send + 'static>(
        &mut self,
        timeout: Duration,
        mut progressed: impl FnMut() -> bool,
        mut make: impl FnMut(RankIndex, C::Sender<(RankIndex, R)>) -> Q,
    ) -> Result<Vec<R>, CrewError<E>> {
        if self.is_stopped {
            return Err(CrewError::Stopped);
        }
        let channels = self.abort.channels().clone();
        // The driver keeps a sender of its own. That a rank dropped its reply tells nothing: the
        // signal does, and it comes with the reason.
        let (reply, replies) = channels.channel();
        for (rank, requests) in self.requests.iter().enumerate() {
            let rank = RankIndex::new(rank);
            // A rank that is gone has fired the signal before, which the wait below sees.
            let _ = channels.send(requests, make(rank, reply.clone()));
        }
        let mut deadline = channels.deadline(timeout);
        let mut results: Vec<Option<R>> = (0..self.ranks()).map(|_| None).collect();
        while let Some(missing) = results.iter().position(Option::is_none) {
            match channels.receive(&replies, self.abort.signal(), deadline) {
                Received::Message((rank, result)) => {
                    if let Some(place) = results.get_mut(rank.index()) {
                        *place = Some(result);
                    }
                }
                Received::Stopped => return Err(self.stop(CrewError::Stopped)),
                Received::TimedOut if progressed() => deadline = channels.deadline(timeout),
                Received::TimedOut | Received::Closed => {
                    let rank = RankIndex::new(missing);
                    return Err(self.stop(CrewError::Timeout { rank, timeout }));
                }
            }
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// Ends all ranks and gives the first reason, or `otherwise` when none gave one.
    fn stop(&mut self, otherwise: CrewError<E>) -> CrewError<E> {
        self.is_stopped = true;
        let reason = self.abort.close();
        self.requests.clear();
        self.join_ended();
        reason.map_or(otherwise, |reason| CrewError::Failed { reason })
    }

    /// Joins the threads that end soon.
    fn join_ended(&mut self) {
        let channels = self.abort.channels();
        let deadline = channels.deadline(LAST_WAIT);
        // The signal of the ranks has fired; this wait is for after that.
        let never = channels.signal();
        while self.threads.iter().any(Option::is_some) {
            let Received::Message(rank) = channels.receive(&self.ends, &never, deadline) else {
                return;
            };
            if let Some(thread) = self.threads.get_mut(rank.index()).and_then(Option::take) {
                channels.join(thread);
            }
        }
    }
}

impl<Q: Send + 'static, E: Send + 'static, C: Channels> Drop for Crew<Q, E, C> {
    fn drop(&mut self) {
        // After a stop, the threads that are left are inside an operation: to wait for them could
        // take forever. They end by themselves.
        if self.is_stopped {
            return;
        }
        self.abort.close();
        self.requests.clear();
        for thread in self.threads.drain(..).flatten() {
            self.abort.channels().join(thread);
        }
    }
}

impl<Q: Send + 'static, E: Send + 'static, C: Channels> fmt::Debug for Crew<Q, E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew")
            .field("ranks", &self.threads.len())
            .field("stopped", &self.is_stopped)
            .finish_non_exhaustive()
    }
}

/// Announces the end of a rank's thread when it is dropped.
struct End<E: Send + 'static, C: Channels> {
    rank: RankIndex,
    abort: Abort<E, C>,
    lost: fn(RankIndex) -> E,
    announce: C::Sender<RankIndex>,
}

impl<E: Send + 'static, C: Channels> Drop for End<E, C> {
    fn drop(&mut self) {
        // Not kept when the rank or another gave a reason, or when the driver ends all.
        self.abort.trigger((self.lost)(self.rank));
        // The driver may be gone.
        let _ = self.abort.channels().send(&self.announce, self.rank);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use crossbeam_channel::{Receiver, Sender, bounded};
    use insta::assert_snapshot;

    use super::*;
    use crate::Crossbeam;

    type Request = Box<dyn FnOnce(RankIndex) + Send>;
    type Calls = Crew<Request, String, Crossbeam>;

    /// Ranks that run what they are asked to.
    fn start(ranks: usize) -> (Calls, Abort<String, Crossbeam>) {
        let abort = Abort::default();
        let member = |rank| Member {
            link: RankIndex::new(rank),
            body: |rank: &mut RankIndex, requests: &Receiver<Request>| {
                requests.iter().for_each(|call| call(*rank));
            },
        };
        let members = (0..ranks).map(member).collect();
        let crew = Crew::start(&abort, members, |rank| format!("rank {rank} is lost"));
        (crew.unwrap(), abort)
    }

    fn call(
        crew: &mut Calls,
        timeout: Duration,
        run: impl Fn(RankIndex) -> usize + Clone + Send + 'static,
    ) -> Result<Vec<usize>, CrewError<String>> {
        crew.ask(timeout, |_, reply: Sender<(RankIndex, usize)>| {
            let run = run.clone();
            Box::new(move |rank| {
                let _ = reply.send((rank, run(rank)));
            })
        })
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn replies_come_in_the_order_of_the_ranks() {
        let (mut crew, abort) = start(3);
        for factor in 1..3 {
            let replies = call(&mut crew, LONG, move |rank| rank.index() * factor);
            assert_eq!(replies.unwrap(), [0, factor, 2 * factor]);
        }
        assert_eq!(format!("{crew:?}"), "Crew { ranks: 3, stopped: false, .. }");
        drop(crew);
        assert!(abort.is_triggered());
        assert_eq!(abort.take_reason(), None, "an end is no failure");
    }

    #[test]
    fn a_rank_that_panics_is_named_soon() {
        let (mut crew, _) = start(3);
        let started = Instant::now();
        let panics = |rank: RankIndex| match rank.index() {
            1 => panic!("injected"),
            other => other,
        };
        let error = call(&mut crew, LONG, panics).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(1));
        assert_snapshot!(error, @"a rank failed");
        assert!(matches!(error, CrewError::Failed { reason } if reason == "rank 1 is lost"));
        let again = call(&mut crew, LONG, |_| 0).unwrap_err();
        assert_snapshot!(again, @"the ranks have stopped after an earlier error: start new ones");
        assert_eq!(crew.ranks(), 3);
    }

    #[test]
    fn ranks_that_make_progress_are_waited_for() {
        let (mut crew, _) = start(2);
        let (release, held) = bounded::<()>(0);
        let waits = move |rank: RankIndex| {
            if rank.index() == 1 {
                held.recv().unwrap();
            }
            rank.index()
        };
        let mut looks = 0;
        let progressed = || {
            looks += 1;
            // Several timeouts after the request.
            if looks == 5 {
                release.send(()).unwrap();
            }
            true
        };
        let make = |_, reply: Sender<(RankIndex, usize)>| -> Request {
            let waits = waits.clone();
            Box::new(move |rank| {
                let _ = reply.send((rank, waits(rank)));
            })
        };
        let replies = crew.ask_while(Duration::from_millis(5), progressed, make);
        assert_eq!(replies.unwrap(), [0, 1]);
        assert!(looks >= 5);
    }

    /// Neither the error nor the drop waits for a rank that is stuck.
    #[test]
    fn a_rank_that_is_stuck_is_named_and_left_behind() {
        let (mut crew, abort) = start(2);
        let (release, stuck) = bounded::<()>(0);
        let (sender, ended) = bounded(1);
        let stall = move |rank: RankIndex| {
            if rank.index() == 1 {
                let _ = stuck.recv();
                let _ = sender.send(());
            }
            0
        };
        let started = Instant::now();
        let error = call(&mut crew, Duration::from_millis(20), stall).unwrap_err();
        assert_snapshot!(error, @"rank 1 did not reply within 20ms");
        drop(crew);
        assert!(started.elapsed() < Duration::from_secs(5));
        assert!(abort.is_triggered());
        assert!(ended.is_empty(), "it is still stuck");
        drop(release);
        ended.recv_timeout(LONG).unwrap();
    }
}
