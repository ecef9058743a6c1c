//! Finds values that changed in memory between two steps, or that differ between replicas, and repairs them from another
//! replica.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;

use burn::module::Module;
use serde::{Deserialize, Serialize};
use tinderbox_deferred::{ParameterPath, ParameterTable};
use tinderbox_fake::DynTensor;
use twox_hash::XxHash3_64;

use super::digest::{ReadError, of_value};
use super::pipeline::{Condition, Pipeline};
use super::remote::To;
use super::stage::Stage;
use crate::batch::Batch;
use crate::schedule::RankIndex;
use crate::{DamageError, PipelineError};

/// The digests of what a stage holds after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    /// Of the parameters that it holds, with their positions in the table.
    parameters: Vec<(usize, u64)>,
    /// Of the state of the optimizer.
    state: u64,
}

impl Recorded {
    /// Of the parameters that train. Others, which a device may have computed for itself, have its rounding.
    fn trained(&self, table: &ParameterTable) -> impl Iterator<Item = &(usize, u64)> {
        let parameters = self.parameters.iter();
        parameters.filter(|(position, _)| table.iter().as_slice()[*position].trainable)
    }
}

impl Stage {
    /// Records the digests of what it holds, until the next change by the program.
    fn record(&mut self) -> Result<(), ReadError> {
        self.recorded = Some(self.digests()?);
        Ok(())
    }

    fn digests(&self) -> Result<Recorded, ReadError> {
        let mut parameters = Vec::new();
        for (position, value) in self.held() {
            parameters.push((position, of_value(&value)?));
        }
        let saved = self.optimizer_snapshot().to_host()?;
        let mut state = XxHash3_64::with_seed(0);
        for (_, data) in &saved.tensors {
            state.write(data.as_bytes());
        }
        Ok(Recorded {
            parameters,
            state: state.finish(),
        })
    }

    /// Adds the positions of parameters that differ from what was recorded, whether the state of the optimizer does, and the
    /// digest of those that were recorded and train.
    fn compare(&self, table: &ParameterTable, found: &mut Found) -> Result<(), ReadError> {
        let Some(recorded) = &self.recorded else {
            return Ok(());
        };
        let now = self.digests()?;
        let pairs = recorded.parameters.iter().zip(&now.parameters);
        let changed = pairs.filter(|(before, now)| before != now);
        let changed = changed.map(|((position, _), _)| *position);
        found.parameters.extend(changed);
        found.state |= recorded.state != now.state;
        let mut digest = XxHash3_64::with_seed(found.digest);
        for (_, of_parameter) in recorded.trained(table) {
            digest.write_u64(*of_parameter);
        }
        found.digest = digest.finish();
        Ok(())
    }
}

/// A parameter that had changed in the memory of a rank, or differed from its value in most replicas, and was repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The number of training steps done then.
    pub step: u64,
    /// The rank.
    pub rank: RankIndex,
    /// The parameter.
    pub path: ParameterPath,
}

