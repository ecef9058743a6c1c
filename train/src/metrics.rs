//! Metrics of a pipeline's steps.

use std::collections::VecDeque;
use std::sync::Arc;

use burn::tensor::TensorReadError;
use burn_train::metric::state::{FormatOptions, NumericMetricState};
use burn_train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};
use derive_more::{Debug, Display};
use parking_lot::Mutex;
use tinderbox::StepOutput;
use tinderbox::planner::{Plan, Rates};

/// The number of steps that are kept, because burn-train computes the metrics of a step a step or two later.
const KEPT_STEPS: usize = 16;

/// A metric of a pipeline's training steps, from a [strategy](crate::PipelineStrategy).
///
/// Register it for training: `metric_train_numeric(strategy.gradient_norm())`. An evaluation has no such metric.
#[derive(Clone, Debug)]
pub struct StepMetric {
    kind: Kind,
    steps: Steps,
    /// Whether the last step had a value.
    is_known: bool,
    /// burn-train's state has no `Debug`.
    #[debug("{:?}", state.final_value())]
    state: NumericMetricState,
}

#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
pub(crate) enum Kind {
    #[display("Gradient Norm")]
    GradientNorm,
    #[display("Idle Share")]
    IdleShare,
    #[display("Held Bytes")]
    PeakBytes,
    #[display("FLOP Utilization")]
    FlopUtilization,
}

impl Kind {
    fn unit(self) -> Option<&'static str> {
        match self {
            Self::GradientNorm => None,
            Self::IdleShare | Self::FlopUtilization => Some("%"),
            Self::PeakBytes => Some("MiB"),
        }
    }
}

/// The values of a step.
#[derive(Clone, Debug, Default)]
struct Step {
    /// Its number in the epoch.
    iteration: usize,
    gradient_norm: Option<f64>,
    /// The percentage of the time of all ranks of a replica.
    idle_share: Option<f64>,
    /// The most bytes that each rank of a replica has held.
    peak_bytes: Vec<u64>,
    /// A percentage.
    flop_utilization: Option<f64>,
}

/// The last steps, for the thread that computes metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps(Arc<Mutex<VecDeque<Step>>>);

impl Steps {
    /// Adds a step, with its number in the epoch and its time.
    pub(crate) fn push(&self, iteration: usize, step: &StepOutput, plan: &Plan, seconds: f64) {
        let timeline = step.timeline.as_ref();
        let ranks = timeline.into_iter().flat_map(|timeline| &timeline.ranks);
        let step = Step {
            iteration,
            // A norm that is not finite would make the mean of the epoch not finite.
            gradient_norm: step.gradient_norm.filter(|norm| norm.is_finite()),
            idle_share: timeline.map(|timeline| 100.0 * timeline.idle_share()),
            peak_bytes: ranks.map(|rank| rank.peak_bytes()).collect(),
            flop_utilization: flops_per_s(plan).map(|peak| {
                let micro_batches = step.micro_batch_losses.len() as f64;
                100.0 * micro_batches * model_flops(plan) / (seconds * peak)
            }),
        };
        let mut steps = self.0.lock();
        steps.push_back(step);
        if steps.len() > KEPT_STEPS {
            steps.pop_front();
        }
    }

    fn get(&self, iteration: usize) -> Option<Step> {
        let steps = self.0.lock();
        let found = steps.iter().rfind(|step| step.iteration == iteration);
        found.cloned()
    }

    pub(crate) fn metric(&self, kind: Kind) -> StepMetric {
        StepMetric {
            kind,
            steps: self.clone(),
            is_known: false,
            state: NumericMetricState::new(),
        }
    }
}

/// Returns the floating-point operations of the traced micro-batch, without the repeated operations of a recomputation.
fn model_flops(plan: &Plan) -> f64 {
    let stages = plan.stages.iter().map(|stage| {
        let again = u64::from(stage.recompute) * stage.forward_flops;
        let backward = stage.backward_flops.saturating_sub(again);
        stage.forward_flops as f64 + backward as f64
    });
    stages.sum()
}

/// Returns the floating-point operations per second of all ranks; `None` if the machine was not calibrated.
fn flops_per_s(plan: &Plan) -> Option<f64> {
    let machine = &plan.machine;
    let is_calibrated = machine.rates.flops_per_s != Rates::default().flops_per_s;
    let ranks = machine.rank_models().iter();
    let speeds = ranks.map(|rank| rank.speed_permille as f64 / 1000.0);
    // The machine has the ranks of one replica.
    let replicas = plan.step.replicas.max(1) as f64;
    is_calibrated.then(|| machine.rates.flops_per_s as f64 * speeds.sum::<f64>() * replicas)
}

impl StepMetric {
    fn format(&self) -> FormatOptions {
        let format = FormatOptions::new(self.name()).precision(2);
        match self.kind.unit() {
            Some(unit) => format.unit(unit),
            None => format,
        }
    }
}

impl Metric for StepMetric {
    type Input = ();

    fn name(&self) -> MetricName {
        Arc::new(self.kind.to_string())
    }

    fn description(&self) -> Option<String> {
        let text = match self.kind {
            Kind::GradientNorm => "the norm of all gradients, before they are clipped",
            Kind::IdleShare => "the percentage of time in which ranks wait for each other",
            Kind::PeakBytes => "the most bytes that a rank holds in a step",
            Kind::FlopUtilization => {
                "the model's floating-point operations as a percentage of what the ranks can do"
            }
        };
        Some(text.to_owned())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: self.kind.unit().map(str::to_owned),
            higher_is_better: self.kind == Kind::FlopUtilization,
        }
        .into()
    }

    fn update(&mut self, (): &(), at: &MetricMetadata) -> Result<SerializedEntry, TensorReadError> {
        // A validation has no learning rate.
        let training = at.lr.as_ref().and(at.iteration);
        let step = training.and_then(|iteration| self.steps.get(iteration));
        let step = step.unwrap_or_default();
        let mib = |bytes: &u64| *bytes as f64 / (1 << 20) as f64;
        let value = match self.kind {
            Kind::GradientNorm => step.gradient_norm,
            Kind::IdleShare => step.idle_share,
            Kind::PeakBytes => step.peak_bytes.iter().max().map(mib),
            Kind::FlopUtilization => step.flop_utilization,
        };
        self.is_known = value.is_some();
        let Some(value) = value else {
            return Ok(SerializedEntry::not_available(self.kind.unit()));
        };
        self.state.update(value, 1);
        let mut entry = self.state.compute_update(self.format());
        if self.kind == Kind::PeakBytes {
            let ranks = step.peak_bytes.iter();
            let ranks: Vec<String> = ranks.map(|bytes| format!("{:.1}", mib(bytes))).collect();
            entry.formatted = format!("{} MiB, rank by rank", ranks.join(" "));
        }
        Ok(entry)
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(match self.is_known {
            true => self.state.compute_final(self.format()),
            false => SerializedEntry::not_available(self.kind.unit()),
        })
    }

    fn clear(&mut self) {
        self.state.reset();
        self.is_known = false;
    }
}

impl Numeric for StepMetric {
    fn value(&self) -> Option<NumericEntry> {
        self.is_known.then(|| self.state.current_value())
    }

    fn running_value(&self) -> Option<NumericEntry> {
        self.is_known.then(|| self.state.running_value())
    }

    fn final_value(&self) -> NumericEntry {
        self.state.final_value()
    }
}
