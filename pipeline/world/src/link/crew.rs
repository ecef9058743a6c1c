//! The driver: sends requests to the ranks, collects their replies and stops them.

use std::time::Duration;

use tinderbox_ids::RankIndex;

use crate::link::abort::Abort;
use crate::link::channels::{Channels, Host, Received};
use crate::link::error::CrewError;

/// The longest wait of a stop for the ends of the threads. Ranks that wait for a message or a request end at once; a rank that
/// runs an operation ends when the operation returns, and the error is not delayed until then.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// A rank that has not been started yet.
#[derive(Clone, Copy, Debug)]
pub struct Member<L, B> {
    /// The rank's connection to the others. It is dropped after the end of the rank is announced, so that other ranks
    /// receive the reason and not an error about a closed mailbox.
    pub link: L,
    /// The rank's main function: serves requests until the request channel is closed. To fail, it triggers the
    /// crew's [`Abort`] and returns.
    pub body: B,
}

/// The driver's side of the protocol, and the threads of the ranks, one per rank. Dropping it stops the ranks and
/// joins their threads.
///
/// `Q` is the type of a request, `E` the reason of a failure.
#[derive(derive_more::Debug)]
#[debug("Crew {{ ranks: {}, stopped: {is_stopped}, .. }}", self.ranks())]
pub struct Crew<Q: Send + 'static, E: Send + 'static, C: Channels = Host> {
    /// The lowest rank of the crew.
    first: usize,
    requests: Vec<C::Sender<Q>>,
    /// `None` once the thread is joined.
    threads: Vec<Option<C::Thread>>,
    ends: C::Receiver<RankIndex>,
    abort: Abort<E, C>,
    /// Set by the first error.
    is_stopped: bool,
}

impl<Q: Send + 'static, E: Send + 'static, C: Channels> Crew<Q, E, C> {
    /// Starts a thread per member, in the order of the ranks from `first` on; other ranks may be in other processes. `lost`
    /// returns the reason for a rank that ends without one, for example by a panic.
    ///
    /// A rank that fails must trigger `abort`. If it only drops a request without a reply, the driver waits for that
    /// reply until the timeout.
    ///
    /// # Errors
    ///
    /// When a thread can't be started; the threads started before it are stopped.
    pub fn start_at<L: Send + 'static, B: FnOnce(&mut L, &C::Receiver<Q>) + Send + 'static>(
        first: RankIndex,
        abort: &Abort<E, C>,
        members: Vec<Member<L, B>>,
        lost: fn(RankIndex) -> E,
    ) -> Result<Self, CrewError<E>> {
        let channels = abort.channels();
        let (announce, ends) = channels.channel();
        let mut crew = Self {
            first: first.index(),
            requests: Vec::new(),
            threads: Vec::new(),
            ends,
            abort: abort.clone(),
            is_stopped: false,
        };
        for (position, Member { link, body }) in members.into_iter().enumerate() {
            let rank = crew.rank(position);
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
                // Declared last so that it is dropped first, also when a panic unwinds.
                let _end = end;
                body(&mut link, &requests);
            };
            let thread = channels.spawn(format!("rank-{rank}"), run);
            let thread = thread.map_err(|source| CrewError::Spawn { rank, source })?;
            crew.requests.push(sender);
            crew.threads.push(Some(thread));
        }
        Ok(crew)
    }

    fn rank(&self, position: usize) -> RankIndex {
        RankIndex::new(self.first + position)
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.threads.len()
    }

    /// Sends a request to every rank and returns one reply from each, in the order of the ranks. `make` receives a
    /// rank and the sender for its reply, and returns the request.
    ///
    /// Waits as long as the ranks make progress: each time `timeout` has passed, the driver calls `progressed`, which
    /// returns whether any rank has made progress since the previous call. If so, the driver waits for another `timeout`. A
    /// rank that stalls while others make progress is reported once the others have replied.
    ///
    /// # Errors
    ///
    /// When a rank fails, with its reason; when a rank does not reply in time: ranks that stall are stopped between one and
    /// two timeouts after they stalled; when the crew was stopped by an earlier error. After an error all ranks are stopped.
    /// Threads that end within half a second are joined; a thread that is still inside an operation is detached.
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
        // The driver keeps a sender, so a dropped reply does not close the channel: the signal reports the failure,
        // together with its reason.
        let (reply, replies) = channels.channel();
        for (position, requests) in self.requests.iter().enumerate() {
            let rank = self.rank(position);
            // A rank that has ended fired the signal before, which ends the wait below.
            let _ = channels.send(requests, make(rank, reply.clone()));
        }
        let mut deadline = channels.deadline(timeout);
        let mut results: Vec<Option<R>> = (0..self.ranks()).map(|_| None).collect();
        while let Some(missing) = results.iter().position(Option::is_none) {
            match channels.receive(&replies, self.abort.signal(), deadline) {
                Received::Message((rank, result)) => {
                    let position = rank.index().wrapping_sub(self.first);
                    if let Some(place) = results.get_mut(position) {
                        *place = Some(result);
                    }
                }
                Received::Stopped => return Err(self.stop(CrewError::Stopped)),
                Received::TimedOut if progressed() => deadline = channels.deadline(timeout),
                Received::TimedOut | Received::Closed => {
                    let rank = self.rank(missing);
                    return Err(self.stop(CrewError::Timeout { rank, timeout }));
                }
            }
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// Stops all ranks and returns the first reason, or `otherwise` if there is none.
    fn stop(&mut self, otherwise: CrewError<E>) -> CrewError<E> {
        self.is_stopped = true;
        let reason = self.abort.close();
        self.requests.clear();
        self.join_ended();
        reason.map_or(otherwise, |reason| CrewError::Failed { reason })
    }

    /// Joins the threads that end within the grace period.
    fn join_ended(&mut self) {
        let channels = self.abort.channels();
        let deadline = channels.deadline(LAST_WAIT);
        // The stop signal has already fired, so this wait needs a signal of its own.
        let never = channels.signal();
        while self.threads.iter().any(Option::is_some) {
            let Received::Message(rank) = channels.receive(&self.ends, &never, deadline) else {
                return;
            };
            let position = rank.index().wrapping_sub(self.first);
            if let Some(thread) = self.threads.get_mut(position).and_then(Option::take) {
                channels.join(thread);
            }
        }
    }
}

