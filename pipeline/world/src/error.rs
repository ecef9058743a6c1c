//! Errors of a world.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use thiserror::Error;
use tinderbox_ids::RankIndex;

use crate::environment::{Launcher, Meeting};
use crate::peers::Failure;

/// An error in the variables of a launcher.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// Some variables of a launcher are set, and others are not.
    #[error(
        "this process looks started by {launcher}, but {} {} not set: set all variables of {launcher}, or none",
        names.join(", "),
        if names.len() == 1 { "is" } else { "are" }
    )]
    Missing {
        /// The launcher whose variables are set.
        launcher: Launcher,
        /// The variables that are missing.
        names: Vec<String>,
    },
    /// A text is not an address at which ranks meet.
    #[error("`{text}` is not an address with a port, such as node0:29500 or [fe80::1]:29500")]
    Meeting {
        /// The text.
        text: String,
    },
    /// A variable is not a number, or the number is out of range.
    #[error("{name} is `{value}`: expected a whole number in its range")]
    NotANumber {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
    },
    /// A variable is not a list of nodes.
    #[error(
        "{name} is not a list of nodes, such as rack[0-1]node[00-15],login: set MASTER_ADDR and MASTER_PORT to where the first \
        rank listens, or correct the list"
    )]
    NodeList {
        /// The variable.
        name: String,
        /// The reason.
        source: NodeListError,
    },
    /// A variable is not UTF-8.
    #[error("{name} is not UTF-8: use a text")]
    NotText {
        /// The variable.
        name: String,
    },
    /// A rank is not below its size.
    #[error("{launcher} says that this is rank {rank} of {size}: ranks count from 0")]
    Beyond {
        /// The launcher.
        launcher: Launcher,
        /// The rank.
        rank: usize,
        /// The size.
        size: usize,
    },
    /// A rank on its machine is not below the number of ranks there, or that number is above the number of all ranks.
    #[error(
        "{launcher} says that this is rank {rank} of {size} on its machine, and that all machines have {all} ranks: ranks \
        count from 0, and a machine has no more than all"
    )]
    LocalBeyond {
        /// The launcher.
        launcher: Launcher,
        /// The rank on its machine.
        rank: usize,
        /// The number of ranks on its machine.
        size: usize,
        /// The number of ranks of all machines.
        all: usize,
    },
}

/// A text is not a list of nodes in Slurm's form.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NodeListError {
    /// A name has an opening bracket without a closing one, a closing one without an opening one, or brackets within
    /// brackets.
    #[error("the brackets of `{name}` do not match")]
    Brackets {
        /// The name, with the rest of the list.
        name: String,
    },
    /// A part between two brackets is neither a number nor a range of two numbers.
    #[error(
        "`{range}` between the brackets of `{name}` is neither a number nor a range of two, such as 7 or 08-11"
    )]
    Range {
        /// The name.
        name: String,
        /// The part, up to the next comma.
        range: String,
    },
    /// There is no name.
    #[error("the list has no name")]
    Empty,
}

