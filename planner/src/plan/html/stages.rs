//! Stages with their modules and parameters, and their programs.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use tinderbox_path::ParameterPath;

use super::bars;
use super::table::{Cell, Table};
use crate::plan::escape::Html;
use crate::plan::modules::summaries;
use crate::plan::program::StageText;
use crate::plan::units::{Scale, bytes_text, count_text, share_text};
use crate::plan::{PlanFile, PlanParameter, PlanStage, model};

/// Writes the section: the times as bars, then the table.
pub(super) fn write(out: &mut String, plan: &PlanFile) -> fmt::Result {
    bars::write_times(out, plan)?;
    table(plan).write(out)
}

fn table(plan: &PlanFile) -> Table<'static> {
    let stages = &plan.stages;
    let held = |stage: &PlanStage| stage.parameter_bytes.saturating_add(stage.replica_bytes);
    let flops = |stage: &PlanStage| stage.forward_flops.saturating_add(stage.backward_flops);
    let all = stages.iter().map(flops).fold(0, u64::saturating_add);
    let costs = || stages.iter().map(|stage| stage.costs);
    let times = Scale::times(costs().flat_map(|costs| {
        [
            costs.forward,
            costs.backward,
            costs.input_gradient,
            costs.weight_gradient,
        ]
    }));
    let bytes = Scale::bytes(stages.iter().map(held));
    let kept = Scale::bytes(costs().map(|costs| costs.activation_bytes));
    let sent = Scale::bytes(stages.iter().map(|stage| stage.boundary_bytes));
    let forms: BTreeMap<&ParameterPath, &PlanParameter> =
        plan.parameters.iter().map(|one| (&one.path, one)).collect();
    let header = [
        "stage".to_owned(),
        "rank".to_owned(),
        "modules and parameters".to_owned(),
        format!("parameters, {}", bytes.unit),
        format!("F, {}", times.unit),
        format!("B, {}", times.unit),
        format!("I, {}", times.unit),
        format!("W, {}", times.unit),
        format!("kept, {}", kept.unit),
        format!("sent, {}", sent.unit),
        "FLOPs".to_owned(),
    ];
    let rows = stages.iter().zip(summaries(plan)).map(|(stage, modules)| {
        let costs = &stage.costs;
        let class = if plan.prediction.bottleneck == stage.stage {
            "slowest"
        } else {
            ""
        };
        let cells = vec![
            Cell::Number(stage.stage.to_string()),
            Cell::Number(stage.rank.to_string()),
            Cell::Markup(content(stage, &modules, &forms)),
            Cell::Number(bytes.number(held(stage))),
            Cell::Number(times.number(costs.forward)),
            Cell::Number(times.number(costs.backward)),
            Cell::Number(times.number(costs.input_gradient)),
            Cell::Number(times.number(costs.weight_gradient)),
            Cell::Number(kept.number(costs.activation_bytes)),
            Cell::Number(sent.number(stage.boundary_bytes)),
            Cell::Number(share_text(flops(stage), all)),
        ];
        (class, cells)
    });
    Table {
        caption: "One micro-batch on each stage; open a row's modules for its parameters",
        header: header.to_vec(),
        rows: rows.collect(),
    }
}

/// The modules in short, and behind them all of them with the parameters.
fn content(
    stage: &PlanStage,
    modules: &str,
    forms: &BTreeMap<&ParameterPath, &PlanParameter>,
) -> String {
    let mut out = String::new();
    let short = match modules {
        "" => "no modules",
        short => short,
    };
    let mut list = |text: fmt::Arguments<'_>| out.write_fmt(text).expect("a string takes all text");
    list(format_args!("<details><summary>{}", Html(short)));
    if stage.recompute {
        list(format_args!(" <span class=\"tag\">recomputes</span>"));
    }
    list(format_args!("</summary><ul>"));
    list(format_args!(
        "<li>{}<ul>",
        count_text(stage.modules.len(), "module")
    ));
    for module in &stage.modules {
        list(format_args!(
            "<li>{}</li>",
            Html(if module.is_empty() { "(root)" } else { module })
        ));
    }
    list(format_args!("</ul></li>"));
    for (name, paths) in [
        ("parameter", &stage.parameters),
        ("parameter of another stage", &stage.replicas),
    ] {
        if paths.is_empty() {
            continue;
        }
        let count = match paths.len() {
            1 => format!("1 {name}"),
            count => format!("{count} {}", name.replacen("parameter", "parameters", 1)),
        };
        list(format_args!("<li>{count}<ul>"));
        for path in paths {
            let form = forms
                .get(path)
                .map_or_else(String::new, |one| model::form(one));
            list(format_args!(
                "<li>{} <span class=\"form\">{}</span></li>",
                Html(path.as_str()),
                Html(&form)
            ));
        }
        list(format_args!("</ul></li>"));
    }
    list(format_args!("</ul></details>"));
    out
}

/// Writes what each stage runs, to be opened.
pub(super) fn write_programs(out: &mut String, plan: &PlanFile) -> fmt::Result {
    if plan.stages.iter().all(|stage| stage.programs.is_empty()) {
        writeln!(
            out,
            "<p>This plan was made without the text of its programs.</p>"
        )?;
    }
    writeln!(out, "<div class=\"programs\">")?;
    for stage in &plan.stages {
        let values = [
            ("in", &stage.live_in),
            ("out", &stage.live_out),
            ("passing by", &stage.bypassing),
        ];
        let values = values.iter().filter(|(_, values)| !values.is_empty());
        let values = values.map(|(how, values)| {
            let bytes = values
                .iter()
                .map(|value| value.bytes)
                .fold(0, u64::saturating_add);
            format!(
                ", {} {how} ({})",
                count_text(values.len(), "value"),
                bytes_text(bytes)
            )
        });
        let values: String = values.collect();
        writeln!(
            out,
            "<details><summary>Stage {} on rank {}: {}{values}</summary>",
            stage.stage,
            stage.rank,
            count_text(stage.programs.len(), "program")
        )?;
        let text = StageText(stage).to_string();
        write!(out, "<pre tabindex=\"0\"><code>")?;
        for line in text.lines() {
            writeln!(out, "{}", Html(line))?;
        }
        writeln!(out, "</code></pre></details>")?;
    }
    writeln!(out, "</div>")
}
