//! With dropout a pipeline computes the same as the uncut joint graph: masks depend on seed, step,
//! micro-batch and operation, never on the number of stages or the schedule.

use crate::models::{Case, LanguageModel, Mlp, SAMPLES, deferred};
use crate::parity::{assert_same, check_every_cut, micro_batches};
use crate::{plain, uncut};

fn check<C: Case>(case: C, without_dropout: impl Case) {
    let model = deferred(&case);
    for count in [1, 2, 5, SAMPLES] {
        let expected = uncut::train(&case, &model, &micro_batches(&case, count));
        let without = uncut::train(
            &without_dropout,
            &deferred(&without_dropout),
            &micro_batches(&without_dropout, count),
        );
        assert_ne!(expected.losses, without.losses, "the masks do something");
        check_every_cut(&case, &model, count, &expected);
    }
}

#[test]
fn multilayer_perceptron() {
    check(Mlp::<30>, Mlp::<0>);
}

#[test]
fn language_model() {
    check(LanguageModel::<30>, LanguageModel::<0>);
}

/// Without dropout, the reference of these tests equals plain Burn.
#[test]
fn the_uncut_graph_is_plain_burn_without_dropout() {
    let case = LanguageModel::<0>;
    let model = deferred(&case);
    let parts = micro_batches(&case, 3);
    let found = uncut::train(&case, &model, &parts);
    let expected = plain::train(&case, &model, &parts);
    assert_same(&found, &expected, "uncut");
}