/// The error of a join, or of a wait for other ranks.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorldError {
    /// The variables of the launcher are invalid.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// There are several processes, and no engine connects them.
    #[error("{launcher} started {size} processes, but nothing connects them: {hint}")]
    NoEngine {
        /// The launcher.
        launcher: Launcher,
        /// The number of processes.
        size: usize,
        /// The next step for the user.
        hint: &'static str,
    },
    /// The engine and the launcher report another rank or size.
    #[error(
        "{launcher} says that this is rank {rank} of {size}, {engine} says rank {found_rank} of {found_size}: the program \
         was started by the launcher of another {engine}"
    )]
    OtherSize {
        /// The launcher.
        launcher: Launcher,
        /// The rank by the launcher.
        rank: RankIndex,
        /// The size by the launcher.
        size: usize,
        /// The engine.
        engine: &'static str,
        /// The rank by the engine.
        found_rank: RankIndex,
        /// The size by the engine.
        found_size: usize,
    },
    /// The address of the first rank can't be listened on.
    #[error("rank {rank} can't listen on {address}: {hint}")]
    Listen {
        /// This rank.
        rank: RankIndex,
        /// The address.
        address: String,
        /// The next step for the user.
        hint: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Some ranks have not joined in time.
    #[error(
        "{} {} not joined at {meeting} within {timeout:?}: are all processes started, and can they reach this address?",
        ranks(missing),
        if missing.len() == 1 { "has" } else { "have" }
    )]
    NotAllJoined {
        /// The ranks.
        missing: Vec<RankIndex>,
        /// The address of the first rank.
        meeting: Meeting,
        /// The time of the wait.
        timeout: Duration,
    },
    /// A rank could not be reached.
    #[error("rank {rank} can't be reached at {address} within {timeout:?}: {reason}")]
    Unreachable {
        /// The rank.
        rank: RankIndex,
        /// Its address.
        address: String,
        /// The time of all attempts.
        timeout: Duration,
        /// The last error.
        reason: String,
    },
    /// Another rank refused this one.
    #[error("rank {by} refused this process: {reason}")]
    Refused {
        /// The rank that refused.
        by: RankIndex,
        /// Its reason.
        reason: String,
    },
    /// Several machines need encryption or a token.
    #[error(
        "{meeting} is not on this machine alone, and there is neither a token nor TLS: set TINDERBOX_TOKEN to the same \
         secret on all machines, or TINDERBOX_TLS to a directory with ca.pem, cert.pem and key.pem"
    )]
    Unprotected {
        /// The address of the first rank.
        meeting: Meeting,
    },
    /// A file of the TLS directory can't be used.
    #[error("TLS: {file} can't be used")]
    Tls {
        /// The file.
        file: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The engine failed.
    #[error("{engine} failed: {what}")]
    Engine {
        /// The engine.
        engine: &'static str,
        /// The part that failed.
        what: &'static str,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A rank failed or is lost.
    #[error(transparent)]
    Failed(Failure),
    /// The other processes continue without this one.
    #[error(
        "the other processes have given this one up and continue as generation {generation} of their world: it was silent for \
        longer than they wait, or its connections ended; end this process, or start it in a new run"
    )]
    GivenUp {
        /// The generation of the others.
        generation: u32,
    },
    /// Too few processes are left to continue.
    #[error(
        "{left} of {of} processes are left{}: fewer than half of them do not continue, because the others may be alive and \
        cut off from them; start the run again from its last checkpoint",
        if_known(" (", failure, ")")
    )]
    TooFewLeft {
        /// The number of processes that are left.
        left: usize,
        /// The number of processes before.
        of: usize,
        /// The first failure.
        failure: Option<Failure>,
    },
    /// A rank has not reached the same call in time.
    #[error(
        "rank {rank} has not called `{call}` within {timeout:?}{}: do all ranks make the same calls in the same order?",
        if_known("; it is in ", doing, "")
    )]
    Late {
        /// The rank.
        rank: RankIndex,
        /// The call of this process.
        call: &'static str,
        /// The time of the wait.
        timeout: Duration,
        /// The last report of the rank.
        doing: Option<String>,
    },
    /// Ranks make different calls.
    #[error(
        "rank {rank} calls `{found}` while this one, {own}, calls `{call}`: all ranks make the same calls in the same order"
    )]
    OtherCall {
        /// The other rank.
        rank: RankIndex,
        /// Its call.
        found: String,
        /// This rank.
        own: RankIndex,
        /// The call of this process.
        call: &'static str,
    },
    /// The first rank could not compute a value for all.
    #[error("rank 0 could not compute the value that all ranks wait for: {reason}")]
    First {
        /// The error on rank 0, with its causes.
        reason: String,
    },
    /// Some ranks can't continue.
    #[error(
        "{}",
        reasons.iter().map(|(rank, why)| format!("rank {rank} can't continue: {why}")).collect::<Vec<_>>().join("; ")
    )]
    Disagreement {
        /// The ranks with their reasons.
        reasons: Vec<(RankIndex, String)>,
    },
    /// A value of another rank can't be read.
    #[error(
        "a value of rank {rank} for `{call}` can't be read: do all processes run the same program?"
    )]
    Value {
        /// The rank.
        rank: RankIndex,
        /// The call.
        call: &'static str,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl WorldError {
    /// Creates the error of a part of an engine.
    pub fn engine(
        engine: &'static str,
        what: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Engine {
            engine,
            what,
            source: source.into(),
        }
    }
}

/// Returns `rank 1` or `ranks 1, 2, 5`.
pub(crate) fn ranks(ranks: &[RankIndex]) -> String {
    let all: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    let noun = if all.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", all.join(", "))
}

/// Returns a value between two texts, or nothing.
pub(crate) fn if_known(before: &str, value: &Option<impl Display>, after: &str) -> String {
    let text = value.as_ref().map(|one| format!("{before}{one}{after}"));
    text.unwrap_or_default()
}
