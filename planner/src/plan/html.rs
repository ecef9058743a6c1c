//! The plan as one HTML page.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use tinderbox_path::ParameterPath;
use tinderbox_schedule::draw::{COLORS, SvgOptions, svg};
use tinderbox_schedule::{TimeUnit, simulate};

use super::chart::{Bar, chart};
use super::escape::xml;
use super::facts::{digest, outcome, purpose};
use super::modules::summaries;
use super::program::stage_text;
use super::tables;
use super::units::{bytes_text, count_text, share_text, time_text};
use super::{PlanFile, PlanParameter, PlanStage, model};
use crate::{RankMemory, RankPrediction};

/// The style of every page.
const STYLE: &str = include_str!("style.css");

/// Nothing is loaded or executed, whatever names the file contains.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";

/// Forwards and messages of a step above which the page has no timeline: the simulation would take
/// seconds, and a micro-batch would be less than a pixel wide.
const MOST_ACTIONS: usize = 1 << 18;
/// Bytes of a picture above which it is left out, since browsers become slow.
const MOST_BYTES: usize = 4 << 20;

impl PlanFile {
    /// Returns the plan as one HTML page that needs no other file, no network and no script: summary,
    /// timeline of a step, stages with their modules and parameters, memory, boundaries, ties and
    /// programs. It supports light and dark modes, narrow screens and print.
    ///
    /// The timeline is simulated from the plan's schedule; a sentence replaces it where a step has too
    /// many programs or the stages have no valid schedule. Time and memory are linear in the file and
    /// in the programs of a step; the page has at most some megabytes in addition to the text of the
    /// file.
    #[must_use]
    pub fn to_html(&self) -> String {
        let title = xml(&format!("Plan of model {}", digest(&self.model)));
        let program = xml(&self.program);
        let boundaries = tables::boundaries(self);
        let boundaries = boundaries.to_html("<p>Nothing crosses between stages.</p>\n");
        let ties = tables::ties(self).to_html("<p>No parameter is read on several stages.</p>\n");
        let ties = format!(
            "<p>The owner updates a shared parameter and sends it to the copies.</p>\n{ties}"
        );
        let sections = [
            ("summary", "Summary", facts(self)),
            ("timeline", "Timeline of a step", timeline(self)),
            ("stages", "Stages", stages(self)),
            ("memory", "Memory", memory(self)),
            ("boundaries", "Boundaries", boundaries),
            ("ties", "Shared parameters", ties),
            ("programs", "Programs", programs(self)),
        ];
        let links = sections.iter();
        let links = links.map(|(id, heading, _)| format!("<a href=\"#{id}\">{heading}</a>\n"));
        let links: String = links.collect();
        let sections = sections.iter().map(|(id, heading, body)| {
            format!(
                "<section id=\"{id}\" aria-labelledby=\"{id}-heading\">\n\
                 <h2 id=\"{id}-heading\">{heading}</h2>\n{body}</section>\n"
            )
        });
        let sections: String = sections.collect();
        format!(
            include_str!("page.html"),
            policy = POLICY,
            style = STYLE,
            version = self.version,
            title = title,
            program = program,
            links = links,
            sections = sections,
        )
    }
}

/// The costs of a step as tiles, and the purpose of the plan.
fn facts(plan: &PlanFile) -> String {
    let tiles = outcome(plan).into_iter().map(|(name, lines)| {
        let line = lines.join(" ");
        // The figure is the first two words: a number and its unit, or `stage 3`.
        let space = line.match_indices(' ').nth(1);
        let (figure, rest) = line.split_at(space.map_or(line.len(), |(at, _)| at));
        let (figure, rest) = (xml(figure.trim_end_matches(',')), xml(rest));
        format!(
            "<li><span class=\"what\">{name}</span> <span class=\"value\">{figure}</span> \
             <span class=\"more\">{rest}</span></li>\n"
        )
    });
    let tiles: String = tiles.collect();
    let facts = purpose(plan).into_iter().map(|(name, lines)| {
        let lines = lines.iter().map(|line| format!("<dd>{}</dd>\n", xml(line)));
        format!("<dt>{name}</dt>\n{}", lines.collect::<String>())
    });
    let facts: String = facts.collect();
    format!("<ul class=\"tiles\">\n{tiles}</ul>\n<dl class=\"facts\">\n{facts}</dl>\n")
}

