//! The stages as a graph for Graphviz.

use tinderbox_schedule::draw::COLORS;
use tinderbox_schedule::{Compute, RankIndex};

use super::escape::dot;
use super::modules::summaries;
use super::units::{bytes_text, share_text, time_text, wrapped};
use super::{PlanFile, PlanStage};

/// Characters in a line of a label.
const LINE: usize = 28;
/// Maximum lines of modules in a label.
const LINES: usize = 4;

impl PlanFile {
    /// Returns the stages in the language of Graphviz: a cluster per rank, a node per stage, solid
    /// edges for values between forwards, dashed ones for values to or from a backward, dotted ones for
    /// ties, with bytes per micro-batch. `dot -Tsvg` draws it. Linear in stages, boundaries and ties.
    #[must_use]
    pub fn to_dot(&self) -> String {
        let modules = summaries(self);
        let clusters = self.stages_by_rank().into_iter().map(|(rank, stages)| {
            let nodes = stages.iter().map(|stage| {
                let modules = modules.get(stage.stage.index());
                node(self, stage, modules.map_or("", String::as_str))
            });
            let (memory, nodes) = (memory_text(self, rank), nodes.collect::<String>());
            format!(
                "  subgraph cluster_rank_{rank} {{\n    label=\"rank {rank}{memory}\"; style=\"rounded,filled\"; \
                 color=\"#dde1e7\"; fillcolor=\"#f0f2f5\";\n{nodes}  }}\n"
            )
        });
        let clusters: String = clusters.collect();
        let edges = edges(self);
        format!(
            "digraph plan {{\n  \
             rankdir=LR; compound=true; nodesep=0.4; ranksep=1.1;\n  \
             fontname=\"Helvetica\"; fontsize=12; labeljust=l;\n  \
             node [shape=box style=\"rounded,filled\" fillcolor=\"#ffffff\" color=\"#626b78\" \
             fontname=\"Helvetica\" fontsize=11 margin=\"0.15,0.1\"];\n  \
             edge [fontname=\"Helvetica\" fontsize=10 fontcolor=\"#1b2027\"];\n{clusters}{edges}}}\n"
        )
    }
}

/// The memory that a rank needs, for its label.
fn memory_text(plan: &PlanFile, rank: RankIndex) -> String {
    let prediction = plan.prediction.ranks.get(rank.index());
    let Some(prediction) = prediction.filter(|one| one.rank == rank) else {
        return String::new();
    };
    let total = prediction.memory.total();
    let need = bytes_text(total);
    let of_limit = plan.machine.rank(rank).memory_bytes.map(|limit| {
        let (limit, share) = (bytes_text(limit), share_text(total, limit));
        format!(" of {limit} ({share})")
    });
    format!(": {need}{}", of_limit.unwrap_or_default())
}

fn node(plan: &PlanFile, stage: &PlanStage, modules: &str) -> String {
    let name = stage.stage;
    let [forward, backward] = [stage.costs.forward, stage.costs.backward].map(time_text);
    let mut lines = vec![format!("stage {name}")];
    lines.extend(module_lines(modules));
    lines.push(bytes_text(stage.held_bytes()));
    lines.push(format!("F {forward}, B {backward}"));
    if stage.recompute {
        lines.push("recomputes".to_owned());
    }
    let lines: Vec<String> = lines.iter().map(|line| dot(line)).collect();
    let label = lines.join("\\n");
    let is_slowest = plan.prediction.bottleneck == name;
    let width = if is_slowest { " penwidth=2.5" } else { "" };
    format!("    stage_{name} [label=\"{label}\"{width}];\n")
}

/// The names of modules in a few short lines.
fn module_lines(modules: &str) -> Vec<String> {
    let mut lines = wrapped(modules.split(' '), " ", LINE);
    lines.retain(|line| !line.is_empty());
    if lines.len() > LINES {
        let left_out = lines.drain(LINES..).map(|line| line.split(' ').count());
        let left_out: usize = left_out.sum();
        lines.push(format!("and {left_out} more"));
    }
    for line in &mut lines {
        if line.chars().count() > LINE {
            *line = line.chars().take(LINE - 1).chain(['…']).collect();
        }
    }
    lines
}

