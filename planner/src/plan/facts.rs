//! What a plan is for and what it will take, as named lines for every view.

use tinderbox_schedule::Placement;

use super::PlanFile;
use super::escape::visible;
use super::units::{bytes_text, count_text, permille_text, time_text};
use crate::Machine;

/// Characters of a digest that tell models apart.
const DIGEST: usize = 12;

/// One named fact; further lines stand below the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fact {
    pub(super) name: &'static str,
    pub(super) lines: Vec<String>,
}

impl Fact {
    fn of(name: &'static str, line: String) -> Self {
        Self {
            name,
            lines: vec![line],
        }
    }
}

/// What the plan is for.
pub(super) fn purpose(plan: &PlanFile) -> Vec<Fact> {
    let owned = plan.stages.iter().map(|stage| stage.parameter_bytes);
    let bytes = bytes_text(owned.fold(0, u64::saturating_add));
    let parameters = count_text(plan.parameters.len(), "parameter");
    let model = format!("{}, {parameters}, {bytes}", digest(&plan.model));
    let program = format!(
        "{}, operations {}",
        visible(&plan.program),
        digest(&plan.graph)
    );
    vec![
        Fact::of("model", model),
        Fact::of("program", program),
        Fact {
            name: "machine",
            lines: machine(&plan.machine),
        },
        Fact::of("schedule", schedule(plan)),
        Fact {
            name: "partitioner",
            lines: choice(plan),
        },
    ]
}

/// What a step will take.
pub(super) fn outcome(plan: &PlanFile) -> Vec<Fact> {
    let prediction = &plan.prediction;
    let idle = permille_text(prediction.idle_permille);
    let step = format!(
        "{}, of which the ranks are idle {idle}",
        time_text(prediction.step_ns)
    );
    let bound = format!(
        "{}, so the step is at most {} above the best there is",
        time_text(prediction.lower_bound_ns),
        permille_text(prediction.gap_permille())
    );
    let bottleneck = format!(
        "stage {}, {} of F and B per micro-batch",
        prediction.bottleneck,
        time_text(prediction.bottleneck_ns)
    );
    let crossing = format!(
        "{} between ranks per step",
        bytes_text(prediction.crossing_bytes)
    );
    vec![
        Fact::of("step", step),
        Fact::of("lower bound", bound),
        Fact::of("bottleneck", bottleneck),
        Fact::of("messages", crossing),
    ]
}

/// The beginning of a digest.
pub(super) fn digest(digest: &str) -> String {
    let short: String = digest.chars().take(DIGEST).collect();
    visible(&short).into_owned()
}

/// The machine in two lines: its ranks, and what lies between them.
pub(super) fn machine(machine: &Machine) -> Vec<String> {
    let mut ranks = count_text(machine.ranks(), "rank");
    if machine.chunks() > 1 {
        let placement = placement(machine.placement());
        ranks = format!("{ranks} of {} stages in a {placement}", machine.chunks());
    }
    let limits = || machine.rank_models().iter().map(|rank| rank.memory_bytes);
    let limited = limits().flatten();
    let limit = match (limited.clone().min(), limited.max()) {
        (Some(least), Some(most)) if least == most => format!("{} each", bytes_text(least)),
        (Some(least), Some(most)) => format!("{} to {}", bytes_text(least), bytes_text(most)),
        _ => "no limit of memory".to_owned(),
    };
    let some = limits().any(|limit| limit.is_none()) && limits().any(|limit| limit.is_some());
    let some = if some { ", not all limited" } else { "" };
    let mut lines = vec![format!("{ranks}, {limit}{some}{}", speeds(machine))];
    let mut between = format!("a message takes {}", time_text(machine.link.latency));
    if machine.link.ticks_per_mib > 0 {
        let transfer = time_text(machine.link.ticks_per_mib);
        between = format!("{between} and {transfer} per MiB");
    }
    lines.push(format!(
        "{between}, an action {} beside its work",
        time_text(machine.action_ns)
    ));
    lines
}

/// How stages lie on ranks.
pub(super) const fn placement(placement: Placement) -> &'static str {
    match placement {
        Placement::Loop => "loop",
        Placement::V => "V",
    }
}

/// The speeds of ranks that differ from the one that times are for.
fn speeds(machine: &Machine) -> String {
    let speeds = || machine.rank_models().iter().map(|rank| rank.speed_permille);
    match (speeds().min(), speeds().max()) {
        (Some(1000), Some(1000)) | (None, _) | (_, None) => String::new(),
        (Some(least), Some(most)) if least == most => format!(", at {}", permille_text(least)),
        (Some(least), Some(most)) => {
            format!(
                ", at {} to {} of full speed",
                permille_text(least),
                permille_text(most)
            )
        }
    }
}

/// The schedule in a line.
pub(super) fn schedule(plan: &PlanFile) -> String {
    let batches = match plan.step.micro_batches {
        1 => "1 micro-batch".to_owned(),
        count => format!("{count} micro-batches"),
    };
    let lists = match &plan.lists {
        Some(_) => format!(
            "lists of its own, as {} does not fit the ranks",
            plan.step.schedule
        ),
        None => plan.step.schedule.to_string(),
    };
    let recompute = match plan.step.may_recompute {
        true => ", stages may recompute",
        false => "",
    };
    format!("{lists}, {batches}{recompute}")
}

/// The partitioner, and why it was chosen.
fn choice(plan: &PlanFile) -> Vec<String> {
    let mut lines = vec![visible(&plan.choice.partitioner).into_owned()];
    lines.extend(
        plan.choice
            .reasons
            .iter()
            .map(|reason| visible(reason).into_owned()),
    );
    lines
}
