//! Tables of stages and of ranks.

use super::table::Titled;
use crate::plan::modules::summaries;
use crate::plan::units::{Scale, permille, permille_text, share_text};
use crate::plan::{PlanFile, memory};

/// What each stage owns.
pub(super) fn owned(plan: &PlanFile) -> Titled {
    let stages = &plan.stages;
    let held = |stage: &crate::PlanStage| stage.parameter_bytes.saturating_add(stage.replica_bytes);
    let bytes = Scale::bytes(stages.iter().map(held));
    let flops = |stage: &crate::PlanStage| stage.forward_flops.saturating_add(stage.backward_flops);
    let all = stages.iter().map(flops).fold(0, u64::saturating_add);
    let header = [
        "stage",
        "rank",
        "modules",
        "parameters",
        bytes.unit,
        "FLOPs",
        "backward",
    ];
    let mut table = Titled::new("Stages", &[2, 6], header);
    for (stage, modules) in stages.iter().zip(summaries(plan)) {
        let replicas = match stage.replicas.len() {
            0 => String::new(),
            count => format!(" (+{count} shared)"),
        };
        table.push(vec![
            stage.stage.to_string(),
            stage.rank.to_string(),
            modules,
            format!("{}{replicas}", stage.parameters.len()),
            bytes.number(held(stage)),
            share_text(flops(stage), all),
            if stage.recompute { "recomputes" } else { "" }.to_owned(),
        ]);
    }
    table
}

/// What each stage takes per micro-batch.
pub(super) fn costs(plan: &PlanFile) -> Titled {
    let costs = || plan.stages.iter().map(|stage| stage.costs);
    let times = Scale::times(costs().flat_map(|costs| {
        [
            costs.forward,
            costs.backward,
            costs.input_gradient,
            costs.weight_gradient,
        ]
    }));
    let kept = Scale::bytes(costs().map(|costs| costs.activation_bytes));
    let left = Scale::bytes(costs().map(|costs| costs.weight_gradient_bytes));
    let sent = Scale::bytes(plan.stages.iter().map(|stage| stage.boundary_bytes));
    let header = [
        "stage".to_owned(),
        format!("F {}", times.unit),
        format!("B {}", times.unit),
        format!("I {}", times.unit),
        format!("W {}", times.unit),
        format!("kept {}", kept.unit),
        format!("for W {}", left.unit),
        format!("sent {}", sent.unit),
    ];
    let mut table = Titled::new("One micro-batch on each stage", &[], header);
    for stage in &plan.stages {
        let costs = &stage.costs;
        table.push(vec![
            stage.stage.to_string(),
            times.number(costs.forward),
            times.number(costs.backward),
            times.number(costs.input_gradient),
            times.number(costs.weight_gradient),
            kept.number(costs.activation_bytes),
            left.number(costs.weight_gradient_bytes),
            sent.number(stage.boundary_bytes),
        ]);
    }
    table
}

/// What each rank does in a step.
pub(super) fn times(plan: &PlanFile) -> Titled {
    let prediction = &plan.prediction;
    let ranks = &prediction.ranks;
    let scale = Scale::times(ranks.iter().flat_map(|rank| [rank.busy_ns, rank.bubble_ns]));
    let is_mixed = plan
        .machine
        .rank_models()
        .iter()
        .any(|rank| rank.speed_permille != 1000);
    let stages = memory::stages_by_rank(plan);
    let header = [
        "rank".to_owned(),
        "stages".to_owned(),
        "speed".to_owned(),
        format!("busy {}", scale.unit),
        format!("bubble {}", scale.unit),
        "bubble".to_owned(),
    ];
    let mut table = Titled::new("One step on each rank", &[1], header);
    for rank in ranks {
        let own = stages.get(&rank.rank).map_or(&[][..], Vec::as_slice);
        let own: Vec<String> = own.iter().map(ToString::to_string).collect();
        let speed = permille_text(plan.machine.rank(rank.rank).speed_permille);
        table.push(vec![
            rank.rank.to_string(),
            own.join(" "),
            if is_mixed { speed } else { String::new() },
            scale.number(rank.busy_ns),
            scale.number(rank.bubble_ns),
            share_text(rank.bubble_ns, prediction.step_ns),
        ]);
    }
    table
}

/// What each rank holds at its peak.
pub(super) fn memory(plan: &PlanFile) -> Titled {
    let ranks = memory::of_ranks(plan);
    let scale = Scale::bytes(ranks.iter().map(|rank| rank.total));
    let names = memory::PARTS.iter().map(|(name, _)| *name);
    let header = ["rank"]
        .into_iter()
        .chain(names)
        .chain(["total", "limit", "full"]);
    let mut table = Titled::new(
        format!("Memory of each rank at its peak, {}", scale.unit),
        &[],
        header,
    );
    for rank in ranks {
        let mut cells = vec![rank.rank.to_string()];
        cells.extend(rank.parts.iter().map(|bytes| scale.number(*bytes)));
        cells.push(scale.number(rank.total));
        match rank.limit {
            Some(limit) => {
                let full = permille(rank.total, limit);
                cells.extend([scale.number(limit), permille_text(full)]);
            }
            None => cells.extend([String::new(), String::new()]),
        }
        table.push(cells);
    }
    table
}
