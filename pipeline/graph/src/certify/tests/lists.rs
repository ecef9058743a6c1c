//! Every schedule, and mutations of lists.

use super::models::{Model, example, tied, trace_with_dropout, with_dropout};
use super::{certified, lowered, phase, programs, run, run_each, text};
use crate::CertifyError;
use crate::certify::{CertifiedStep, certify_lists, certify_programs};
use crate::cut::StagePrograms;
use crate::lists::StepLists;
use crate::schedule::{
    Action, Compute, Dependencies, Message, RankIndex, Schedule, ScheduleKind, forward_only_on,
    lower,
};
use crate::sum::Groups;
use tinderbox_fake::Mode;

const MICRO_BATCHES: usize = 5;

#[test]
fn every_schedule_is_certified() {
    let mut certified = 0;
    for (ranks, chunks) in (1..=4).flat_map(|ranks| [(ranks, 1), (ranks, 2)]) {
        for model in [with_dropout(ranks * chunks), tied(ranks * chunks)] {
            for recompute in [false, true] {
                let stages = programs(&model, &model.joint, recompute);
                let kinds = ScheduleKind::ALL.into_iter();
                for kind in kinds.filter(|kind| kind.chunks().contains(chunks)) {
                    let compute = kind.generate(ranks, chunks, MICRO_BATCHES).unwrap();
                    for norm in [false, true] {
                        let lists = lowered(&model, &stages, &compute, norm);
                        let done = run(&model, &stages, &lists, norm);
                        done.unwrap_or_else(|error| {
                            panic!("{} {kind} on {ranks} ranks: {}", model.name, text(&error))
                        });
                        certified += 1;
                    }
                }
            }
        }
    }
    // Seven kinds use one chunk, seven use two; two models, kept or recomputed, with a norm or without.
    assert_eq!(certified, 4 * 14 * 2 * 2 * 2);
}

/// Two replicas whose sums are joined in another order than on one rank.
#[test]
fn other_orders_of_replicas_are_refused() {
    let model = tied(2);
    let stages = programs(&model, &model.joint, false);
    let programs = certified(&model, &stages).unwrap();
    let edges = stages.iter().flat_map(|stage| stage.sends.keys().copied());
    let dependencies = Dependencies::new(2, edges, model.layout.ties()).with_replicas();
    let compute = ScheduleKind::ZbH1.generate(2, 1, 2).unwrap();
    let lists = StepLists::of(lower(&compute, &dependencies));
    let certify = |firsts: [usize; 2]| {
        let micro_batches = vec![&programs; 4];
        certify_lists(&CertifiedStep {
            replicas: firsts.map(|first| (&lists, first)).to_vec(),
            groups: Groups {
                micro_batches: 4,
                groups: 2,
            },
            micro_batches,
            table: model.joint.table(),
            layout: &model.layout,
            global_norm: false,
        })
    };
    certify([0, 2]).unwrap();
    let error = certify([2, 0]).unwrap_err();
    assert!(matches!(error, CertifyError::SumOrder { .. }), "{error}");
    insta::assert_snapshot!(text(&error), @"the gradient of `embed.weight` is summed in another order than 2 groups of micro-batches by 2 replicas");
}

/// The last micro-batch has fewer samples; an evaluation has only forwards.
#[test]
fn other_shapes_and_modes_are_certified() {
    let model = with_dropout(3);
    let trace = trace_with_dropout();
    let of = |mode, samples| {
        let joint = trace.program(mode, &example(samples)).unwrap();
        let stages = programs(&model, &joint, false);
        let certified = certify_programs(&joint, stages.clone(), &model.layout.ranks);
        (stages, certified.unwrap())
    };
    let (whole, short) = (of(Mode::Training, 2), of(Mode::Training, 1));
    let compute = ScheduleKind::ZbH1.generate(3, 1, 3).unwrap();
    let lists = lowered(&model, &whole.0, &compute, false);
    run_each(&model, vec![&whole.1, &whole.1, &short.1], &lists, false).unwrap();

    let evaluation = of(Mode::Inference, 2);
    let ranks = [0, 1, 2].map(RankIndex::new);
    let lists = lowered(&model, &evaluation.0, &forward_only_on(&ranks, 2), false);
    run_each(&model, vec![&evaluation.1; 2], &lists, false).unwrap();
}

