//! The texts of errors, one list per kind of fault.

use super::{RankIndex, rich, stage};
use crate::{
    Dependencies, Edge, Endpoint, Form, Schedule, ScheduleMode, Tie, VerifyError, gpipe, verify,
};

/// Returns the error of two stages on a chain.
fn refusal(text: &str) -> String {
    refusal_with(text, Dependencies::chain)
}

/// Returns the error with other dependencies.
fn refusal_with(text: &str, dependencies: fn(usize) -> Dependencies) -> String {
    let schedule = Schedule::parse("bad", text).unwrap();
    let found = verify(&schedule, &dependencies(schedule.stages));
    found.unwrap_err().to_string()
}

/// Returns the error after changes that a text cannot express.
fn refusal_of(change: impl FnOnce(&mut Schedule), dependencies: &Dependencies) -> String {
    let mut schedule = gpipe(2, 1);
    change(&mut schedule);
    verify(&schedule, dependencies).unwrap_err().to_string()
}

#[test]
fn counts_and_maps() {
    let chain = Dependencies::chain(2);
    let edge = Edge::new(Endpoint::forward(stage(1)), Endpoint::backward(stage(1)));
    let (owner, copy) = (stage(0), stage(9));
    let tie = Tie { owner, copy };
    let texts = [
        refusal_of(|s| s.micro_batches = 0, &chain),
        refusal_of(|s| s.stage_to_rank.truncate(1), &chain),
        refusal_of(|s| s.stage_to_rank[1] = RankIndex::new(7), &chain),
        refusal_of(|_| (), &Dependencies::chain(3)),
        refusal_of(|_| (), &Dependencies::new(2, [edge], [])),
        refusal_of(|_| (), &Dependencies::new(2, [], [tie])),
        refusal_of(|s| s.mode = ScheduleMode::ForwardOnly, &chain),
    ];
    insta::assert_snapshot!(texts.join("\n"), @r"
    a schedule of 2 stages and 0 micro-batches has nothing to run: give it at least one of each
    the stage-to-rank map has 1 entries for 2 stages: give one per stage
    stage 1 is on rank 7, but there are lists for 2 ranks: add the list or correct the stage-to-rank map
    the dependencies have 3 stages, the schedule has 2: use both from one plan
    invalid edge `1F>1B`: an edge joins two of the 2 stages
    invalid tie `0U>9U`: a tie joins two of the 2 stages
    `0B0` (rank 0, position 1) is not allowed in a forward-only schedule that is compute only: remove it
    ");
}

#[test]
fn actions_out_of_place() {
    let with = |word: &str| {
        let action = word.parse().unwrap();
        refusal_of(|s| s.ranks[1].push(action), &Dependencies::chain(2))
    };
    let texts = [
        refusal("0F0 0B0 1F0\n1B0"),
        refusal("0F0 0F0 0B0\n1F0 1B0"),
        refusal("0F0 0B0\n1F0"),
        refusal("0F0 0I0\n1F0 1B0"),
        refusal("0F0 0I0 0B0 0W0\n1F0 1B0"),
        with("1F1"),
        with("1U"),
    ];
    insta::assert_snapshot!(texts.join("\n"), @r"
    `1B0` (rank 1, position 0) belongs on rank 0, which runs its stage: move it there
    `0F0` (rank 0, position 1) is already at position 0: remove one of them
    rank 1 lacks `1B0`: add it to the list
    rank 0 lacks `0W0`: add it to the list
    `0I0` (rank 0, position 1) repeats a part of `0B0` (rank 0, position 2): keep `B`, or `I` and `W`
    `1F1` (rank 1, position 2) is beyond the schedule's 2 stages and 1 micro-batches: remove it or raise the count
    `1U` (rank 1, position 2) is not allowed in a training schedule that is compute only: remove it
    ");
}

#[test]
fn order_on_one_rank() {
    let texts = [
        refusal("0B0 0F0\n1F0 1B0"),
        refusal("0F0 0W0 0I0\n1F0 1B0"),
        refusal("1F0 0F0 1B0 0B0"),
        refusal("0F0 0F1 0B1 0B0\n1F0 1B0 1F1 1B1"),
    ];
    insta::assert_snapshot!(texts.join("\n"), @r"
    `0B0` (rank 0, position 0) is before `0F0` (rank 0, position 1): a backward reads what its own forward kept; move the first after the second
    `0W0` (rank 0, position 1) is before `0I0` (rank 0, position 2): a weight gradient reads what its input gradient kept; move the first after the second
    `1F0` (rank 0, position 0) is before `0F0` (rank 0, position 1): it reads values that the other computes; move the first after the second
    `0B1` (rank 0, position 2) is before `0B0` (rank 0, position 3): a stage adds its gradients in micro-batch order, so that every schedule gives the same bits; move the first after the second, or number the micro-batches in the order of the backwards, which must be the same on all stages
    ");
}

/// The lowered list of two stages and one micro-batch, with one word replaced or moved.
#[test]
fn messages_and_updates() {
    let first = "0F0 0F0>1F0 0B0<1B0 0B0 0R0 0U";
    let second = "1F0<0F0 1F0 1B0 1B0>0B0 1R1 1U";
    let good = Schedule::parse("good", &format!("{first}\n{second}")).unwrap();
    assert_eq!(verify(&good, &Dependencies::chain(2)), Ok(()));
    let texts = [
        refusal(&format!("0F0 0B0<1B0 0B0 0R0 0U\n{second}")),
        refusal(&format!("{first}\n1F0 1B0 1B0>0B0 1R1 1U")),
        refusal(&format!("{first} 0F0>1B0\n{second}")),
        refusal(&format!("0F0>1F0 0F0 0B0<1B0 0B0 0R0 0U\n{second}")),
        refusal(&format!("{first}\n1F0 1F0<0F0 1B0 1B0>0B0 1R1 1U")),
        refusal(&format!("0F0 0F0>1F0 0B0<1B0 0U 0B0 0R0\n{second}")),
        refusal(&format!("0F0 0F0>1F0 0B0<1B0 0R0 0B0 0U\n{second}")),
        refusal(&format!("0F0 0F0>1F0 0B0<1B0 0B0 0U 0R0\n{second}")),
    ];
    insta::assert_snapshot!(texts.join("\n"), @r"
    `1F0<0F0` (rank 1, position 0) has no counterpart: rank 0 lacks `0F0>1F0`; add it or lower again
    `0F0>1F0` (rank 0, position 1) has no counterpart: rank 1 lacks `1F0<0F0`; add it or lower again
    `0F0>1B0` (rank 0, position 6) is not a message of this plan: remove it, or lower the schedule with the plan's dependencies
    `0F0>1F0` (rank 0, position 0) is before `0F0` (rank 0, position 1): values are sent after they are computed; move the first after the second
    `1F0` (rank 1, position 0) is before `1F0<0F0` (rank 1, position 1): values are received before they are read; move the first after the second
    `0U` (rank 0, position 3) is before `0B0` (rank 0, position 4): parameters are updated after the last backward; move the first after the second
    `0R0` (rank 0, position 3) is before `0B0` (rank 0, position 4): gradients are reduced after the last backward; move the first after the second
    `0U` (rank 0, position 4) is before `0R0` (rank 0, position 5): parameters are updated after their gradients are reduced; move the first after the second
    ");
}

#[test]
fn ties() {
    let refuse = |text: &str| refusal_with(text, rich);
    let first = "0F0 0F0>1F0 0F0>1B0 0B0<1B0 0B0 0R0";
    let second = "1F0<0F0 1F0 1B0<0F0 1B0 1B0>0B0 1R1";
    let texts = [
        refuse(&format!("{first} 0U>1U 0U 0U<1U\n{second} 1U 1U>0U 1U<0U")),
        refuse(&format!("{first} 0U 0U>1U 0U<1U\n{second} 1U<0U 1U 1U>0U")),
        refuse(&format!("{first} 0U 0U>1U 0U<1U\n{second} 1U 1U>0U")),
    ];
    insta::assert_snapshot!(texts.join("\n"), @r"
    `0U>1U` (rank 0, position 6) is before `0U` (rank 0, position 7): tied values are sent after their update; move the first after the second
    `1U<0U` (rank 1, position 6) is before `1U` (rank 1, position 7): tied values are received after the stage's own update; move the first after the second
    `0U>1U` (rank 0, position 7) has no counterpart: rank 1 lacks `1U<0U`; add it or lower again
    ");

    // On one rank there is no message, but the update must be after the other stage's last use of the old values.
    let (owner, copy) = (stage(0), stage(1));
    let shared = |text| {
        let schedule = Schedule::parse("shared", text).unwrap();
        let tied = Dependencies::new(2, [], [Tie { owner, copy }]);
        verify(&schedule, &tied)
    };
    assert_eq!(shared("0F0 1F0 1B0 0B0 0R0 0U 1R1 1U"), Ok(()));
    let error = shared("0F0 1F0 0B0 0R0 0U 1B0 1R1 1U").unwrap_err();
    insta::assert_snapshot!(error, @r"`0U` (rank 0, position 4) is before `1B0` (rank 0, position 5): tied values are updated after the last backward of the stage that shares them; move the first after the second");
}

/// Each list is valid alone; together, rank 0 waits for the last output of rank 1, and vice versa.
#[test]
fn deadlocks_name_the_cycle() {
    let compute_only = refusal("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1");
    let lowered = refusal(
        "0F0 0F0>1F0 0B0<1B0 0B0 0F1 0F1>1F1 0B1<1B1 0B1 0R0 0U\n\
         1F0<0F0 1F0 1F1<0F1 1F1 1B0 1B0>0B0 1B1 1B1>0B1 1R1 1U",
    );
    insta::assert_snapshot!(format!("{compute_only}\n{lowered}"), @r"
    deadlock, no rank of this cycle can continue: `0B0` (rank 0, position 1) waits for `1B0` (rank 1, position 2), `1F1` (rank 1, position 1) waits for `0F1` (rank 0, position 2); move one of the awaited actions before the action at which its own rank waits
    deadlock, no rank of this cycle can continue: `0B0<1B0` (rank 0, position 2) waits for `1B0>0B0` (rank 1, position 5), `1F1<0F1` (rank 1, position 2) waits for `0F1>1F1` (rank 0, position 5); move one of the awaited actions before the action at which its own rank waits
    ");
}

/// A rank that waits for the cycle without being part of it is not reported.
#[test]
fn a_bystander_of_a_deadlock_is_left_out() {
    // The bystander waits for rank 2, but the report begins with the lowest rank of the cycle.
    let text = "0F0 0B0 0F1 0B1\n2F0 2F1 2B0 2B1\n1F0 1B0 1F1 1B1";
    let schedule = Schedule::parse("three", text).unwrap();
    let error = verify(&schedule, &Dependencies::chain(3)).unwrap_err();
    let VerifyError::Deadlock { cycle, .. } = error else {
        panic!("{error}")
    };
    let ranks: Vec<usize> = cycle.iter().map(|wait| wait.waiting.rank.index()).collect();
    assert_eq!(ranks, [1, 2]);
    assert_eq!(schedule.form, Form::ComputeOnly);
}
