//! With dropout a pipeline computes what the uncut joint graph computes: masks depend on seed, step,
//! micro-batch and operation, never on the number of stages or the schedule.

use tinderbox::{Deferred, ScheduleKind};

use crate::models::{Case, LanguageModel, Mlp, SAMPLES};
use crate::parity::{assert_same, micro_batches, pipeline_run};
use crate::{plain, uncut};

fn check<C: Case, WithoutDropout: Case<Model = C::Model, Batch = C::Batch>>() {
    let model = Deferred::new(C::init).unwrap();
    for count in [1, 3, SAMPLES] {
        let expected = uncut::train::<C>(&model, &micro_batches::<C>(count));
        let without = uncut::train::<WithoutDropout>(
            &Deferred::new(WithoutDropout::init).unwrap(),
            &micro_batches::<WithoutDropout>(count),
        );
        assert_ne!(expected.losses, without.losses, "the masks do something");
        for stages in 1..=5 {
            for schedule in [ScheduleKind::GPipe, ScheduleKind::OneFOneB] {
                let found = pipeline_run::<C>(&model, stages, schedule, count);
                let what = format!("{stages} stages, {schedule}, {count} micro-batches");
                assert_same(&found, &expected, &what);
            }
        }
    }
}

#[test]
fn multilayer_perceptron() {
    check::<Mlp<30>, Mlp<0>>();
}

#[test]
fn language_model() {
    check::<LanguageModel<30>, LanguageModel<0>>();
}

/// The reference of these tests is itself plain Burn where there is no dropout.
#[test]
fn the_uncut_graph_is_plain_burn_without_dropout() {
    type C = LanguageModel<0>;
    let model = Deferred::new(C::init).unwrap();
    let found = uncut::train::<C>(&model, &micro_batches::<C>(3));
    let expected = plain::train::<C>(&model, &micro_batches::<C>(3));
    assert_same(&found, &expected, "uncut");
}
