//! The stages as a graph for Graphviz.

use std::fmt::{self, Write};

use std::collections::BTreeSet;
use tinderbox_schedule::{Compute, StageIndex};

use super::escape::Dot;
use super::memory::stages_by_rank;
use super::modules::summaries;
use super::units::{bytes_text, share_text, time_text};
use super::{PlanFile, PlanStage, memory};

/// Letters of a line of a label.
const LINE: usize = 28;
/// Lines of modules in a label; the last tells how many are left out.
const LINES: usize = 4;

impl PlanFile {
    /// The stages in Graphviz' language: a cluster per rank, a node per stage, solid edges for what a
    /// forward sends to a forward, dashed ones for what goes to or comes from a backward, dotted ones
    /// for ties, with bytes per micro-batch. `dot -Tsvg` draws it. Linear in stages, boundaries and
    /// ties.
    #[must_use]
    pub fn to_dot(&self) -> String {
        let mut out = String::new();
        write_graph(&mut out, self).expect("a string takes all text");
        out
    }
}

fn write_graph(out: &mut String, plan: &PlanFile) -> fmt::Result {
    writeln!(out, "digraph plan {{")?;
    writeln!(
        out,
        "  rankdir=LR; compound=true; nodesep=0.4; ranksep=1.1;"
    )?;
    writeln!(out, "  fontname=\"Helvetica\"; fontsize=12; labeljust=l;")?;
    writeln!(
        out,
        "  node [shape=box style=\"rounded,filled\" fillcolor=\"#ffffff\" color=\"#626b78\" \
         fontname=\"Helvetica\" fontsize=11 margin=\"0.15,0.1\"];"
    )?;
    writeln!(
        out,
        "  edge [fontname=\"Helvetica\" fontsize=10 color=\"#2f6bd8\" fontcolor=\"#1b2027\"];"
    )?;
    let held = memory::of_ranks(plan);
    let modules = summaries(plan);
    for (rank, stages) in stages_by_rank(plan) {
        writeln!(out, "  subgraph cluster_rank_{rank} {{")?;
        let memory = held.iter().find(|held| held.rank == rank);
        let memory = memory.map_or_else(String::new, memory_text);
        writeln!(
            out,
            "    label=\"rank {rank}{memory}\"; style=\"rounded,filled\"; color=\"#dde1e7\"; \
             fillcolor=\"#f0f2f5\";"
        )?;
        for stage in stages {
            let modules = modules.get(stage.index());
            if let (Some(stage), Some(modules)) = (plan.stages.get(stage.index()), modules) {
                write_stage(out, plan, stage, modules)?;
            }
        }
        writeln!(out, "  }}")?;
    }
    for stage in unknown(plan) {
        writeln!(
            out,
            "  stage_{stage} [label=\"stage {stage}\\nis not in the plan\" color=\"#c83f78\"];"
        )?;
    }
    write_edges(out, plan)?;
    writeln!(out, "}}")
}

/// How much of its memory a rank needs, behind its name.
fn memory_text(held: &memory::Held) -> String {
    match held.limit {
        Some(limit) => format!(
            ": {} of {} ({})",
            bytes_text(held.total),
            bytes_text(limit),
            share_text(held.total, limit)
        ),
        None => format!(": {}", bytes_text(held.total)),
    }
}

fn write_stage(out: &mut String, plan: &PlanFile, stage: &PlanStage, modules: &str) -> fmt::Result {
    let mut lines = vec![format!("stage {}", stage.stage)];
    lines.extend(module_lines(modules));
    let bytes = stage.parameter_bytes.saturating_add(stage.replica_bytes);
    lines.push(bytes_text(bytes));
    let costs = &stage.costs;
    lines.push(format!(
        "F {}, B {}",
        time_text(costs.forward),
        time_text(costs.backward)
    ));
    if stage.recompute {
        lines.push("recomputes".to_owned());
    }
    let lines: Vec<String> = lines.iter().map(|line| Dot(line).to_string()).collect();
    let width = match plan.prediction.bottleneck == stage.stage {
        true => " penwidth=2.5",
        false => "",
    };
    writeln!(
        out,
        "    stage_{} [label=\"{}\"{width}];",
        stage.stage,
        lines.join("\\n")
    )
}

/// The names of modules in a few short lines.
fn module_lines(modules: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut names = modules.split(' ').filter(|name| !name.is_empty());
    while let Some(name) = names.next() {
        let letters = name.chars().count();
        let is_last = lines.len() == LINES;
        match lines.last_mut() {
            Some(last) if last.chars().count() + 1 + letters <= LINE => {
                last.push(' ');
                last.push_str(name);
            }
            _ if is_last => {
                lines.push(format!("and {} more", 1 + names.count()));
                break;
            }
            _ => lines.push(shortened(name)),
        }
    }
    lines
}

/// A name that fits a line.
fn shortened(name: &str) -> String {
    if name.chars().count() <= LINE {
        return name.to_owned();
    }
    name.chars().take(LINE - 1).chain(['…']).collect()
}

