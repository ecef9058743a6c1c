//! The programs of each stage as readable text.

use tinderbox_ids::text::{count_text, human_bytes, time_text};
use tinderbox_schedule::StageIndex;
use tinderbox_schedule::arithmetic::sum;

use super::escape::visible;
use super::model::form;
use super::{Plan, PlanProgram, PlanStage, PlanValue};

impl Plan {
    /// Returns the programs of stages as text, and the values that enter, leave and bypass each stage.
    /// An empty list of stages means all; stages that the plan does not have are skipped. Linear in the
    /// text.
    pub fn programs_text(&self, stages: &[StageIndex]) -> String {
        let shown = self.stages.iter();
        let shown = shown.filter(|stage| stages.is_empty() || stages.contains(&stage.stage));
        let texts = shown.map(stage_text).collect::<Vec<_>>().join("\n");
        if self.stages.iter().any(|stage| !stage.programs.is_empty()) {
            return texts;
        }
        format!(
            "The plan has no text of its programs, like every plan in a checkpoint, and those whose text would have more \
             than 4 MiB: show the file of `Plan::save` to see what each stage runs.\n\n{texts}"
        )
    }
}

/// The text of one stage: its modules and parameters, the values at its boundaries, its programs.
fn stage_text(stage: &PlanStage) -> String {
    let (name, rank) = (stage.stage, stage.rank);
    let modules: Vec<_> = stage.modules.iter().map(|module| visible(module)).collect();
    let modules = match modules.is_empty() {
        true => "no modules".to_owned(),
        false => modules.join(" "),
    };
    let mut parameters = count_text(stage.parameters.len(), "parameter");
    if !stage.copies.is_empty() {
        parameters = format!("{parameters} (+{} shared)", stage.copies.len());
    }
    let bytes = human_bytes(stage.held_bytes());
    let [forward, backward] = [stage.costs.forward, stage.costs.backward].map(time_text);
    let recomputes = match stage.recompute {
        true => ", recomputes its activations",
        false => "",
    };
    let values = [
        values_text("receives", &stage.live_in),
        values_text("sends", &stage.live_out),
        values_text("bypassed by", &stage.bypassing),
    ];
    let programs = stage.programs.iter();
    let programs = programs.map(|program| program_text(name, program));
    let content: String = values.into_iter().chain(programs).collect();
    format!(
        "=== stage {name} on rank {rank}: {modules}\n    \
         {parameters}, {bytes}; F {forward}, B {backward}{recomputes}\n{content}"
    )
}

fn program_text(stage: StageIndex, program: &PlanProgram) -> String {
    let lines = |lines: &[String]| -> String {
        let lines = lines.iter().map(|line| format!("    {}\n", visible(line)));
        lines.collect()
    };
    let (reads, operations) = (lines(&program.reads), lines(&program.operations));
    let body = match (reads.as_str(), operations.as_str()) {
        ("", "") => "    no operations\n".to_owned(),
        ("", one) | (one, "") => one.to_owned(),
        _ => format!("{reads}\n{operations}"),
    };
    format!("\n--- {} of stage {stage}\n{body}", visible(&program.name))
}