/// What a rank has found.
#[derive(Default, Serialize, Deserialize)]
struct Found {
    rank: usize,
    /// Positions in the table.
    parameters: Vec<usize>,
    state: bool,
    /// The digest of the parameters that train, as they were recorded.
    digest: u64,
}

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Returns the parameters that [checks of memory](crate::PipelineBuilder::check_memory) have repaired so far.
    pub fn repaired(&self) -> &[Repaired] {
        &self.repaired
    }

    /// Records what the ranks hold after a step, if the next one is checked.
    pub(super) fn record_memory(&mut self) -> Result<(), PipelineError> {
        if !self.checks_memory() {
            return Ok(());
        }
        let recorded = self.on_ranks(|_, stages| {
            let mut stages = stages.iter_mut();
            stages.try_for_each(Stage::record)
        })?;
        let recorded = recorded.into_iter().collect::<Result<(), ReadError>>();
        recorded.map_err(|source| self.crew.notified(unreadable(source)))
    }

    fn checks_memory(&self) -> bool {
        let every = self.settings.check_memory;
        every.is_some_and(|every| self.step.is_multiple_of(every))
    }

    /// Compares what the ranks hold with what they recorded, and with the other replicas, and repairs what a replica still
    /// has.
    pub(super) fn check_unchanged(&mut self) -> Result<(), PipelineError> {
        if !self.checks_memory() {
            return Ok(());
        }
        let table = self.model.parameters().clone();
        let found = self.on_ranks(move |rank, stages| {
            let mut found = Found {
                rank: rank.index(),
                ..Found::default()
            };
            let mut stages = stages.iter();
            stages.try_for_each(|stage| stage.compare(&table, &mut found))?;
            Ok(found)
        })?;
        let found = found.into_iter().collect::<Result<Vec<Found>, ReadError>>();
        let found = found.map_err(|source| self.crew.notified(unreadable(source)))?;
        let all = self.crew.exchange(To::All, found, Vec::new())?;
        let found: Vec<Found> = all.into_iter().flat_map(|(found, _)| found).collect();
        let bad = found.iter().flat_map(|one| {
            let positions = one.parameters.iter();
            positions.map(|position| (one.rank, *position))
        });
        let mut bad: BTreeSet<(usize, usize)> = bad.collect();
        if let Some(rank) = found.iter().find(|one| one.state).map(|one| one.rank) {
            return Err(self.damaged(rank, None));
        }
        let mut digests: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
        for one in found {
            let place = one.rank % self.plan.ranks().max(1);
            digests.entry(place).or_default().insert(one.digest);
        }
        if digests.values().any(|digests| digests.len() > 1) {
            bad.extend(self.minority()?);
        }
        match bad.is_empty() {
            true => Ok(()),
            false => self.repair(&bad),
        }
    }

    /// The ranks and positions of parameters that were recorded with another value than in most replicas.
    fn minority(&mut self) -> Result<BTreeSet<(usize, usize)>, PipelineError> {
        let table = self.model.parameters().clone();
        let recorded = self.on_ranks(move |rank, stages| {
            let stages = stages.iter().filter_map(|stage| stage.recorded.as_ref());
            let trained = stages.flat_map(|recorded| recorded.trained(&table));
            (
                rank.index(),
                trained.copied().collect::<Vec<(usize, u64)>>(),
            )
        })?;
        let all = self.crew.exchange(To::All, recorded, Vec::new())?;
        let ranks = self.plan.ranks().max(1);
        // The ranks with each digest, by the place in a replica and the parameter.
        let mut holders: BTreeMap<(usize, usize), BTreeMap<u64, BTreeSet<usize>>> = BTreeMap::new();
        for (rank, parameters) in all.into_iter().flat_map(|(recorded, _)| recorded) {
            for (position, digest) in parameters {
                let of_value = holders.entry((rank % ranks, position)).or_default();
                of_value.entry(digest).or_default().insert(rank);
            }
        }
        let mut bad = BTreeSet::new();
        for ((_, position), values) in holders {
            let is_most = |ranks: &BTreeSet<usize>| 2 * ranks.len() > self.settings.replicas;
            if values.values().filter(|ranks| is_most(ranks)).count() != 1 {
                let ranks: BTreeSet<usize> = values.into_values().flatten().collect();
                return Err(self.differs(ranks, position));
            }
            let others = values.into_values().filter(|ranks| !is_most(ranks));
            bad.extend(others.flatten().map(|rank| (rank, position)));
        }
        Ok(bad)
    }

    /// Replaces parameters of ranks, by position in the table, by the parameters of ranks at the same place of other
    /// replicas.
    fn repair(&mut self, bad: &BTreeSet<(usize, usize)>) -> Result<(), PipelineError> {
        let ranks = self.plan.ranks().max(1);
        let mut donors = BTreeSet::new();
        for (rank, position) in bad {
            let same = (0..self.settings.replicas).map(|replica| replica * ranks + rank % ranks);
            let donor = { same }.find(|other| !bad.contains(&(*other, *position)));
            let donor = donor.ok_or_else(|| self.damaged(*rank, Some(*position)))?;
            donors.insert((donor, *position));
        }
        let given = self.on_ranks(move |rank, stages| {
            let of_rank = donors.iter().filter(|(donor, _)| *donor == rank.index());
            let values = of_rank.filter_map(|(_, position)| {
                let mut held = stages.iter().flat_map(Stage::held);
                held.find(|(held, _)| held == position)
            });
            values.collect::<Vec<(usize, DynTensor)>>()
        })?;
        let (positions, values): (Vec<usize>, Vec<DynTensor>) = given.into_iter().flatten().unzip();
        let all = self.crew.exchange(To::All, positions, values)?;
        let values = all
            .into_iter()
            .flat_map(|(positions, values)| positions.into_iter().zip(values));
        let values: Vec<(usize, DynTensor)> = values.collect();
        let wanted = bad.clone();
        let set = self.on_ranks(move |rank, stages| {
            for stage in stages {
                for (position, value) in &values {
                    if wanted.contains(&(rank.index(), *position)) {
                        stage.set(*position, value.clone())?;
                    }
                }
            }
            Ok::<(), crate::ActionError>(())
        })?;
        for result in set {
            result.map_err(|source| self.crew.notified(unreadable(Box::new(source))))?;
        }
        self.renew_snapshot()?;
        for (rank, position) in bad {
            let path = self.path_of(*position);
            tracing::warn!(
                rank,
                step = self.step,
                parameter = %path,
                "a value was wrong in memory, and was replaced by the value of another replica"
            );
            self.repaired.push(Repaired {
                step: self.step,
                rank: RankIndex::new(*rank),
                path,
            });
        }
        Ok(())
    }

    /// The error of a change that can't be repaired. The values are wrong, so nothing continues with them.
    fn damaged(&mut self, rank: usize, position: Option<usize>) -> PipelineError {
        self.condition = Condition::Stopped;
        let changed = DamageError::Changed {
            rank: RankIndex::new(rank),
            step: self.step,
            path: position.map(|position| self.path_of(position)),
        };
        changed.into()
    }

    /// The error of replicas that hold different values, none of which most of them hold.
    fn differs(&mut self, ranks: BTreeSet<usize>, position: usize) -> PipelineError {
        self.condition = Condition::Stopped;
        let differs = DamageError::Differs {
            ranks: ranks.into_iter().map(RankIndex::new).collect(),
            step: self.step,
            path: self.path_of(position),
        };
        differs.into()
    }

    fn path_of(&self, position: usize) -> ParameterPath {
        self.model.parameters().iter().as_slice()[position]
            .path
            .clone()
    }
}

