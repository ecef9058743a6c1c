//! The executed plans of every partitioner produce the results of plain Burn.

use burn::tensor::Device;
use tinderbox::error::PlanError;
use tinderbox::pipeline::ScheduleChoice;
use tinderbox::planner::{Partitioner, PlannerError};
use tinderbox::{Machine, Pipeline, Planner, ScheduleKind};

use crate::branches::{EncoderDecoder, Experts, ResNet, SkipNet};
use crate::models::{Case, LanguageModel, Mlp, StraightThrough, Tied, UNet, deferred, trace};
use crate::parity::{assert_same, micro_batches, run};
use crate::plain::{SEED, train};

/// Runs every built-in partitioner for two and three ranks, under schedules with whole and with split
/// backwards. Returns the number of executed plans.
fn check<C: Case>(case: C) -> usize {
    const MICRO_BATCHES: usize = 4;
    let model = deferred(&case);
    let trace = trace(&case, &model, MICRO_BATCHES);
    let expected = train(&case, &model, &micro_batches(&case, MICRO_BATCHES));
    let (mut executed, mut evaluated) = (0, None);
    for (ranks, schedule) in [(2, ScheduleKind::OneFOneB), (3, ScheduleKind::ZbH1)] {
        let machine = Machine::local(ranks).unwrap();
        for partitioner in Partitioner::ALL {
            let planner = Planner::new(&trace, &machine)
                .schedule(schedule)
                .partitioner(partitioner);
            let plan = match planner.plan() {
                Err(PlanError::Planner(PlannerError::NotBuiltIn { feature, .. })) => {
                    assert_eq!((feature, cfg!(feature = "metis")), ("metis", false));
                    continue;
                }
                plan => plan.unwrap(),
            };
            assert_eq!(plan.ranks(), ranks, "{partitioner}");
            let what = format!("{partitioner} on {ranks} ranks");
            let found = run(&case, &model, &trace, &plan, ScheduleChoice::of(&plan));
            assert_same(&found, &expected, &what);
            // Without dropout and gradients the forward has other operations, which are assigned to the
            // owners of parameters.
            let mut pipeline = Pipeline::builder(&model, &trace, &plan)
                .seed(SEED)
                .start()
                .unwrap();
            let loss = pipeline
                .evaluate(case.batch(0, &Device::flex()))
                .unwrap()
                .loss;
            assert_eq!(loss, *evaluated.get_or_insert(loss), "{what}");
            executed += 1;
        }
    }
    executed
}

#[test]
fn plans_of_lines() {
    // Mixed, chain and auto for two schedules; METIS if it is built in.
    assert!(check(Mlp::<0>) >= 6);
    check(LanguageModel::<0>);
    check(StraightThrough);
}

#[test]
fn plans_of_skips_and_ties() {
    check(UNet);
    check(Tied);
}

#[test]
fn plans_of_branches() {
    check(EncoderDecoder);
    check(Experts);
    check(ResNet);
    check(SkipNet);
}
