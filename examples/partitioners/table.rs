//! A table of plans in Markdown.

use tinderbox::Plan;
use tinderbox::planner::PlanStage;

/// A plan, or the error of the partitioner, with the times of its steps in seconds.
pub struct Row {
    pub partitioner: String,
    pub plan: Result<Plan, String>,
    pub steps: Vec<f64>,
}

/// Prints a model's rows.
pub fn print(title: &str, facts: &str, rows: &[Row]) {
    println!("## {title}\n\n{facts}\n");
    println!(
        "| partitioner | stages: rank, first and last module | predicted | measured | ratio | idle |"
    );
    println!("|---|---|---:|---:|---:|---:|");
    for row in rows {
        match &row.plan {
            Err(error) => println!("| `{}` | none: {error} | | | | |", row.partitioner),
            Ok(plan) => {
                let prediction = &plan.prediction;
                let predicted = prediction.step_ns as f64 / 1e6;
                let measured = 1e3 * median(row.steps.clone());
                println!(
                    "| `{}` | {} | {predicted:.1} ms | {measured:.1} ms | {:.2} | {:.1} % |",
                    row.partitioner,
                    stages(plan),
                    predicted / measured,
                    prediction.idle_permille as f64 / 10.0,
                );
            }
        }
    }
    // The reasons of the last plan, which is the best of the others.
    if let Some(Ok(plan)) = rows.last().map(|row| &row.plan) {
        println!("\n```text");
        for reason in &plan.choice.reasons {
            println!("{reason}");
        }
        println!("```");
    }
    println!();
}

/// Prints the header of the page.
pub fn header(ranks: usize, micro_batches: usize, turns: usize) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "# What each partitioner chose\n\n\
         {ranks} ranks with one thread each on {cores} cores, {micro_batches} micro-batches under 1F1B, blocks\n\
         measured three levels deep. Plans of a model take turns; a measured step is the median of {turns}, from\n\
         the batch to the updated parameters. On a shared machine equal plans differ by a tenth from run to run.\n\
         The ratio is predicted over measured. `cargo run --release --features metis --example partitioners`\n\
         prints this page.\n"
    );
}

fn stages(plan: &Plan) -> String {
    let one = |stage: &PlanStage| match (stage.modules.first(), stage.modules.last()) {
        (Some(first), Some(last)) if first == last => format!("{}: `{first}`", stage.rank),
        (Some(first), Some(last)) => format!("{}: `{first}` to `{last}`", stage.rank),
        _ => format!("{}: no parameters", stage.rank),
    };
    let all: Vec<String> = plan.stages.iter().map(one).collect();
    all.join("<br>")
}

/// Returns the median, or NaN without values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
