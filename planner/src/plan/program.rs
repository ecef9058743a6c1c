//! The programs of each stage as readable text.

use std::fmt;

use tinderbox_schedule::StageIndex;
use tinderbox_schedule::arithmetic::sum;

use super::escape::visible;
use super::model::form;
use super::units::{bytes_text, count_text, time_text};
use super::{PlanFile, PlanStage, PlanValue};

impl PlanFile {
    /// Returns the programs of stages as text, and the values that enter, leave and bypass each stage.
    /// An empty list of stages means all; stages that the plan does not have are skipped. Linear in the
    /// text.
    #[must_use]
    pub fn programs_text(&self, stages: &[StageIndex]) -> String {
        let shown = self.stages.iter();
        let shown = shown.filter(|stage| stages.is_empty() || stages.contains(&stage.stage));
        let texts: Vec<String> = shown.map(|stage| StageText(stage).to_string()).collect();
        let note = match self.has_programs() {
            false => {
                "The plan has no text of its programs, like every plan in a checkpoint, and those whose text would have more than 4 MiB: show the file of \
                 `Plan::save` to see what each stage runs.\n\n"
            }
            true => "",
        };
        format!("{note}{}", texts.join("\n"))
    }
}

/// The text of one stage: its modules and parameters, the values at its boundaries, its programs.
pub(super) struct StageText<'a>(pub(super) &'a PlanStage);

impl fmt::Display for StageText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = self.0;
        let modules: Vec<_> = stage.modules.iter().map(|module| visible(module)).collect();
        let modules = match modules.is_empty() {
            true => "no modules".to_owned(),
            false => modules.join(" "),
        };
        let (name, rank) = (stage.stage, stage.rank);
        writeln!(f, "=== stage {name} on rank {rank}: {modules}")?;
        let mut parameters = count_text(stage.parameters.len(), "parameter");
        if !stage.copies.is_empty() {
            parameters = format!("{parameters} (+{} shared)", stage.copies.len());
        }
        let bytes = bytes_text(stage.held_bytes());
        let [forward, backward] = [stage.costs.forward, stage.costs.backward].map(time_text);
        let recomputes = ", recomputes its activations";
        let recomputes = if stage.recompute { recomputes } else { "" };
        writeln!(
            f,
            "    {parameters}, {bytes}; F {forward}, B {backward}{recomputes}"
        )?;
        for (heading, values) in [
            ("receives", &stage.live_in),
            ("sends", &stage.live_out),
            ("bypassed by", &stage.bypassing),
        ] {
            write_values(f, heading, values)?;
        }
        write_programs(f, stage)
    }
}

fn write_programs(f: &mut fmt::Formatter<'_>, stage: &PlanStage) -> fmt::Result {
    for program in &stage.programs {
        let name = visible(&program.name);
        writeln!(f, "\n--- {name} of stage {}", stage.stage)?;
        for line in &program.reads {
            writeln!(f, "    {}", visible(line))?;
        }
        if !program.reads.is_empty() && !program.operations.is_empty() {
            writeln!(f)?;
        }
        for line in &program.operations {
            writeln!(f, "    {}", visible(line))?;
        }
        if program.reads.is_empty() && program.operations.is_empty() {
            writeln!(f, "    no operations")?;
        }
    }
    Ok(())
}

/// Values in columns, below a heading.
fn write_values(f: &mut fmt::Formatter<'_>, heading: &str, values: &[PlanValue]) -> fmt::Result {
    if values.is_empty() {
        return Ok(());
    }
    let total = bytes_text(sum(values.iter().map(|value| value.bytes)));
    let count = count_text(values.len(), "value");
    writeln!(f, "  {heading}: {count}, {total} per micro-batch")?;
    let rows = values.iter().map(|value| {
        let (name, form) = (visible(&value.name), form(&value.dtype, &value.shape));
        [name.into_owned(), form, bytes_text(value.bytes)]
    });
    let rows: Vec<[String; 3]> = rows.collect();
    let widths = [0, 1, 2].map(|column| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    });
    for (value, [name, form, bytes]) in values.iter().zip(&rows) {
        writeln!(
            f,
            "    {name:<0$}  {form:<1$}  {bytes:>2$}  {3}, stage {4} -> {5}",
            widths[0],
            widths[1],
            widths[2],
            visible(&value.made_by),
            value.from,
            value.to
        )?;
    }
    Ok(())
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
