//! What the actions of a step cost, in ticks and bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::action::{Action, Compute, Task};
use crate::dependencies::Edge;

/// The time of each program in ticks, the same for every stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeTimes {
    /// `F`, in ticks.
    pub forward: u64,
    /// `I`, in ticks.
    pub input_gradient: u64,
    /// `W`, in ticks.
    pub weight_gradient: u64,
}

/// What one stage takes and holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StageCosts {
    /// `F`, in ticks.
    pub forward: u64,
    /// `B`, in ticks; less than `I` and `W` together where these do work twice.
    pub backward: u64,
    /// `I`, in ticks.
    pub input_gradient: u64,
    /// `W`, in ticks.
    pub weight_gradient: u64,
    /// The update of the stage's parameters, once per step, in ticks.
    pub update: u64,
    /// Bytes that a forward keeps for its micro-batch until `B` or `I` has run.
    pub activation_bytes: u64,
    /// Bytes that `I` leaves for `W`.
    pub weight_gradient_bytes: u64,
    /// Bytes that the stage holds all the time: parameters, gradients, optimizer state.
    pub resident_bytes: u64,
    /// The most bytes that one of its programs holds besides what is kept and sent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub transient_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls")]
const fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl ComputeTimes {
    /// `B`, in ticks: the sum of both parts.
    #[must_use]
    pub const fn backward(self) -> u64 {
        self.input_gradient.saturating_add(self.weight_gradient)
    }
}

impl StageCosts {
    /// Times alone; `B` takes `I` and `W` together, and a micro-batch holds one byte until its
    /// backward is done.
    #[must_use]
    pub const fn of(times: ComputeTimes) -> Self {
        Self {
            forward: times.forward,
            backward: times.backward(),
            input_gradient: times.input_gradient,
            weight_gradient: times.weight_gradient,
            update: 0,
            activation_bytes: 1,
            weight_gradient_bytes: 1,
            resident_bytes: 0,
            transient_bytes: 0,
        }
    }

    /// Ticks of a program.
    #[must_use]
    pub const fn time(&self, compute: Compute) -> u64 {
        match compute {
            Compute::Forward => self.forward,
            Compute::Backward => self.backward,
            Compute::InputGradient => self.input_gradient,
            Compute::WeightGradient => self.weight_gradient,
        }
    }
}

/// What a message takes between two ranks. Messages of one rank to another go one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LinkCosts {
    /// From the end of the transfer to the arrival, in ticks.
    pub latency: u64,
    /// Ticks that the link is busy per MiB.
    pub ticks_per_mib: u64,
}

impl LinkCosts {
    /// Ticks that the link is busy with a message.
    #[must_use]
    pub fn transfer(&self, bytes: u64) -> u64 {
        let ticks = (u128::from(bytes) * u128::from(self.ticks_per_mib)) >> 20;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }
}

/// What a step costs. A tick is any unit of time; measured costs are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Costs {
    /// Each stage.
    pub stages: Vec<StageCosts>,
    /// Bytes of the message of each edge, per micro-batch; none for an edge that is not listed.
    #[serde(with = "edge_list", default)]
    pub message_bytes: BTreeMap<Edge, u64>,
    /// Every link.
    pub link: LinkCosts,
    /// What each action takes beside its work, in ticks.
    pub overhead: u64,
    /// Ticks of an overlapped pair per thousand ticks of its two programs one after the other; a
    /// pair never takes less than the longer of the two.
    pub overlap_permille: u64,
}

impl Costs {
    /// The same times for every stage; links, updates and actions take no time of their own, and an
    /// overlapped pair takes as long as its programs one after the other.
    #[must_use]
    pub fn uniform(stages: usize, times: ComputeTimes) -> Self {
        Self::of_stages(vec![StageCosts::of(times); stages])
    }

    /// Different stages; links and actions take no time of their own.
    #[must_use]
    pub const fn of_stages(stages: Vec<StageCosts>) -> Self {
        Self {
            stages,
            message_bytes: BTreeMap::new(),
            link: LinkCosts {
                latency: 0,
                ticks_per_mib: 0,
            },
            overhead: 0,
            overlap_permille: 1000,
        }
    }

    /// Ticks of an action on its rank; a receive takes none but the waiting.
    #[must_use]
    pub fn time(&self, action: &Action) -> u64 {
        let stage = |index: usize| self.stages.get(index).copied().unwrap_or_default();
        let task = |task: &Task| stage(task.stage.index()).time(task.compute);
        let work = match action {
            Action::Compute(one) => task(one),
            Action::Overlap([forward, backward]) => {
                let (a, b) = (task(forward), task(backward));
                let both = u128::from(a.saturating_add(b)) * u128::from(self.overlap_permille);
                u64::try_from(both / 1000).unwrap_or(u64::MAX).max(a).max(b)
            }
            Action::Update { stage: index } => stage(index.index()).update,
            Action::Send(_) | Action::Receive(_) | Action::Reduce { .. } => 0,
        };
        work.saturating_add(self.overhead)
    }
}

/// A map with edges as keys, as a list of pairs: JSON's keys are strings.
mod edge_list {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::dependencies::Edge;

    pub(super) fn serialize<S: Serializer>(
        map: &BTreeMap<Edge, u64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<Edge, u64>, D::Error> {
        let pairs = Vec::<(Edge, u64)>::deserialize(deserializer)?;
        Ok(pairs.into_iter().collect())
    }
}
