//! Reads and replaces parameters between steps.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use burn::module::{Module, ParamGroup};
use burn::tensor::Device;
use tinderbox_deferred::{Parameter, ParameterPath, Request, Source, Values};
use tinderbox_fake::DynTensor;

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::runtime::driver::{Command, Condition};
use crate::runtime::optimizer::{SavedOptimizer, check_group, contains};
use crate::{GroupError, PipelineError, StateError};

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Returns the current value of a parameter or running state by its path, on the device of the rank that owns
    /// it. The value is shared, and later steps do not change it. In a [world](crate::PipelineBuilder::world) of processes,
    /// every process calls this, and those without the rank get a copy in the memory of the host.
    ///
    /// # Errors
    ///
    /// [`StateError::UnknownParameter`] with the paths that are nearest; when a rank has failed.
    pub fn parameter(&mut self, path: &str) -> Result<DynTensor, PipelineError> {
        let path = self.known(path)?.original().clone();
        self.make(Command::Parameter(path))
    }

    /// Replaces the values of parameters and running states by their paths, on every rank that holds them: a target
    /// network, an average of weights, a clamp. State of the optimizer and the number of steps stay.
    ///
    /// Values may be on any device and have any float dtype. Nothing changes unless all of them fit. A clone stands for
    /// its original; values of several clones of one parameter must be equal.
    ///
    /// ```no_run
    /// # use burn::nn::Linear;
    /// # use burn::tensor::Tensor;
    /// # use tinderbox_pipeline::{Pipeline, PipelineError};
    /// # fn example(online: &mut Pipeline<Linear, Tensor<2>>, target: &mut Pipeline<Linear, Tensor<2>>) -> Result<(), PipelineError> {
    /// target.set_parameters([("weight", online.parameter("weight")?)])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StateError::UnknownParameter`]; [`StateError::Averaged`]; [`StateError::Values`] with every value of another shape, every one of
    /// a dtype that can't be cast, every fake one, and every two that differ for one parameter; when a rank has failed.
    pub fn set_parameters<P: AsRef<str>>(
        &mut self,
        values: impl IntoIterator<Item = (P, DynTensor)>,
    ) -> Result<(), PipelineError> {
        self.driver.check_not_averaged()?;
        let table = self.model().parameters().clone();
        // By the position of the original.
        let mut originals = BTreeMap::new();
        let (mut given, mut requests) = (Vec::new(), Vec::new());
        let host = Device::flex();
        for (path, value) in values {
            let parameter = self.known(path.as_ref())?;
            let value = value.without_autodiff();
            let position = table.position(parameter.original());
            let position = position.expect("an original is in its table");
            if originals.insert(position, value.clone()).is_none() {
                requests.push(Request::of(&table, parameter, &host));
            }
            given.push((parameter.path.clone(), value));
        }
        let known: Values = given.into_iter().collect();
        let fits = known.check(&table, &requests);
        fits.map_err(|source| StateError::Values { source })?;
        let placed = originals.into_iter().map(|(position, value)| {
            let dtype = table.iter().as_slice()[position].dtype;
            (position, value.cast_float(dtype))
        });
        self.make(Command::Set(placed.collect()))
    }

    /// Runs code with the [averages](crate::PipelineBuilder::average) in place of the parameters: to evaluate, or to
    /// gather or save the averaged model. A checkpoint that is saved meanwhile has no state of the optimizer, so no
    /// training resumes from it. Before the first step, the averages are the parameters.
    ///
    /// Cost: none for f32 on the ranks that own the parameters. Parameters that several ranks hold are copied to them, and
    /// averages of parameters in 16 bits are cast. In a [world](crate::PipelineBuilder::world), every process is sent the
    /// averages of all.
    ///
    /// ```no_run
    /// # use burn::nn::Linear;
    /// # use burn::tensor::Tensor;
    /// # use tinderbox_pipeline::{Pipeline, PipelineError};
    /// # fn example(pipeline: &mut Pipeline<Linear, Tensor<2>>, batch: Tensor<2>) -> Result<(), PipelineError> {
    /// let evaluation = pipeline.with_averages(|averaged| averaged.evaluate(batch))??;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StateError::NoAverages`]; [`StateError::Averaged`] within the code itself; when a rank has failed.
    pub fn with_averages<R>(
        &mut self,
        run: impl FnOnce(&mut Self) -> R,
    ) -> Result<R, PipelineError> {
        if self.driver.settings.average_decay.is_none() {
            return Err(StateError::NoAverages.into());
        }
        self.driver.check_not_averaged()?;
        self.make::<()>(Command::Average(true))?;
        let result = catch_unwind(AssertUnwindSafe(|| run(self)));
        self.make::<()>(Command::Average(false))?;
        result.or_else(|panic| resume_unwind(panic))
    }

    /// Stops the optimizer's updates of the parameters of a group, from the next step on; the statistics of a frozen batch
    /// norm still advance. Their state of the optimizer stays, and their
    /// gradients are neither added up nor part of the norm. The gradients are still computed: trace a model in which
    /// they are frozen to save that. A checkpoint names what is frozen, and a resume compares it without
    /// freezing: freeze before the resume.
    ///
    /// # Errors
    ///
    /// [`StateError::Group`] if the group contains no parameter, if none of them trained when the model was traced, or if
    /// the group has ids; when a rank has failed.
    pub fn freeze(&mut self, group: &ParamGroup) -> Result<(), PipelineError> {
        self.set_trains(group, false)
    }

    /// Updates the parameters of a group again, after [`freeze`](Self::freeze).
    ///
    /// # Errors
    ///
    /// As [`freeze`](Self::freeze).
    pub fn unfreeze(&mut self, group: &ParamGroup) -> Result<(), PipelineError> {
        self.set_trains(group, true)
    }

    fn set_trains(&mut self, group: &ParamGroup, trains: bool) -> Result<(), PipelineError> {
        let positions = self.trained(group).map_err(StateError::from)?;
        self.make(Command::SetTrains { positions, trains })
    }

    /// The positions of the parameters of a group that trained when the model was traced.
    fn trained(&self, group: &ParamGroup) -> Result<Vec<usize>, GroupError> {
        check_group(group, None)?;
        let parameters = self.model().parameters().iter().enumerate();
        let contained = parameters.filter(|(_, parameter)| contains(group, &parameter.path));
        let contained: Vec<(usize, &Parameter)> = contained.collect();
        let (_, first) = contained.first().ok_or(GroupError::NoParameters)?;
        let trained = contained
            .iter()
            .filter(|(_, parameter)| parameter.trainable);
        let positions: Vec<usize> = trained.map(|(position, _)| *position).collect();
        if positions.is_empty() {
            let path = first.path.clone();
            return Err(GroupError::NotTraced { path });
        }
        Ok(positions)
    }

    fn known(&self, path: &str) -> Result<&Parameter, StateError> {
        let table = self.model().parameters();
        let known = table.get(&ParameterPath::new(path));
        known.ok_or_else(|| StateError::UnknownParameter {
            path: ParameterPath::new(path),
            near: table.near(path),
        })
    }

    /// Replaces the parameters and the optimizer's state of every rank by saved ones, in place. A
    /// pipeline without an optimizer reads no state. Set the step with [`resume_at`](Self::resume_at). A `tracing` warning
    /// names parameters that have no saved state though others have, if their optimizers keep one.
    ///
    /// All ranks check names, shapes and dtypes before any of them changes anything. The request fails
    /// only without progress, as described at [timeout](crate::PipelineBuilder::timeout).
    ///
    /// Memory: in addition to what the pipeline holds afterwards, at most the size of the largest
    /// parameter or state of a parameter for each rank, or 1 MiB, and the memory of the source; with [replicas](crate::Plan::replicas), at most the state of
    /// the largest parameter, which each rank that updates a part of it reads whole.
    ///
    /// # Errors
    ///
    /// [`StateError::Restore`] if the saved state does not fit: nothing has changed.
    /// [`StateError::PartlyRestored`] if a value can't be read: some values are new and others old,
    /// and the pipeline refuses every request but another restore.
    pub fn restore(
        &mut self,
        source: impl Source + 'static,
        state: impl SavedOptimizer + 'static,
    ) -> Result<(), PipelineError> {
        self.make(Command::Restore(Arc::new(source), Arc::new(state)))
    }

    /// Returns whether the state of lost ranks is lost as well ([`RecoveryError::StateLost`](crate::RecoveryError::StateLost)),
    /// or a restore has failed partway: steps and evaluations are refused until a [restore](Self::restore).
    pub fn awaits_restore(&self) -> bool {
        matches!(
            self.driver.condition,
            Condition::PartlyRestored | Condition::StateLost
        )
    }
}
