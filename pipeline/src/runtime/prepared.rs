//! What is checked and decided before anything starts.

use std::collections::BTreeSet;
use std::sync::Arc;

use burn::module::Module;
use tinderbox_deferred::{SharedId, check_device};
use tinderbox_fake::Mode;

use super::builder::PipelineBuilder;
use super::clip::Clipping;
use super::settings::Settings;
use crate::batch::Batch;
use crate::cut::{Cutting, Layout};
use crate::lists::ScheduleChoice;
use crate::schedule::{Dependencies, verify};
use crate::sum::{GradientSum, Groups};
use crate::trace::JointGraph;
use crate::{PipelineError, TraceError};

/// What follows from the settings of a builder.
pub(super) struct Prepared {
    pub(super) settings: Arc<Settings>,
    pub(super) layout: Arc<Layout>,
    /// The programs of the example.
    pub(super) traced: Arc<JointGraph>,
    pub(super) schedule: ScheduleChoice,
    pub(super) micro_batches: usize,
}

impl Prepared {
    pub(super) fn of<M: Module + Sync + 'static, B: Batch>(
        builder: &PipelineBuilder<M, B>,
    ) -> Result<Self, PipelineError> {
        check_settings(builder)?;
        let table = builder.model.parameters().clone();
        let replicas = builder.plan.replica_count();
        let sum = builder.sum.unwrap_or(GradientSum::of_replicas(replicas));
        let settings = Arc::new(Settings {
            optimizers: builder.optimizers(),
            replicas,
            sum,
            ..builder.settings.clone()
        });
        // The trace may be of another model, or of another forward of the same model.
        if let Some(difference) = builder.trace.constructor_difference(builder.model.graph()) {
            return Err(PipelineError::OtherModel { difference });
        }
        let layout = builder.plan.layout(&table)?;
        builder.plan.layout(builder.trace.parameters())?;
        let traced = builder.trace.example_program()?;
        builder.plan.check_trace(&builder.trace)?;
        let layout = Arc::new(match traced.carried().is_empty() {
            true => layout,
            false => {
                let carried = Cutting::new(&traced, &layout)?.carried(&traced);
                layout.with_carried(carried)
            }
        });
        if let Some(state) = traced.updates().keys().next()
            && replicas > 1
        {
            let path = table.iter().as_slice()[*state].path.clone();
            return Err(PipelineError::RunningState { path });
        }
        let schedule = builder.schedule.clone();
        let schedule = schedule.unwrap_or_else(|| builder.plan.schedule());
        let written = match &schedule {
            ScheduleChoice::Written(schedule) => Some(schedule.micro_batches * replicas),
            ScheduleChoice::Named(_) | ScheduleChoice::Planned(_) => None,
        };
        let planned = builder.plan.file().step.micro_batches.max(1);
        let micro_batches = builder.micro_batches.or(written).unwrap_or(planned);
        if micro_batches < replicas {
            return Err(PipelineError::IdleReplicas {
                replicas,
                micro_batches,
            });
        }
        if settings.optimizers.is_some() {
            // A schedule that does not fit is refused before parameters are materialized. The
            // dependencies of its ranks are known only when a batch is traced.
            let groups = Groups {
                micro_batches,
                groups: sum.groups(),
            };
            let counts: BTreeSet<usize> = match &schedule {
                ScheduleChoice::Written(written) => [written.micro_batches].into(),
                _ => (0..replicas)
                    .map(|replica| groups.of_replica(replica, replicas).len())
                    .collect(),
            };
            let alone = Dependencies::new(layout.ranks.len(), [], []);
            for count in counts {
                let lists = schedule.compute(&layout.ranks, count, &alone)?;
                verify(&lists, &alone).map_err(PipelineError::Schedule)?;
            }
        }
        Ok(Self {
            settings,
            layout,
            traced,
            schedule,
            micro_batches,
        })
    }
}

/// Checks that gradients can be summed in an order that does not depend on the number of replicas.
fn check_replicas(replicas: usize, sum: Option<GradientSum>) -> Result<(), PipelineError> {
    if !replicas.is_power_of_two() {
        return Err(PipelineError::Replicas { replicas });
    }
    let sum = sum.unwrap_or(GradientSum::of_replicas(replicas));
    let groups = sum.groups();
    match groups.is_power_of_two() && groups.is_multiple_of(replicas) {
        true => Ok(()),
        false => Err(PipelineError::Sum { sum, replicas }),
    }
}

/// Checks settings that do not depend on the plan, and that the model and forward have not changed
/// since they were recorded.
fn check_settings<M: Module + Sync + 'static, B: Batch>(
    builder: &PipelineBuilder<M, B>,
) -> Result<(), PipelineError> {
    if builder.devices.is_empty() {
        return Err(PipelineError::NoDevices);
    }
    if builder.micro_batches == Some(0) {
        return Err(PipelineError::NoMicroBatches);
    }
    check_replicas(builder.plan.replica_count(), builder.sum)?;
    if builder.threads_per_rank == Some(0) {
        return Err(PipelineError::NoThreads);
    }
    if builder.has_groups_alone() {
        return Err(PipelineError::NoOptimizer);
    }
    let optimizers = builder.optimizers();
    if let Some(optimizers) = &optimizers {
        optimizers.check(builder.model.parameters())?;
        if builder.settings.clipping.is_some() && optimizers.clips() {
            return Err(PipelineError::TwoClippings);
        }
    }
    if let Some(decay) = builder.settings.average_decay
        && !(0.0..1.0).contains(&decay)
    {
        return Err(PipelineError::AverageDecay { decay });
    }
    if let Some(Clipping::GlobalNorm(max)) = builder.settings.clipping
        && !(max > 0.0 && max.is_finite())
    {
        return Err(PipelineError::Clip { max });
    }
    for device in &builder.devices {
        check_device(device)?;
    }
    if optimizers.is_some() && builder.trace.mode() == Mode::Inference {
        return Err(PipelineError::ForwardTrace);
    }
    if let (Some(shared), true) = (builder.model.shared_id(), optimizers.is_some()) {
        let SharedId { first, second } = shared.clone();
        return Err(PipelineError::Clones { first, second });
    }
    let ranks = builder.model.parameters().iter();
    let mut ranks = ranks.map(|parameter| (&parameter.path, parameter.shape.len()));
    if let Some((path, rank)) = ranks.find(|(_, rank)| !(1..=8).contains(rank)) {
        let path = path.clone();
        return Err(PipelineError::ParameterRank { path, rank });
    }
    // The recorded model must be the one that is trained and that a later construction gathers.
    if builder.is_restart {
        return Ok(());
    }
    let unstable = |source| PipelineError::from(TraceError::Constructor { source });
    builder.model.check_stable().map_err(unstable)?;
    Ok(builder.trace.check_stable()?)
}
