//! Sends the plan of the first process of a world to all processes.

use std::error::Error;

use tinderbox_world::World;

use crate::error::Result;
use crate::{Plan, PlanError};

/// Sends a plan from the first process of a [`World`] to the others: `Plan::broadcast`, with this trait in scope.
///
/// It is a trait because the crate of [`Plan`] has no processes.
pub trait PlanBroadcast {
    /// Plans on the first process, and returns its plan on all processes, because machines and so plans may differ. In a
    /// world of one process it returns the plan. All processes make this call.
    ///
    /// ```
    /// # extern crate tinderbox_pipeline as tinderbox;
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use burn::tensor::{Device, Tensor};
    /// # use tinderbox_deferred::Deferred;
    /// # use tinderbox_world::World;
    /// use tinderbox::{Machine, Outputs, Plan, PlanBroadcast, Traceable};
    ///
    /// # let model = Deferred::new(|device: &Device| LinearConfig::new(4, 4).init(device))?;
    /// # let batch = Tensor::<2>::ones([8, 4], &Device::flex());
    /// # let trace = model.trace(&batch, 4, |net: &Linear, x| Outputs::loss(net.forward(x).mean()))?;
    /// let world = World::from_env()?; // alone, without a launcher
    /// let plan = Plan::broadcast(&world, || trace.plan(&Machine::local(world.size())?))?;
    /// # assert_eq!(plan.stages.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`WorldError::First`](tinderbox_world::WorldError::First) on all processes when the first process can't plan. Other
    /// errors when a process fails, makes another call, or has another version of the plan file.
    fn broadcast<E>(world: &World, plan: impl FnOnce() -> Result<Plan, E>) -> Result<Plan>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let mut planned = None;
        let json = world.from_first(|| plan().map(|plan| planned.insert(plan).to_json()))?;
        match planned {
            Some(plan) => Ok(plan),
            None => Ok(Plan::from_json(&json).map_err(PlanError::from)?),
        }
    }
}

impl PlanBroadcast for Plan {}