/// Stages that boundaries or ties name and that the plan does not have.
fn unknown(plan: &PlanFile) -> BTreeSet<StageIndex> {
    let edges = plan
        .boundaries
        .iter()
        .flat_map(|one| [one.edge.from.stage, one.edge.to.stage]);
    let ties = plan.ties.iter().filter(|tie| !tie.copies.is_empty());
    let ties = ties.flat_map(|tie| [tie.owner].into_iter().chain(tie.copies.iter().copied()));
    let known = plan.stages.len();
    edges
        .chain(ties)
        .filter(|stage| stage.index() >= known)
        .collect()
}

fn write_edges(out: &mut String, plan: &PlanFile) -> fmt::Result {
    for boundary in &plan.boundaries {
        let edge = &boundary.edge;
        let style = match (edge.from.compute, edge.to.compute) {
            (Compute::Forward, Compute::Forward) => "",
            // Kept for a backward: it goes forward too, but what waits for it is another program.
            (Compute::Forward, _) => " style=dashed color=\"#0c8294\" constraint=false",
            _ => " style=dashed color=\"#2b843c\" constraint=false",
        };
        writeln!(
            out,
            "  stage_{} -> stage_{} [label=\"{}\"{style}];",
            edge.from.stage,
            edge.to.stage,
            bytes_text(boundary.bytes)
        )?;
    }
    for tie in &plan.ties {
        for copy in &tie.copies {
            writeln!(
                out,
                "  stage_{} -> stage_{copy} [label=\"{}\" style=dotted color=\"#854fc4\" dir=none \
                 constraint=false];",
                tie.owner,
                Dot(tie.path.as_str())
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::samples;

    #[test]
    fn stages_boundaries_and_ties_are_drawn() {
        insta::assert_snapshot!(samples::own_lists().to_dot(), @r##"
        digraph plan {
          rankdir=LR; compound=true; nodesep=0.4; ranksep=1.1;
          fontname="Helvetica"; fontsize=12; labeljust=l;
          node [shape=box style="rounded,filled" fillcolor="#ffffff" color="#626b78" fontname="Helvetica" fontsize=11 margin="0.15,0.1"];
          edge [fontname="Helvetica" fontsize=10 color="#2f6bd8" fontcolor="#1b2027"];
          subgraph cluster_rank_0 {
            label="rank 0: 239 MiB"; style="rounded,filled"; color="#dde1e7"; fillcolor="#f0f2f5";
            stage_0 [label="stage 0\nembedding blocks.0\n28.1 MiB\nF 960 µs, B 1.92 ms"];
            stage_2 [label="stage 2\nblocks.2 head\n37.1 MiB\nF 3.00 ms, B 6.00 ms"];
          }
          subgraph cluster_rank_1 {
            label="rank 1: 142 MiB"; style="rounded,filled"; color="#dde1e7"; fillcolor="#f0f2f5";
            stage_1 [label="stage 1\nblocks.0 blocks.1\n20.1 MiB\nF 3.70 ms, B 7.40 ms" penwidth=2.5];
          }
          stage_0 -> stage_1 [label="4.00 MiB"];
          stage_0 -> stage_2 [label="256 KiB"];
          stage_1 -> stage_2 [label="4.00 MiB"];
          stage_1 -> stage_0 [label="4.00 MiB" style=dashed color="#2b843c" constraint=false];
          stage_2 -> stage_0 [label="24.0 MiB" style=dashed color="#2b843c" constraint=false];
          stage_2 -> stage_1 [label="4.00 MiB" style=dashed color="#2b843c" constraint=false];
          stage_0 -> stage_2 [label="embedding.weight" style=dotted color="#854fc4" dir=none constraint=false];
        }
        "##);
    }

    #[test]
    fn long_lists_of_modules_are_cut() {
        let modules: Vec<String> = (0..100).map(|index| format!("blocks.{index}")).collect();
        let lines = module_lines(&modules.join(" "));
        insta::assert_snapshot!(lines.join("\n"), @r"
        blocks.0 blocks.1 blocks.2
        blocks.3 blocks.4 blocks.5
        blocks.6 blocks.7 blocks.8
        blocks.9 blocks.10 blocks.11
        and 88 more
        ");
        let long = module_lines(&"x".repeat(100));
        assert_eq!(long.len(), 1);
        assert_eq!(long[0].chars().count(), LINE);
    }

    #[test]
    fn what_the_plan_does_not_have_is_told() {
        let mut plan = samples::smallest();
        // The first behind the last.
        plan.boundaries[0].edge.to.stage = StageIndex::new(2);
        plan.ties[0].copies.push(StageIndex::new(usize::MAX));
        plan.ties[0].path = "a\"b\\c&amp;\n".into();
        plan.stages[0].modules = vec!["\"]; evil [label=\"".to_owned()];
        let dot = plan.to_dot();
        assert!(
            dot.contains("stage_2 [label=\"stage 2\\nis not in the plan\""),
            "{dot}"
        );
        assert!(dot.contains(&format!("stage_{} [", usize::MAX)), "{dot}");
        assert!(
            dot.contains("label=\"a\\\"b\\\\c&amp;amp;\u{fffd}\""),
            "{dot}"
        );
        assert!(
            dot.contains("\\\"]; \\nevil") || dot.contains("\\\"]; evil"),
            "{dot}"
        );
        // Every quote that is not escaped opens or closes a string.
        for line in dot.lines() {
            let quotes = line
                .replace("\\\\", "")
                .replace("\\\"", "")
                .matches('"')
                .count();
            assert!(quotes.is_multiple_of(2), "{line}");
        }
    }
}
