//! What ranks report of a round, exchanged and combined.

use std::collections::BTreeMap;
use std::ops::Range;

use tinderbox_fake::DynTensor;

use super::driver::Driver;
use super::output::{Evaluation, NamedOutput, OutputsOn, weighted};
use super::state::Condition;
use crate::PipelineError;
use crate::runtime::points::{Point, reach};
use crate::runtime::ranks::To;
use crate::runtime::round::{Reported, Round};
use crate::schedule::{Schedule, StageIndex, TimeUnit, Timeline};

impl Driver {
    /// Returns the reports of all ranks, given those of this process.
    pub(super) fn reports_of_all(
        &mut self,
        mut reports: Vec<Reported>,
    ) -> Result<Vec<Reported>, PipelineError> {
        let Some(own) = self.ranks.own() else {
            return Ok(reports);
        };
        reach(Point::Report);
        // In a world, each process has one rank, or waits.
        let (mut report, mut outputs) = reports.pop().unwrap_or_default();
        report.newest_backup = self.kept.as_ref().map_or(0, |kept| kept.newest());
        let mut withheld = None;
        if self.options.outputs == OutputsOn::Own {
            let names = std::mem::take(&mut report.outputs);
            withheld = Some((names, std::mem::take(&mut outputs)));
        }
        let exchanged = self.ranks.exchange(To::All, report, outputs);
        let mut reports = exchanged.inspect_err(|_| self.condition = Condition::Stopped)?;
        if let (Some((names, values)), Some((report, outputs))) =
            (withheld, reports.get_mut(own.index()))
        {
            report.outputs = names;
            *outputs = values;
        }
        if let Some(kept) = &mut self.kept {
            kept.of_all = reports.iter().map(|(report, _)| report.newest_backup).min();
        }
        Ok(reports)
    }
}

/// Combines the reports of the ranks, in their order; squared norms are added in the order of the
/// table.
pub(super) fn collect(
    round: &Round,
    reports: Vec<Reported>,
    weights: &[f64],
    norm_order: &[(StageIndex, usize)],
) -> Evaluation {
    let (schedule, timed) = timed(round);
    let mut losses = vec![None; weights.len()];
    let mut outputs: BTreeMap<String, Vec<(usize, DynTensor)>> = BTreeMap::new();
    let (mut gradient_norm, mut stopped) = (None, None);
    let mut squares: BTreeMap<(StageIndex, usize), Vec<f64>> = BTreeMap::new();
    let mut timelines = Vec::new();
    for (rank, (report, values)) in reports.into_iter().enumerate() {
        for (micro_batch, loss) in report.losses {
            // Another process could report any number.
            if let Some(place) = losses.get_mut(micro_batch) {
                *place = loss;
            }
        }
        // The pieces of a parameter are in the order of the replicas, as the reports are.
        for (stage, place, sums) in report.squares {
            squares.entry((stage, place)).or_default().extend(sums);
        }
        for ((micro_batch, name), value) in report.outputs.into_iter().zip(values) {
            outputs.entry(name).or_default().push((micro_batch, value));
        }
        gradient_norm = gradient_norm.or(report.gradient_norm);
        stopped = stopped.or(report.stopped);
        timelines.extend(report.timeline.filter(|_| timed.contains(&rank)));
    }
    if gradient_norm.is_none() && !squares.is_empty() {
        let in_order = norm_order.iter();
        let in_order = in_order.map(|of| Some(squares.get(of)?.iter().sum::<f64>()));
        // Unknown if the gradients of some rank are not on the CPU.
        gradient_norm = in_order.sum::<Option<f64>>().map(f64::sqrt);
    }
    let micro_batch_losses: Vec<f64> = losses.into_iter().flatten().collect();
    let has_loss = micro_batch_losses.len() == weights.len();
    let loss = has_loss.then(|| weighted(&micro_batch_losses, weights));
    let outputs = outputs
        .into_iter()
        .map(|(name, values)| NamedOutput::new(name, values))
        .collect();
    let timeline = round.epoch.map(|_| Timeline {
        name: schedule.name.clone(),
        unit: TimeUnit::Nanoseconds,
        stage_to_rank: schedule.stage_to_rank.clone(),
        ranks: timelines,
    });
    let skipped = round.loss_scale.is_some() && gradient_norm.is_some_and(|n| !n.is_finite());
    Evaluation {
        loss,
        micro_batch_losses,
        micro_batch_weights: weights.to_vec(),
        gradient_norm,
        skipped,
        timeline,
        recovered: Vec::new(),
        outputs,
        batches: vec![weights.len()],
        is_sum: round.is_sum,
        stopped,
    }
}

/// The schedule of the replica whose times are reported, the first of those with the most micro-batches, and its ranks.
fn timed(round: &Round) -> (&Schedule, Range<usize>) {
    let schedule = |replica: usize| &round.parts[replica].lists.schedule;
    let replicas = (0..round.parts.len()).rev();
    let busiest = replicas.max_by_key(|replica| schedule(*replica).micro_batches);
    let busiest = busiest.unwrap_or(0);
    let ranks = schedule(busiest).world_size();
    (schedule(busiest), busiest * ranks..(busiest + 1) * ranks)
}