fn unreadable(source: ReadError) -> PipelineError {
    PipelineError::Unreadable {
        what: "a value to check",
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::Duration;

    use burn::nn::{Linear, LinearConfig};
    use burn::optim::AdamWConfig;
    use burn::tensor::{Device, Float, Tensor};
    use tinderbox_deferred::Deferred;
    use tinderbox_world::testing::{Delays, Net, Threads};
    use tinderbox_world::{World, WorldOptions};

    use super::*;
    use crate::schedule::{Placement, ScheduleKind};
    use crate::{
        ActionError, GradientSum, Machine, Outputs, PipelineBuilder, Planner, Recovery, Traceable,
    };

    type Layers = Pipeline<Vec<Linear>, Tensor<2>>;

    fn start(replicas: usize) -> Layers {
        builder(replicas).start().unwrap()
    }

    fn builder(replicas: usize) -> PipelineBuilder<Vec<Linear>, Tensor<2>> {
        let machine = Machine::local(2).unwrap();
        builder_on(&machine, ScheduleKind::OneFOneB, replicas)
    }

    /// A builder whose first layer is also the last one.
    fn builder_on(
        machine: &Machine,
        kind: ScheduleKind,
        replicas: usize,
    ) -> PipelineBuilder<Vec<Linear>, Tensor<2>> {
        let model = Deferred::new(|device: &Device| -> Vec<Linear> {
            (0..4)
                .map(|_| LinearConfig::new(6, 6).init(device))
                .collect()
        });
        let model = model.unwrap();
        let example = Tensor::<2>::ones([2, 6], &Device::flex());
        let trace = model.trace(&example, |layers: &Vec<Linear>, x| {
            let all = layers.iter().chain(layers.first());
            let y = all.fold(x, |x, layer| layer.forward(x).tanh());
            Outputs::loss(y.powf_scalar(2.0).mean())
        });
        let trace = trace.unwrap();
        let plan = Planner::new(&trace, machine).schedule(kind).plan().unwrap();
        Pipeline::new(&model, &trace, &plan.replicas(replicas))
            .optimizer(AdamWConfig::new())
            .micro_batches(4)
            .gradient_sum(GradientSum::Tree(4))
            .check_memory(1)
    }

    fn batch() -> Tensor<2> {
        Tensor::ones([4, 6], &Device::flex())
    }

    /// Flips the lowest bit of the first element of a parameter on a rank, behind the back of its stage. Whether the rank is of
    /// this process.
    fn flip(pipeline: &mut Layers, rank: usize, path: &'static str) -> bool {
        flip_recorded(pipeline, rank, path, false)
    }

    /// As [`flip`], and the stage may record the wrong value.
    fn flip_recorded(
        pipeline: &mut Layers,
        rank: usize,
        path: &'static str,
        records: bool,
    ) -> bool {
        let position = pipeline
            .model()
            .parameters()
            .position(&ParameterPath::new(path));
        let position = position.unwrap();
        let flipped = pipeline.on_ranks(move |own, stages| {
            let mut is_held = false;
            for stage in stages.iter_mut().filter(|_| own.index() == rank) {
                let held = stage.held().find(|(held, _)| *held == position);
                let Some((_, value)) = held else {
                    continue;
                };
                let mut data = value.to_data()?;
                let values = data.as_mut_slice::<f32>().unwrap();
                values[0] = f32::from_bits(values[0].to_bits() ^ 1);
                let recorded = stage.recorded.take();
                stage.set(position, DynTensor::from_data(data, &Device::flex()))?;
                stage.recorded = recorded;
                if records {
                    stage.record().unwrap();
                }
                is_held = true;
            }
            Ok::<bool, ActionError>(is_held)
        });
        flipped.unwrap().into_iter().any(Result::unwrap)
    }

    fn values(pipeline: &mut Layers) -> Vec<u64> {
        let digest = pipeline.digest().unwrap();
        digest
            .parameters
            .into_iter()
            .map(|(_, digest)| digest)
            .collect()
    }

    #[test]
    fn a_flipped_bit_is_named_and_repaired_from_the_other_replica() {
        let mut undisturbed = start(2);
        let mut flipped = start(2);
        for step in 0..4 {
            // Rank 1 is the second stage of the first replica, rank 2 the first of the second.
            match step {
                1 => assert!(flip(&mut flipped, 1, "3.weight")),
                3 => assert!(flip(&mut flipped, 2, "0.bias")),
                _ => {}
            }
            undisturbed.step(1e-2, batch()).unwrap();
            flipped.step(1e-2, batch()).unwrap();
            assert_eq!(values(&mut flipped), values(&mut undisturbed));
        }
        assert!(undisturbed.repaired().is_empty());
        let repaired: Vec<(u64, usize, &str)> = flipped
            .repaired()
            .iter()
            .map(|one| (one.step, one.rank.index(), one.path.as_str()))
            .collect();
        assert_eq!(repaired, [(1, 1, "3.weight"), (3, 2, "0.bias")]);
    }

    /// The value comes from another process.
    #[test]
    fn a_flipped_bit_is_repaired_from_another_process() {
        let mut undisturbed = start(2);
        for _ in 0..2 {
            undisturbed.step(1e-2, batch()).unwrap();
        }
        let expected = values(&mut undisturbed);
        let options = WorldOptions::default();
        let program = |world: World, _: &Net| {
            let mut pipeline = builder(2).world(&world).start().unwrap();
            pipeline.step(1e-2, batch()).unwrap();
            let own = world.rank().index();
            assert_eq!(flip(&mut pipeline, 3, "3.weight"), own == 3);
            pipeline.step(1e-2, batch()).unwrap();
            let repaired: Vec<(usize, String)> = pipeline
                .repaired()
                .iter()
                .map(|one| (one.rank.index(), one.path.to_string()))
                .collect();
            (values(&mut pipeline), repaired)
        };
        let found = Threads::run(4, Delays::default(), &options, program).unwrap();
        for (values, repaired) in found {
            assert_eq!(repaired, [(3, "3.weight".to_owned())]);
            assert_eq!(values, expected);
        }
    }

    /// A value was wrong when it was recorded, and most of four replicas have another; a second one has changed since.
    #[test]
    fn replicas_that_differ_are_repaired_from_most_of_them() {
        let (mut undisturbed, mut flipped) = (start(4), start(4));
        for step in 0..3 {
            if step > 0 {
                assert!(flip_recorded(&mut flipped, 5, "3.weight", true));
                assert!(flip_recorded(&mut flipped, 2, "0.bias", step == 2));
            }
            undisturbed.step(1e-2, batch()).unwrap();
            flipped.step(1e-2, batch()).unwrap();
            assert_eq!(values(&mut flipped), values(&mut undisturbed));
        }
        let repaired = flipped.repaired().iter();
        let repaired: Vec<(u64, usize)> =
            repaired.map(|one| (one.step, one.rank.index())).collect();
        assert_eq!(repaired, [(1, 2), (1, 5), (2, 2), (2, 5)]);
    }

    #[test]
    fn two_replicas_that_differ_stop_the_pipeline() {
        let mut pipeline = start(2);
        pipeline.step(1e-2, batch()).unwrap();
        assert!(flip_recorded(&mut pipeline, 2, "1.weight", true));
        let error = pipeline.step(1e-2, batch()).unwrap_err();
        insta::assert_snapshot!(error, @"since step 1, ranks 0, 2 hold different values of `1.weight`, and no value is the same on most of them: test the memory and the links of their machines, and resume from a checkpoint");
        assert!(matches!(
            pipeline.step(1e-2, batch()),
            Err(PipelineError::Stopped)
        ));
    }

    /// A rank has the first layer in its first stage and in its last.
    #[test]
    fn a_tied_parameter_counts_once_for_each_replica() {
        let machine = Machine::local(2)
            .unwrap()
            .with_chunks(2, Placement::V)
            .unwrap();
        let mut pipeline = builder_on(&machine, ScheduleKind::Zbv, 2).start().unwrap();
        pipeline.step(1e-2, batch()).unwrap();
        assert!(flip_recorded(&mut pipeline, 2, "0.weight", true));
        let error = pipeline.step(1e-2, batch()).unwrap_err();
        insta::assert_snapshot!(error, @"since step 1, ranks 0, 2 hold different values of `0.weight`, and no value is the same on most of them: test the memory and the links of their machines, and resume from a checkpoint");
    }

    /// A process is lost in the step before which a value was repaired: those that are left go back to the repaired value.
    #[test]
    fn a_repaired_value_is_kept_for_a_recovery() {
        const STEPS: usize = 3;
        let machine = Machine::local(1).unwrap();
        let of = |replicas| builder_on(&machine, ScheduleKind::OneFOneB, replicas);
        let mut undisturbed = of(1).start().unwrap();
        for _ in 0..STEPS {
            undisturbed.step(1e-2, batch()).unwrap();
        }
        let expected = values(&mut undisturbed);
        let mut options = WorldOptions::default();
        options.heartbeat = Duration::from_millis(50);
        let found = Threads::run(2, Delays::default(), &options, |world: World, net: &Net| {
            let own = world.rank();
            let (is_due, to_kill) = (Arc::new(AtomicBool::new(false)), net.clone());
            let due = is_due.clone();
            let builder = of(2).world(&world).recovery(Recovery::default());
            let builder = builder.on_gradients(move |_, gradient| {
                if due.swap(false, SeqCst) {
                    to_kill.kill(own);
                }
                gradient
            });
            let mut pipeline = builder.start().unwrap();
            pipeline.step(1e-2, batch()).unwrap();
            // Its own part, of which the other one has no state.
            assert_eq!(flip(&mut pipeline, 1, "3.weight"), own.index() == 1);
            // What is kept is the same memory.
            pipeline.renew_snapshot().unwrap();
            is_due.store(own.index() == 0, SeqCst);
            for _ in 1..STEPS {
                if pipeline.step(1e-2, batch()).is_err() {
                    assert_eq!(own.index(), 0);
                    return None;
                }
            }
            assert_eq!(
                (pipeline.recovered().len(), pipeline.repaired().len()),
                (1, 1)
            );
            Some(values(&mut pipeline))
        });
        assert_eq!(found.unwrap()[1], Some(expected));
    }

    /// With one replica nobody has the value.
    #[test]
    fn a_flipped_bit_without_replicas_stops_the_pipeline() {
        let mut pipeline = start(1);
        pipeline.step(1e-2, batch()).unwrap();
        assert!(flip(&mut pipeline, 0, "0.weight"));
        let error = pipeline.step(1e-2, batch()).unwrap_err();
        insta::assert_snapshot!(error, @"rank 0: `0.weight` has changed in memory since step 1 ended, and no other replica has its value: test the machine's memory, and resume from a checkpoint");
        assert!(matches!(
            pipeline.step(1e-2, batch()),
            Err(PipelineError::Stopped)
        ));
    }

    /// What the program changes between steps is no damage.
    #[test]
    fn values_that_were_set_are_not_repaired() {
        let mut pipeline = start(2);
        pipeline.step(1e-2, batch()).unwrap();
        let value = pipeline.parameter("1.weight").unwrap();
        let value = value.typed::<2, Float>().unwrap().mul_scalar(0.5);
        pipeline
            .set_parameters([("1.weight", DynTensor::from(value))])
            .unwrap();
        pipeline.step(1e-2, batch()).unwrap();
        assert!(pipeline.repaired().is_empty());
    }
}
