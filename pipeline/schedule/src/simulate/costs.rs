//! The costs of the actions of a step, in ticks and bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tinderbox_ids::{RankIndex, StageIndex};

use crate::action::Action;
use crate::arithmetic::{scaled, sum};
use crate::dependencies::Edge;
use crate::link_model::LinkModel;
use crate::task::Compute;

/// The time of each program in ticks, the same for every stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComputeTimes {
    /// `F`, in ticks.
    pub forward: u64,
    /// `I`, in ticks.
    pub input_gradient: u64,
    /// `W`, in ticks.
    pub weight_gradient: u64,
}

/// The times and bytes of one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[must_use]
pub struct StageCosts {
    /// `F`, in ticks.
    pub forward: u64,
    /// `B`, in ticks; less than `I` and `W` together if these repeat work.
    pub backward: u64,
    /// `I`, in ticks.
    pub input_gradient: u64,
    /// `W`, in ticks.
    pub weight_gradient: u64,
    /// The last joins of the tree that sums the gradients of a rank's micro-batches, once per step, in ticks.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reduce: u64,
    /// The addition of the gradients of all replicas, for the part that a rank updates, once per step, in ticks.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sum: u64,
    /// The update of the stage's parameters, once per step, in ticks.
    pub update: u64,
    /// Bytes that a forward keeps for its micro-batch until `B` or `I` has run.
    pub activation_bytes: u64,
    /// Bytes that `I` keeps for `W`.
    pub weight_gradient_bytes: u64,
    /// Bytes that the stage always holds: parameters, gradients, optimizer state.
    pub resident_bytes: u64,
    /// The maximum bytes that one of its programs holds in addition to what is kept and sent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub transient_bytes: u64,
    /// The bytes of its gradients, and of the parameters that are updated by them, which replicas exchange.
    #[serde(default, skip_serializing_if = "is_default")]
    pub exchanged_bytes: u64,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl ComputeTimes {
    /// Creates the times of `F`, `I` and `W`, in ticks.
    pub const fn new(forward: u64, input_gradient: u64, weight_gradient: u64) -> Self {
        Self {
            forward,
            input_gradient,
            weight_gradient,
        }
    }

    /// Returns the ticks of `B`: the sum of both parts.
    pub const fn backward(self) -> u64 {
        self.input_gradient.saturating_add(self.weight_gradient)
    }
}

impl StageCosts {
    /// Creates costs with times only; `B` takes as long as `I` and `W` together, and a micro-batch holds one byte until
    /// its backward is done.
    pub fn of(times: ComputeTimes) -> Self {
        Self {
            forward: times.forward,
            backward: times.backward(),
            input_gradient: times.input_gradient,
            weight_gradient: times.weight_gradient,
            activation_bytes: 1,
            weight_gradient_bytes: 1,
            ..Self::default()
        }
    }

    /// Returns the ticks of a program.
    pub const fn time(&self, compute: Compute) -> u64 {
        match compute {
            Compute::Forward => self.forward,
            Compute::Backward => self.backward,
            Compute::InputGradient => self.input_gradient,
            Compute::WeightGradient => self.weight_gradient,
        }
    }

    /// Returns the bytes that a rank holds after a program of training, given the bytes before it.
    ///
    /// A forward allocates its activations; `B` and `W` free the rest of them, `I` frees all that `W` does not need.
    pub(crate) const fn held_after(&self, held: u64, compute: Compute) -> u64 {
        let (activation, weight) = (self.activation_bytes, self.weight_gradient_bytes);
        match compute {
            Compute::Forward => held.saturating_add(activation),
            Compute::Backward => held.saturating_sub(activation),
            Compute::InputGradient => held.saturating_sub(activation).saturating_add(weight),
            Compute::WeightGradient => held.saturating_sub(weight),
        }
    }
}

/// The costs of a message between two ranks. Messages from one rank to another are transferred one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[must_use]
pub struct LinkCosts {
    /// The time from the end of the transfer to the arrival, in ticks.
    pub latency: u64,
    /// Ticks that the link is busy per MiB.
    pub ticks_per_mib: u64,
    /// The model of the link, which determines when a send waits.
    #[serde(default, skip_serializing_if = "is_default")]
    pub model: LinkModel,
}

impl LinkCosts {
    /// Creates the costs of a link whose sends never wait, in ticks.
    pub const fn new(latency: u64, ticks_per_mib: u64) -> Self {
        Self {
            latency,
            ticks_per_mib,
            model: LinkModel::Unbounded,
        }
    }

