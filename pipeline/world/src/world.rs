//! The processes of a program, from the view of one of them.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tinderbox_ids::{RankIndex, with_causes};

use crate::channel::Channel;
use crate::core::{Core, Member};
use crate::engine::{Engine, Handler};
use crate::environment::{Environment, Local};
use crate::error::WorldError;
use crate::members::others;
use crate::options::WorldOptions;
use crate::peers::Failure;

/// The processes that run a program together, from the view of one of them.
///
/// All processes make the same calls in the same order. In a world of one, calls return at once, so that the same program
/// runs with and without a launcher.
///
/// Clones are the same member of the world. Dropping the last clone and the last [`Channel`] sends a goodbye to the others;
/// while a panic unwinds, it reports to them that this rank failed. The drop waits until the others have received this
/// message and everything before it, as long as they are alive.
#[derive(Clone, derive_more::Debug)]
#[debug("World {{ rank: {:?}, size: {}, local: {local:?}, .. }}", self.rank(), self.size())]
pub struct World {
    local: Local,
    /// `None` in a world of one.
    member: Option<Arc<Member>>,
}

impl World {
    /// Returns a world of this process alone.
    pub const fn alone() -> Self {
        Self {
            local: Local { rank: 0, size: 1 },
            member: None,
        }
    }

    /// Joins a world over any engine.
    ///
    /// # Errors
    ///
    /// When the engine has another rank or size than the environment; when some ranks do not join in time, or refuse this
    /// one.
    pub fn over(
        environment: &Environment,
        options: WorldOptions,
        engine: Box<dyn Engine>,
    ) -> Result<Self, WorldError> {
        let (rank, size) = (engine.rank(), engine.size());
        if (rank, size) != (environment.rank, environment.size) {
            return Err(WorldError::OtherSize {
                launcher: environment.launcher,
                rank: environment.rank,
                size: environment.size,
                engine: engine.name(),
                found_rank: rank,
                found_size: size,
            });
        }
        let (member, local) = Member::start(engine, options)?;
        let local = environment.local.or(local);
        Ok(Self {
            local: local.unwrap_or(Local { rank: 0, size: 1 }),
            member: Some(Arc::new(member)),
        })
    }

    /// Returns the rank of this process. It may change when the world [regroups](Self::regroup).
    pub fn rank(&self) -> RankIndex {
        let core = self.core();
        core.map_or(RankIndex::new(0), |core| core.place().0)
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.core().map_or(1, |core| core.roster().size())
    }

    /// Returns how many times the world has [regrouped](Self::regroup).
    pub fn generation(&self) -> u32 {
        let core = self.core();
        core.map_or(0, |core| core.roster().generation.number)
    }

    /// Returns the position of this process on its machine, at the time of the join.
    pub const fn local(&self) -> Local {
        self.local
    }

    /// Returns whether this is the first rank, which prints and publishes for all.
    pub fn is_first(&self) -> bool {
        self.rank().index() == 0
    }

