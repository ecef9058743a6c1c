//! Starts the ranks of a plan.

use std::sync::Arc;

use burn::tensor::Device;
use tinderbox_deferred::{ParameterTable, Request, Source};
use tinderbox_world::World;

use super::carry::Carries;
use super::driver::{CallCounts, Condition, Driver, DriverState};
use super::programs::Programs;
use crate::cut::Cutting;
use crate::error::Result;
use crate::plan;
use crate::runtime::capacity::{check_capacity, device_of};
use crate::runtime::cores;
use crate::runtime::link::Abort;
use crate::runtime::ranks::{
    Processes, Ranks, Remote, SharedPasses, StreamingRank, Threads, Wrap, linked,
};
use crate::runtime::settings::{Options, Settings};
use crate::runtime::snapshots::Backups;
use crate::runtime::stage::RankSetup;
use crate::runtime::streamed::StreamedSetup;
use crate::schedule::RankIndex;
use crate::{GradientSum, JointGraph, OnDemand, Plan, ScheduleChoice, StartError};

/// The kind of the ranks of a pipeline, with the data of this kind.
pub(crate) enum RankKind<'a> {
    /// Threads of this process, whose links may be wrapped.
    Threads(Option<&'a Wrap>),
    /// Processes of a world. With a recovery, this process keeps snapshots of other ranks, and processes without a rank wait
    /// until another one is lost.
    World(&'a World, Option<Arc<Backups>>),
    /// One thread. Its stages have their parameters only while they run.
    Streamed(&'a OnDemand, SharedPasses),
}

/// Starts the ranks of a model for any of its plans.
#[derive(Clone)]
pub(crate) struct Launch {
    /// The parameters of the model.
    pub(crate) table: Arc<ParameterTable>,
    /// The graph of the example that was traced.
    pub(crate) example: Arc<JointGraph>,
    /// The source of parameters.
    pub(crate) source: Arc<dyn Source>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) options: Options,
    /// The schedule of a training step.
    pub(crate) schedule: ScheduleChoice,
}

impl Launch {
    /// Checks that the ranks of a plan can run, and returns its programs.
    pub(crate) fn prepare(&self, plan: &Plan) -> Result<Programs> {
        let (replicas, micro_batches) = (plan.replicas(), self.options.micro_batches);
        check_sum(self.settings.sum, replicas)?;
        let mut layout = plan::layout(plan, &self.table)?;
        if !self.example.carried().is_empty() {
            let cutting = Cutting::new(&self.example, &layout)?;
            layout.carried = cutting.carried(&self.example);
        }
        if let Some(state) = self.example.updates().keys().next()
            && replicas > 1
        {
            let path = self.table.iter().as_slice()[*state].path.clone();
            return Err(StartError::RunningState { path }.into());
        }
        if micro_batches < replicas {
            return Err(StartError::IdleReplicas {
                replicas,
                micro_batches,
            }
            .into());
        }
        let (example, schedule) = (self.example.clone(), self.schedule.clone());
        let (layout, settings) = (Arc::new(layout), &self.settings);
        let programs = Programs::new(example, layout, schedule, settings, &self.options);
        if settings.optimizers.is_some() {
            programs.check_schedule(micro_batches)?;
        }
        Ok(programs)
    }

    /// Starts the ranks of a plan; each materializes only its own parameters.
    pub(crate) fn start(&self, plan: &Plan, kind: RankKind<'_>) -> Result<Driver> {
        let programs = self.prepare(plan)?;
        let mut driver = Driver {
            ranks: self.start_ranks(plan, &programs, kind)?,
            plan: plan.clone(),
            table: self.table.clone(),
            settings: self.settings.clone(),
            options: self.options.clone(),
            programs,
            state: DriverState {
                loss_scale: self.options.loss_scale,
                ..DriverState::default()
            },
            condition: Condition::Sound,
            counts: CallCounts::default(),
            carries: Carries::default(),
            repaired: Vec::new(),
            kept: None,
        };
        driver.compare()?;
        driver.ranks.ask("materialize its parameters", |_, _| ())?;
        // No process trains before all can train.
        driver.ranks.agree(None)?;
        Ok(driver)
    }

    /// Checks that the source has the parameters of the model. Reads none.
    pub(crate) fn check_source(&self) -> Result<(), StartError> {
        let (table, rank) = (&self.table, RankIndex::new(0));
        let device = device_of(rank, &self.options.devices);
        let requests = table.distinct();
        let requests = requests.map(|parameter| Request::of(table, parameter, device));
        let checked = self.source.check(table, &requests.collect::<Vec<_>>());
        checked.map_err(|source| StartError::Materialize {
            rank,
            source: source.into(),
        })
    }

    /// The setup of a rank on one of several devices.
    pub(crate) fn setup(
        &self,
        programs: &Programs,
        rank: RankIndex,
        devices: &[Device],
        abort: &Abort,
    ) -> RankSetup {
        let (replica, place) = programs.layout.place_of(rank);
        RankSetup {
            rank,
            replica,
            place,
            layout: programs.layout.clone(),
            table: self.table.clone(),
            device: device_of(rank, devices).clone(),
            settings: self.settings.clone(),
            progress: Arc::default(),
            abort: abort.clone(),
            streamed: None,
        }
    }

    /// Starts the ranks of this process.
    fn start_ranks(
        &self,
        plan: &Plan,
        programs: &Programs,
        kind: RankKind<'_>,
    ) -> Result<Box<dyn Ranks>> {
        let (layout, example, settings) = (&*programs.layout, &*self.example, &*self.settings);
        let (devices, timeout) = (&*self.options.devices, self.options.timeout);
        let (ranks, source, abort) = (plan.world_size(), &self.source, Abort::default());
        Ok(match kind {
            RankKind::Threads(wrap) => {
                check_capacity(layout, example, devices, None, settings)?;
                let all = (0..ranks).map(RankIndex::new);
                let setups = all.map(|rank| self.setup(programs, rank, devices, &abort));
                let own = linked(setups.collect(), wrap, &abort, timeout);
                let threads = self.threads_per_rank(None, ranks)?;
                Box::new(Threads::new(own, source, threads, abort, timeout, None)?)
            }
            RankKind::World(world, backups) => {
                let processes = world.size();
                // Additional processes wait until another one is lost.
                if processes < ranks || (processes > ranks && backups.is_none()) {
                    return Err(StartError::WorldSize { ranks, processes }.into());
                }
                let (rank, local) = (world.rank(), RankIndex::new(world.local().rank));
                let device = std::slice::from_ref(device_of(local, devices));
                check_capacity(layout, example, device, Some(rank), settings)?;
                let has_rank = rank.index() < ranks;
                let setup = has_rank.then(|| self.setup(programs, rank, device, &abort));
                let threads = self.threads_per_rank(Some(world), ranks)?;
                let (link, remote) = Remote::join(world, &abort, timeout, backups);
                let own = setup.into_iter().zip([link]).collect();
                let others = Some(remote.channel());
                let thread = Threads::new(own, source, threads, abort, timeout, others)?;
                Box::new(Processes::new(thread, remote))
            }
            RankKind::Streamed(options, passes) => {
                let (parameters, graphs) = ((&*self.table, &devices[0]), (layout, example));
                let streamed = StreamedSetup::new(options, parameters, graphs, settings);
                let setup = RankSetup {
                    streamed: Some(Arc::new(streamed)),
                    ..self.setup(programs, RankIndex::new(0), devices, &abort)
                };
                let own = linked(vec![setup], None, &abort, timeout);
                let threads = self.threads_per_rank(None, ranks)?;
                let thread = Threads::new(own, source, threads, abort, timeout, None)?;
                Box::new(StreamingRank { thread, passes })
            }
        })
    }

    /// The number of threads that each rank computes with. In a world, all processes call this.
    fn threads_per_rank(&self, world: Option<&World>, ranks: usize) -> Result<usize> {
        let shared = cores::threads(world, ranks)?;
        Ok(self.options.threads_per_rank.unwrap_or(shared))
    }
}

/// Checks that gradients can be summed in an order that does not depend on the number of replicas.
fn check_sum(sum: GradientSum, replicas: usize) -> Result<(), StartError> {
    if !replicas.is_power_of_two() {
        return Err(StartError::Replicas { replicas });
    }
    let groups = sum.groups();
    let fits = groups.is_power_of_two() && groups.is_multiple_of(replicas);
    fits.then_some(()).ok_or(StartError::Sum { sum, replicas })
}
