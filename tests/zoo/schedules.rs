//! Batch norm under every schedule.

use burn::module::Module;
use burn::optim::AdamWConfig;
use tinderbox::{Batch, Deferred, Machine, Pipeline, ScheduleKind};
use tinderbox_models::split::Split;
use tinderbox_models::zoo::check::{Run, SEED, plain, traced, train_and_finish};
use tinderbox_models::zoo::{self, Entry, Visit};

/// Trains a model under every schedule that fits 1 to 4 stages, with 1 and 4 micro-batches.
#[derive(Default)]
struct EverySchedule {
    /// The schedules that were run.
    schedules: Vec<ScheduleKind>,
    differences: Vec<String>,
}

impl Visit for EverySchedule {
    fn visit<M: Module + Sync + 'static, B: Batch + Split>(&mut self, entry: Entry<M, B>) {
        let model = Deferred::new(entry.init).unwrap();
        for micro_batches in [1, 4] {
            let trace = traced(entry, &model, micro_batches);
            let expected = plain(entry, &model, micro_batches);
            for kind in ScheduleKind::ALL {
                for (ranks, chunks) in [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2)] {
                    if !kind.chunks().contains(chunks) {
                        continue;
                    }
                    let machine = Machine::local(ranks).unwrap();
                    let machine = machine.with_chunks(chunks, kind.placement()).unwrap();
                    let plan = trace.plan(&machine).unwrap();
                    let pipeline = Pipeline::builder(&model, &trace, &plan)
                        .optimizer(AdamWConfig::new())
                        .schedule(kind)
                        .seed(SEED)
                        .start()
                        .unwrap();
                    let mut found = Run::default();
                    train_and_finish(pipeline, entry, &mut found);
                    if let Some(difference) = found.difference(&expected) {
                        self.differences.push(format!(
                            "{kind}, {ranks} ranks of {chunks}, {micro_batches} micro-batches: {difference}"
                        ));
                    }
                    self.schedules.push(kind);
                }
            }
        }
    }
}

fn check(name: &str) {
    let mut every = EverySchedule::default();
    zoo::visit(name, &mut every);
    assert_eq!(every.differences, Vec::<String>::new());
    for kind in ScheduleKind::ALL {
        assert!(every.schedules.contains(&kind), "{kind}");
    }
}

#[test]
fn mnist_under_every_schedule() {
    check("mnist");
}

#[test]
fn resnet_18_under_every_schedule() {
    check("resnet_18");
}

#[test]
fn unet_under_every_schedule() {
    check("unet");
}