/// The timeline of a step, or the reason for leaving it out.
fn timeline(plan: &PlanFile) -> String {
    match picture(plan) {
        Ok(picture) => format!(
            "<p>The programs that each rank runs, as predicted by the simulator. A box is a program with its \
             micro-batch; the curve below a rank is the memory that it holds.</p>\n\
             <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Timeline of a step\">\n\
             {picture}</div>\n"
        ),
        Err(reason) => format!("<p>The timeline is left out: {}.</p>\n", xml(&reason)),
    }
}

fn picture(plan: &PlanFile) -> Result<String, String> {
    let check_size = |stages: usize, micro_batches: usize| {
        let each = stages.saturating_add(plan.boundaries.len());
        match each.saturating_mul(micro_batches) {
            actions if actions > MOST_ACTIONS => Err(format!(
                "a step has {actions} forwards and messages, and a page shows at most {MOST_ACTIONS}"
            )),
            _ => Ok(()),
        }
    };
    check_size(plan.stages.len(), plan.step.micro_batches)?;
    let invalid = "the file has no valid compute lists for its stages and ranks";
    let schedule = plan.schedule().ok_or(invalid)?;
    check_size(schedule.stages, schedule.micro_batches)?;
    let step = simulate(&schedule, &plan.dependencies(), &plan.costs());
    let step = step.map_err(|fault| format!("the schedule can't run: {fault}"))?;
    let step = step.scaled(1, NonZeroU64::MIN, TimeUnit::Nanoseconds);
    let (ranks, batches) = (step.ranks.len(), plan.step.micro_batches);
    let name = &step.name;
    let title = format!("{name}: {ranks} ranks, {batches} micro-batches, predicted");
    let options = SvgOptions {
        title: Some(title),
        ..SvgOptions::default()
    };
    let picture = svg(&[&step], &options);
    match picture.len() {
        size if size > MOST_BYTES => Err(format!(
            "its picture has {size} bytes, and a page has at most {MOST_BYTES}"
        )),
        _ => Ok(picture),
    }
}

/// The times as bars, the tables, and the modules and parameters of each stage in collapsible sections.
fn stages(plan: &PlanFile) -> String {
    let bar = |stage: &PlanStage| {
        let (forward, backward) = (stage.costs.forward, stage.costs.backward);
        let is_slowest = plan.prediction.bottleneck == stage.stage;
        let slowest = if is_slowest { ", the bottleneck" } else { "" };
        Bar {
            label: format!("stage {}", stage.stage),
            sizes: vec![forward, backward],
            figure: format!("{}{slowest}", time_text(forward.saturating_add(backward))),
            limit: None,
        }
    };
    let bars: Vec<Bar> = plan.stages.iter().map(bar).collect();
    let key = [("forward", COLORS[0]), ("backward", COLORS[1])];
    let heading = "Time of one micro-batch on each stage, forward and backward";
    let bars = chart(heading, &key, time_text, &bars);
    let forms = plan.parameters.iter().map(|one| (&one.path, one)).collect();
    let details = plan.stages.iter().zip(summaries(plan));
    let details = details.map(|(stage, modules)| content(stage, &modules, &forms));
    let tables = [tables::stages, tables::costs, tables::ranks];
    let tables = tables.map(|table| table(plan).to_html("")).concat();
    format!(
        "{bars}{tables}<h3>Modules and parameters</h3>\n<div class=\"programs\">\n{}</div>\n",
        details.collect::<String>()
    )
}

/// The parameters of a plan by path.
type Forms<'p> = BTreeMap<&'p ParameterPath, &'p PlanParameter>;

