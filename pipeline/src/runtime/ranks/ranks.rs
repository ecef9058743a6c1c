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

/// The receivers of a value of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    All,
    First,
}

/// A value and tensors that a process sends to others.
pub(crate) type Payload = (Vec<u8>, Vec<DynTensor>);

/// The ranks of a pipeline.
///
/// # Contract
///
/// - Calls are made one after the other. In a world, all processes make the same calls in the same order.
/// - An error of [`run`](Self::run), [`call`](Self::call) or [`exchange`](Self::exchange_bytes) ends the ranks, in all
///   processes, unless it is found before a rank begins, such as a pass that does not fit in memory; later calls return
///   [`PipelineError::Stopped`].
pub(crate) trait Ranks: Send {
    /// Returns the rank of this process, if the others are in other processes.
    fn own(&self) -> Option<RankIndex> {
        None
    }

    /// Runs a round on every rank of this process, and returns the reports in the order of the ranks. There is no time limit as
    /// long as some rank finishes an action within two timeouts. A rank that waits for a message aborts earlier, and names the
    /// message.
    fn run(&mut self, round: &Arc<Round>, request: &'static str) -> Result<Vec<Reported>>;

    /// Runs code on every rank's thread, and returns the results in the order of the ranks. There is no time limit as long as
    /// some rank reports progress within each timeout.
    fn call(&mut self, request: &'static str, call: RankCall) -> Result<Vec<Box<dyn Any + Send>>>;

    /// Sends a value and tensors to all processes, or to the first one. Returns the values and tensors that this process
    /// receives, in the order of the ranks. Without other processes, returns its own.
    fn exchange_bytes(&mut self, to: To, given: Payload) -> Result<Vec<Payload>>;

    /// Notifies the other processes of the next call of this one, and stops this process if another makes another call.
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

/// A call whose results may be of any type.
pub(crate) fn untyped<R: Send + 'static>(
    call: impl Fn(RankIndex, &mut [Stage]) -> R + Send + Sync + 'static,
) -> RankCall {
    Arc::new(move |rank, stages| Box::new(call(rank, stages)))
}

/// Converts the results of a call to their type.
pub(crate) fn typed<R: 'static>(results: Vec<Box<dyn Any + Send>>) -> Vec<R> {
    let typed = results.into_iter().map(|result| result.downcast::<R>());
    let typed = typed.map(|result| *result.expect("it is of the call"));
    typed.collect()
}

/// Writes a value of a rank for the others.
pub(crate) fn written(rank: RankIndex, value: &impl Serialize) -> Result<Vec<u8>, ProcessError> {
    postcard::to_stdvec(value).map_err(|_| ProcessError::Frame { rank })
}

/// Reads a value that a rank has written.
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
            self.exchange_bytes(to, Payload::default())?;
            return Ok(vec![(value, tensors)]);
        };
        let all = self.exchange_bytes(to, (written(rank, &value)?, tensors))?;
        let all = all.into_iter().enumerate();
        let read = all.map(|(rank, (value, tensors))| Ok((read(rank, &value)?, tensors)));
        read.collect()
    }

    /// Sends named tensors to all processes, or to the first one, and returns the tensors that this process receives.
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

    /// Returns the first rank that can't continue, with its reason.
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

    /// Returns the lowest rank of this process.
    pub(crate) fn first(&self) -> RankIndex {
        self.own().unwrap_or(RankIndex::new(0))
    }
}
