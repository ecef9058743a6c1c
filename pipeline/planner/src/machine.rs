//! The machine that a plan is for.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tinderbox_schedule::arithmetic::{narrow, scaled};
use tinderbox_schedule::{Costs, Edge, LinkCosts, Network, Placement, RankIndex, StageCosts};

use crate::{MachineError, files};

/// A rank: a device, or a fraction of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankModel {
    /// Its memory limit in bytes; `None` for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Its speed in thousandths of the speed to which times or the [`Rates`] of the machine refer.
    pub speed_permille: u64,
}

impl Default for RankModel {
    fn default() -> Self {
        Self {
            memory_bytes: None,
            speed_permille: 1000,
        }
    }
}

impl RankModel {
    /// Returns the time in nanoseconds of work that takes the given nanoseconds at speed 1.
    pub fn time(&self, nanoseconds: u64) -> u64 {
        scaled(nanoseconds, 1000, self.speed_permille.max(1))
    }
}

/// The throughput of a rank's device, for times that are estimated from shapes: one rate of arithmetic and one rate of memory
/// for all operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// Floating point operations per second of a large matrix product.
    pub flops_per_s: u64,
    /// Bytes that operations on large tensors read and write per second.
    pub bytes_per_s: u64,
    /// Minimum nanoseconds of an operation.
    pub operation_ns: u64,
}

impl Rates {
    /// Returns the nanoseconds of an optimizer step over parameters of the given bytes: three passes
    /// over each parameter and seven over each state. Burn's Adam makes 34 passes, about half of them
    /// over temporaries that stay in caches.
    pub fn update_ns(&self, parameter_bytes: u64, optimizer_states: u64) -> u64 {
        let passes = 3 + 7 * u128::from(optimizer_states);
        self.moved_ns(u128::from(parameter_bytes) * passes)
    }

    /// Returns the nanoseconds in which gradients of the given bytes are added to others: two gradients are read and one is
    /// written.
    pub fn add_ns(&self, gradient_bytes: u64) -> u64 {
        self.moved_ns(u128::from(gradient_bytes) * 3)
    }

    fn moved_ns(&self, bytes: u128) -> u64 {
        narrow(bytes.saturating_mul(1_000_000_000) / u128::from(self.bytes_per_s.max(1)))
    }
}

impl Default for Rates {
    /// The rates of about one core of an x86-64 machine.
    fn default() -> Self {
        Self {
            flops_per_s: 50_000_000_000,
            bytes_per_s: 8_000_000_000,
            operation_ns: 1_500,
        }
    }
}

/// The rate at which values are read from a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRate {
    /// The bytes of values per second.
    pub bytes_per_s: u64,
    /// The fraction of the cores that are busy during a read, in thousandths, with copies, conversions and checks. A
    /// computation on the same cores takes longer by this fraction of the time of the read.
    pub busy_permille: u64,
}

impl DiskRate {
    /// Creates the rate of a disk whose reads use no core.
    pub const fn new(bytes_per_s: u64) -> Self {
        Self {
            bytes_per_s,
            busy_permille: 0,
        }
    }

    /// Returns the nanoseconds of reading some bytes.
    pub(crate) fn read_ns(self, bytes: u64) -> u64 {
        scaled(bytes, 1_000_000_000, self.bytes_per_s.max(1))
    }

    /// Returns the nanoseconds by which a computation takes longer during a read of `read_ns`.
    pub(crate) fn busy_ns(self, read_ns: u64) -> u64 {
        scaled(read_ns, self.busy_permille, 1000)
    }
}

/// The machine that a plan is for, and the placement of stages on its ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    ranks: Vec<RankModel>,
    chunks: usize,
    placement: Placement,
    /// The time of messages between two ranks. With several machines, between two ranks of one machine.
    pub link: LinkCosts,
    /// The machine of each rank, and the time of messages between two machines; `None` for one machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// The overhead of each action of a schedule, in nanoseconds.
    pub action_ns: u64,
    /// The throughput of a rank's device.
    pub rates: Rates,
    /// The disk, if it was measured: for models that are streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskRate>,
}

impl Machine {
    /// Returns a machine whose ranks are threads of this process: one stage each, no memory limit.
    ///
    /// # Errors
    ///
    /// When `ranks` is 0.
    pub fn local(ranks: usize) -> Result<Self, MachineError> {
        Self::of_ranks(vec![RankModel::default(); ranks])
    }

    /// Returns a machine of the given ranks, one stage each.
    ///
    /// # Errors
    ///
    /// When there are no ranks, or a rank has speed 0.
    pub fn of_ranks(ranks: Vec<RankModel>) -> Result<Self, MachineError> {
        if ranks.is_empty() {
            return Err(MachineError::NoRanks);
        }
        if let Some(rank) = ranks.iter().position(|rank| rank.speed_permille == 0) {
            let rank = RankIndex::new(rank);
            return Err(MachineError::NoSpeed { rank });
        }
        Ok(Self {
            ranks,
            chunks: 1,
            placement: Placement::Loop,
            // Threads of one process pass tensors through a queue, without a copy.
            link: LinkCosts::new(5_000, 0),
            network: None,
            action_ns: 3_000,
            rates: Rates::default(),
            disk: None,
        })
    }

    /// Returns the machine with `chunks` stages on every rank, for schedules that need several; their
    /// placement is [`ScheduleKind::placement`](tinderbox_schedule::ScheduleKind::placement).
    ///
    /// # Errors
    ///
    /// When `chunks` is 0.
    pub fn with_chunks(self, chunks: usize, placement: Placement) -> Result<Self, MachineError> {
        if chunks == 0 {
            return Err(MachineError::NoChunks);
        }
        Ok(Self {
            chunks,
            placement,
            ..self
        })
    }

