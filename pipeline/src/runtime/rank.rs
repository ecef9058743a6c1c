//! One rank: it holds its stages and serves the requests of the driver.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn::tensor::Device;
use crossbeam_channel::{Receiver, Sender};
use tinderbox_deferred::{ParameterTable, Source};
use tinderbox_fake::{DeviceLabel, DynTensor};

use super::link::{Abort, Link};
use super::progress::{RankProgress, Watch};
use super::round::{Round, RoundReport};
use super::settings::Settings;
use super::stage::Stage;
use super::step::{RoundState, Running};
use super::streamed::{Pass, StreamedSetup, Streaming};
use super::wire;
use crate::cut::Layout;
use crate::schedule::{MicroBatchIndex, RankIndex, StageIndex};
use crate::{ActionError, PipelineError};

/// The inputs of a rank.
pub(super) struct RankSetup {
    /// The index of the rank among all.
    pub(super) rank: RankIndex,
    /// Its replica.
    pub(super) replica: usize,
    /// The index of the rank in its replica.
    pub(super) place: RankIndex,
    pub(super) layout: Arc<Layout>,
    /// The parameters of the model.
    pub(super) table: Arc<ParameterTable>,
    /// The device of its stages.
    pub(super) device: Device,
    pub(super) settings: Arc<Settings>,
    /// Counts the values that it computes and reads.
    pub(super) progress: Arc<RankProgress>,
    /// Stops all ranks.
    pub(super) abort: Abort,
    /// Whether its stages get their parameters only while they run, and what a training step may change then.
    pub(super) streamed: Option<Arc<StreamedSetup>>,
}

impl fmt::Debug for RankSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankSetup")
            .field("rank", &self.rank)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// A call that runs on a rank's thread, with its stages.
type Call = Box<dyn FnOnce(RankIndex, &mut [Stage]) + Send>;

/// A request of the driver to a rank.
pub(super) enum RankRequest {
    /// Runs a list of actions and reports.
    Round(Arc<Round>, Sender<(RankIndex, RoundReport)>),
    /// Runs code of the driver.
    Call(Call),
}

/// The state of a rank.
pub(super) struct Rank {
    pub(super) setup: Arc<RankSetup>,
    pub(super) watch: Arc<Watch>,
    pub(super) stages: Vec<Stage>,
    /// Reads the parameters of streamed stages.
    streaming: Option<Streaming>,
    /// The streamed stage that has its parameters.
    entered: Option<StageIndex>,
}

/// Creates the stages of a rank, then serves requests until their sender is dropped. If the parameters
/// can't be materialized, or an action fails or panics, it aborts all ranks through the link, and ends.
///
/// It uses the rayon pool in which it is called.
pub(super) fn run_rank(
    setup: RankSetup,
    watch: Arc<Watch>,
    link: &mut dyn Link,
    source: &Arc<dyn Source>,
    requests: &Receiver<RankRequest>,
) {
    let rank = setup.rank;
    let is_stopped = setup.abort.clone();
    let abort = |link: &mut dyn Link, error: PipelineError| {
        match is_stopped.is_triggered() {
            // An effect of what has stopped it.
            true => tracing::debug!(rank = rank.index(), %error, "rank ends"),
            false => tracing::error!(rank = rank.index(), %error, "rank aborts"),
        }
        link.abort(error);
    };
    match attempt(rank, "MATERIALIZE", || Rank::new(setup, watch, source)) {
        Ok(mut state) => {
            if let Err(error) = state.serve(link, requests) {
                abort(link, error);
            }
        }
        Err(error) => abort(link, error),
    }
}

impl Rank {
    fn new(
        setup: RankSetup,
        watch: Arc<Watch>,
        source: &Arc<dyn Source>,
    ) -> Result<Self, PipelineError> {
        let setup = Arc::new(setup);
        let (rank, layout) = (setup.rank, &setup.layout);
        let stages = layout.stages().zip(&layout.ranks);
        let stages = stages.filter(|(_, of)| **of == setup.place);
        let stages = stages
            .map(|(stage, _)| match setup.streamed {
                Some(_) => Ok(Stage::streamed(stage, &setup)),
                None => Stage::new(stage, &setup, source),
            })
            .collect::<Result<Vec<Stage>, _>>()
            .map_err(|source| PipelineError::Materialize { rank, source })?;
        let bytes: u64 = stages.iter().map(Stage::parameter_bytes).sum();
        tracing::info!(rank = rank.index(), bytes, "parameters materialized");
        Ok(Self {
            streaming: setup.streamed.as_ref().map(|streamed| {
                Streaming::new(setup.clone(), source.clone(), streamed.store.clone())
            }),
            entered: None,
            setup,
            watch,
            stages,
        })
    }

