//! Ranks that are other processes.
//!
//! A process has the mailboxes of all ranks. Its own is polled by the thread of its rank; the mailboxes of the others are held
//! here, and filled with what arrives from their processes. So a rank of another process is a rank whose mailbox somebody
//! else fills, and the protocol of `tinderbox-link` stays as it is.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tinderbox_fake::{DynTensor, FakeError};
use tinderbox_link::{Crossbeam, Mailbox, MailboxError, mailboxes};
use tinderbox_world::{Buffer, Channel, Failure, Handler, World, WorldError, with_causes};
use twox_hash::XxHash3_64;

use super::link::{Abort, Link, Tag};
use super::recovery::{Backups, Part};
use super::round::MicroInput;
use super::wire::{TensorType, lend, tensors};
use crate::schedule::RankIndex;
use crate::{LinkError, PipelineError};

/// What a frame between processes is.
#[derive(Serialize, Deserialize)]
enum Header {
    /// A message between ranks.
    Message { tag: Tag, types: Vec<TensorType> },
    /// What a process gives to all others at a call.
    Gift {
        sequence: u64,
        value: Vec<u8>,
        types: Vec<TensorType>,
    },
    /// What a process is about to do.
    Notice(Notice),
    /// A part of a state that the receiver keeps.
    State(Part),
    /// A process has ended its pipeline, after this call and this number of gifts.
    Ended { call: u64, gifts: u64 },
}

/// A digest of the shapes of micro-batches and, if asked for, of their values.
pub(super) fn digest_of(micro_batches: &[MicroInput], values: bool) -> Result<u64, FakeError> {
    let mut hasher = XxHash3_64::with_seed(0);
    for micro in micro_batches {
        hasher.write_usize(micro.samples);
        for input in &micro.inputs {
            let written = postcard::to_stdvec(&TensorType::of(input));
            // Numbers and names are always written.
            hasher.write(&written.unwrap_or_default());
            if values {
                match input.host_bytes() {
                    Some(bytes) => hasher.write(bytes),
                    None => hasher.write(input.to_data()?.as_bytes()),
                }
            }
        }
    }
    Ok(hasher.finish())
}

/// What a process does in one call of a pipeline: all have to do the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notice {
    /// The number of this call, from 1; calls that were refused count.
    pub(super) call: u64,
    /// The number of earlier training steps.
    step: u64,
    is_training: bool,
    /// The shapes of the batch, in words.
    shapes: String,
    /// A digest of the shapes of all micro-batches and, if asked for, of their values.
    digest: u64,
    /// A digest of learning rates, loss scale, and what was frozen or set.
    settings: u64,
}

impl Notice {
    /// Describes a round. With `values`, costs a pass over the batch. Of a share, only `of_share` is compared: the samples of
    /// all shares.
    pub(super) fn new(
        call: u64,
        step: u64,
        is_training: bool,
        micro_batches: &[MicroInput],
        of_share: Option<usize>,
        settings: u64,
        values: bool,
    ) -> Result<Self, FakeError> {
        if let Some(samples) = of_share {
            return Ok(Self {
                call,
                step,
                is_training,
                shapes: format!("{samples} samples in shares"),
                digest: 0,
                settings,
            });
        }
        let digest = digest_of(micro_batches, values)?;
        let first = micro_batches.first().map_or(&[][..], |micro| &micro.inputs);
        let first = first
            .iter()
            .map(|input| format!("{:?} {:?}", input.shape().to_vec(), input.dtype()));
        let first: Vec<String> = first.collect();
        Ok(Self {
            call,
            step,
            is_training,
            shapes: format!(
                "{} micro-batches, the first of {}",
                micro_batches.len(),
                first.join(", ")
            ),
            digest,
            settings,
        })
    }

