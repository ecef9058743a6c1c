//! The engine passes the conformance suite of all engines.

use std::time::Duration;

use tinderbox_engines::Simulated;
use tinderbox_simulation::Simulation;
use tinderbox_world::Engine;
use tinderbox_world::testing::check_engine;

#[test]
fn simulated_processes() {
    for (seed, size) in (0..).zip([1, 2, 3, 4]) {
        let mut simulation = Simulation::new(seed);
        let most = Duration::from_millis(seed);
        let (engines, net) = Simulated::world(&simulation.handle(), size, most);
        for engine in engines {
            let rank = engine.rank();
            simulation.start(net.process(rank), format!("rank-{rank}"), || {
                check_engine(Box::new(engine)).unwrap();
            });
        }
        simulation.run().unwrap();
    }
}