    /// Prepares a pass over streamed stages.
    pub(super) fn begin(&mut self, pass: Option<&Arc<Pass>>) -> Result<(), ActionError> {
        match (&mut self.streaming, pass) {
            (Some(streaming), Some(pass)) => streaming.begin(pass),
            _ => Ok(()),
        }
    }

    /// Gives a streamed stage its parameters and activations, after the parameters and activations of the stage before
    /// were taken.
    pub(super) fn enter(
        &mut self,
        round: &Round,
        stage: StageIndex,
        state: &mut RoundState,
    ) -> Result<(), ActionError> {
        if self.streaming.is_none() || self.entered == Some(stage) {
            return Ok(());
        }
        self.leave(round, state)?;
        if let Some(streaming) = &mut self.streaming {
            let mut values = streaming.enter(stage)?;
            for (activation, value, holders) in values.activations.drain(..) {
                state.put_back(activation, &value, holders);
            }
            let is_training = streaming.is_training();
            self.stage_mut(stage).attach(values, is_training)?;
            self.entered = Some(stage);
        }
        Ok(())
    }

    /// Takes the parameters of the streamed stage that has run, after those that it has updated are written, and activations that
    /// do not stay in memory.
    pub(super) fn leave(
        &mut self,
        round: &Round,
        state: &mut RoundState,
    ) -> Result<(), ActionError> {
        let Some(stage) = self.entered.take() else {
            return Ok(());
        };
        let is_update = self.streaming.as_ref().is_some_and(Streaming::is_update);
        if is_update && let Some(streamed) = self.setup.streamed.clone() {
            let table = self.setup.table.clone();
            let updated = streamed.updated(&table, self.stage_mut(stage), &round.lr)?;
            if let (Some(streaming), Some(updated)) = (&self.streaming, updated) {
                // The number of completed steps.
                streaming.write(u64::from(round.step) + 1, updated)?;
            }
        }
        let values = self.stage_mut(stage).detach();
        if let Some(streaming) = &mut self.streaming {
            let stages: Vec<StageIndex> = self.stages.iter().map(Stage::index).collect();
            let (spilled, staying) = streaming.activations();
            for activation in spilled {
                // After its last use, nobody keeps it.
                if let Some((value, holders)) = state.take_all(activation, &stages) {
                    streaming.spill(activation, value, holders)?;
                }
            }
            for activation in staying {
                if let Some((value, holders)) = state.take_all(activation, &stages) {
                    let value = compact(value, &self.setup.device)?;
                    state.put_back(activation, &value, holders);
                }
            }
            streaming.leave(values);
        }
        Ok(())
    }

    fn serve(
        &mut self,
        link: &mut dyn Link,
        requests: &Receiver<RankRequest>,
    ) -> Result<(), PipelineError> {
        let rank = self.setup.rank;
        while let Ok(request) = requests.recv() {
            match request {
                RankRequest::Round(round, report) => {
                    let run = || Running::new(self, &round, link).run();
                    let done = attempt(rank, "ROUND", run)?;
                    // The driver may have stopped waiting.
                    let _ = report.send((rank, done));
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

    pub(super) fn stage_indices(&self) -> Vec<StageIndex> {
        self.stages.iter().map(Stage::index).collect()
    }

    pub(super) fn stage_mut(&mut self, index: StageIndex) -> &mut Stage {
        let stage = self.stages.iter_mut().find(|stage| stage.index() == index);
        stage.expect("certified lists of a rank name its own stages")
    }
}

/// Returns a tensor in its own memory, if it is a view of more. The memory of activations that were written is free then.
fn compact(value: DynTensor, device: &Device) -> Result<DynTensor, ActionError> {
    match value.host_memory() {
        Some((_, memory)) if memory.len() as u64 > value.bytes() => {
            wire::copied(value).map_err(|source| ActionError::Device {
                device: DeviceLabel::of(device),
                source: Box::new(source),
            })
        }
        _ => Ok(value),
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
        Err(action_error(rank, (None, None), name, source))
    })
}

pub(super) fn action_error(
    rank: RankIndex,
    (stage, micro_batch): (Option<StageIndex>, Option<MicroBatchIndex>),
    text: &str,
    source: ActionError,
) -> PipelineError {
    PipelineError::Action {
        rank,
        stage,
        micro_batch,
        action: text.to_owned(),
        source: Box::new(source),
    }
}

/// Runs a part of an action; converts a panic to an error.
pub(super) fn caught<T>(run: impl FnOnce() -> Result<T, ActionError>) -> Result<T, ActionError> {
    guarded(run).unwrap_or_else(|message| Err(ActionError::Panicked { message }))
}

/// Runs code that may panic, and returns the text of the panic.
pub(super) fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a message".into())
    })
}
