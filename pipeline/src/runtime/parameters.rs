//! Reads and replaces parameters between steps.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::module::{Module, ParamGroup};
use burn::tensor::Device;
use tinderbox_deferred::{Parameter, ParameterPath, Request, Source, Values};
use tinderbox_fake::{DynTensor, FakeError};
use twox_hash::XxHash3_64;

use super::optimizer::{check_group, contains};
use super::pipeline::{Condition, Pipeline};
use super::recovery::CallKind;
use super::remote::To;
use crate::batch::Batch;
use crate::schedule::RankIndex;
use crate::{ActionError, GroupError, PipelineError};

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Returns the current value of a parameter or running state by its path, on the device of the rank that owns
    /// it. The value is shared, and later steps do not change it. In a [world](crate::PipelineBuilder::world) of processes,
    /// every process calls this, and those without the rank get a copy in the memory of the host.
    ///
    /// # Errors
    ///
    /// [`PipelineError::UnknownParameter`] with the paths that are nearest; when a rank has failed.
    pub fn parameter(&mut self, path: &str) -> Result<DynTensor, PipelineError> {
        let path = self.known(path)?.original().clone();
        self.recovering(CallKind::Reads, move |pipeline| {
            pipeline.value_of(path.clone())
        })
    }

    fn value_of(&mut self, path: ParameterPath) -> Result<DynTensor, PipelineError> {
        let found = self.on_ranks(move |_, stages| {
            let stages = stages.iter().filter(|stage| stage.is_of_first_replica());
            let owned = stages.map(|stage| stage.parameters());
            let mut owned = owned.filter_map(|module| Some(module.value(module.position(&path)?)));
            owned.next()
        })?;
        let value: Vec<DynTensor> = found.into_iter().flatten().collect();
        let all = self.crew.exchange(To::All, (), value)?;
        let value = all.into_iter().flat_map(|(_, values)| values).next();
        Ok(value.expect("every parameter has an owner"))
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
    /// [`PipelineError::UnknownParameter`]; [`PipelineError::Averaged`]; [`PipelineError::Values`] with every value of another shape, every one of
    /// a dtype that can't be cast, every fake one, and every two that differ for one parameter; when a rank has failed.
    pub fn set_parameters<P: AsRef<str>>(
        &mut self,
        values: impl IntoIterator<Item = (P, DynTensor)>,
    ) -> Result<(), PipelineError> {
        self.check_not_averaged()?;
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
        fits.map_err(|source| PipelineError::Values { source })?;
        let placed = originals.into_iter().map(|(position, value)| {
            let dtype = table.iter().as_slice()[position].dtype;
            (position, value.cast_float(dtype))
        });
        let values: Vec<(usize, DynTensor)> = placed.collect();
        self.recovering(CallKind::ChangesHere, move |pipeline| {
            pipeline.set(values.clone())
        })
    }

    /// Replaces values of parameters by position in the table, on every rank that holds them.
    fn set(&mut self, values: Vec<(usize, DynTensor)>) -> Result<(), PipelineError> {
        self.note_change(2, values.iter().map(|(position, _)| *position));
        let set = self.on_ranks(move |_, stages| {
            for stage in stages {
                for (position, value) in &values {
                    stage.set(*position, value.clone())?;
                }
            }
            Ok::<(), ActionError>(())
        })?;
        let first = self.crew.own().map_or(0, RankIndex::index);
        let mut results = set.into_iter().zip(first..);
        match results.find_map(|(result, rank)| Some((RankIndex::new(rank), result.err()?))) {
            None => Ok(()),
            // Some ranks may have the new values, and others not.
            Some((rank, source)) => {
                self.condition = Condition::Stopped;
                Err(self.crew.notified(PipelineError::Action {
                    rank,
                    stage: None,
                    micro_batch: None,
                    action: "SET PARAMETERS".into(),
                    source: Box::new(source),
                }))
            }
        }
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
    /// [`PipelineError::NoAverages`]; [`PipelineError::Averaged`] within the code itself; when a rank has failed.
    pub fn with_averages<R>(
        &mut self,
        run: impl FnOnce(&mut Self) -> R,
    ) -> Result<R, PipelineError> {
        if self.settings.average_decay.is_none() {
            return Err(PipelineError::NoAverages);
        }
        self.check_not_averaged()?;
        self.exchange_averages(true)?;
        let result = catch_unwind(AssertUnwindSafe(|| run(self)));
        self.exchange_averages(false)?;
        result.or_else(|panic| resume_unwind(panic))
    }

    /// Replaces the parameters by their averages, or the averages by the parameters.
    fn exchange_averages(&mut self, is_averaged: bool) -> Result<(), PipelineError> {
        self.recovering(CallKind::Changes, move |pipeline| {
            pipeline.exchange_averages_now(is_averaged)
        })
    }

    fn exchange_averages_now(&mut self, is_averaged: bool) -> Result<(), PipelineError> {
        let values = self.on_ranks(move |_, stages| {
            let values = stages.iter_mut().map(|stage| match is_averaged {
                true => stage.averages(),
                false => stage.take_averaged(),
            });
            values.flatten().collect::<Vec<_>>()
        })?;
        let (positions, values): (Vec<usize>, Vec<DynTensor>) =
            values.into_iter().flatten().unzip();
        // Parameters that ranks of several processes hold are replaced on all of them.
        let all = self.crew.exchange(To::All, positions, values)?;
        let pairs = all
            .into_iter()
            .flat_map(|(positions, values)| positions.into_iter().zip(values));
        // Replicas have the rows of a divided parameter, in their order.
        let mut parts: BTreeMap<usize, Vec<DynTensor>> = BTreeMap::new();
        for (position, value) in pairs {
            parts.entry(position).or_default().push(value);
        }
        let whole = parts.into_iter().map(|(position, parts)| {
            let device = parts[0].device();
            let parts = parts.into_iter().map(|part| part.to_device(&device));
            let parts = parts.collect::<Result<_, FakeError>>()?;
            Ok((position, DynTensor::joined(parts)))
        });
        let whole = whole.collect::<Result<Vec<_>, FakeError>>();
        let whole = whole.map_err(|source| {
            self.crew.notified(PipelineError::Unreadable {
                what: "the averages of the parameters",
                source: Box::new(source),
            })
        })?;
        self.is_averaged = is_averaged;
        self.set(whole)
    }

    pub(super) fn check_not_averaged(&self) -> Result<(), PipelineError> {
        match self.is_averaged {
            true => Err(PipelineError::Averaged),
            false => Ok(()),
        }
    }

    /// Stops the optimizer's updates of the parameters of a group, from the next step on; the statistics of a frozen batch
    /// norm still advance. Their state of the optimizer stays, and their
    /// gradients are neither added up nor part of the norm. The gradients are still computed: trace a model in which
    /// they are frozen to save that. A checkpoint names what is frozen, and a resume compares it without
    /// freezing: freeze before the resume.
    ///
    /// # Errors
    ///
    /// [`PipelineError::Group`] if the group contains no parameter, if none of them trained when the model was traced, or if
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
            return Err(GroupError::NotTraced { path }.into());
        }
        self.recovering(CallKind::ChangesHere, move |pipeline| {
            pipeline.note_change(u64::from(trains), positions.iter().copied());
            for position in &positions {
                match trains {
                    true => pipeline.frozen.remove(position),
                    false => pipeline.frozen.insert(*position),
                };
            }
            let positions = positions.clone();
            let set = pipeline.on_ranks(move |_, stages| {
                let stages = stages.iter_mut();
                stages.for_each(|stage| stage.set_trains(&positions, trains));
            });
            set.map(drop)
        })
    }

    /// Adds a change of parameters to the digest that processes compare in each step.
    fn note_change(&mut self, kind: u64, positions: impl Iterator<Item = usize>) {
        // In any order: it may be the order of a map.
        let of_change = positions.map(|position| {
            let mut hasher = XxHash3_64::with_seed(kind);
            hasher.write_usize(position);
            hasher.finish()
        });
        let sum = of_change.fold(kind, u64::wrapping_add);
        self.changes = self.changes.rotate_left(1).wrapping_add(sum);
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
