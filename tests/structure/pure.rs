//! What a graph, a schedule or a plan is follows from its arguments alone: their crates have no threads and no clock.

use crate::source::Crate;

const PURE: [&str; 3] = ["pipeline/schedule", "pipeline/planner", "pipeline/graph"];

/// What is not pure, as the end of a path.
const IMPURE: [[&str; 2]; 6] = [
    ["std", "thread"],
    ["time", "Instant"],
    ["time", "SystemTime"],
    ["sync", "Condvar"],
    ["sync", "mpsc"],
    ["parking_lot", "Condvar"],
];

/// Crates of threads and processes.
const OF_THREADS: [&str; 3] = ["rayon", "crossbeam_channel", "tinderbox_world"];

#[test]
fn graphs_schedules_and_plans_have_no_threads_and_no_clock() {
    for name in PURE {
        for module in Crate::read(name).modules.values() {
            let imports = module.imports.values().map(|(path, _)| path);
            for path in imports.chain(&module.globs).chain(&module.named) {
                let mut pairs = path.windows(2);
                let is_impure = pairs.any(|pair| IMPURE.iter().any(|impure| impure == pair));
                let is_of_threads = OF_THREADS.contains(&path[0].as_str());
                assert!(
                    !is_impure && !is_of_threads,
                    "{}: {path:?}",
                    module.file.display()
                );
            }
        }
    }
}
