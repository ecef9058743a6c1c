//! The arguments of `launch`.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use clap::Args;
use tinderbox_world::Meeting;

/// The exit codes of the program, for the help.
pub(crate) const EXIT_CODES: &str = "\
`launch` passes on the exit code of the first rank that failed, or exits with
128 + n if signal n ended that rank or `launch`: 130 after SIGINT (Ctrl-C), 143
after SIGTERM, 137 after SIGKILL. The codes below are of `launch` itself.";

/// Arguments of `launch`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Processes on this machine
    #[arg(short = 'n', long, alias = "nproc_per_node", value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) ranks: u16,
    /// Machines; the same command runs on each, with its own --node
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) nodes: u16,
    /// Index of this machine, from 0
    #[arg(long, value_name = "K", default_value_t = 0)]
    node: u16,
    /// Address of machine 0, where the ranks meet [default: a free port of this machine]
    #[arg(long, value_name = "HOST:PORT")]
    master: Option<Meeting>,
    /// Directory with ca.pem, cert.pem and key.pem: connections are encrypted, and both sides show a certificate
    #[arg(long, value_name = "DIR")]
    tls: Option<PathBuf>,
    /// Number of restarts of all ranks after one has failed
    #[arg(long, value_name = "R", default_value_t = 0)]
    pub(super) restarts: u32,
    /// Processes on this machine after a failure [default: as many as before]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), requires = "restarts")]
    pub(super) restart_ranks: Option<u16>,
    /// Let the others continue when processes are lost, for a program whose pipeline has a recovery. The exit code is 0 if at
    /// least one process succeeds. Otherwise it is the code of the last one that failed, and only then --restarts counts
    #[arg(long)]
    survive: bool,
    /// More processes on this machine, which wait until others are lost and replace them; the others continue as with
    /// --survive
    #[arg(long, value_name = "N", default_value_t = 0)]
    spares: u16,
    /// Seconds from SIGTERM to SIGKILL
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(super) grace: u64,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(super) program: Vec<OsString>,
}

/// Variables with their values.
type Variables = Vec<(&'static str, OsString)>;

/// The variable of the secret that all processes of a run share.
const TOKEN: &str = "TINDERBOX_TOKEN";

/// Formats variables, without the secret.
pub(super) fn shown(variables: &[(&'static str, OsString)]) -> String {
    let texts = variables.iter().map(|(name, value)| match *name {
        TOKEN => format!("{name}=(secret)"),
        _ => format!("{name}={}", value.to_string_lossy()),
    });
    texts.collect::<Vec<String>>().join(" ")
}

impl Flags {
    /// Returns whether the others continue when a process is lost.
    pub(super) fn survives(&self) -> bool {
        self.survive || self.spares > 0
    }

    /// Checks that the arguments fit together.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let (node, nodes) = (self.node, self.nodes);
        ensure!(
            node < nodes,
            "--node {node} of --nodes {nodes}: machines are numbered from 0, so the last one is {}",
            nodes - 1
        );
        if nodes == 1 {
            return Ok(());
        }
        if self.master.is_none() {
            bail!("--nodes {nodes} needs --master, the address of machine 0");
        }
        ensure!(
            self.tls.is_some() || given_token().is_some(),
            "several machines need --tls DIR, or the same secret in TINDERBOX_TOKEN on each of them: otherwise every \
             process of the network could join"
        );
        ensure!(
            self.restart_ranks.is_none(),
            "--restart-ranks is for one machine: the number of ranks on the others is not known here"
        );
        Ok(())
    }

    /// Returns the number of processes on this machine: `ranks`, and the spares.
    pub(super) fn processes(&self, ranks: u16) -> u16 {
        ranks.saturating_add(self.spares)
    }

    /// Returns the rank of a process of this machine, which has `ranks` processes that are not spares.
    pub(super) fn rank(&self, ranks: u16, local: u16) -> u32 {
        let spares = u32::from(self.processes(ranks) - ranks);
        let (ranks, local) = (u32::from(ranks), u32::from(local));
        let (node, nodes) = (u32::from(self.node), u32::from(self.nodes));
        match local.checked_sub(ranks) {
            None => node * ranks + local,
            // The spares of all machines have the last ranks.
            Some(spare) => nodes * ranks + node * spares + spare,
        }
    }

    /// Returns the variables that all processes of a start have.
    pub(super) fn variables(&self, ranks: u16, restart: u32) -> anyhow::Result<Variables> {
        let meeting = match &self.master {
            Some(master) => master.clone(),
            None => Meeting::on_this_machine().context("no port of this machine is free")?,
        };
        // On one machine, the user need not know the token.
        let token = given_token().or_else(|| (self.nodes == 1).then(random_token));
        let here = u32::from(self.processes(ranks));
        let number = |number: u32| OsString::from(number.to_string());
        let mut variables = vec![
            ("WORLD_SIZE", number(u32::from(self.nodes) * here)),
            ("LOCAL_WORLD_SIZE", number(here)),
            ("MASTER_ADDR", meeting.host.into()),
            ("MASTER_PORT", number(meeting.port.into())),
            ("TINDERBOX_RESTARTS", number(restart)),
        ];
        variables.extend(token.map(|token| (TOKEN, token)));
        variables.extend(self.tls.iter().map(|dir| ("TINDERBOX_TLS", dir.into())));
        Ok(variables)
    }
}

fn given_token() -> Option<OsString> {
    std::env::var_os(TOKEN).filter(|token| !token.is_empty())
}

/// Returns 128 random bits: the standard library seeds its hashers from the operating system.
fn random_token() -> OsString {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let half = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", half(), half()).into()
}
