//! The thread of a rank: it serves the requests of the driver.

use std::sync::Arc;
use std::time::Duration;

use tinderbox_deferred::Source;
use tinderbox_link::{Channels, Received};

use super::list::run_list;
use super::rank::Rank;
use crate::runtime::caught::{action_error, guarded};
use crate::runtime::link::Link;
use crate::runtime::pass::Pass;
use crate::runtime::points::{Receiver, Sender};
use crate::runtime::progress::Watch;
use crate::runtime::round::{Reported, Round};
use crate::runtime::stage::{RankSetup, Stage};
use crate::schedule::RankIndex;
use crate::{ActionError, PipelineError};

/// A call that runs on a rank's thread, with its stages.
type Call = Box<dyn FnOnce(RankIndex, &mut [Stage]) + Send>;

/// Where a rank sends what it returns.
pub(crate) type Reply<T> = Sender<(RankIndex, T)>;

/// A request of the driver to a rank.
pub(crate) enum RankRequest {
    /// Runs a list of actions and reports; a pass is for streamed stages.
    Round(Arc<Round>, Option<Arc<Pass>>, Reply<Reported>),
    /// Runs code of the driver.
    Call(Call),
}

/// Creates the stages of a rank, then serves requests until their sender is dropped. If the parameters
/// can't be materialized, or an action fails or panics, it aborts all ranks through the link, and ends.
///
/// It uses the rayon pool in which it is called.
pub(crate) fn run_rank(
    setup: RankSetup,
    watch: Arc<Watch>,
    link: &mut dyn Link,
    source: &Arc<dyn Source>,
    requests: &Receiver<RankRequest>,
) {
    let (rank, abort) = (setup.rank, setup.abort.clone());
    let served = attempt(rank, "MATERIALIZE", || Ok(Rank::new(setup, watch, source)?));
    let served = served.and_then(|mut state| state.serve(link, requests));
    if let Err(error) = served {
        match abort.is_triggered() {
            // An effect of what has stopped it.
            true => tracing::debug!(rank = rank.index(), %error, "rank ends"),
            false => tracing::error!(rank = rank.index(), %error, "rank aborts"),
        }
        link.abort(error);
    }
}

impl Rank {
    fn serve(
        &mut self,
        link: &mut dyn Link,
        requests: &Receiver<RankRequest>,
    ) -> Result<(), PipelineError> {
        let (rank, abort) = (self.setup.rank, self.setup.abort.clone());
        let channels = abort.channels();
        let never = channels.deadline(Duration::MAX);
        while let Received::Message(request) = channels.receive(requests, abort.signal(), never) {
            match request {
                RankRequest::Round(round, pass, report) => {
                    let run = || Ok(run_list(self, &round, pass.as_ref(), link)?);
                    let done = attempt(rank, "ROUND", run)?;
                    // The driver may have stopped waiting.
                    let _ = channels.send(&report, (rank, done));
                }
                RankRequest::Call(call) => {
                    self.setup.progress.restart();
                    let call = || {
                        call(rank, &mut self.stages);
                        Ok(())
                    };
                    attempt(rank, "CALL", call)?;
                }
            }
        }
        Ok(())
    }
}

/// Runs code that is not an action of a schedule; converts a panic to an error.
fn attempt<T>(
    rank: RankIndex,
    name: &str,
    run: impl FnOnce() -> Result<T, PipelineError>,
) -> Result<T, PipelineError> {
    guarded(run).unwrap_or_else(|message| {
        let source = ActionError::Panicked { message };
        Err(action_error(rank, (None, None), name, source).into())
    })
}
