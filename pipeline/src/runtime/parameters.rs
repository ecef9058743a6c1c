//! Reads and replaces parameters between steps.

use burn::module::Module;
use burn::tensor::Device;
use tinderbox_deferred::{Parameter, ParameterPath, Request, Source, Values};
use tinderbox_fake::DynTensor;

use super::pipeline::{Condition, Pipeline};
use crate::batch::Batch;
use crate::schedule::RankIndex;
use crate::{ActionError, PipelineError};

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Returns the current value of a parameter or running state by its path, on the device of the rank that owns
    /// it. The value is shared, and later steps do not change it.
    ///
    /// # Errors
    ///
    /// [`PipelineError::UnknownParameter`] with the paths that are nearest; when a rank has failed.
    pub fn parameter(&mut self, path: &str) -> Result<DynTensor, PipelineError> {
        let path = self.known(path)?.original().clone();
        let found = self.on_ranks(move |_, stages| {
            let owned = stages.iter().map(|stage| stage.parameters());
            let mut owned = owned.filter_map(|module| Some(module.value(module.position(&path)?)));
            owned.next()
        })?;
        let value = found.into_iter().flatten().next();
        Ok(value.expect("every parameter has an owner"))
    }

    /// Replaces the values of parameters and running states by their paths, on every rank that holds them: a target
    /// network, an average of weights, a clamp. State of the optimizer and the number of steps stay.
    ///
    /// Values may be on any device and have any float dtype. Nothing changes unless all of them fit. A clone stands for
    /// its original.
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
    /// [`PipelineError::UnknownParameter`]; [`PipelineError::Values`] with every value of another shape, every one of
    /// a dtype that can't be cast, and every fake one; when a rank has failed.
    pub fn set_parameters<P: AsRef<str>>(
        &mut self,
        values: impl IntoIterator<Item = (P, DynTensor)>,
    ) -> Result<(), PipelineError> {
        let mut originals = Vec::new();
        for (path, value) in values {
            let original = self.known(path.as_ref())?.original().clone();
            originals.push((original, value.without_autodiff()));
        }
        let table = self.model().parameters().clone();
        let host = Device::flex();
        let given = originals.iter().filter_map(|(path, _)| table.get(path));
        let requests: Vec<Request> = given.map(|known| Request::of(known, &host)).collect();
        let known: Values = originals.iter().cloned().collect();
        let fits = known.check(&table, &requests);
        fits.map_err(|source| PipelineError::Values { source })?;
        let set = self.on_ranks(move |_, stages| {
            for stage in stages {
                for (path, value) in &originals {
                    stage.set_by_path(path, value.clone())?;
                }
            }
            Ok::<(), ActionError>(())
        })?;
        let mut results = set.into_iter().enumerate();
        match results.find_map(|(rank, result)| Some((RankIndex::new(rank), result.err()?))) {
            None => Ok(()),
            // Some ranks may have the new values, and others not.
            Some((rank, source)) => {
                self.condition = Condition::Stopped;
                Err(PipelineError::Action {
                    rank,
                    stage: None,
                    micro_batch: None,
                    action: "SET PARAMETERS".into(),
                    source: Box::new(source),
                })
            }
        }
    }

    fn known(&self, path: &str) -> Result<&Parameter, PipelineError> {
        let table = self.model().parameters();
        let known = table.get(&ParameterPath::new(path));
        known.ok_or_else(|| PipelineError::UnknownParameter {
            path: ParameterPath::new(path),
            near: table.near(path),
        })
    }
}