    /// Computes a value on the first rank and returns it on all: for example a plan, which would differ between machines.
    ///
    /// # Errors
    ///
    /// [`WorldError::First`] on all ranks when `make` fails; when a rank fails, or makes another call.
    pub fn from_first<T, E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<T, WorldError>
    where
        T: Serialize + DeserializeOwned,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        const CALL: &str = "from_first";
        let first = RankIndex::new(0);
        let made = || make().map_err(|error| with_causes(&*error.into()));
        let Some(core) = self.core() else {
            return made().map_err(|reason| WorldError::First { reason });
        };
        if self.is_first() {
            let made = made();
            let written = write(first, CALL, &made.as_ref())?;
            core.call(CALL, Some(written), &[])?;
            return made.map_err(|reason| WorldError::First { reason });
        }
        let values = core.call(CALL, None, &[first])?;
        let value = values.first().map(Vec::as_slice).unwrap_or_default();
        let read: Result<T, String> = read_value(first, CALL, value)?;
        read.map_err(|reason| WorldError::First { reason })
    }

    /// Returns the values of all ranks, in the order of the ranks.
    ///
    /// # Errors
    ///
    /// When a rank fails, or makes another call.
    pub fn all_gather<T: Serialize + DeserializeOwned>(
        &self,
        value: T,
    ) -> Result<Vec<T>, WorldError> {
        self.gather("all_gather", value)
    }

    /// Waits until all ranks make this call.
    ///
    /// # Errors
    ///
    /// When a rank fails, or makes another call.
    pub fn barrier(&self) -> Result<(), WorldError> {
        self.gather("barrier", ()).map(drop)
    }

    /// Checks on all ranks that every rank can continue. Call it before a change that all ranks make together.
    ///
    /// # Errors
    ///
    /// [`WorldError::Disagreement`] with the ranks that can't continue and their reasons; when a rank fails, or makes another
    /// call.
    pub fn agree<E: std::error::Error>(&self, own: Result<(), E>) -> Result<(), WorldError> {
        let own = own.map_err(|error| with_causes(&error));
        let all = self.gather("agree", own)?.into_iter().enumerate();
        let reasons = all.filter_map(|(rank, own)| Some((RankIndex::new(rank), own.err()?)));
        let reasons: Vec<(RankIndex, String)> = reasons.collect();
        match reasons.is_empty() {
            true => Ok(()),
            false => Err(WorldError::Disagreement { reasons }),
        }
    }

    fn gather<T: Serialize + DeserializeOwned>(
        &self,
        call: &'static str,
        value: T,
    ) -> Result<Vec<T>, WorldError> {
        let Some(core) = self.core() else {
            return Ok(vec![value]);
        };
        let (rank, roster) = core.place();
        let written = write(rank, call, &value)?;
        let others: Vec<RankIndex> = others(rank, roster.size()).collect();
        let values = core.call(call, Some(written), &others)?;
        let read = others.iter().zip(values);
        let read = read.map(|(rank, value)| read_value(*rank, call, &value));
        let mut all = read.collect::<Result<Vec<T>, WorldError>>()?;
        all.insert(rank.index(), value);
        Ok(all)
    }

    /// Opens a channel for frames of one part of the program. The ranks open their channels in the same order. Frames that
    /// arrive before are kept.
    #[must_use]
    pub fn open(&self, handler: Arc<dyn Handler>) -> Channel {
        Channel::open(self.member.clone(), handler)
    }

    /// Reports to all ranks that this one failed. Only the first failure of a world counts.
    pub fn fail(&self, reason: &str) {
        if let Some(core) = self.core() {
            core.fail(None, reason.to_owned());
        }
    }

    /// Returns the first failure of a rank, if there is one.
    pub fn failure(&self) -> Option<Failure> {
        self.core().and_then(Core::failure)
    }

    /// Returns the time without a sign of life after which a process is lost; zero in a world of one.
    pub fn lost_after(&self) -> Duration {
        self.core().map_or(Duration::ZERO, Core::lost_after)
    }

    /// Acquires the right to [regroup](Self::regroup) for one part of the program; false if another part has it.
    #[doc(hidden)]
    #[must_use]
    pub fn begin_recovery(&self) -> bool {
        let core = self.core();
        core.is_none_or(|core| !core.is_recovering.swap(true, SeqCst))
    }

    /// Releases the right to regroup.
    #[doc(hidden)]
    pub fn end_recovery(&self) {
        if let Some(core) = self.core() {
            core.is_recovering.store(false, SeqCst);
        }
    }

    /// Forms a world of the remaining processes after one was lost. All of them call this. For all clones of this world, the
    /// ranks keep their order and count from 0 again. Calls and channels start again.
    ///
    /// The others may give a process up because it was silent or did not call this in time. Such a process can change nothing:
    /// its frames belong to an older generation, and are ignored. If processes are lost meanwhile, the others continue without
    /// them too.
    ///
    /// Waits for each of the others at most for [`call_timeout`](WorldOptions::call_timeout), and not for a lost one. Costs
    /// four messages, one after the other.
    ///
    /// # Errors
    ///
    /// [`WorldError::GivenUp`] when the others continue without this process. [`WorldError::TooFewLeft`] when fewer than half
    /// of the processes are left, because the others may be alive and cut off. In a network that falls into two halves of
    /// the same size, both continue.
    pub fn regroup(&self) -> Result<(), WorldError> {
        self.core().map_or(Ok(()), Core::regroup)
    }

    fn core(&self) -> Option<&Core> {
        self.member.as_ref().map(|member| &*member.core)
    }
}

/// Serializes a value as CBOR. Unlike postcard, CBOR allows fields that are left out.
fn write(rank: RankIndex, call: &'static str, value: &impl Serialize) -> Result<Bytes, WorldError> {
    let mut written = Vec::new();
    ciborium::into_writer(value, &mut written).map_err(|error| unreadable(rank, call, error))?;
    Ok(written.into())
}

fn read_value<T: DeserializeOwned>(
    rank: RankIndex,
    call: &'static str,
    value: &[u8],
) -> Result<T, WorldError> {
    ciborium::from_reader(value).map_err(|error| unreadable(rank, call, error))
}

fn unreadable(
    rank: RankIndex,
    call: &'static str,
    source: impl Into<Box<dyn Error + Send + Sync>>,
) -> WorldError {
    let source = source.into();
    WorldError::Value { rank, call, source }
}
