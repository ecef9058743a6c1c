//! The interface of the ranks to their driver.

use std::any::Any;
use std::sync::{Arc, Weak};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tinderbox_fake::DynTensor;
use tinderbox_world::Channel;

use super::notice::Notice;
use crate::error::Result;
use crate::runtime::execute::RankCall;
use crate::runtime::round::{Reported, Round};
use crate::schedule::RankIndex;
use crate::{PipelineError, ProcessError, Stage};

/// The processes that receive a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// All processes.
    All,
    /// The process of rank 0.
    First,
}

/// A serialized value and tensors that a process sends to others.
pub(crate) type Payload = (Vec<u8>, Vec<DynTensor>);

/// The ranks of a pipeline, as the driver of one process sees them. Some of them may be in other processes.
///
/// # Contract
///
/// - The driver makes one call after the other. In a world, all processes make the same calls in the same order.
/// - An error of [`run`](Self::run), [`call`](Self::call) or [`exchange_bytes`](Self::exchange_bytes) ends the ranks in all
///   processes, and later calls return [`PipelineError::Stopped`]. An error that is found before a rank begins does not end
///   them, for example a pass that does not fit in memory.
pub(crate) trait Ranks: Send {
    /// Returns the rank of this process in a world. `None` if all ranks are in this process.
    fn own(&self) -> Option<RankIndex> {
        None
    }

    /// Runs a round, which is a training step or an evaluation, on every rank of this process. Returns the reports in the order
    /// of the ranks.
    ///
    /// There is no time limit as long as some rank finishes an action within two timeouts. A rank that waits for a message
    /// aborts after one timeout, so that its error, which names the message, is the first.
    fn run(&mut self, round: &Arc<Round>, request: &'static str) -> Result<Vec<Reported>>;

    /// Runs code on the thread of every rank of this process, and returns the results in the order of the ranks. There is no
    /// time limit as long as some rank reports progress within each timeout.
    fn call(&mut self, request: &'static str, call: RankCall) -> Result<Vec<Box<dyn Any + Send>>>;

    /// Sends a value and tensors to all processes, or to the first one. Returns the values and tensors that this process
    /// receives, in the order of the ranks. Without other processes, returns the given ones.
    fn exchange_bytes(&mut self, to: To, given: Payload) -> Result<Vec<Payload>>;

    /// Notifies the other processes of the next call of this process. Stops this process if another process makes a different
    /// call.
    fn announce(&self, _: Notice) {}

    /// Notifies the other processes of an error that ends this pipeline.
    fn fail(&self, _: &PipelineError) {}

    /// Returns whether the ranks were stopped by a failure.
    fn is_aborted(&self) -> bool;

    /// Returns the channel to the other processes.
    fn channel(&self) -> Option<Weak<Channel>> {
        None
    }

    /// Ends the ranks, and disconnects from the other processes.
    fn end(&mut self);
}

/// Erases the type of a call's results, because [`Ranks`] is used as a trait object.
pub(crate) fn untyped<R: Send + 'static>(
    call: impl Fn(RankIndex, &mut [Stage]) -> R + Send + Sync + 'static,
) -> RankCall {
    Arc::new(move |rank, stages| Box::new(call(rank, stages)))
}

/// Converts the results of an [`untyped`] call back to their type.
pub(crate) fn typed<R: 'static>(results: Vec<Box<dyn Any + Send>>) -> Vec<R> {
    let typed = results.into_iter().map(|result| result.downcast::<R>());
    let typed = typed.map(|result| *result.expect("it is of the call"));
    typed.collect()
}

/// Serializes a value of a rank for the other ranks.
pub(crate) fn written(rank: RankIndex, value: &impl Serialize) -> Result<Vec<u8>, ProcessError> {
    postcard::to_stdvec(value).map_err(|_| ProcessError::Frame { rank })
}

/// Deserializes a value of a rank.
pub(crate) fn read<T: DeserializeOwned>(rank: usize, value: &[u8]) -> Result<T, ProcessError> {
    let rank = RankIndex::new(rank);
    postcard::from_bytes(value).map_err(|_| ProcessError::Frame { rank })
}

impl dyn Ranks {
    /// Runs code on every rank's thread, as [`call`](Ranks::call) does.
    pub(crate) fn ask<R: Send + 'static>(
        &mut self,
        request: &'static str,
        call: impl Fn(RankIndex, &mut [Stage]) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>> {
        Ok(typed(self.call(request, untyped(call))?))
    }

    /// Sends a value and tensors to all processes, or to the first one, as [`exchange_bytes`](Ranks::exchange_bytes) does.
    pub(crate) fn exchange<T: Serialize + DeserializeOwned>(
        &mut self,
        to: To,
        value: T,
        tensors: Vec<DynTensor>,
    ) -> Result<Vec<(T, Vec<DynTensor>)>> {
        let Some(rank) = self.own() else {
            // Nothing is sent. This returns the error of ranks that have ended.
            self.exchange_bytes(to, Payload::default())?;
            return Ok(vec![(value, tensors)]);
        };
        let all = self.exchange_bytes(to, (written(rank, &value)?, tensors))?;
        let all = all.into_iter().enumerate();
        let read = all.map(|(rank, (value, tensors))| Ok((read(rank, &value)?, tensors)));
        read.collect()
    }

    /// Sends the named tensors of this process' ranks to all processes, or to the first one. Returns the tensors that this
    /// process receives.
    pub(crate) fn exchange_named<N: Serialize + DeserializeOwned>(
        &mut self,
        to: To,
        of_ranks: Vec<Vec<(N, DynTensor)>>,
    ) -> Result<impl Iterator<Item = (N, DynTensor)> + use<N>> {
        let (names, values): (Vec<N>, Vec<DynTensor>) = of_ranks.into_iter().flatten().unzip();
        let all = self.exchange(to, names, values)?.into_iter();
        Ok(all.flat_map(|(names, values)| names.into_iter().zip(values)))
    }

    /// Waits until all processes have made this call.
    pub(crate) fn wait_for_all(&mut self) -> Result<()> {
        self.exchange_bytes(To::All, Payload::default()).map(drop)
    }

    /// Exchanges whether all processes can continue. `own` is the reason why this process can't. Returns the lowest rank that
    /// can't continue, with its reason.
    pub(crate) fn agree(&mut self, own: Option<String>) -> Result<Option<(RankIndex, String)>> {
        let all = self.exchange(To::All, own, Vec::new())?;
        let mut ranks = all.into_iter().enumerate();
        Ok(ranks.find_map(|(rank, (reason, _))| Some((RankIndex::new(rank), reason?))))
    }

    /// Notifies the other processes of an error that ends this pipeline, and returns it.
    pub(crate) fn notified(&self, error: impl Into<PipelineError>) -> PipelineError {
        let error = error.into();
        self.fail(&error);
        error
    }

    /// Returns the lowest rank of this process: its own rank in a world, otherwise rank 0.
    pub(crate) fn first(&self) -> RankIndex {
        self.own().unwrap_or(RankIndex::new(0))
    }
}