    /// Returns the ticks that the link is busy with a message.
    pub fn transfer(&self, bytes: u64) -> u64 {
        scaled(bytes, self.ticks_per_mib, 1 << 20)
    }
}

/// Links between the machines of the ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The machine of each rank, of all replicas.
    pub machine_of: Vec<usize>,
    /// The costs of a link between ranks of two machines.
    pub link: LinkCosts,
}

impl Network {
    /// Returns the costs of the slowest link of pairs of ranks. Ranks on one machine have the link `within`.
    pub fn slowest(
        &self,
        within: LinkCosts,
        mut pairs: impl Iterator<Item = (usize, usize)>,
    ) -> LinkCosts {
        let machine = |rank: usize| self.machine_of.get(rank);
        if pairs.all(|(from, to)| machine(from) == machine(to)) {
            return within;
        }
        let model = within.model;
        LinkCosts { model, ..self.link }
    }
}

/// The costs of a step. A tick is any unit of time; measured costs are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Costs {
    /// The costs of each stage.
    pub stages: Vec<StageCosts>,
    /// Bytes of the message of each edge, per micro-batch; 0 for an edge that is not listed.
    pub message_bytes: BTreeMap<Edge, u64>,
    /// The costs of every link, or with a [network](Self::network), of the links within a machine.
    pub link: LinkCosts,
    /// The links between machines; `None` for ranks of one machine.
    pub network: Option<Network>,
    /// The number of replicas, whose ranks follow each other.
    pub replicas: usize,
    /// The overhead of each action, in ticks.
    pub overhead: u64,
}

impl Costs {
    /// Creates costs with the same times for every stage; links, updates and overhead have no duration.
    pub fn uniform(stages: usize, times: ComputeTimes) -> Self {
        Self::of_stages(vec![StageCosts::of(times); stages])
    }

    /// Creates costs of different stages; links and overhead have no duration.
    pub fn of_stages(stages: Vec<StageCosts>) -> Self {
        Self {
            stages,
            message_bytes: BTreeMap::new(),
            link: LinkCosts::default(),
            network: None,
            replicas: 1,
            overhead: 0,
        }
    }

    /// Returns the costs of a stage; none for one that does not exist.
    pub(crate) fn of_stage(&self, stage: StageIndex) -> StageCosts {
        self.stages.get(stage.index()).copied().unwrap_or_default()
    }

    /// Returns the costs of the link between two ranks of a replica that has `ranks`. With several replicas, these are the
    /// costs of the slowest of their links.
    pub fn link_between(&self, from: RankIndex, to: RankIndex, ranks: usize) -> LinkCosts {
        let replicas = (0..self.replicas).map(|replica| replica * ranks);
        let pairs = replicas.map(|first| (first + from.index(), first + to.index()));
        self.slowest(pairs)
    }

    fn slowest(&self, pairs: impl Iterator<Item = (usize, usize)>) -> LinkCosts {
        let network = self.network.as_ref();
        network.map_or(self.link, |network| network.slowest(self.link, pairs))
    }

    /// Returns the ticks for which a rank sends a stage's gradients, or its updated parameters, to the other replicas, and the
    /// latency of that link; zeros without other replicas.
    pub(crate) fn exchange(&self, stage: StageIndex, rank: RankIndex, ranks: usize) -> (u64, u64) {
        if self.replicas <= 1 {
            return (0, 0);
        }
        let of = |replica: usize| replica * ranks + rank.index();
        let pairs = (1..self.replicas).map(|replica| (of(replica - 1), of(replica)));
        let link = self.slowest(pairs);
        let replicas = self.replicas as u64;
        let sent = scaled(self.of_stage(stage).exchanged_bytes, replicas - 1, replicas);
        (link.transfer(sent), link.latency)
    }

    /// Returns the ticks of an action on its rank, without waiting; a receive has none. An overlapped pair takes as long as
    /// its two programs one after the other, with the overhead of one action.
    pub fn time(&self, action: &Action) -> u64 {
        let stage = self.of_stage(action.stage());
        let once = match action {
            Action::Reduce { .. } => stage.reduce,
            Action::Sum { .. } => stage.sum,
            Action::Update { .. } => stage.update,
            _ => 0,
        };
        let programs = action.tasks().iter();
        let programs = programs.map(|task| self.of_stage(task.stage).time(task.compute));
        sum(programs.chain([once, self.overhead]))
    }
}