/// A schedule as text, with a change to its lowered lists.
struct Case {
    model: Model,
    stages: Vec<StagePrograms>,
    lists: Schedule,
}

impl Case {
    fn new(model: Model, compute: &str) -> Self {
        let stages = programs(&model, &model.joint, false);
        let compute = Schedule::parse("case", compute).unwrap();
        let lists = lowered(&model, &stages, &compute, false);
        run(&model, &stages, &lists, false).unwrap();
        Self {
            model,
            stages,
            lists,
        }
    }

    fn refused(&self) -> String {
        text(&run(&self.model, &self.stages, &self.lists, false).unwrap_err())
    }

    fn place(&self, rank: usize, action: &str) -> usize {
        let action: Action = action.parse().unwrap();
        let mut actions = self.lists.ranks[rank].iter();
        let found = actions.position(|known| *known == action);
        found.unwrap_or_else(|| panic!("no {action} in {}", self.lists))
    }

    fn swap(&mut self, rank: usize, first: &str, second: &str) {
        let (first, second) = (self.place(rank, first), self.place(rank, second));
        assert_ne!(first, second);
        self.lists.ranks[rank].swap(first, second);
    }

    fn remove(&mut self, rank: usize, action: &str) {
        let place = self.place(rank, action);
        self.lists.ranks[rank].remove(place);
    }
}

const GPIPE: &str = "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1";
const SPLIT: &str = "0F0 0F1 0I0 0I1 0W0 0W1\n1F0 1F1 1I0 1I1 1W0 1W1";

#[test]
fn the_wrong_micro_batch_is_sent() {
    let mut case = Case::new(with_dropout(2), GPIPE);
    case.swap(0, "0F0>1F0", "0F1>1F1");
    insta::assert_snapshot!(case.refused(), @"rank 0, stage 0, micro-batch 1, action 0F1>1F1: found nothing, expected %46 of micro-batch 1");
    // Sender and receiver agree on the wrong one.
    let mut case = Case::new(with_dropout(2), GPIPE);
    case.swap(0, "0F0", "0F1");
    case.swap(0, "0F0>1F0", "0F1>1F1");
    case.swap(1, "1F0<0F0", "1F1<0F1");
    insta::assert_snapshot!(case.refused(), @"rank 1, stage 1, micro-batch 0, action 1F0: found nothing, expected %46 of micro-batch 0");
}

/// The values of a message arrive in another order than they leave.
#[test]
fn a_message_in_another_order() {
    let mut case = Case::new(tied(2), GPIPE);
    // The gradient of the sent value, and the gradient of the shared parameter.
    let receives = case.stages[0].receives.values_mut();
    let mut messages = receives.filter(|values| values.len() > 1);
    messages.next().unwrap().swap(0, 1);
    insta::assert_snapshot!(case.refused(), @"rank 0, stage 0, micro-batch 0, action 0B0<1B0: found %69 of micro-batch 0, expected %91 of micro-batch 0");
}

#[test]
fn a_micro_batch_is_missing_in_a_sum() {
    let mut case = Case::new(with_dropout(1), "0F0 0F1 0B0 0B1");
    case.remove(0, "0B1");
    insta::assert_snapshot!(case.refused(), @"rank 0, stage 0, action 0R0: the gradient of `layers.0.weight` adds nothing, expected micro-batch 1");
}