/// Values in columns, below a heading; nothing without values.
fn values_text(heading: &str, values: &[PlanValue]) -> String {
    if values.is_empty() {
        return String::new();
    }
    let total = human_bytes(sum(values.iter().map(|value| value.bytes)));
    let count = count_text(values.len(), "value");
    let rows = values.iter().map(|value| {
        let (name, form) = (visible(&value.name), form(&value.dtype, &value.shape));
        [name.into_owned(), form, human_bytes(value.bytes)]
    });
    let rows: Vec<[String; 3]> = rows.collect();
    let [a, b, c] = [0, 1, 2].map(|column| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    });
    let lines = values.iter().zip(&rows);
    let lines = lines.map(|(value, [name, form, bytes])| {
        let (made_by, from, to) = (visible(&value.made_by), value.from, value.to);
        format!("    {name:<a$}  {form:<b$}  {bytes:>c$}  {made_by}, stage {from} -> {to}\n")
    });
    let lines: String = lines.collect();
    format!("  {heading}: {count}, {total} per micro-batch\n{lines}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::samples;

    #[test]
    fn programs_are_listed_line_by_line() {
        insta::assert_snapshot!(samples::own_lists().programs_text(&[]), @r"
        === stage 0 on rank 0: embedding blocks.0.attention
            4 parameters, 28.1 MiB; F 960 µs, B 1.92 ms
          sends: 2 values, 4.25 MiB per micro-batch
            v19  f32[8, 128, 1024]  4.00 MiB  add in blocks.0.attention, stage 0 -> 1
            v79  f32[8, 128, 64]     256 KiB  add in embedding, stage 0 -> 2

        --- forward of stage 0
            v0: f32[8, 128, 1024]

            v9 = matmul(v0) in embedding; kept
            v19 = matmul(v10) in blocks.0.attention; kept

        --- backward of stage 0
            v0: f32[8, 128, 1024]

            v9 = matmul(v0) in embedding; freed
            v19 = matmul(v10) in blocks.0.attention; freed

        === stage 1 on rank 1: blocks.0.feed_forward blocks.1.attention blocks.1.feed_forward
            6 parameters, 20.1 MiB; F 3.70 ms, B 7.40 ms
          receives: 1 value, 4.00 MiB per micro-batch
            v19  f32[8, 128, 1024]  4.00 MiB  add in blocks.0.attention, stage 0 -> 1
          sends: 1 value, 4.00 MiB per micro-batch
            v49  f32[8, 128, 1024]  4.00 MiB  add in blocks.1.feed_forward, stage 1 -> 2
          bypassed by: 1 value, 256 KiB per micro-batch
            v79  f32[8, 128, 64]  256 KiB  add in embedding, stage 0 -> 2

        --- forward of stage 1
            v20: f32[8, 128, 1024]

            v29 = matmul(v20) in blocks.0.feed_forward; kept
            v39 = matmul(v30) in blocks.1.attention; kept
            v49 = matmul(v40) in blocks.1.feed_forward; kept

        --- backward of stage 1
            v20: f32[8, 128, 1024]

            v29 = matmul(v20) in blocks.0.feed_forward; freed
            v39 = matmul(v30) in blocks.1.attention; freed
            v49 = matmul(v40) in blocks.1.feed_forward; freed

        === stage 2 on rank 0: blocks.2.attention blocks.2.feed_forward head
            6 parameters (+1 shared), 37.1 MiB; F 3.00 ms, B 6.00 ms
          receives: 2 values, 4.25 MiB per micro-batch
            v49  f32[8, 128, 1024]  4.00 MiB  add in blocks.1.feed_forward, stage 1 -> 2
            v79  f32[8, 128, 64]     256 KiB  add in embedding, stage 0 -> 2

        --- forward of stage 2
            v50: f32[8, 128, 1024]

            v59 = matmul(v50) in blocks.2.attention; kept
            v69 = matmul(v60) in blocks.2.feed_forward; kept
            v79 = matmul(v70) in head; kept

        --- backward of stage 2
            v50: f32[8, 128, 1024]

            v59 = matmul(v50) in blocks.2.attention; freed
            v69 = matmul(v60) in blocks.2.feed_forward; freed
            v79 = matmul(v70) in head; freed
        ");
    }

    #[test]
    fn only_some_stages() {
        let plan = samples::four_stages();
        let stages = [2, 77].map(StageIndex::new);
        let text = plan.programs_text(&stages);
        let headings: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("==="))
            .collect();
        assert_eq!(headings.len(), 1, "{text}");
        assert!(headings[0].starts_with("=== stage 2 on rank 2: "), "{text}");
    }

    #[test]
    fn a_plan_without_programs_has_a_note() {
        let mut plan = samples::smallest();
        for stage in &mut plan.stages {
            stage.programs.clear();
            stage.live_out.clear();
        }
        plan.stages[0].modules.clear();
        insta::assert_snapshot!(plan.programs_text(&[]), @r"
        The plan has no text of its programs, like every plan in a checkpoint, and those whose text would have more than 4 MiB: show the file of `Plan::save` to see what each stage runs.

        === stage 0 on rank 0: no modules
            2 parameters, 24.1 MiB; F 60.0 µs, B 120 µs

        === stage 1 on rank 1: head
            2 parameters (+1 shared), 25.0 MiB; F 700 µs, B 2.10 ms, recomputes its activations
          receives: 2 values, 4.25 MiB per micro-batch
            v9   f32[8, 128, 1024]  4.00 MiB  add in embedding, stage 0 -> 1
            v19  f32[8, 128, 64]     256 KiB  add in embedding, stage 0 -> 1
        ");
    }
}
