//! The purpose and the costs of a plan as named lines.

use std::collections::BTreeSet;

use tinderbox_ids::text::{count_text, human_bytes, permille_text, time_text};
use tinderbox_schedule::arithmetic::sum;
use tinderbox_schedule::{LinkCosts, Placement};

use super::Plan;
use super::escape::visible;
use crate::Machine;

/// Characters of a digest that are shown.
const DIGEST: usize = 12;

/// A name and its lines.
pub(super) type Fact = (&'static str, Vec<String>);

/// The model, program, machine, schedule, partitioner and strategy of the plan.
pub(super) fn purpose(plan: &Plan) -> Vec<Fact> {
    let owned = plan.stages.iter().map(|stage| stage.parameter_bytes);
    let bytes = human_bytes(sum(owned));
    let parameters = count_text(plan.parameters.len(), "parameter");
    let model = format!("{}, {parameters}, {bytes}", digest(&plan.model));
    let program = visible(&plan.program);
    let program = format!("{program}, operations {}", digest(&plan.graph));
    let mut facts = vec![
        ("model", vec![model]),
        ("program", vec![program]),
        ("machine", machine(&plan.machine, plan.step.replicas)),
        ("schedule", vec![schedule(plan)]),
        ("partitioner", choice(plan)),
    ];
    let strategy = plan.strategy.iter();
    facts.extend(strategy.map(|text| ("strategy", vec![visible(text).into_owned()])));
    facts
}

/// The costs of a step.
pub(super) fn outcome(plan: &Plan) -> Vec<Fact> {
    let prediction = &plan.prediction;
    let idle = permille_text(prediction.idle_permille);
    let step = time_text(prediction.step_ns);
    let step = format!("{step}, of which the ranks are idle {idle}");
    let bound = time_text(prediction.lower_bound_ns);
    let gap = permille_text(prediction.gap_permille());
    let bound = format!("{bound}, so the step is at most {gap} above the optimum");
    let (slowest, time) = (prediction.bottleneck, time_text(prediction.bottleneck_ns));
    let slowest = format!("stage {slowest}, {time} of F and B per micro-batch");
    let crossing = human_bytes(prediction.crossing_bytes);
    let crossing = format!("{crossing} between ranks per step");
    vec![
        ("step", vec![step]),
        ("lower bound", vec![bound]),
        ("bottleneck", vec![slowest]),
        ("messages", vec![crossing]),
    ]
}

/// The beginning of a digest.
fn digest(digest: &str) -> String {
    let short: String = digest.chars().take(DIGEST).collect();
    visible(&short).into_owned()
}

/// The machine in two lines: its ranks, and the costs of messages and actions.
fn machine(machine: &Machine, replicas: usize) -> Vec<String> {
    let mut ranks = count_text(machine.ranks(), "rank");
    if replicas > 1 {
        ranks = format!("{replicas} replicas of {ranks}");
    }
    if machine.chunks() > 1 {
        let placement = match machine.placement() {
            Placement::Loop => "loop",
            Placement::V => "V",
        };
        ranks += &format!(" of {} stages in a {placement}", machine.chunks());
    }
    let models = || machine.rank_models().iter();
    let limit = match extremes(models().filter_map(|rank| rank.memory_bytes)) {
        Some((least, most)) if least == most => format!("{} each", human_bytes(least)),
        Some((least, most)) => format!("{} to {}", human_bytes(least), human_bytes(most)),
        None => "no memory limit".to_owned(),
    };
    let limited = models().filter(|rank| rank.memory_bytes.is_some()).count();
    let is_mixed = limited > 0 && limited < machine.ranks();
    let some = if is_mixed { ", not all limited" } else { "" };
    let speed = match extremes(models().map(|rank| rank.speed_permille)) {
        None | Some((1000, 1000)) => String::new(),
        Some((least, most)) if least == most => format!(", at {}", permille_text(least)),
        Some((least, most)) => {
            let (least, most) = (permille_text(least), permille_text(most));
            format!(", at {least} to {most} of full speed")
        }
    };
    let message = |link: LinkCosts| {
        let latency = time_text(link.latency);
        match link.ticks_per_mib {
            0 => latency,
            time => format!("{latency} and {} per MiB", time_text(time)),
        }
    };
    let action = time_text(machine.action_ns);
    let within = message(machine.link);
    let mut lines = vec![
        format!("{ranks}, {limit}{some}{speed}"),
        format!("a message takes {within}, an action {action} besides its work"),
    ];
    if let Some(network) = &machine.network {
        let machines: BTreeSet<usize> = network.machine_of.iter().copied().collect();
        let machines = count_text(machines.len(), "machine");
        let between = message(network.link);
        lines.push(format!(
            "on {machines}; between two, a message takes {between}"
        ));
    }
    lines
}

fn extremes(values: impl Iterator<Item = u64> + Clone) -> Option<(u64, u64)> {
    Some((values.clone().min()?, values.max()?))
}

/// The schedule in a line.
fn schedule(plan: &Plan) -> String {
    let name = plan.step.schedule;
    let batches = count_text(plan.step.micro_batches, "micro-batch");
    let lists = match &plan.lists {
        Some(_) => format!("its own compute lists, since {name} does not fit the ranks"),
        None => name.to_string(),
    };
    let recompute = match plan.step.may_recompute {
        true => ", stages may recompute",
        false => "",
    };
    format!("{lists}, {batches}{recompute}")
}

/// The partitioner, and the reasons for choosing it.
fn choice(plan: &Plan) -> Vec<String> {
    let partitioner = [&plan.choice.partitioner].into_iter();
    let lines = partitioner.chain(&plan.choice.reasons);
    lines.map(|line| visible(line).into_owned()).collect()
}