/// The gradients of all micro-batches exist, but are added in another order.
#[test]
fn micro_batches_are_added_in_another_order() {
    let mut case = Case::new(with_dropout(1), "0F0 0F1 0B0 0B1");
    case.swap(0, "0B0", "0B1");
    insta::assert_snapshot!(case.refused(), @"rank 0, stage 0, micro-batch 1, action 0B1: the gradient of `layers.0.weight` adds micro-batch 1, expected micro-batch 0");
}

#[test]
fn the_halves_of_a_backward_are_exchanged() {
    let mut case = Case::new(with_dropout(2), SPLIT);
    case.swap(1, "1I0", "1W0");
    insta::assert_snapshot!(case.refused(), @"rank 1, stage 1, micro-batch 0, action 1W0: found nothing, expected %86 of micro-batch 0");

    // The programs are swapped; each computes its own outputs.
    let mut case = Case::new(with_dropout(2), SPLIT);
    let [input, weight] = [Compute::InputGradient, Compute::WeightGradient].map(Compute::slot);
    case.stages[1].phases.swap(input, weight);
    insta::assert_snapshot!(case.refused(), @"rank 1, stage 1, micro-batch 0, action 1I0: found nothing, expected %86 of micro-batch 0");
}

#[test]
fn a_missing_message_of_a_shared_parameter() {
    let mut case = Case::new(tied(2), GPIPE);
    case.remove(0, "0U>1U");
    insta::assert_snapshot!(case.refused(), @"rank 1, stage 1, action 1U<0U: found no such message, expected a message that is sent");
    case.remove(1, "1U<0U");
    insta::assert_snapshot!(case.refused(), @"rank 1, stage 1, end of the step: `embed.weight` is its value before the update, expected its value after the update");
    // The message comes before the update.
    let mut case = Case::new(tied(2), GPIPE);
    case.swap(0, "0U", "0U>1U");
    insta::assert_snapshot!(case.refused(), @"rank 1, stage 1, end of the step: `embed.weight` is its value before the update, expected its value after the update");
}

#[test]
fn an_update_before_the_last_use() {
    let mut case = Case::new(with_dropout(1), "0F0 0F1 0B0 0B1");
    case.swap(0, "0B1", "0U");
    insta::assert_snapshot!(case.refused(), @"rank 0, stage 0, action 0U: the gradient of `layers.0.weight` adds nothing, expected micro-batch 1");
}

#[test]
fn a_norm_before_its_gradients_are_complete() {
    let model = with_dropout(2);
    let stages = programs(&model, &model.joint, false);
    let compute = Schedule::parse("case", GPIPE).unwrap();
    let mut lists = lowered(&model, &stages, &compute, true);
    run(&model, &stages, &lists, true).unwrap();
    let is_norm = |action: &Action| matches!(action, Action::Receive(Message::Norm { .. }));
    let place = lists.ranks[1].iter().position(is_norm).unwrap();
    lists.ranks[1].remove(place);
    let error = run(&model, &stages, &lists, true).unwrap_err();
    insta::assert_snapshot!(text(&error), @"rank 1, stage 1, action 1U: found no norms, expected the norms of stage 0");
}

/// A value that the programs keep for a use that never happens.
#[test]
fn an_unused_value() {
    let mut case = Case::new(with_dropout(2), GPIPE);
    let outputs = &mut phase(&mut case.stages[0], Compute::Forward).outputs;
    outputs[0].1.whole += 1;
    insta::assert_snapshot!(case.refused(), @"rank 0, stage 0, micro-batch 0, end of the step: found %21 with 1 uses left, expected no value that is still kept");
}

#[test]
fn a_loss_that_is_reported_twice_or_never() {
    let mut case = Case::new(with_dropout(2), GPIPE);
    case.stages[1].outputs.clear();
    let value = case.model.joint.outputs()[0].1;
    for output in &mut phase(&mut case.stages[1], Compute::Forward).outputs {
        if output.0 == value {
            output.1.whole -= 1;
        }
    }
    insta::assert_snapshot!(case.refused(), @"output `y` of micro-batch 0 is reported 0 times, expected 1");
}