    /// What differs between two calls with the same number, in words.
    fn difference(&self, other: &Self, of: RankIndex) -> Option<String> {
        let doing = |notice: &Self| match notice.is_training {
            true => format!("trains step {}", notice.step),
            false => format!("evaluates after step {}", notice.step),
        };
        if (self.is_training, self.step) != (other.is_training, other.step) {
            return Some(format!(
                "rank {of} {} while this one {}",
                doing(other),
                doing(self)
            ));
        }
        if self.shapes != other.shapes {
            let (found, own) = (&other.shapes, &self.shapes);
            return Some(format!(
                "rank {of} has a batch of {found}, and this one of {own}"
            ));
        }
        if self.settings != other.settings {
            return Some(format!(
                "rank {of} has other learning rates or another loss scale than this one, or has frozen or set other parameters"
            ));
        }
        (self.digest != other.digest)
            .then(|| format!("rank {of} has another batch of the same shapes than this one"))
    }
}

/// The calls of all processes.
#[derive(Debug, Default)]
struct Notices {
    own: Option<Notice>,
    /// The calls of others that this process has not made yet, and the last of each.
    others: BTreeMap<(u64, RankIndex), Notice>,
    last: BTreeMap<RankIndex, u64>,
    /// The gift that this process waits for.
    awaited: Option<u64>,
    /// The last call and the number of gifts of those that have ended.
    ended: BTreeMap<RankIndex, (u64, u64)>,
}

impl Notices {
    /// Compares this process' call with the calls of the others.
    fn check(&self) -> Option<(RankIndex, String)> {
        let own = self.own.as_ref()?;
        self.last.iter().find_map(|(rank, last)| {
            let text = match self.others.get(&(own.call, *rank)) {
                Some(other) => own.difference(other, *rank)?,
                None if *last > own.call => format!(
                    "rank {rank} has skipped call {} of the pipeline, perhaps because its batch was refused",
                    own.call
                ),
                None => return None,
            };
            Some((*rank, text))
        })
    }

    /// Returns a rank that has ended before what this process does.
    fn left(&self) -> Option<RankIndex> {
        let call = self.own.as_ref().map_or(0, |own| own.call);
        let is_before = |(last, gifts): &(u64, u64)| {
            *last < call || self.awaited.is_some_and(|awaited| *gifts <= awaited)
        };
        let mut ended = self.ended.iter();
        ended
            .find(|(_, last)| is_before(last))
            .map(|(rank, _)| *rank)
    }

    fn begin(&mut self, notice: Notice) {
        // The calls before it are over on every rank.
        self.others = self.others.split_off(&(notice.call, RankIndex::new(0)));
        self.own = Some(notice);
    }
}

/// A value and tensors that a process gives to others.
type Gift = (Vec<u8>, Vec<DynTensor>);

/// The receiving side: fills the mailboxes.
struct Inbox {
    own: RankIndex,
    messages: Mutex<Vec<Mailbox<Tag, Vec<DynTensor>, Crossbeam>>>,
    gifts: Mutex<Vec<Mailbox<u64, Gift, Crossbeam>>>,
    notices: Mutex<Notices>,
    abort: Abort,
    /// What this process keeps of another one.
    backups: Option<Arc<Backups>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    /// Puts a frame where it is waited for; `None` if it is none.
    fn put(&self, from: RankIndex, header: &[u8], pieces: Vec<Buffer>) -> Option<()> {
        match postcard::from_bytes(header).ok()? {
            Header::Message { tag, types } => {
                let values = tensors(types, pieces)?;
                let ports = locked(&self.messages);
                // A failure is reported to the thread that waits.
                let _ = ports.get(from.index())?.send(self.own, tag, values);
            }
            Header::Gift {
                sequence,
                value,
                types,
            } => {
                let gift = (value, tensors(types, pieces)?);
                let ports = locked(&self.gifts);
                let _ = ports.get(from.index())?.send(self.own, sequence, gift);
            }
            Header::Notice(notice) => {
                let mut notices = locked(&self.notices);
                notices.last.insert(from, notice.call);
                notices.others.insert((notice.call, from), notice);
                self.refuse(&notices);
            }
            Header::State(part) => self.backups.as_ref()?.put(from, part, pieces)?,
            Header::Ended { call, gifts } => {
                let mut notices = locked(&self.notices);
                notices.ended.insert(from, (call, gifts));
                self.refuse(&notices);
            }
        }
        Some(())
    }