/// The modules of a stage in one line, and below it the full list with parameters.
fn content(stage: &PlanStage, modules: &str, forms: &Forms<'_>) -> String {
    let short = match modules {
        "" => "no modules".to_owned(),
        modules => xml(modules),
    };
    let list = |name: &str, items: Vec<String>| {
        if items.is_empty() {
            return String::new();
        }
        let items = items.iter().map(|item| format!("<li>{item}</li>"));
        format!("<li>{name}<ul>{}</ul></li>", items.collect::<String>())
    };
    let parameters = |paths: &[ParameterPath]| {
        let items = paths.iter().map(|path| {
            let form = forms.get(path);
            let form = form.map_or(String::new(), |one| model::form(&one.dtype, &one.shape));
            let (path, form) = (xml(path.as_str()), xml(&form));
            format!("{path} <span class=\"form\">{form}</span>")
        });
        items.collect::<Vec<String>>()
    };
    let modules = stage.modules.iter().map(|module| match module.as_str() {
        "" => "(root)".to_owned(),
        module => xml(module),
    });
    let all = count_text(stage.modules.len(), "module");
    let own = count_text(stage.parameters.len(), "parameter");
    let lists = [
        list(&all, modules.collect()),
        list(&own, parameters(&stage.parameters)),
        list("parameters of other stages", parameters(&stage.copies)),
    ];
    let recomputes = " <span class=\"tag\">recomputes</span>";
    let tag = if stage.recompute { recomputes } else { "" };
    let (name, lists) = (stage.stage, lists.concat());
    format!("<details><summary>Stage {name}: {short}{tag}</summary><ul>{lists}</ul></details>\n")
}

/// The memory of each rank, as bars and as a table.
fn memory(plan: &PlanFile) -> String {
    let ranks = &plan.prediction.ranks;
    let limit = |rank: &RankPrediction| plan.machine.rank(rank.rank).memory_bytes;
    let bar = |rank: &RankPrediction| {
        let total = rank.memory.total();
        let full = limit(rank).map(|limit| format!(", {} full", share_text(total, limit)));
        let parts = RankMemory::PARTS.iter();
        Bar {
            label: format!("rank {}", rank.rank),
            sizes: parts.map(|(_, bytes)| bytes(&rank.memory)).collect(),
            figure: bytes_text(total) + &full.unwrap_or_default(),
            limit: limit(rank),
        }
    };
    if ranks.is_empty() {
        return "<p>The file predicts no ranks.</p>\n".to_owned();
    }
    let note = match ranks.iter().any(|rank| limit(rank).is_some()) {
        true => "<p>The dashed line is the rank's memory limit.</p>\n",
        false => "",
    };
    let key = RankMemory::PARTS.iter().zip(COLORS);
    let key: Vec<_> = key.map(|((name, _), color)| (*name, color)).collect();
    let bars: Vec<Bar> = ranks.iter().map(bar).collect();
    let heading = "Memory of each rank at its peak, by purpose";
    let bars = chart(heading, &key, bytes_text, &bars);
    let table = tables::memory(plan).to_html("");
    let exact = "<p>Each part has its own peak, so the total is an upper bound.</p>\n";
    format!("{note}{bars}{exact}{table}")
}

/// The programs of each stage in collapsible sections.
fn programs(plan: &PlanFile) -> String {
    let note = match plan.has_programs() {
        true => "",
        false => "<p>The plan was created without the text of its programs.</p>\n",
    };
    let stages = plan.stages.iter().map(|stage| {
        let (name, rank) = (stage.stage, stage.rank);
        let count = count_text(stage.programs.len(), "program");
        let text = stage_text(stage);
        let lines: String = text.lines().map(|line| xml(line) + "\n").collect();
        format!(
            "<details><summary>Stage {name} on rank {rank}: {count}</summary>\
             <pre tabindex=\"0\"><code>{lines}</code></pre></details>\n"
        )
    });
    let stages: String = stages.collect();
    format!("{note}<div class=\"programs\">\n{stages}</div>\n")
}
