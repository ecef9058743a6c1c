//! Links on which sends wait.

use tinderbox_references::settings;
use tinderbox_schedule::{LinkModel, ScheduleKind, simulate};

/// Unequal stages and latencies: the mean time of named schedules on links that wait, as a multiple of that on links
/// without a limit.
#[test]
fn unequal_stages_wait_for_each_other() {
    for (link, expected) in [
        ("messages:1", 1.04),
        ("messages:2", 1.02),
        ("bytes:3", 1.01),
        ("rendezvous", 1.2),
        ("queue", 1.12),
    ] {
        let link: LinkModel = link.parse().unwrap();
        let mut ratios = Vec::new();
        for mut setting in settings() {
            let ranks = setting.stage_to_rank.iter().max().unwrap().index() + 1;
            let chunks = setting.dependencies.stages() / ranks;
            let named = ScheduleKind::ALL.into_iter().filter_map(|kind| {
                let schedule = kind.generate(ranks, chunks, setting.micro_batches).ok()?;
                (schedule.stage_to_rank == setting.stage_to_rank).then_some(schedule)
            });
            for schedule in named {
                let [unbounded, waiting] = [LinkModel::Unbounded, link].map(|link| {
                    setting.costs.link.model = link;
                    let step = simulate(&schedule, &setting.dependencies, &setting.costs);
                    step.unwrap().makespan() as f64
                });
                ratios.push(waiting / unbounded);
            }
        }
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        assert!(mean < expected, "{link}: {mean}");
        assert!(ratios.len() > 900, "{}", ratios.len());
    }
}
