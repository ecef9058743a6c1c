//! Ranks that are processes of a world. This process runs its own rank, and exchanges messages with the others.
//!
//! A process has the mailboxes of all ranks. The thread of its rank polls its own mailbox. The mailboxes of the others are
//! held here, and filled with the messages that arrive from their processes. So the protocol of mailboxes is the same for
//! threads and processes.

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tinderbox_fake::{DynTensor, FakeError};
use tinderbox_world::link::{Mailbox, MailboxError, mailboxes};
use tinderbox_world::{Buffer, Channel, Failure, Handler, World, WorldError, with_causes};

use super::notice::{Notice, Notices};
use super::ranks::{Payload, Ranks, To};
use super::threads::Threads;
use crate::error::Result;
use crate::runtime::execute::RankCall;
use crate::runtime::link::{Abort, Link, Tag};
use crate::runtime::round::{Reported, Round};
use crate::runtime::snapshots::{Backups, SnapshotFrame};
use crate::runtime::wire::{TensorType, lend, tensors};
use crate::schedule::RankIndex;
use crate::{LinkError, PipelineError, ProcessError, RankError};

/// The header of a frame between processes.
#[derive(Serialize, Deserialize)]
enum Header {
    /// A message between ranks.
    Message { tag: Tag, types: Vec<TensorType> },
    /// A value that a process sends to all others in a call.
    Payload {
        sequence: u64,
        value: Vec<u8>,
        types: Vec<TensorType>,
    },
    /// The next call of a process.
    Notice(Notice),
    /// A frame of a snapshot that the receiver keeps.
    Snapshot(SnapshotFrame),
    /// A process has ended its pipeline, after this call and this number of payloads.
    Ended { call: u64, payloads: u64 },
}

/// The receiving side: fills the mailboxes.
struct Inbox {
    own: RankIndex,
    messages: Mutex<Vec<Mailbox<Tag, Vec<DynTensor>>>>,
    payloads: Mutex<Vec<Mailbox<u64, Payload>>>,
    notices: Mutex<Notices>,
    abort: Abort,
    /// The snapshots of other processes that this one keeps.
    backups: Option<Arc<Backups>>,
}

impl Inbox {
    /// Passes a frame to its receiver; `None` if the frame is invalid.
    fn put(&self, from: RankIndex, header: &[u8], pieces: Vec<Buffer>) -> Option<()> {
        match postcard::from_bytes(header).ok()? {
            Header::Message { tag, types } => {
                let values = tensors(types, pieces)?;
                let ports = self.messages.lock();
                // A failure is reported to the thread that waits.
                let _ = ports.get(from.index())?.send(self.own, tag, values);
            }
            Header::Payload {
                sequence,
                value,
                types,
            } => {
                let payload = (value, tensors(types, pieces)?);
                let ports = self.payloads.lock();
                let _ = ports.get(from.index())?.send(self.own, sequence, payload);
            }
            Header::Notice(notice) => {
                let mut notices = self.notices.lock();
                notices.add(from, notice);
                self.refuse(&notices);
            }
            Header::Snapshot(frame) => self.backups.as_ref()?.put(from, frame, pieces)?,
            Header::Ended { call, payloads } => {
                let mut notices = self.notices.lock();
                notices.ended.insert(from, (call, payloads));
                self.refuse(&notices);
            }
        }
        Some(())
    }

    /// Stops this process if another one makes another call, or has ended.
    fn refuse(&self, notices: &Notices) {
        if let Some((rank, difference)) = notices.check() {
            self.abort
                .trigger(ProcessError::Diverged { rank, difference }.into());
        }
        if let Some(rank) = notices.left() {
            self.abort.trigger(ProcessError::Left { rank }.into());
        }
    }
}

impl Handler for Inbox {
    fn received(&self, from: RankIndex, header: &[u8], pieces: Vec<Buffer>) {
        if self.put(from, header, pieces).is_none() {
            let frame = ProcessError::Frame { rank: from };
            self.abort.trigger(frame.into());
        }
    }

    fn failed(&self, failure: &Failure) {
        let error = WorldError::Failed(failure.clone());
        self.abort.trigger(error.into());
    }
}

