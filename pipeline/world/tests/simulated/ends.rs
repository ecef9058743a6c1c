//! Processes end at different times, while others fail: no process waits for long.

use std::sync::Arc;
use std::time::Duration;

use tinderbox_engines::{Simulated, SimulatedNet};
use tinderbox_simulation::Random;
use tinderbox_world::World;

use crate::faults::{Faults, Kind, Phase, Table, simulated};
use crate::survivors::{on_all_cores, options, seeds, world};

/// Makes some calls, and leaves some time after the last one, or at the first failure. Returns the failure.
fn leave(world: World, net: &SimulatedNet, faults: &Arc<Faults>) -> Option<String> {
    let (own, simulation) = (world.rank(), simulated());
    if own.index() == 0 {
        faults.begin(net);
    }
    let mut failure = None;
    for _ in 0..4 {
        faults.enter(own, Phase::Work, net);
        simulation.sleep(simulation.random_time(Duration::from_millis(50)));
        faults.enter(own, Phase::Call, net);
        if let Err(error) = world.barrier() {
            failure = Some(error.to_string());
            break;
        }
    }
    faults.enter(own, Phase::Work, net);
    simulation.sleep(simulation.random_time(Duration::from_millis(300)));
    faults.enter(own, Phase::Leave, net);
    failure = failure.or_else(|| world.failure().map(|failure| failure.to_string()));
    drop(world);
    faults.enter(own, Phase::Over, net);
    failure
}

/// Runs some seeds, and returns the faults that happened.
fn check(seeds: impl Iterator<Item = u64>) -> Table {
    let mut table = Table::default();
    for seed in seeds {
        let mut random = Random::new(seed);
        let (size, delays) = world(seed, &mut random);
        let end = Duration::from_millis(600);
        let faults = Arc::new(Faults::plan(size, end, Phase::Leave, &mut random));
        let ran = Simulated::run(size, delays, &options(), |world, net| {
            leave(world, net, &faults)
        });
        let (failures, report) = ran.unwrap_or_else(|error| panic!("{error}"));
        let describe = || {
            format!(
                "seed {seed}\n  {}\n{failures:?}",
                faults.history().join("\n  ")
            )
        };
        assert!(report.elapsed < Duration::from_secs(10), "{}", describe());
        let harms = faults.harms();
        if !harms
            .iter()
            .any(|harm| harm.is_killed || harm.may_be_given_up)
        {
            // An end is not a failure.
            assert!(failures.iter().all(Option::is_none), "{}", describe());
        }
        faults.count(&mut table);
    }
    table
}

#[test]
fn processes_that_leave_do_not_wait_for_lost_ones() {
    let mut table = Table::default();
    for of_core in on_all_cores(&seeds(2500), check) {
        table.add(&of_core);
    }
    println!("{table}");
    let kinds = [Kind::Kill, Kind::Pause, Kind::Slow, Kind::Cut];
    if seeds(2500).end >= 2500 {
        table.check(&kinds, &[Phase::Work, Phase::Call, Phase::Leave]);
    }
}
