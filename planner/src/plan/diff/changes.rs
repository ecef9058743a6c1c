//! Field by field, what is different.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_schedule::RankIndex;

use super::{BoundaryChange, Change, Figure, RankChange, StageChange};
use crate::plan::boundary::joined;
use crate::plan::escape::visible;
use crate::plan::facts::placement;
use crate::plan::modules::summary;
use crate::plan::units::count_text;
use crate::plan::{PlanStage, PlanValue, TieGroup};
use crate::{PlanFile, RankModel};

/// Behind texts that do not show what is different.
const OTHERWISE: &str = " (not the same)";

/// Changes of one thing.
struct Changes(Vec<Change>);

impl Changes {
    const fn new() -> Self {
        Self(Vec::new())
    }

    fn add(&mut self, what: impl Into<String>, before: Figure, after: Figure) {
        self.0.extend(Change::of(what, before, after));
    }

    /// Adds texts of two things, also where they are equal and the things are not.
    fn add_things<T: PartialEq>(
        &mut self,
        what: &str,
        things: [&T; 2],
        text: impl Fn(&T) -> String,
    ) {
        let [before, after] = things;
        if before != after {
            let (before, mut after) = (text(before), text(after));
            if before == after {
                after.push_str(OTHERWISE);
            }
            self.add(what, Figure::text(&before), Figure::text(&after));
        }
    }
}

/// What the plans are for.
pub(super) fn purpose(a: &PlanFile, b: &PlanFile) -> Vec<Change> {
    let mut found = Changes::new();
    let text = |text: &String| text.clone();
    found.add(
        "version",
        Figure::Count(a.version.into()),
        Figure::Count(b.version.into()),
    );
    found.add_things("model digest", [&a.model, &b.model], text);
    found.add_things("program", [&a.program, &b.program], text);
    found.add_things("operations digest", [&a.graph, &b.graph], text);
    found.add_things("structure digest", [&a.structure, &b.structure], text);
    found.add_things(
        "operations of the forward",
        [&a.forward, &b.forward],
        |lines| count_text(lines.len(), "operation"),
    );
    let choices = [&a.choice, &b.choice];
    found.add_things(
        "partitioner",
        choices.map(|choice| &choice.partitioner),
        text,
    );
    found.add_things("reasons", choices.map(|choice| &choice.reasons), |all| {
        all.join("; ")
    });
    let steps = [&a.step, &b.step];
    found.add_things("schedule", steps.map(|step| &step.schedule), |kind| {
        kind.to_string()
    });
    let [before, after] = steps.map(|step| Figure::count(step.micro_batches));
    found.add("micro-batches", before, after);
    let [before, after] = steps.map(|step| Figure::Count(step.optimizer_states));
    found.add("optimizer states", before, after);
    found.add_things(
        "may recompute",
        steps.map(|step| &step.may_recompute),
        |may| yes(*may),
    );
    found.add_things(
        "lists of actions",
        [&a.lists, &b.lists],
        |lists| match lists {
            Some(_) => "of its own".to_owned(),
            None => "those of the schedule".to_owned(),
        },
    );
    machine(&mut found, a, b);
    found.0
}