/// The driver's side of the other processes. When it is dropped, they are notified that this process has ended its pipeline.
#[derive(derive_more::Debug)]
#[debug("Remote {{ own: {:?}, size: {}, .. }}", inbox.own, channel.size())]
pub(crate) struct Remote {
    channel: Arc<Channel>,
    inbox: Arc<Inbox>,
    payloads: Mailbox<u64, Payload>,
    sequence: u64,
}

/// The link of a process' rank.
struct ProcessLink {
    mailbox: Mailbox<Tag, Vec<DynTensor>>,
    /// The driver owns it, so it closes even if this rank is stuck.
    channel: Weak<Channel>,
    abort: Abort,
}

/// The timeout of a call of other processes, in timeouts of a message. It is longer, because the others may find a clearer
/// error first. A spare waits no longer for a step, even if the step makes progress.
const CALL_TIMEOUTS: u32 = 3;

fn unsent(rank: RankIndex, message: String, source: FakeError) -> ProcessError {
    ProcessError::Unsent {
        rank,
        message,
        source: Box::new(source),
    }
}

/// The header of a frame of a snapshot.
pub(crate) fn header_of(frame: SnapshotFrame) -> Vec<u8> {
    Header::Snapshot(frame).written()
}

impl Header {
    fn written(&self) -> Vec<u8> {
        // Numbers, names and bytes are always written.
        postcard::to_stdvec(self).unwrap_or_default()
    }
}

impl Link for ProcessLink {
    fn post_receive(&mut self, from: RankIndex, tag: Tag) -> Result<(), LinkError> {
        self.mailbox.post(from, &tag)
    }

    fn send(&mut self, to: RankIndex, tag: Tag, values: Vec<DynTensor>) -> Result<(), LinkError> {
        self.mailbox.post(to, &tag)?;
        let (types, pieces) = lend(values).map_err(|source| {
            let unsent = unsent(self.mailbox.rank(), tag.to_string(), source);
            self.abort.trigger(unsent.into());
            LinkError::Aborted
        })?;
        let header = Header::Message { tag, types };
        let channel = self.channel.upgrade().ok_or(LinkError::Aborted)?;
        channel.send(to, &header.written(), pieces);
        Ok(())
    }

    fn poll(&mut self, from: RankIndex, tag: Tag) -> Result<Vec<DynTensor>, LinkError> {
        self.mailbox.poll(from, tag)
    }

    fn abort(&self, reason: PipelineError) {
        let text = with_causes(&reason);
        // After another failure, a rank reports an effect of it.
        let is_first = !self.abort.is_triggered();
        self.abort.trigger(reason);
        if is_first && let Some(channel) = self.channel.upgrade() {
            channel.fail(&text);
        }
    }
}

impl Remote {
    /// Connects the rank of this process with the ranks of all others.
    pub(crate) fn join(
        world: &World,
        abort: &Abort,
        timeout: Duration,
        backups: Option<Arc<Backups>>,
    ) -> (Box<dyn Link>, Self) {
        let own = world.rank();
        // Each mailbox can send to all others. So the mailbox of this rank can be replaced by an additional one, which is not
        // used.
        let (count, place) = (world.size() + 1, own.index());
        let mut messages = mailboxes(count, abort, timeout);
        let mut payloads = mailboxes(count, abort, timeout.saturating_mul(CALL_TIMEOUTS));
        let mailbox = messages.swap_remove(place);
        let own_payloads = payloads.swap_remove(place);
        let inbox = Arc::new(Inbox {
            own,
            messages: Mutex::new(messages),
            payloads: Mutex::new(payloads),
            notices: Mutex::default(),
            abort: abort.clone(),
            backups,
        });
        let channel = Arc::new(world.open(inbox.clone()));
        let link = ProcessLink {
            mailbox,
            channel: Arc::downgrade(&channel),
            abort: abort.clone(),
        };
        let remote = Self {
            channel,
            inbox,
            payloads: own_payloads,
            sequence: 0,
        };
        (Box::new(link), remote)
    }

    /// Returns the channel to the other processes.
    pub(crate) fn channel(&self) -> Weak<Channel> {
        Arc::downgrade(&self.channel)
    }

    /// Sends a frame to all other processes, or to the first.
    fn send(&self, to: To, header: &Header, pieces: &[Bytes]) {
        let header = header.written();
        let receivers = self.channel.others();
        for other in receivers.filter(|other| to == To::All || other.index() == 0) {
            self.channel.send(other, &header, pieces.to_vec());
        }
    }

