//! Errors of a world.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use thiserror::Error;
use tinderbox_schedule::RankIndex;

use crate::environment::{Launcher, Meeting};
use crate::peers::Failure;

/// Variables that do not say which process this is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// Some variables of a launcher are set, and others are not.
    #[error(
        "this process looks started by {launcher}, but {} {} not set: set all of them, or none of {launcher}'s",
        names.join(", "),
        if names.len() == 1 { "is" } else { "are" }
    )]
    Missing {
        /// The launcher whose variables are set.
        launcher: Launcher,
        /// The variables that are missing.
        names: Vec<String>,
    },
    /// A text is no address at which ranks meet.
    #[error("`{text}` is no address with a port, such as node0:29500 or [fe80::1]:29500")]
    Meeting {
        /// The text.
        text: String,
    },
    /// A variable is no number, or one that is too large.
    #[error("{name} is `{value}`: expected a whole number in its range")]
    NotANumber {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
    },
    /// A variable is no list of nodes.
    #[error(
        "{name} is no list of nodes, such as rack[0-1]node[00-15],login: set MASTER_ADDR and MASTER_PORT to where the first \
        rank listens, or mend the list"
    )]
    NodeList {
        /// The variable.
        name: String,
        /// What is wrong with the list.
        source: NodeListError,
    },
    /// A variable that is not UTF-8.
    #[error("{name} is not UTF-8: use a text")]
    NotText {
        /// The variable.
        name: String,
    },
    /// A rank that is not below its size.
    #[error("{launcher} says that this is rank {rank} of {size}: ranks count from 0")]
    Beyond {
        /// The launcher.
        launcher: Launcher,
        /// The rank.
        rank: usize,
        /// The size.
        size: usize,
    },
    /// A rank on its machine that is not below the number of ranks there, or more ranks there than in all.
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

/// A text that is no list of nodes in Slurm's form.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NodeListError {
    /// A name has an opening bracket without a closing one, a closing one without an opening one, or brackets within
    /// brackets.
    #[error("the brackets of `{name}` do not match")]
    Brackets {
        /// The name, with what follows it.
        name: String,
    },
    /// What is between two brackets is no number and no range of numbers.
    #[error(
        "`{range}` between the brackets of `{name}` is no number and no range of two, such as 7 or 08-11"
    )]
    Range {
        /// The name.
        name: String,
        /// What is between the brackets, up to the next comma.
        range: String,
    },
    /// There are more names than nodes in a cluster.
    #[error("the list has more than {limit} names")]
    TooMany {
        /// The most names.
        limit: usize,
    },
    /// There is no name.
    #[error("the list has no name")]
    Empty,
}

/// An error of joining a world, or of waiting for its other ranks.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorldError {
    /// The environment does not say which process this is.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// There are several processes, and no engine that connects them.
    #[error("{launcher} started {size} processes, but nothing connects them: {hint}")]
    NoEngine {
        /// The launcher.
        launcher: Launcher,
        /// The number of processes.
        size: usize,
        /// What to do.
        hint: &'static str,
    },
    /// The engine and the launcher count differently.
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
        /// What to do.
        hint: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Some ranks have not come in time.
    #[error(
        "{} {} not come to {meeting} within {timeout:?}: are all processes started, and can they reach this address?",
        ranks(missing),
        if missing.len() == 1 { "has" } else { "have" }
    )]
    NotAllCame {
        /// The ranks.
        missing: Vec<RankIndex>,
        /// The address of the first rank.
        meeting: Meeting,
        /// How long they were waited for.
        timeout: Duration,
    },
    /// A rank could not be reached.
    #[error("rank {rank} can't be reached at {address} within {timeout:?}: {reason}")]
    Unreachable {
        /// The rank.
        rank: RankIndex,
        /// Its address.
        address: String,
        /// How long it was tried.
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
    /// Without encryption or a token, a world is on one machine.
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
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The engine failed.
    #[error("{engine} failed: {what}")]
    Engine {
        /// The engine.
        engine: &'static str,
        /// What failed.
        what: &'static str,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A rank failed or is lost.
    #[error(transparent)]
    Failed(Failure),
    /// The other processes have gone on without this one.
    #[error(
        "the other processes have given this one up and gone on as generation {generation} of their world: it was silent for \
        longer than they wait, or its connections ended; end this process, or start it in a new run"
    )]
    GivenUp {
        /// The generation of the others.
        generation: u32,
    },
    /// Too few processes are left to continue.
    #[error(
        "{left} of {of} processes are left{}: fewer than half of them do not continue, because they may be those that are cut \
        off; start the run again from its last checkpoint",
        if_known(" (", failure, ")")
    )]
    TooFewLeft {
        /// The processes that are left.
        left: usize,
        /// The processes before.
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
        /// How long it was waited for.
        timeout: Duration,
        /// What the rank reported last.
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
    /// The first rank could not make what all wait for.
    #[error("rank 0 could not make what all ranks wait for: {reason}")]
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
        /// The ranks, and why.
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
    /// Returns the failure of a part of an engine.
    pub fn engine(
        engine: &'static str,
        what: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        let source = source.into();
        Self::Engine {
            engine,
            what,
            source,
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
    let text = value
        .as_ref()
        .map(|value| format!("{before}{value}{after}"));
    text.unwrap_or_default()
}