fn yes(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

fn machine(found: &mut Changes, a: &PlanFile, b: &PlanFile) {
    let machines = [&a.machine, &b.machine];
    let [before, after] = machines.map(|machine| Figure::count(machine.ranks()));
    found.add("ranks", before, after);
    let [before, after] = machines.map(|machine| Figure::count(machine.chunks()));
    found.add("stages per rank", before, after);
    found.add_things(
        "placement",
        machines.map(|one| one.placement()).each_ref(),
        |of| placement(*of).to_owned(),
    );
    let [from, to] = machines;
    for (rank, (before, after)) in from.rank_models().iter().zip(to.rank_models()).enumerate() {
        let limits = [before, after].map(|rank| Figure::limit(rank.memory_bytes));
        let speed = |rank: &RankModel| Figure::Permille(rank.speed_permille);
        let [from, to] = limits;
        found.add(format!("memory limit of rank {rank}"), from, to);
        found.add(format!("speed of rank {rank}"), speed(before), speed(after));
    }
    let latency = machines.map(|machine| Figure::Nanoseconds(machine.link.latency));
    let per_mib = machines.map(|machine| Figure::Nanoseconds(machine.link.ticks_per_mib));
    let action = machines.map(|machine| Figure::Nanoseconds(machine.action_ns));
    let flops = machines.map(|machine| Figure::Count(machine.rates.flops_per_s));
    let bytes = machines.map(|machine| Figure::Bytes(machine.rates.bytes_per_s));
    let operation = machines.map(|machine| Figure::Nanoseconds(machine.rates.operation_ns));
    for (what, [before, after]) in [
        ("time of a message", latency),
        ("time of a message per MiB", per_mib),
        ("time of an action", action),
        ("FLOPs per second", flops),
        ("bytes per second", bytes),
        ("time of an operation", operation),
    ] {
        found.add(what, before, after);
    }
}

/// Stages of both plans.
pub(super) fn stages(a: &PlanFile, b: &PlanFile) -> Vec<StageChange> {
    let both = a.stages.iter().zip(&b.stages);
    let changes = both.map(|(before, after)| StageChange {
        stage: before.stage,
        changes: stage(before, after),
    });
    changes
        .filter(|change| !change.changes.is_empty())
        .collect()
}

fn stage(a: &PlanStage, b: &PlanStage) -> Vec<Change> {
    let mut found = Changes::new();
    let both = [a, b];
    found.add_things("rank", both.map(|stage| &stage.rank), |rank| {
        rank.to_string()
    });
    found.add_things("recompute", both.map(|stage| &stage.recompute), |does| {
        yes(*does)
    });
    if a.modules != b.modules {
        found.add_things("modules", [&summary(a), &summary(b)], Clone::clone);
        if summary(a) == summary(b) {
            found.add_things("modules", both.map(|stage| &stage.modules), |_| summary(a));
        }
    }
    let paths = |paths: &Vec<_>| paths.len().to_string();
    found.add_things("parameters", both.map(|stage| &stage.parameters), paths);
    found.add_things(
        "shared parameters",
        both.map(|stage| &stage.replicas),
        paths,
    );
    found.add_things(
        "operations",
        both.map(|stage| &stage.operations),
        |ranges| {
            let lengths = ranges.iter().map(|(from, to)| to.saturating_sub(*from));
            let count = lengths.fold(0, usize::saturating_add);
            format!("{count} in {}", count_text(ranges.len(), "range"))
        },
    );
    for (what, bytes) in [
        (
            "parameter bytes",
            (|stage| stage.parameter_bytes) as fn(&PlanStage) -> u64,
        ),
        ("bytes of shared parameters", |stage| stage.replica_bytes),
        ("bytes sent", |stage| stage.boundary_bytes),
        ("bytes kept", |stage| stage.costs.activation_bytes),
        ("bytes kept for W", |stage| {
            stage.costs.weight_gradient_bytes
        }),
        ("bytes held all the time", |stage| {
            stage.costs.resident_bytes
        }),
        ("bytes while it runs", |stage| stage.costs.transient_bytes),
    ] {
        found.add(what, Figure::Bytes(bytes(a)), Figure::Bytes(bytes(b)));
    }
    for (what, time) in [
        ("F", (|stage| stage.costs.forward) as fn(&PlanStage) -> u64),
        ("B", |stage| stage.costs.backward),
        ("I", |stage| stage.costs.input_gradient),
        ("W", |stage| stage.costs.weight_gradient),
        ("update", |stage| stage.costs.update),
    ] {
        found.add(
            what,
            Figure::Nanoseconds(time(a)),
            Figure::Nanoseconds(time(b)),
        );
    }
    found.add(
        "forward FLOPs",
        Figure::Count(a.forward_flops),
        Figure::Count(b.forward_flops),
    );
    found.add(
        "backward FLOPs",
        Figure::Count(a.backward_flops),
        Figure::Count(b.backward_flops),
    );
    let names = |values: &Vec<PlanValue>| {
        let names: Vec<&str> = values.iter().map(|value| value.name.as_str()).collect();
        names.join(" ")
    };
    found.add_things(
        "values that come in",
        both.map(|stage| &stage.live_in),
        names,
    );
    found.add_things(
        "values that go out",
        both.map(|stage| &stage.live_out),
        names,
    );
    found.add_things(
        "values that pass by",
        both.map(|stage| &stage.bypassing),
        names,
    );
    found.add_things("programs", both.map(|stage| &stage.programs), |programs| {
        let lines = programs.iter().map(|program| program.operations.len());
        count_text(lines.sum(), "operation")
    });
    found.0
}

/// Ties by the tied parameter.
pub(super) fn ties(a: &PlanFile, b: &PlanFile) -> Vec<Change> {
    let by_path = |plan: &PlanFile| -> BTreeMap<String, TieGroup> {
        let groups = plan.ties.iter();
        groups
            .map(|tie| (visible(tie.path.as_str()).into_owned(), tie.clone()))
            .collect()
    };
    let (before, after) = (by_path(a), by_path(b));
    let paths: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let mut found = Changes::new();
    for path in paths {
        let ties = [before.get(path), after.get(path)];
        found.add_things(path, ties.each_ref(), |tie| match tie {
            Some(tie) if tie.copies.is_empty() => format!("stage {}", tie.owner),
            Some(tie) => format!(
                "stage {}, copies on {}",
                tie.owner,
                joined("stage", &tie.copies)
            ),
            None => "on one stage".to_owned(),
        });
    }
    found.0
}

/// Boundaries by their edge.
pub(super) fn boundaries(a: &PlanFile, b: &PlanFile) -> Vec<BoundaryChange> {
    let by_edge = |plan: &PlanFile| -> BTreeMap<_, _> {
        let boundaries = plan.boundaries.iter();
        boundaries
            .map(|boundary| (boundary.edge, boundary.clone()))
            .collect()
    };
    let (mut before, mut after) = (by_edge(a), by_edge(b));
    let edges: BTreeSet<_> = before.keys().chain(after.keys()).copied().collect();
    let changes = edges.into_iter().map(|edge| BoundaryChange {
        edge,
        before: before.remove(&edge),
        after: after.remove(&edge),
    });
    changes
        .filter(|change| change.before != change.after)
        .collect()
}

/// What a step will take.
pub(super) fn prediction(a: &PlanFile, b: &PlanFile) -> Vec<Change> {
    let mut found = Changes::new();
    let (a, b) = (&a.prediction, &b.prediction);
    found.add(
        "step",
        Figure::Nanoseconds(a.step_ns),
        Figure::Nanoseconds(b.step_ns),
    );
    let bounds = [a, b].map(|one| Figure::Nanoseconds(one.lower_bound_ns));
    let [before, after] = bounds;
    found.add("lower bound", before, after);
    found.add(
        "idle",
        Figure::Permille(a.idle_permille),
        Figure::Permille(b.idle_permille),
    );
    let stage = |index: usize| Figure::Text(format!("stage {index}"));
    found.add(
        "bottleneck",
        stage(a.bottleneck.index()),
        stage(b.bottleneck.index()),
    );
    let times = [a, b].map(|one| Figure::Nanoseconds(one.bottleneck_ns));
    let [before, after] = times;
    found.add("bottleneck's F and B", before, after);
    let bytes = [a, b].map(|one| Figure::Bytes(one.crossing_bytes));
    let [before, after] = bytes;
    found.add("between ranks", before, after);
    found.0
}

/// What ranks do and hold.
pub(super) fn ranks(a: &PlanFile, b: &PlanFile) -> Vec<RankChange> {
    let by_rank = |plan: &PlanFile| -> BTreeMap<RankIndex, _> {
        let ranks = plan.prediction.ranks.iter();
        ranks.map(|rank| (rank.rank, rank.clone())).collect()
    };
    let (mut before, mut after) = (by_rank(a), by_rank(b));
    let ranks: BTreeSet<_> = before.keys().chain(after.keys()).copied().collect();
    let changes = ranks.into_iter().map(|rank| RankChange {
        rank,
        before: before.remove(&rank),
        after: after.remove(&rank),
    });
    changes
        .filter(|change| change.before != change.after)
        .collect()
}