    /// Sends a value and tensors to other processes. Returns the values and tensors that this process receives, including its
    /// own, in the order of the ranks. All processes call this in the same order.
    fn exchange(&mut self, to: To, given: Payload) -> Result<Vec<Payload>> {
        let (own, sequence) = (self.inbox.own, self.sequence);
        self.sequence += 1;
        let message = "what all ranks need".to_owned();
        let (value, tensors) = given.clone();
        let lent = lend(tensors);
        let (types, pieces) = lent.map_err(|source| unsent(own, message, source))?;
        let header = Header::Payload {
            sequence,
            value,
            types,
        };
        self.send(to, &header, &pieces);
        self.wait_for(Some(sequence));
        let mut all = Vec::new();
        let senders = self.channel.others();
        for other in senders.filter(|_| to == To::All || own.index() == 0) {
            let read = self.payloads.poll(other, sequence);
            all.push(read.map_err(|error| self.stopped(error))?);
        }
        self.wait_for(None);
        all.insert(own.index().min(all.len()), given);
        Ok(all)
    }

    /// Sets the payload that this process waits for. Stops this process if another one has ended without it.
    fn wait_for(&self, sequence: Option<u64>) {
        let mut notices = self.inbox.notices.lock();
        notices.awaited = sequence;
        self.inbox.refuse(&notices);
    }

    fn stopped(&self, error: MailboxError<u64>) -> PipelineError {
        match error {
            MailboxError::Timeout { from, timeout, .. } => RankError::Timeout {
                rank: from,
                request: "make the same call",
                timeout,
            }
            .into(),
            MailboxError::Repeated { from, .. } => ProcessError::Frame { rank: from }.into(),
            MailboxError::Aborted | MailboxError::Closed { .. } => {
                let reason = self.inbox.abort.take_reason();
                reason.unwrap_or(PipelineError::Stopped)
            }
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The channel reports a panic.
        if std::thread::panicking() {
            return;
        }
        let call = self.inbox.notices.lock().call();
        let payloads = self.sequence;
        self.send(To::All, &Header::Ended { call, payloads }, &[]);
    }
}

/// The rank of this process, and the others. A process beyond the ranks of the plan has none, and makes the same calls.
#[derive(Debug)]
pub(crate) struct Processes {
    own: Threads,
    /// `None` after it has ended.
    remote: Option<Remote>,
}

impl Processes {
    /// Combines the rank of this process, which has the link of `remote`, with the ranks of the others.
    pub(crate) fn new(own: Threads, remote: Remote) -> Self {
        let progress = own.progress();
        (remote.channel).report(move || progress.as_ref()?.doing());
        let remote = Some(remote);
        Self { own, remote }
    }

    /// Notifies the others of an error.
    fn notify<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| self.fail(error))
    }
}

impl Ranks for Processes {
    fn own(&self) -> Option<RankIndex> {
        self.remote.as_ref().map(|remote| remote.inbox.own)
    }

    fn run(&mut self, round: &Arc<Round>, request: &'static str) -> Result<Vec<Reported>> {
        let reports = self.own.run(round, request);
        self.notify(reports)
    }

    fn call(&mut self, request: &'static str, call: RankCall) -> Result<Vec<Box<dyn Any + Send>>> {
        let results = self.own.call(request, call);
        self.notify(results)
    }

    fn exchange_bytes(&mut self, to: To, given: Payload) -> Result<Vec<Payload>> {
        let remote = self.remote.as_mut().ok_or(PipelineError::Stopped)?;
        let exchanged = remote.exchange(to, given);
        self.notify(exchanged)
    }

    fn announce(&self, notice: Notice) {
        if let Some(remote) = &self.remote {
            remote.send(To::All, &Header::Notice(notice.clone()), &[]);
            let mut notices = remote.inbox.notices.lock();
            notices.begin(notice);
            remote.inbox.refuse(&notices);
        }
    }

    fn fail(&self, error: &PipelineError) {
        // A failure that came from the others is not sent again.
        if let Some(remote) = &self.remote {
            remote.channel.fail(&with_causes(error));
        }
    }

    fn is_aborted(&self) -> bool {
        self.remote.is_none() || self.own.is_aborted()
    }

    fn channel(&self) -> Option<Weak<Channel>> {
        self.remote.as_ref().map(Remote::channel)
    }

    fn end(&mut self) {
        self.own.end();
        self.remote = None;
    }
}