/// Graphviz creates a node for a stage that an edge names but that the plan does not have.
fn edges(plan: &PlanFile) -> String {
    let boundaries = plan.boundaries.iter().map(|boundary| {
        let (from, to) = (boundary.edge.from, boundary.edge.to);
        let (solid, dashed) = ("style=solid", "style=dashed constraint=false");
        let (color, style) = match (from.compute, to.compute) {
            (Compute::Forward, Compute::Forward) => (COLORS[0], solid),
            // A value that is kept for a backward flows forward, but another program waits for it.
            (Compute::Forward, _) => (COLORS[2], dashed),
            _ => (COLORS[1], dashed),
        };
        let (from, to, bytes) = (from.stage, to.stage, bytes_text(boundary.bytes));
        format!("  stage_{from} -> stage_{to} [label=\"{bytes}\" color=\"{color}\" {style}];\n")
    });
    let ties = plan.ties.iter().flat_map(|tie| {
        let (owner, path, color) = (tie.owner, dot(tie.path.as_str()), COLORS[4]);
        tie.copies.iter().map(move |copy| {
            format!(
                "  stage_{owner} -> stage_{copy} [label=\"{path}\" style=dotted color=\"{color}\" dir=none \
                 constraint=false];\n"
            )
        })
    });
    boundaries.chain(ties).collect()
}

#[cfg(test)]
mod tests {
    use tinderbox_schedule::StageIndex;

    use super::*;
    use crate::plan::tests::samples;

    #[test]
    fn stages_boundaries_and_ties_are_drawn() {
        insta::assert_snapshot!(samples::own_lists().to_dot(), @r##"
        digraph plan {
          rankdir=LR; compound=true; nodesep=0.4; ranksep=1.1;
          fontname="Helvetica"; fontsize=12; labeljust=l;
          node [shape=box style="rounded,filled" fillcolor="#ffffff" color="#626b78" fontname="Helvetica" fontsize=11 margin="0.15,0.1"];
          edge [fontname="Helvetica" fontsize=10 fontcolor="#1b2027"];
          subgraph cluster_rank_0 {
            label="rank 0: 239 MiB"; style="rounded,filled"; color="#dde1e7"; fillcolor="#f0f2f5";
            stage_0 [label="stage 0\nembedding blocks.0\n28.1 MiB\nF 960 µs, B 1.92 ms"];
            stage_2 [label="stage 2\nblocks.2 head\n37.1 MiB\nF 3.00 ms, B 6.00 ms"];
          }
          subgraph cluster_rank_1 {
            label="rank 1: 142 MiB"; style="rounded,filled"; color="#dde1e7"; fillcolor="#f0f2f5";
            stage_1 [label="stage 1\nblocks.0 blocks.1\n20.1 MiB\nF 3.70 ms, B 7.40 ms" penwidth=2.5];
          }
          stage_0 -> stage_1 [label="4.00 MiB" color="#5c93f2" style=solid];
          stage_0 -> stage_2 [label="256 KiB" color="#5c93f2" style=solid];
          stage_1 -> stage_2 [label="4.00 MiB" color="#5c93f2" style=solid];
          stage_1 -> stage_0 [label="4.00 MiB" color="#58b862" style=dashed constraint=false];
          stage_2 -> stage_0 [label="24.0 MiB" color="#58b862" style=dashed constraint=false];
          stage_2 -> stage_1 [label="4.00 MiB" color="#58b862" style=dashed constraint=false];
          stage_0 -> stage_2 [label="embedding.weight" style=dotted color="#b087ea" dir=none constraint=false];
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
    fn unknown_stages_are_drawn_and_names_cannot_leave_their_text() {
        let mut plan = samples::smallest();
        // The first after the last.
        plan.boundaries[0].edge.to.stage = StageIndex::new(2);
        plan.ties[0].copies.push(StageIndex::new(usize::MAX));
        plan.ties[0].path = "a\"b\\c&amp;\n".into();
        plan.stages[0].modules = vec!["\"]; evil [label=\"".to_owned()];
        let dot = plan.to_dot();
        assert!(dot.contains(" -> stage_2 ["), "{dot}");
        assert!(dot.contains(&format!("stage_{} [", u32::MAX)), "{dot}");
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
