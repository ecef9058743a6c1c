//! The state of one rank.

use std::sync::Arc;

use tinderbox_deferred::Source;

use crate::StartError;
use crate::runtime::pass::Streaming;
use crate::runtime::progress::Watch;
use crate::runtime::stage::{RankSetup, Stage};
use crate::schedule::StageIndex;

/// The state of a rank.
pub(crate) struct Rank {
    pub(super) setup: Arc<RankSetup>,
    pub(super) watch: Arc<Watch>,
    pub(super) stages: Vec<Stage>,
    /// Gives streamed stages their values.
    pub(super) streaming: Option<Streaming>,
}

impl Rank {
    /// Creates the stages of a rank, with their parameters unless they are streamed.
    pub(super) fn new(
        setup: RankSetup,
        watch: Arc<Watch>,
        source: &Arc<dyn Source>,
    ) -> Result<Self, StartError> {
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
            .map_err(|source| StartError::Materialize { rank, source })?;
        let bytes: u64 = stages.iter().map(Stage::parameter_bytes).sum();
        tracing::info!(rank = rank.index(), bytes, "parameters materialized");
        let streamed = setup.streamed.as_ref();
        let streaming = streamed.map(|streamed| Streaming::new(&setup, source.clone(), streamed));
        Ok(Self {
            streaming,
            setup,
            watch,
            stages,
        })
    }

    pub(super) fn stage_indices(&self) -> Vec<StageIndex> {
        self.stages.iter().map(Stage::index).collect()
    }

    pub(super) fn stage_mut(&mut self, index: StageIndex) -> &mut Stage {
        let stage = self.stages.iter_mut().find(|stage| stage.index() == index);
        stage.expect("certified lists of a rank name its own stages")
    }
}
