//! One rank: it holds its stages and executes its lists.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use burn::optim::DynOptimizer;
use burn::tensor::Device;
use crossbeam_channel::{Receiver, Sender};
use tinderbox_deferred::{MemoryCheck, ParameterTable, Source, random::Seed};

use super::clip::table_order;
use super::group::Group;
use super::link::Link;
use super::optimizer::OptimizerState;
use super::progress::RankProgress;
use super::stage::Stage;
use super::step::{Round, RoundReport, RoundState};
use crate::cut::Layout;
use crate::schedule::{Action, RankIndex, RankTimeline, Span, StageIndex};
use crate::{ActionError, PipelineError, Plan};

/// What a rank is made from.
#[derive(Clone)]
pub struct RankSetup {
    /// Its number.
    pub rank: RankIndex,
    /// The plan that it takes part in.
    pub plan: Arc<Plan>,
    /// The parameters of the model.
    pub table: Arc<ParameterTable>,
    /// Where its stages live.
    pub device: Device,
    /// What the memory that its parameters need is compared with.
    pub memory: MemoryCheck,
    /// Seed of the random values of the forward.
    pub seed: Seed,
    /// Whether indices are compared with what they index.
    pub check_indices: bool,
    /// The optimizer; without one, the rank can't train.
    pub optimizer: Option<Arc<dyn DynOptimizer>>,
    /// Whether the gradients of the last step stay readable.
    pub keep_gradients: bool,
    /// Where it counts what it makes and reads.
    pub progress: Arc<RankProgress>,
}

impl fmt::Debug for RankSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankSetup")
            .field("rank", &self.rank)
            .field("device", &self.device)
            .field("seed", &self.seed)
            .field("trains", &self.optimizer.is_some())
            .finish_non_exhaustive()
    }
}

/// A call that runs on a rank's thread, with its stages.
type Call = Box<dyn FnOnce(RankIndex, &mut [Stage]) + Send>;

/// What a driver asks of a rank.
pub struct Request(pub(crate) RequestKind);

pub(crate) enum RequestKind {
    /// Run a list of actions and report.
    Round(Arc<Round>, Sender<(RankIndex, RoundReport)>),
    /// Run code of the driver.
    Call(Call),
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            RequestKind::Round(..) => "Request::Round",
            RequestKind::Call(_) => "Request::Call",
        })
    }
}

/// The state of a rank.
pub(super) struct Rank {
    setup: RankSetup,
    layout: Arc<Layout>,
    stages: Vec<Stage>,
    /// Stage and place of every parameter, in the order of the table.
    table_order: Vec<(StageIndex, usize)>,
}

/// Makes the stages of a rank, then serves requests until their sender is gone.
///
/// Call it on a thread, or in a process' `main`. It uses the rayon pool that it is called in.
///
/// # Errors
///
/// When the parameters can't be made, or an action fails or panics: every other rank is told through
/// the link, and the rank ends.
pub fn run_rank(
    setup: RankSetup,
    link: &mut dyn Link,
    group: &mut dyn Group,
    source: &dyn Source,
    requests: &Receiver<Request>,
) -> Result<(), RankEnded> {
    let rank = setup.rank;
    let give_up = |link: &mut dyn Link, error: PipelineError| {
        tracing::debug!(rank = rank.index(), %error, "rank gives up");
        link.abort(error);
        Err(RankEnded { rank })
    };
    let made = guarded(|| Rank::new(setup, source));
    let mut state = match made {
        Ok(Ok(state)) => state,
        Ok(Err(error)) => return give_up(link, error),
        Err(message) => {
            let source = ActionError::Panicked { message };
            return give_up(link, action_error(rank, None, "MATERIALIZE", source));
        }
    };
    while let Ok(Request(request)) = requests.recv() {
        let result = match request {
            RequestKind::Round(round, report) => {
                let done = guarded(|| state.run(&round, link, group)).unwrap_or_else(|message| {
                    let source = ActionError::Panicked { message };
                    Err(action_error(rank, None, "ROUND", source))
                });
                done.map(|done| {
                    // The driver may have given up waiting.
                    let _ = report.send((rank, done));
                })
            }
            RequestKind::Call(call) => {
                state.setup.progress.restart();
                guarded(|| call(rank, &mut state.stages)).map_err(|message| {
                    let source = ActionError::Panicked { message };
                    action_error(rank, None, "CALL", source)
                })
            }
        };
        if let Err(error) = result {
            return give_up(link, error);
        }
    }
    Ok(())
}

/// A rank ended early; the reason went through its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} ended early")]
pub struct RankEnded {
    /// Which one.
    pub rank: RankIndex,
}

