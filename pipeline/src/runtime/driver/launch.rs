//! Starts the ranks of a plan.

use std::sync::Arc;
use std::time::Duration;

use burn::tensor::Device;
use tinderbox_deferred::{ParameterTable, Request, Source};
use tinderbox_world::World;

use super::carry::Carries;
use super::driver::{CallCounts, Condition, Driver, DriverState};
use super::options::Options;
use super::programs::Programs;
use crate::StartError;
use crate::cut::Cutting;
use crate::error::Result;
use crate::lists::ScheduleChoice;
use crate::plan::Plan;
use crate::runtime::capacity::{check_capacity, device_of};
use crate::runtime::cores;
use crate::runtime::link::Abort;
use crate::runtime::ranks::{Processes, Ranks, SharedPasses, Start, StreamingRank, Threads, Wrap};
use crate::runtime::settings::Settings;
use crate::runtime::snapshots::Backups;
use crate::runtime::stage::RankSetup;
use crate::runtime::streamed::{StreamedOptions, StreamedSetup};
use crate::schedule::RankIndex;
use crate::trace::JointGraph;

/// Where and how ranks run.
#[derive(Clone, Default)]
pub(crate) struct RankOptions {
    pub(crate) devices: Vec<Device>,
    pub(crate) threads_per_rank: Option<usize>,
    pub(crate) timeout: Duration,
    pub(crate) world: Option<World>,
    /// Where the snapshots of other ranks are kept, with a recovery.
    pub(crate) backups: Option<Arc<Backups>>,
    /// Of stages that have their parameters only while they run.
    pub(crate) streamed: Option<(StreamedOptions, SharedPasses)>,
}

/// What the ranks of a model are started with, for any of its plans.
#[derive(Clone)]
pub(crate) struct Launch {
    /// The parameters of the model.
    pub(crate) table: Arc<ParameterTable>,
    /// The graph of the example that was traced.
    pub(crate) example: Arc<JointGraph>,
    /// Where parameters come from.
    pub(crate) source: Arc<dyn Source>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) options: Options,
    /// The schedule; without one, the plan's.
    pub(crate) schedule: Option<ScheduleChoice>,
    pub(crate) ranks: RankOptions,
}

impl Launch {
    /// Checks that the ranks of a plan can run, and returns its programs.
    pub(crate) fn prepare(&self, plan: &Plan) -> Result<Programs> {
        let replicas = plan.replica_count();
        let settings = Settings {
            replicas,
            ..(*self.settings).clone()
        };
        check_replicas(&settings)?;
        let mut layout = plan.layout(&self.table)?;
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
        let schedule = self.schedule.clone().unwrap_or_else(|| plan.schedule());
        let micro_batches = self.options.micro_batches;
        if micro_batches < replicas {
            return Err(StartError::IdleReplicas {
                replicas,
                micro_batches,
            }
            .into());
        }
        let (example, settings) = (self.example.clone(), Arc::new(settings));
        let layout = Arc::new(layout);
        let programs = Programs::new(example, layout, schedule, settings, &self.options);
        if programs.settings.optimizers.is_some() {
            programs.check_schedule(micro_batches)?;
        }
        Ok(programs)
    }

