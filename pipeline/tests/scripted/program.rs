//! What each process runs: a training, continued after every loss.

use tinderbox_deferred::Values;
use tinderbox_pipeline::{Pipeline, PipelineBuilder, PipelineError, RecoveryError, SavedState};
use tinderbox_world::World;

use crate::faults::{Faults, Phase};
use crate::model::{Batch, Net, STEPS, batch};

/// What a run computes, bit by bit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The losses of each step, and the norm of its gradients.
    pub steps: Vec<Vec<u64>>,
    /// The digest of all parameters and of the optimizer's state.
    pub digest: Option<u64>,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub seen: Seen,
    pub error: Option<String>,
    /// How many losses it continued after.
    pub recovered: usize,
    /// How often it began again, because a state was lost.
    pub restored: usize,
}

impl Seen {
    pub fn undisturbed(builder: PipelineBuilder<Net, Batch>) -> Self {
        let mut seen = Self::default();
        let mut pipeline = builder.start().unwrap();
        (0..STEPS).for_each(|_| seen.step(&mut pipeline).unwrap());
        seen.digest = Some(pipeline.digest().unwrap().value());
        seen
    }

    /// Makes the next step.
    fn step(&mut self, pipeline: &mut Pipeline<Net, Batch>) -> Result<(), PipelineError> {
        let output = pipeline.step(1e-2, batch(self.steps.len() as u64))?;
        let losses = output.micro_batch_losses.iter().chain([&output.loss]);
        let all = losses.chain(&output.gradient_norm);
        self.steps
            .push(all.map(|number| number.to_bits()).collect());
        Ok(())
    }
}

/// Trains as one process.
pub fn run(
    builder: PipelineBuilder<Net, Batch>,
    initial: &Values,
    world: World,
    faults: &Faults,
) -> Ended {
    let own = world.rank().index();
    let mut ended = Ended {
        seen: Seen::default(),
        error: None,
        recovered: 0,
        restored: 0,
    };
    let mut pipeline = builder.world(&world).start().unwrap();
    // All have started then; a loss before ends all.
    let trained = pipeline.all_gather(());
    let trained = trained.and_then(|_| train(&mut pipeline, own, initial, faults, &mut ended));
    faults.enter(own, None);
    ended.recovered = pipeline.recovered().len();
    ended.error = trained
        .err()
        .map(|error| tinderbox_world::with_causes(&error));
    ended
}

fn train(
    pipeline: &mut Pipeline<Net, Batch>,
    own: usize,
    initial: &Values,
    faults: &Faults,
    ended: &mut Ended,
) -> Result<(), PipelineError> {
    loop {
        match train_once(pipeline, own, faults, &mut ended.seen) {
            Err(PipelineError::Recovery(RecoveryError::StateLost { .. })) => {}
            other => return other,
        }
        // The initial values are the last checkpoint.
        ended.restored += 1;
        while pipeline.awaits_restore() {
            match pipeline.restore(initial.clone(), SavedState::default()) {
                Ok(()) => {}
                Err(PipelineError::Recovery(RecoveryError::StateLost { .. })) => continue,
                Err(error) => return Err(error),
            }
        }
        pipeline.resume_at(0);
        ended.seen = Seen::default();
    }
}

fn train_once(
    pipeline: &mut Pipeline<Net, Batch>,
    own: usize,
    faults: &Faults,
    seen: &mut Seen,
) -> Result<(), PipelineError> {
    let mut losses = pipeline.recovered().len();
    while (seen.steps.len() as u64) < STEPS {
        let before = std::mem::replace(&mut losses, pipeline.recovered().len());
        let phase = match seen.steps.len() {
            _ if before < losses => Phase::Again,
            0 => Phase::First,
            _ => Phase::Later,
        };
        faults.enter(own, Some(phase));
        seen.step(pipeline)?;
    }
    faults.enter(own, None);
    seen.digest = Some(pipeline.digest()?.value());
    pipeline.finish()
}