impl Rank {
    fn new(setup: RankSetup, source: &dyn Source) -> Result<Self, PipelineError> {
        let layout = Arc::new(setup.plan.layout(&setup.table)?);
        let of_rank = setup
            .plan
            .stages()
            .iter()
            .filter(|stage| stage.rank == setup.rank);
        let stages = of_rank.map(|stage| {
            let mut stage = Stage::new(stage.stage, &layout, &setup, source)?;
            let count = stage.parameters().len();
            stage.optimizer = setup
                .optimizer
                .clone()
                .map(|o| OptimizerState::new(o, count));
            Ok(stage)
        });
        let stages = stages
            .collect::<Result<Vec<Stage>, _>>()
            .map_err(|source| PipelineError::Materialize {
                rank: setup.rank,
                source,
            })?;
        let bytes: u64 = stages.iter().map(Stage::parameter_bytes).sum();
        tracing::info!(
            rank = setup.rank.index(),
            bytes,
            "rank holds its parameters"
        );
        Ok(Self {
            table_order: table_order(&setup.table, &layout),
            setup,
            layout,
            stages,
        })
    }

    fn run(
        &mut self,
        round: &Round,
        link: &mut dyn Link,
        group: &mut dyn Group,
    ) -> Result<RoundReport, PipelineError> {
        let rank = self.setup.rank;
        let mut state = RoundState::new(round);
        let mut timeline = round.epoch.map(|_| RankTimeline::default());
        let parameters: u64 = self.stages.iter().map(Stage::parameter_bytes).sum();
        let cast = |stages: &[Stage]| stages.iter().map(Stage::cast_bytes).sum::<u64>();
        let mut held_by_stages = cast(&self.stages);
        let actions = round.lists.schedule.actions(rank);
        for stage in &mut self.stages {
            stage.clear_gradients();
            stage.keep_loaded(&round.kept);
        }
        for action in actions {
            let done = guarded(|| self.announce(action, round, link));
            let result = done.unwrap_or_else(|message| Err(ActionError::Panicked { message }));
            result
                .map_err(|source| action_error(rank, Some(action), &action.to_string(), source))?;
        }
        for action in actions {
            let start = round.epoch.map(since);
            let done = guarded(|| {
                let _span = tracing::trace_span!("action", rank = rank.index(), %action).entered();
                self.act(action, round, &mut state, link, group)
            });
            let result = done.unwrap_or_else(|message| Err(ActionError::Panicked { message }));
            result
                .map_err(|source| action_error(rank, Some(action), &action.to_string(), source))?;
            self.setup.progress.report();
            if let (Some(timeline), Some(start), Some(epoch)) = (&mut timeline, start, round.epoch)
            {
                let (action, end) = (*action, since(epoch));
                timeline.spans.push(Span { action, start, end });
                if !matches!(action, Action::Send(_) | Action::Receive(_)) {
                    let gradients: u64 = self.stages.iter().map(Stage::gradient_bytes).sum();
                    held_by_stages = gradients + cast(&self.stages);
                }
                let held = parameters + held_by_stages + state.bytes;
                if timeline.bytes.last().is_none_or(|last| last.1 != held) {
                    timeline.bytes.push((end, held));
                }
            }
        }
        debug_assert_eq!(state.left_over(), 0, "every value of a round is taken");
        state.report.timeline = timeline.map(|timeline| RankTimeline {
            program_time: state.program_time,
            ..timeline
        });
        Ok(state.report)
    }

    pub(super) fn stage_indices(&self) -> Vec<StageIndex> {
        self.stages.iter().map(Stage::index).collect()
    }

    pub(super) fn has_stage(&self, index: StageIndex) -> bool {
        self.stages.iter().any(|stage| stage.index() == index)
    }

    pub(super) fn table_order(&self) -> &[(StageIndex, usize)] {
        &self.table_order
    }

    pub(super) fn stage_mut(&mut self, index: StageIndex) -> Result<&mut Stage, ActionError> {
        let stage = self.stages.iter_mut().find(|stage| stage.index() == index);
        stage.ok_or(ActionError::OtherRank {
            stage: index,
            rank: self.setup.rank,
        })
    }

    pub(super) fn rank_of(&self, stage: StageIndex) -> Result<RankIndex, ActionError> {
        let stages = self.setup.plan.stages();
        let known = stages.get(stage.index()).map(|stage| stage.rank);
        known.ok_or(ActionError::UnknownStage {
            stage,
            stages: stages.len(),
        })
    }

    pub(super) fn layout(&self) -> Arc<Layout> {
        self.layout.clone()
    }

    pub(super) fn device(&self) -> &Device {
        &self.setup.device
    }

    pub(super) fn seed(&self) -> Seed {
        self.setup.seed
    }
}

/// Nanoseconds since the beginning of a round.
pub(super) fn since(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn action_error(
    rank: RankIndex,
    action: Option<&Action>,
    text: &str,
    source: ActionError,
) -> PipelineError {
    PipelineError::Action {
        rank,
        stage: action.map(Action::stage),
        micro_batch: action.and_then(Action::micro_batch),
        action: text.to_owned(),
        source: Box::new(source),
    }
}

/// Runs code that may panic, and gives the panic's text.
pub(super) fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a text".into())
    })
}
