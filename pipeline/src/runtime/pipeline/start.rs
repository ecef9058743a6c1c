//! Checks the settings of a pipeline, and starts it.

use std::sync::Arc;

use burn::module::Module;
use tinderbox_deferred::{SharedId, check_device};
use tinderbox_fake::Mode;
use tinderbox_world::with_causes;

use super::builder::{PipelineBuilder, Resident};
use super::pipeline::{CallRecovery, Pipeline};
use crate::plan::{check_model, check_trace};
use crate::runtime::driver::{Driver, Launch, RankKind};
use crate::runtime::recovery::{CallLog, Replan, Rollback, replan};
use crate::runtime::settings::{Options, Settings};
use crate::runtime::snapshots::Backups;
use crate::{
    Batch, Clipping, PipelineError, PlanError, ScheduleChoice, StartError, StepError, TraceError,
};

impl<M: Module + Sync + 'static, B: Batch> PipelineBuilder<M, B> {
    /// Starts the ranks; each materializes only its own parameters.
    ///
    /// Configures the C library to reuse freed memory, for the rest of the process
    /// ([`tinderbox_memory::keep_freed_blocks`]).
    ///
    /// # Errors
    ///
    /// When the number of threads is 0; when there is no device, or one can't be used
    /// or has too little memory for the parameters and gradients of its ranks; when the plan is for
    /// another model, has more micro-batches than the traced batch has samples, or has fewer than replicas; when the schedule
    /// does not fit the plan, the model has clones of a parameter and an optimizer is set, or a rank can't materialize its
    /// parameters.
    pub fn start(mut self) -> Result<Pipeline<M, B>, PipelineError> {
        let Resident {
            world,
            links,
            recovery,
        } = std::mem::take(&mut self.kind);
        // The others wait for this process to start.
        let fail = |error: &PipelineError| {
            if let Some(world) = &world {
                world.fail(&with_causes(error));
            }
        };
        let launch = self.checked().inspect_err(fail)?;
        let backups = Arc::<Backups>::default();
        let kind = match &world {
            Some(world) => RankKind::World(world, recovery.as_ref().map(|_| backups.clone())),
            None => RankKind::Threads(links.as_deref()),
        };
        let driver = launch.start(&self.plan, kind).inspect_err(fail)?;
        let mut pipeline = self.pipeline(driver);
        if let Some((recovery, world)) = recovery.zip(world.clone()) {
            let plan = recovery.plan;
            let plan = plan.unwrap_or_else(|| default_replan(&pipeline, &launch));
            let settings = (recovery.every, plan);
            let rollback = Rollback::new(settings, world, launch, backups, &mut pipeline.driver);
            let rollback = rollback.inspect_err(fail)?;
            pipeline.recovery = Some(Box::new(CallRecovery {
                rollback,
                log: CallLog::new(),
                is_running: false,
            }));
        }
        // After the parameters are allocated: the allocator would clear reused memory on one thread.
        tinderbox_memory::keep_freed_blocks();
        Ok(pipeline)
    }
}

/// Returns the default function that plans for the remaining processes after a loss.
fn default_replan<M: Module + Sync + 'static, B: Batch>(
    pipeline: &Pipeline<M, B>,
    launch: &Launch,
) -> Arc<Replan> {
    let (trace, old) = (pipeline.trace.clone(), pipeline.driver.plan.clone());
    let kind = match &launch.schedule {
        ScheduleChoice::Named(kind) => *kind,
        _ => old.step.schedule,
    };
    Arc::new(move |processes| replan(&trace, &old, kind, processes))
}

impl<M: Module + Sync + 'static, B: Batch, K> PipelineBuilder<M, B, K> {
    /// Returns the pipeline of a driver that was started.
    pub(super) fn pipeline(self, driver: Driver) -> Pipeline<M, B> {
        Pipeline {
            driver,
            model: self.model,
            trace: self.trace.keeping(self.options.kept_programs),
            recovery: None,
            equal_rates: 0,
        }
    }

    /// Checks the settings, and returns the launch, which starts the ranks.
    pub(super) fn checked(&mut self) -> Result<Launch, PipelineError> {
        self.check_settings()?;
        // The trace may be of another model, or of another forward of the same model.
        if let Some(difference) = self.trace.constructor_difference(self.model.graph()) {
            return Err(StartError::OtherModel { difference }.into());
        }
        let plan = &self.plan;
        check_model(plan, self.trace.parameters())?;
        check_trace(plan, &self.trace)?;
        let micro_batches = plan.step.micro_batches;
        // The planner may have chosen the number of micro-batches.
        let trace = self.trace.with_micro_batches(micro_batches);
        self.trace = trace.map_err(PlanError::from)?;
        Ok(Launch {
            table: self.model.parameters().clone(),
            example: self.trace.example_program()?,
            source: self.source_of_values(),
            settings: Arc::new(Settings {
                optimizers: self.optimizers(),
                ..self.settings.clone()
            }),
            options: Options {
                micro_batches,
                samples: self.trace.samples(),
                ..self.options.clone()
            },
            schedule: self.schedule.clone(),
        })
    }

    /// Checks settings that do not depend on the plan, and that the model and forward have not changed
    /// since they were recorded.
    fn check_settings(&self) -> Result<(), PipelineError> {
        if self.options.devices.is_empty() {
            return Err(StartError::NoDevices.into());
        }
        if self.options.threads_per_rank == Some(0) {
            return Err(StartError::NoThreads.into());
        }
        let has_groups = !self.groups.is_empty() || self.settings.average_decay.is_some();
        if has_groups && self.optimizer.is_none() {
            return Err(StepError::NoOptimizer.into());
        }
        self.check_updates()?;
        for device in &self.options.devices {
            check_device(device).map_err(StartError::from)?;
        }
        let ranks = self.model.parameters().iter();
        let mut ranks = ranks.map(|parameter| (&parameter.path, parameter.shape.len()));
        if let Some((path, rank)) = ranks.find(|(_, rank)| !(1..=8).contains(rank)) {
            let path = path.clone();
            return Err(StartError::ParameterRank { path, rank }.into());
        }
        // The recorded model must be the one that is trained and that a later construction gathers.
        let unstable = |source| PipelineError::from(TraceError::Constructor { source });
        self.model.check_stable().map_err(unstable)?;
        Ok(self.trace.check_stable()?)
    }

    /// Checks settings of optimizers and clipping.
    fn check_updates(&self) -> Result<(), StartError> {
        let optimizers = self.optimizers();
        if let Some(optimizers) = &optimizers {
            optimizers.check(self.model.parameters())?;
            if self.settings.clipping.is_some() && optimizers.clips() {
                return Err(StartError::TwoClippings);
            }
        }
        if let Some(decay) = self.settings.average_decay
            && !(0.0..1.0).contains(&decay)
        {
            return Err(StartError::AverageDecay { decay });
        }
        if let Some(Clipping::GlobalNorm(max)) = self.settings.clipping
            && !(max > 0.0 && max.is_finite())
        {
            return Err(StartError::Clip { max });
        }
        if optimizers.is_some() && self.trace.mode() == Mode::Inference {
            return Err(StartError::ForwardTrace);
        }
        if let (Some(shared), true) = (self.model.shared_id(), optimizers.is_some()) {
            let SharedId { first, second } = shared.clone();
            return Err(StartError::Clones { first, second });
        }
        Ok(())
    }
}