    /// Starts the ranks of a plan; each materializes only its own parameters. Links of one process may be wrapped.
    pub(crate) fn start(&self, plan: Plan, wrap: Option<&Wrap>) -> Result<Driver> {
        let programs = self.prepare(&plan)?;
        let mut driver = Driver {
            ranks: self.start_ranks(&plan, &programs, wrap)?,
            plan,
            table: self.table.clone(),
            options: self.options,
            settings: programs.settings.clone(),
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
        // Nobody trains before all can.
        driver.ranks.agree(None)?;
        Ok(driver)
    }

    /// Checks that the source has the parameters of the model. Reads none.
    pub(crate) fn check_source(&self) -> Result<(), StartError> {
        let (table, rank) = (&self.table, RankIndex::new(0));
        let device = device_of(rank, &self.ranks.devices);
        let requests = table.distinct();
        let requests = requests.map(|parameter| Request::of(table, parameter, device));
        let checked = self.source.check(table, &requests.collect::<Vec<_>>());
        checked.map_err(|source| StartError::Materialize {
            rank,
            source: source.into(),
        })
    }

    /// What a rank is set up with, on one of some devices.
    pub(crate) fn setup(
        &self,
        programs: &Programs,
        rank: RankIndex,
        devices: &[Device],
    ) -> RankSetup {
        let (replica, place) = programs.layout.place_of(rank);
        RankSetup {
            rank,
            replica,
            place,
            layout: programs.layout.clone(),
            table: self.table.clone(),
            device: device_of(rank, devices).clone(),
            settings: programs.settings.clone(),
            progress: Arc::default(),
            abort: Abort::default(),
            streamed: None,
        }
    }

    /// Starts the threads of the ranks of this process.
    fn start_ranks(
        &self,
        plan: &Plan,
        programs: &Programs,
        wrap: Option<&Wrap>,
    ) -> Result<Box<dyn Ranks>> {
        let RankOptions {
            devices, backups, ..
        } = &self.ranks;
        let (world, streamed) = (self.ranks.world.as_ref(), self.ranks.streamed.as_ref());
        let ranks = plan.world_size();
        let processes = world.map_or(ranks, World::size);
        // Those beyond the plan's wait until another one is lost.
        if processes < ranks || (processes > ranks && backups.is_none()) {
            return Err(StartError::WorldSize { ranks, processes }.into());
        }
        // The ranks of this process, and their devices.
        let (own, devices) = match world {
            None => (0..ranks, devices.clone()),
            Some(world) => {
                let (own, local) = (world.rank().index(), world.local());
                let device = device_of(RankIndex::new(local.rank), devices).clone();
                (own.min(ranks)..(own + 1).min(ranks), vec![device])
            }
        };
        let (layout, settings) = (&programs.layout, &programs.settings);
        if streamed.is_none() {
            let own = world.map(World::rank);
            check_capacity(layout, &self.example, &devices, own, settings)?;
        }
        let of_streamed = streamed.map(|(options, _)| {
            let (parameters, graphs) = ((&*self.table, &devices[0]), (&**layout, &*self.example));
            Arc::new(StreamedSetup::new(options, parameters, graphs, settings))
        });
        let abort = Abort::default();
        let setups = own.map(|rank| RankSetup {
            abort: abort.clone(),
            streamed: of_streamed.clone(),
            ..self.setup(programs, RankIndex::new(rank), &devices)
        });
        let shared = cores::threads(world, ranks)?;
        let start = Start {
            setups: setups.collect(),
            source: self.source.clone(),
            threads_per_rank: self.ranks.threads_per_rank.unwrap_or(shared),
            timeout: self.ranks.timeout,
            wrap,
            abort,
        };
        Ok(match (world, streamed) {
            // A streamed pipeline has no world.
            (_, Some((_, passes))) => {
                Box::new(StreamingRank::new(Threads::new(start)?, passes.clone()))
            }
            (Some(world), None) => Box::new(Processes::new(start, world, backups.clone())?),
            (None, None) => Box::new(Threads::new(start)?),
        })
    }
}

/// Checks that gradients can be summed in an order that does not depend on the number of replicas.
fn check_replicas(settings: &Settings) -> Result<(), StartError> {
    let (replicas, sum) = (settings.replicas, settings.sum);
    if !replicas.is_power_of_two() {
        return Err(StartError::Replicas { replicas });
    }
    let groups = sum.groups();
    let is_kept = groups.is_power_of_two() && groups.is_multiple_of(replicas);
    is_kept
        .then_some(())
        .ok_or(StartError::Sum { sum, replicas })
}