impl<Q: Send + 'static, E: Send + 'static, C: Channels> Drop for Crew<Q, E, C> {
    fn drop(&mut self) {
        // After a stop, the remaining threads are inside an operation that may never return. They are detached.
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

/// Announces the end of a rank's thread when it is dropped.
struct End<E: Send + 'static, C: Channels> {
    rank: RankIndex,
    abort: Abort<E, C>,
    lost: fn(RankIndex) -> E,
    announce: C::Sender<RankIndex>,
}

impl<E: Send + 'static, C: Channels> Drop for End<E, C> {
    fn drop(&mut self) {
        // Ignored when a reason is already stored, and when the driver stops all ranks.
        self.abort.trigger((self.lost)(self.rank));
        // The receiver is closed when the driver has been dropped.
        let _ = self.abort.channels().send(&self.announce, self.rank);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use crossbeam_channel::bounded;
    use insta::assert_snapshot;

    use super::*;
    use crate::link::{Receiver, Sender};

    type Request = Box<dyn FnOnce(RankIndex) + Send>;
    type Calls = Crew<Request, String, Host>;

    /// Runs the closures sent to a rank.
    fn serve(rank: RankIndex, requests: &Receiver<Request>) {
        let (endless, never) = (Host.signal(), Host.deadline(Duration::MAX));
        while let Received::Message(call) = Host.receive(requests, &endless, never) {
            call(rank);
        }
    }

    /// Ranks that run the closures sent to them.
    fn start(ranks: usize) -> (Calls, Abort<String, Host>) {
        let abort = Abort::default();
        let member = |rank| Member {
            link: RankIndex::new(rank),
            body: |rank: &mut RankIndex, requests: &Receiver<Request>| {
                serve(*rank, requests);
            },
        };
        let members = (0..ranks).map(member).collect();
        let first = RankIndex::new(0);
        let lost = |rank| format!("rank {rank} is lost");
        let crew = Crew::start_at(first, &abort, members, lost);
        (crew.unwrap(), abort)
    }

    fn call(
        crew: &mut Calls,
        timeout: Duration,
        run: impl Fn(RankIndex) -> usize + Clone + Send + 'static,
    ) -> Result<Vec<usize>, CrewError<String>> {
        let make = |_, reply: Sender<(RankIndex, usize)>| -> Request {
            let run = run.clone();
            Box::new(move |rank| {
                let _ = Host.send(&reply, (rank, run(rank)));
            })
        };
        crew.ask_while(timeout, || false, make)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn replies_are_in_the_order_of_the_ranks() {
        let (mut crew, abort) = start(3);
        for factor in 1..3 {
            let replies = call(&mut crew, LONG, move |rank| rank.index() * factor);
            assert_eq!(replies.unwrap(), [0, factor, 2 * factor]);
        }
        assert_eq!(format!("{crew:?}"), "Crew { ranks: 3, stopped: false, .. }");
        drop(crew);
        assert!(abort.is_triggered());
        assert_eq!(
            abort.take_reason(),
            None,
            "the end of a crew is not a failure"
        );
    }

    /// A crew of some ranks. The other ranks are in other processes.
    #[test]
    fn a_crew_of_some_ranks_has_their_numbers() {
        let abort = Abort::<String, Host>::default();
        let member = |rank| Member {
            link: RankIndex::new(rank),
            body: |rank: &mut RankIndex, requests: &Receiver<Request>| {
                serve(*rank, requests);
            },
        };
        let (first, lost) = (RankIndex::new(3), |rank| format!("rank {rank} is lost"));
        let mut crew = Crew::start_at(first, &abort, vec![member(3), member(4)], lost).unwrap();
        let replies = call(&mut crew, LONG, |rank| rank.index());
        assert_eq!(replies.unwrap(), [3, 4]);
        let panics = |rank: RankIndex| match rank.index() {
            4 => panic!("injected"),
            other => other,
        };
        let error = call(&mut crew, LONG, panics).unwrap_err();
        assert!(matches!(error, CrewError::Failed { reason } if reason == "rank 4 is lost"));
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
        assert!(started.elapsed() < LONG / 2);
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
            // Replies after several timeouts.
            if looks == 5 {
                release.send(()).unwrap();
            }
            true
        };
        let make = |_, reply: Sender<(RankIndex, usize)>| -> Request {
            let waits = waits.clone();
            Box::new(move |rank| {
                let _ = Host.send(&reply, (rank, waits(rank)));
            })
        };
        let replies = crew.ask_while(Duration::from_millis(5), progressed, make);
        assert_eq!(replies.unwrap(), [0, 1]);
        assert!(looks >= 5);
    }

    /// Neither the error nor the drop waits for a rank that is stuck.
    #[test]
    fn a_rank_that_is_stuck_is_named_and_detached() {
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
        assert!(started.elapsed() < LONG / 2);
        assert!(abort.is_triggered());
        assert!(ended.is_empty(), "it is still stuck");
        drop(release);
        ended.recv_timeout(LONG).unwrap();
    }
}