    /// Stops this process if another one does something else.
    fn refuse(&self, notices: &Notices) {
        if let Some((rank, difference)) = notices.check() {
            self.abort
                .trigger(PipelineError::Diverged { rank, difference });
        }
        if let Some(rank) = notices.left() {
            self.abort.trigger(PipelineError::Left { rank });
        }
    }
}

impl Handler for Inbox {
    fn received(&self, from: RankIndex, header: &[u8], pieces: Vec<Buffer>) {
        if self.put(from, header, pieces).is_none() {
            self.abort.trigger(PipelineError::Frame { rank: from });
        }
    }

    fn failed(&self, failure: &Failure) {
        let error = WorldError::Failed(failure.clone());
        self.abort.trigger(error.into());
    }
}

/// Who gets what a process gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    All,
    First,
}

/// The driver's side of the other processes.
pub(super) struct Remote {
    own: RankIndex,
    channel: Arc<Channel>,
    inbox: Arc<Inbox>,
    gifts: Mailbox<u64, Gift, Crossbeam>,
    sequence: u64,
}

/// The link of a process' rank.
struct ProcessLink {
    mailbox: Mailbox<Tag, Vec<DynTensor>, Crossbeam>,
    /// The driver's: it closes even if this rank is stuck.
    channel: Weak<Channel>,
    abort: Abort,
}

/// How many times as long as for a message a process waits for a call of others: they may find an error of their own
/// first, and name it better.
const CALL_TIMEOUTS: u32 = 3;