    /// Returns the ranks on several machines, in order: the first `ranks[0]` are on the first, and so on. Messages between
    /// two machines take the times of `link`.
    ///
    /// # Errors
    ///
    /// When these ranks are more or fewer than the ranks of the machine.
    pub fn with_machines(self, ranks: &[usize], link: LinkCosts) -> Result<Self, MachineError> {
        let machines = ranks.iter().enumerate();
        let machine_of = machines.flat_map(|(machine, ranks)| std::iter::repeat_n(machine, *ranks));
        let machine_of: Vec<usize> = machine_of.collect();
        let (ranks, found) = (self.ranks(), machine_of.len());
        if ranks != found {
            return Err(MachineError::Machines { ranks, found });
        }
        let network = Some(Network { machine_of, link });
        Ok(Self { network, ..self })
    }

    /// Returns the ranks of one replica. The ranks of each replica follow the ranks of the one before. A returned rank has the
    /// least speed and the least memory of its counterparts in all replicas. The machines of all ranks are kept.
    ///
    /// # Errors
    ///
    /// When the number of replicas is no power of two, or does not divide the number of ranks.
    pub fn of_replica(&self, replicas: usize) -> Result<Self, MachineError> {
        let ranks = self.ranks();
        if !replicas.is_power_of_two() || !ranks.is_multiple_of(replicas) {
            return Err(MachineError::Replicas { ranks, replicas });
        }
        let of_replica = ranks / replicas;
        let slowest = |place: usize| {
            let models = || self.ranks.iter().skip(place).step_by(of_replica);
            let speeds = models().map(|rank| rank.speed_permille);
            RankModel {
                memory_bytes: models().filter_map(|rank| rank.memory_bytes).min(),
                speed_permille: speeds.min().unwrap_or(1000),
            }
        };
        Ok(Self {
            ranks: (0..of_replica).map(slowest).collect(),
            ..self.clone()
        })
    }

    /// Returns the machine with a memory limit for every rank.
    #[must_use]
    pub fn with_memory_limit(mut self, bytes: u64) -> Self {
        for rank in &mut self.ranks {
            rank.memory_bytes = Some(bytes);
        }
        self
    }

    /// Writes the machine as JSON.
    ///
    /// # Errors
    ///
    /// When the file can't be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), MachineError> {
        Ok(files::write("machine", path.as_ref(), &self.to_json())?)
    }

    /// Reads a machine from a file.
    ///
    /// # Errors
    ///
    /// When the file can't be read or is not a machine.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, MachineError> {
        Self::from_json(&files::read("machine", path.as_ref())?)
    }

    /// Returns the machine as JSON.
    pub fn to_json(&self) -> String {
        files::json(self)
    }

    /// Reads a machine from JSON.
    ///
    /// # Errors
    ///
    /// When the text is not a machine, or the machine has no ranks or stages, a rank with speed 0, or ranks without a
    /// machine.
    pub fn from_json(text: &str) -> Result<Self, MachineError> {
        let machine: Self = serde_json::from_str(files::without_mark(text))
            .map_err(|source| MachineError::Json { source })?;
        let ranks = machine.ranks.len();
        Self::of_ranks(machine.ranks.clone())?.with_chunks(machine.chunks, machine.placement)?;
        if let Some(network) = &machine.network {
            // The network of a plan with replicas has the ranks of all replicas.
            let found = network.machine_of.len();
            if found == 0 || !found.is_multiple_of(ranks) {
                return Err(MachineError::Machines { ranks, found });
            }
        }
        Ok(machine)
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Returns a rank; the default rank if it does not exist.
    pub fn rank(&self, rank: RankIndex) -> RankModel {
        self.ranks.get(rank.index()).copied().unwrap_or_default()
    }

    /// Returns all ranks in order.
    pub fn rank_models(&self) -> &[RankModel] {
        &self.ranks
    }

    /// Returns whether the memory of a rank is limited.
    pub(crate) fn has_limit(&self) -> bool {
        self.ranks.iter().any(|rank| rank.memory_bytes.is_some())
    }

    /// Returns the time of messages between two ranks of a replica, in the slowest replica.
    pub(crate) fn link_between(&self, from: RankIndex, to: RankIndex) -> LinkCosts {
        let Some(network) = &self.network else {
            return self.link;
        };
        let (from, to) = (from.index(), to.index());
        let replicas = (0..network.machine_of.len()).step_by(self.ranks());
        network.slowest(self.link, replicas.map(|first| (first + from, first + to)))
    }

    /// Returns the costs of a step of these stages for the simulator, where a tick is a nanosecond.
    pub fn costs(
        &self,
        stages: Vec<StageCosts>,
        message_bytes: BTreeMap<Edge, u64>,
        replicas: usize,
    ) -> Costs {
        Costs {
            message_bytes,
            replicas,
            link: self.link,
            network: self.network.clone(),
            overhead: self.action_ns,
            ..Costs::of_stages(stages)
        }
    }

    /// Lowers the memory limit of a rank, if it has one.
    pub(crate) fn lower_limit(&mut self, rank: RankIndex, bytes: u64) {
        let limit = &mut self.ranks[rank.index()].memory_bytes;
        *limit = limit.map(|limit| limit.saturating_sub(bytes));
    }

    /// Returns the number of stages per rank.
    pub const fn chunks(&self) -> usize {
        self.chunks
    }

    /// Returns the placement of stages where ranks have several.
    pub const fn placement(&self) -> Placement {
        self.placement
    }

    /// Returns the rank of every stage.
    pub fn stage_to_rank(&self) -> Vec<RankIndex> {
        self.placement.stage_to_rank(self.ranks.len(), self.chunks)
    }
}
