//! The arguments of `launch`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use tinderbox_world::Meeting;

/// Arguments of `launch`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Processes on this machine
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) ranks: u16,
    /// Machines; the same command runs on each, with its own --node
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    nodes: u16,
    /// Index of this machine, from 0
    #[arg(long, value_name = "K", default_value_t = 0)]
    node: u16,
    /// Address of machine 0, where the ranks meet [default: a free port of this machine]
    #[arg(long, value_name = "HOST:PORT")]
    master: Option<Meeting>,
    /// Directory with ca.pem, cert.pem and key.pem: connections are encrypted, and both sides show a certificate
    #[arg(long, value_name = "DIR")]
    tls: Option<PathBuf>,
    /// How often all ranks are started again after one has failed
    #[arg(long, value_name = "R", default_value_t = 0)]
    pub(super) restarts: u32,
    /// Processes on this machine after a failure [default: as many as before]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), requires = "restarts")]
    pub(super) restart_ranks: Option<u16>,
    /// Let the others continue when processes are lost, for a program whose pipeline has a recovery. Exit code 0 if at least one
    /// process succeeds, else the exit code of the last one that failed; --restarts starts all again only then
    #[arg(long)]
    survive: bool,
    /// More processes on this machine, which wait until others are lost and take their place; the others continue as with
    /// --survive
    #[arg(long, value_name = "N", default_value_t = 0)]
    spares: u16,
    /// Seconds from SIGTERM to SIGKILL
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    grace: u64,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(super) program: Vec<OsString>,
}

/// The variables of the ranks of one start.
#[derive(Debug)]
pub(super) struct World {
    /// Processes on this machine.
    pub(super) here: u16,
    /// How many of them are no spares.
    ranks: u16,
    node: u32,
    nodes: u32,
    meeting: Meeting,
    token: Option<String>,
}

impl Flags {
    pub(super) fn grace(&self) -> Duration {
        Duration::from_secs(self.grace)
    }

    pub(super) fn is_of_several_machines(&self) -> bool {
        self.nodes > 1
    }

    /// Whether the others continue when a process is lost.
    pub(super) fn survives(&self) -> bool {
        self.survive || self.spares > 0
    }

    /// Checks that the arguments fit together.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if self.node >= self.nodes {
            bail!(
                "--node {}: the {} machines count from 0",
                self.node,
                self.nodes
            );
        }
        if self.nodes == 1 {
            return Ok(());
        }
        if self.master.is_none() {
            bail!(
                "--nodes {} needs --master, the address of machine 0",
                self.nodes
            );
        }
        if self.tls.is_none() && given_token().is_none() {
            bail!(
                "several machines need --tls DIR, or the same secret in TINDERBOX_TOKEN on each of them: anybody could join \
                 otherwise"
            );
        }
        if self.restart_ranks.is_some() {
            bail!(
                "--restart-ranks is for one machine: the number of ranks on the others is not known here"
            );
        }
        Ok(())
    }

    /// Returns the variables of the ranks of a start.
    pub(super) fn world(&self, here: u16) -> anyhow::Result<World> {
        let meeting = match &self.master {
            Some(master) => master.clone(),
            None => Meeting::on_this_machine().context("no port of this machine is free")?,
        };
        // On one machine, nobody else has to know it.
        let token = given_token().or_else(|| (self.nodes == 1).then(random_token));
        Ok(World {
            here: here.saturating_add(self.spares),
            ranks: here,
            node: u32::from(self.node),
            nodes: u32::from(self.nodes),
            meeting,
            token,
        })
    }

    /// Returns the variables of a rank of this machine.
    pub(super) fn variables(
        &self,
        world: &World,
        local: u16,
        restart: u32,
    ) -> Vec<(&'static str, OsString)> {
        let number = |number: u32| OsString::from(number.to_string());
        let mut variables = vec![
            ("RANK", number(world.rank(local))),
            ("WORLD_SIZE", number(world.nodes * u32::from(world.here))),
            ("LOCAL_RANK", number(local.into())),
            ("LOCAL_WORLD_SIZE", number(world.here.into())),
            ("MASTER_ADDR", OsString::from(&world.meeting.host)),
            ("MASTER_PORT", number(world.meeting.port.into())),
            ("TINDERBOX_RESTARTS", number(restart)),
        ];
        let token = world
            .token
            .as_ref()
            .map(|token| ("TINDERBOX_TOKEN", OsString::from(token)));
        let tls = self
            .tls
            .as_ref()
            .map(|dir| ("TINDERBOX_TLS", OsString::from(dir)));
        variables.extend(token.into_iter().chain(tls));
        variables
    }
}

impl World {
    /// Returns the rank of a process of this machine.
    pub(super) fn rank(&self, local: u16) -> u32 {
        let (ranks, spares) = (u32::from(self.ranks), u32::from(self.here - self.ranks));
        match u32::from(local).checked_sub(ranks) {
            None => self.node * ranks + u32::from(local),
            // The spares of all machines are the last.
            Some(spare) => self.nodes * ranks + self.node * spares + spare,
        }
    }
}

fn given_token() -> Option<String> {
    std::env::var("TINDERBOX_TOKEN")
        .ok()
        .filter(|token| !token.is_empty())
}

/// Returns 128 random bits: the standard library seeds its hashers from the operating system.
fn random_token() -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let half = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", half(), half())
}