/// Connects the rank of this process with the ranks of all others.
pub(super) fn join(
    world: &World,
    abort: &Abort,
    timeout: Duration,
    backups: Option<Arc<Backups>>,
) -> (Box<dyn Link>, Remote) {
    let (own, size) = (world.rank(), world.size());
    // All mailboxes have the senders of all, so the mailbox of this rank can be taken out and replaced by one that is
    // not used.
    let take = own.index();
    let mut messages = mailboxes(size, abort, timeout);
    let mut gifts = mailboxes(size, abort, timeout.saturating_mul(CALL_TIMEOUTS));
    let mut spare = (mailboxes(1, abort, timeout), mailboxes(1, abort, timeout));
    let mailbox = std::mem::replace(&mut messages[take], spare.0.remove(0));
    let own_gifts = std::mem::replace(&mut gifts[take], spare.1.remove(0));
    let inbox = Arc::new(Inbox {
        own,
        messages: Mutex::new(messages),
        gifts: Mutex::new(gifts),
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
    let remote = Remote {
        own,
        channel,
        inbox,
        gifts: own_gifts,
        sequence: 0,
    };
    (Box::new(link), remote)
}

/// The header of a frame with a part of a state.
pub(super) fn header_of(part: Part) -> Vec<u8> {
    // Numbers and names are always written.
    postcard::to_stdvec(&Header::State(part)).unwrap_or_default()
}

fn send(channel: &Channel, to: RankIndex, header: &Header, pieces: Vec<bytes::Bytes>) {
    // Numbers, names and bytes are always written.
    let header = postcard::to_stdvec(header).unwrap_or_default();
    channel.send(to, &header, pieces);
}

impl Link for ProcessLink {
    fn post_receive(&mut self, from: RankIndex, tag: Tag) -> Result<(), LinkError> {
        self.mailbox.post(from, &tag)
    }

    fn send(&mut self, to: RankIndex, tag: Tag, values: Vec<DynTensor>) -> Result<(), LinkError> {
        self.mailbox.post(to, &tag)?;
        let (types, pieces) = match lend(values) {
            Ok(lent) => lent,
            Err(source) => {
                self.abort.trigger(PipelineError::Unsent {
                    rank: self.mailbox.rank(),
                    message: tag.to_string(),
                    source: Box::new(source),
                });
                return Err(LinkError::Aborted);
            }
        };
        let header = Header::Message { tag, types };
        let channel = self.channel.upgrade().ok_or(LinkError::Aborted)?;
        send(&channel, to, &header, pieces);
        Ok(())
    }

    fn poll(&mut self, from: RankIndex, tag: Tag) -> Result<Vec<DynTensor>, LinkError> {
        self.mailbox.poll(from, tag)
    }

    fn abort(&self, reason: PipelineError) {
        let text = with_causes(&reason);
        // A rank that another failure has woken reports an effect of it.
        let is_first = !self.abort.is_triggered();
        self.abort.trigger(reason);
        if is_first && let Some(channel) = self.channel.upgrade() {
            channel.fail(&text);
        }
    }
}

impl Remote {
    pub(super) const fn own(&self) -> RankIndex {
        self.own
    }

    pub(super) fn size(&self) -> usize {
        self.channel.size()
    }

    /// Notifies the others that this process failed. A failure that came from them is not sent again.
    pub(super) fn fail(&self, error: &PipelineError) {
        self.channel.fail(&with_causes(error));
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.inbox.abort.is_triggered()
    }

    pub(super) fn channel(&self) -> Weak<Channel> {
        Arc::downgrade(&self.channel)
    }

    /// Sets what this process reports of itself.
    pub(super) fn report(&self, status: impl Fn() -> Option<String> + Send + Sync + 'static) {
        self.channel.report(status);
    }

    /// Tells the others what this process is about to do, and stops it if another does something else.
    pub(super) fn notify(&self, notice: Notice) {
        for to in self.channel.others() {
            send(
                &self.channel,
                to,
                &Header::Notice(notice.clone()),
                Vec::new(),
            );
        }
        let mut notices = locked(&self.inbox.notices);
        notices.begin(notice);
        self.inbox.refuse(&notices);
    }

    /// Gives a value and tensors to other processes, and returns the values and tensors of all that give to this one, in the
    /// order of the ranks, its own among them. All processes call this in the same order.
    pub(super) fn exchange<T: Serialize + DeserializeOwned>(
        &mut self,
        to: To,
        value: T,
        given: Vec<DynTensor>,
    ) -> Result<Vec<(T, Vec<DynTensor>)>, PipelineError> {
        let sequence = self.sequence;
        self.sequence += 1;
        let is_first = |rank: RankIndex| rank.index() == 0;
        let written =
            postcard::to_stdvec(&value).map_err(|_| PipelineError::Frame { rank: self.own })?;
        let (types, pieces) = lend(given.clone()).map_err(|source| PipelineError::Unsent {
            rank: self.own,
            message: "what all ranks need".to_owned(),
            source: Box::new(source),
        })?;
        for other in self
            .channel
            .others()
            .filter(|other| to == To::All || is_first(*other))
        {
            let header = Header::Gift {
                sequence,
                value: written.clone(),
                types: types.clone(),
            };
            send(&self.channel, other, &header, pieces.clone());
        }
        self.wait_for(Some(sequence));
        let own = self.own.index();
        let mut all = Vec::new();
        for other in self
            .channel
            .others()
            .filter(|_| to == To::All || is_first(self.own))
        {
            let (read, tensors) = self
                .gifts
                .poll(other, sequence)
                .map_err(|error| self.stopped(error))?;
            let read = postcard::from_bytes(&read);
            all.push((
                read.map_err(|_| PipelineError::Frame { rank: other })?,
                tensors,
            ));
        }
        self.wait_for(None);
        all.insert(own.min(all.len()), (value, given));
        Ok(all)
    }

    /// Sets the gift that this process waits for; a process that has ended without it stops this one.
    fn wait_for(&self, sequence: Option<u64>) {
        let mut notices = locked(&self.inbox.notices);
        notices.awaited = sequence;
        self.inbox.refuse(&notices);
    }

    fn stopped(&self, error: MailboxError<u64>) -> PipelineError {
        match error {
            MailboxError::Timeout { from, timeout, .. } => PipelineError::Timeout {
                rank: from,
                request: "make the same call",
                timeout,
            },
            MailboxError::Repeated { from, .. } => PipelineError::Frame { rank: from },
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
        let own = locked(&self.inbox.notices)
            .own
            .as_ref()
            .map_or(0, |own| own.call);
        let header = Header::Ended {
            call: own,
            gifts: self.sequence,
        };
        for to in self.channel.others() {
            send(&self.channel, to, &header, Vec::new());
        }
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote")
            .field("own", &self.own)
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}
