//! The rank of this process, from the variables of its launcher.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::str::FromStr;

use derive_more::Display;
use tinderbox_ids::RankIndex;

use crate::error::EnvironmentError;
use crate::nodes::first_node;

/// The launcher of the processes of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[non_exhaustive]
pub enum Launcher {
    /// No launcher: this process is the only one.
    #[display("no launcher")]
    Alone,
    /// `tinderbox launch`, `torchrun`, or a `PyTorchJob`: `RANK`, `WORLD_SIZE`.
    #[display("torchrun")]
    Torchrun,
    /// An indexed job of Kubernetes: `JOB_COMPLETION_INDEX`, and `WORLD_SIZE` from the job's own definition.
    Kubernetes,
    /// `mpirun` of Open MPI: `OMPI_COMM_WORLD_RANK`.
    #[display("Open MPI")]
    OpenMpi,
    /// `mpiexec` of MPICH and its relatives: `PMI_RANK`.
    #[display("MPICH")]
    Mpich,
    /// `srun`: `SLURM_PROCID`, inside a step.
    Slurm,
}

/// The address at which the first rank waits for the others.
#[derive(Debug, Clone, PartialEq, Eq, Display)]
#[display("{}:{port}", bracketed(host))]
pub struct Meeting {
    /// Name or address of the first rank's machine.
    pub host: String,
    /// The port that it listens on.
    pub port: u16,
}

/// The first port of [`Meeting::on_this_machine`]: above the ports of services, and below the ports that Linux gives to
/// connections by default.
const FIRST_PORT: u16 = 16_384;

/// The number of these ports.
const PORTS: u16 = 16_384;

impl Meeting {
    /// Returns a free port of the loopback address, for ranks that are all on this machine. Another program is unlikely to use
    /// it before the first rank listens there, because connections have other ports.
    ///
    /// # Errors
    ///
    /// When about 100 random ports are not free: the error of the last one.
    pub fn on_this_machine() -> io::Result<Self> {
        let free = || {
            let random = RandomState::new().build_hasher().finish();
            let port = FIRST_PORT + (random % u64::from(PORTS)) as u16;
            // With a token, the ranks listen on all addresses.
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map(|_| port)
        };
        let found = (0..100).find_map(|_| free().ok());
        let port = found.map_or_else(free, Ok)?;
        let host = Ipv4Addr::LOCALHOST.to_string();
        Ok(Self { host, port })
    }
}

impl FromStr for Meeting {
    type Err = EnvironmentError;

    /// Reads `host:port`; an IPv6 address is in brackets.
    fn from_str(text: &str) -> Result<Self, EnvironmentError> {
        let parts = || {
            let (host, port) = text.rsplit_once(':')?;
            let open = host.strip_prefix('[');
            let bare = open.and_then(|host| host.strip_suffix(']'));
            let is_host = bare.is_some() || !host.contains([':', '[', ']']);
            let host = bare.unwrap_or(host).to_owned();
            let port = port.parse().ok().filter(|port| *port > 0)?;
            (is_host && !host.is_empty()).then_some(Self { host, port })
        };
        parts().ok_or_else(|| EnvironmentError::Meeting {
            text: text.to_owned(),
        })
    }
}

/// Returns a host as it is written in a URL: an IPv6 address in brackets.
fn bracketed(host: &str) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]"),
        false => host.to_owned(),
    }
}

/// Returns the name of this machine, by which processes find the other processes of the machine.
#[must_use]
pub fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let name = name.or_else(|_| std::env::var("HOSTNAME").map_err(io::Error::other));
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

/// The position of a process among the processes of its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// The index of the process on its machine.
    pub rank: usize,
    /// The number of processes on its machine.
    pub size: usize,
}

/// The place of this process among all processes, as its launcher sets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// The launcher whose variables were read.
    pub launcher: Launcher,
    /// The rank of this process.
    pub rank: RankIndex,
    /// The number of processes.
    pub size: usize,
    /// The position of this process on its machine, if the launcher sets it.
    pub local: Option<Local>,
    /// The address at which the ranks meet, if the launcher sets it.
    pub meeting: Option<Meeting>,
}

/// The lowest port of the first rank in a Slurm job. The numbers of the job and its step choose the port.
const SLURM_FIRST_PORT: u64 = 23_000;

/// The number of ports that jobs are distributed over.
const SLURM_PORTS: u64 = 8_000;

/// The lowest number of the steps of a Slurm job that `srun` has not started, such as the batch script.
const SLURM_SPECIAL_STEPS: u64 = 0xffff_ff00;

impl Environment {
    /// Returns the environment of a process without a launcher.
    pub const fn alone() -> Self {
        Self {
            launcher: Launcher::Alone,
            rank: RankIndex::new(0),
            size: 1,
            local: Some(Local { rank: 0, size: 1 }),
            meeting: None,
        }
    }

    /// Reads the variables of the launcher from this process' environment.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    pub fn from_env() -> Result<Self, EnvironmentError> {
        Self::read(|name| std::env::var(name).ok())
    }

    /// Reads the variables of the launcher.
    ///
    /// | | rank | size | on its machine | meeting |
    /// |---|---|---|---|---|
    /// | torchrun | `RANK` | `WORLD_SIZE` | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | `MASTER_ADDR`, `MASTER_PORT` |
    /// | Kubernetes | `JOB_COMPLETION_INDEX` | `WORLD_SIZE` | | `MASTER_ADDR`, `MASTER_PORT` |
    /// | Open MPI | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK`, `OMPI_COMM_WORLD_LOCAL_SIZE` | `MASTER_ADDR`, `MASTER_PORT` if set |
    /// | MPICH | `PMI_RANK` | `PMI_SIZE` | `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` | `MASTER_ADDR`, `MASTER_PORT` if set |
    /// | Slurm | `SLURM_PROCID` | `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS` | `SLURM_LOCALID`, `SLURM_STEP_TASKS_PER_NODE` | `MASTER_ADDR`, `MASTER_PORT`, or the first of `SLURM_STEP_NODELIST` |
    ///
    /// The first row whose rank is set counts. The row of Slurm counts only inside of a step, because the batch script of a job
    /// has a `SLURM_PROCID` of 0, too. Without any of these variables, this process is [alone](Self::alone). An empty variable
    /// counts as unset.
    ///
    /// # Errors
    ///
    /// When one of the variables is set and others of its row are missing; when one is not a number; when a rank is not below
    /// its size.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, EnvironmentError> {
        let read = Variables(&|name: &str| variable(name).filter(|value| !value.is_empty()));
        let has = |names: &[&str]| names.iter().any(|name| read.is_set(name));
        let torchrun = ["RANK", "WORLD_SIZE"];
        let torchrun_local = Some(["LOCAL_RANK", "LOCAL_WORLD_SIZE"]);
        let found = if has(&["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]) {
            read.row(Launcher::Torchrun, torchrun, torchrun_local, &MEETING)
        } else if has(&["JOB_COMPLETION_INDEX"]) {
            let names = ["JOB_COMPLETION_INDEX", "WORLD_SIZE"];
            read.row(Launcher::Kubernetes, names, None, &MEETING)
        } else if has(&OPEN_MPI) {
            read.row(Launcher::OpenMpi, OPEN_MPI, Some(OPEN_MPI_LOCAL), &[])
        } else if has(&MPICH) {
            read.row(Launcher::Mpich, MPICH, Some(MPICH_LOCAL), &[])
        } else if has(&["SLURM_PROCID"]) && read.is_step() {
            read.slurm()
        } else if has(&["WORLD_SIZE"]) {
            read.row(Launcher::Torchrun, torchrun, torchrun_local, &MEETING)
        } else {
            Ok(Self::alone())
        };
        found?.checked()
    }

    /// Checks that ranks are below their sizes.
    fn checked(self) -> Result<Self, EnvironmentError> {
        let (launcher, all) = (self.launcher, self.size);
        let rank = self.rank.index();
        match self.local {
            _ if rank >= all => Err(EnvironmentError::Beyond {
                launcher,
                rank,
                size: all,
            }),
            Some(Local { rank, size }) if rank >= size || size > all => {
                Err(EnvironmentError::LocalBeyond {
                    launcher,
                    rank,
                    size,
                    all,
                })
            }
            _ => Ok(self),
        }
    }
}

/// Rank and size.
const OPEN_MPI: [&str; 2] = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"];
const MPICH: [&str; 2] = ["PMI_RANK", "PMI_SIZE"];

/// Rank and size on the machine.
const OPEN_MPI_LOCAL: [&str; 2] = ["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"];
const MPICH_LOCAL: [&str; 2] = ["MPI_LOCALRANKID", "MPI_LOCALNRANKS"];

/// The address and the port where ranks meet.
const MEETING: [&str; 2] = ["MASTER_ADDR", "MASTER_PORT"];

/// Looks up a variable.
struct Variables<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Variables<'_> {
    fn is_set(&self, name: &str) -> bool {
        (self.0)(name).is_some()
    }

    /// Returns a variable that must be set together with others.
    fn required<T: FromStr>(&self, launcher: Launcher, name: &str) -> Result<T, EnvironmentError> {
        self.check(launcher, &[name])?;
        let (name, value) = (name.to_owned(), (self.0)(name).unwrap_or_default());
        let number = value.trim().parse();
        number.map_err(|_| EnvironmentError::NotANumber { name, value })
    }

    /// Returns two variables of which none may be set without the other.
    fn pair<A: FromStr, B: FromStr>(
        &self,
        launcher: Launcher,
        names: [&str; 2],
    ) -> Result<Option<(A, B)>, EnvironmentError> {
        if !names.iter().any(|name| self.is_set(name)) {
            return Ok(None);
        }
        self.check(launcher, &names)?;
        let first = self.required(launcher, names[0])?;
        Ok(Some((first, self.required(launcher, names[1])?)))
    }

    /// Checks that all of these variables are set.
    fn check(&self, launcher: Launcher, names: &[&str]) -> Result<(), EnvironmentError> {
        let missing = names.iter().filter(|name| !self.is_set(name));
        let names: Vec<String> = missing.map(|name| (*name).to_owned()).collect();
        match names.is_empty() {
            true => Ok(()),
            false => Err(EnvironmentError::Missing { launcher, names }),
        }
    }

    /// Reads the variables of a launcher: rank and size, and `local`, which are rank and size on the machine. Without `local`,
    /// every process has a machine of its own.
    fn row(
        &self,
        launcher: Launcher,
        [rank, size]: [&str; 2],
        local: Option<[&str; 2]>,
        needed: &[&str],
    ) -> Result<Environment, EnvironmentError> {
        self.check(launcher, &[&[rank, size], needed].concat())?;
        let local = match local {
            Some(names) => self.pair(launcher, names)?,
            None => Some((0, 1)),
        };
        let meeting = self.pair(launcher, MEETING)?;
        Ok(Environment {
            launcher,
            rank: RankIndex::new(self.required(launcher, rank)?),
            size: self.required(launcher, size)?,
            local: local.map(|(rank, size)| Local { rank, size }),
            meeting: meeting.map(|(host, port)| Meeting { host, port }),
        })
    }

    /// Returns whether `srun` has started this process.
    fn is_step(&self) -> bool {
        let step = self.required::<u64>(Launcher::Slurm, "SLURM_STEP_ID");
        step.is_ok_and(|step| step < SLURM_SPECIAL_STEPS)
    }

    fn slurm(&self) -> Result<Environment, EnvironmentError> {
        let launcher = Launcher::Slurm;
        let size = Some("SLURM_STEP_NUM_TASKS").filter(|name| self.is_set(name));
        let size = size.unwrap_or("SLURM_NTASKS");
        let mut found = self.row(launcher, ["SLURM_PROCID", size], None, &[])?;
        found.local = None;
        if let (true, Some(size)) = (self.is_set("SLURM_LOCALID"), self.tasks_of_node()) {
            let rank = self.required(launcher, "SLURM_LOCALID")?;
            found.local = Some(Local { rank, size });
        }
        if found.meeting.is_none() {
            let (host, port) = (self.first_node()?, self.slurm_port()?);
            found.meeting = Some(Meeting { host, port });
        }
        Ok(found)
    }

    /// Returns the number of processes on this node, from a list such as `4(x2),3`.
    fn tasks_of_node(&self) -> Option<usize> {
        let node: usize = self.required(Launcher::Slurm, "SLURM_NODEID").ok()?;
        let list = (self.0)("SLURM_STEP_TASKS_PER_NODE")?;
        let mut first = 0_usize;
        for group in list.split(',') {
            let (tasks, nodes) = match group.split_once("(x") {
                Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
                None => (group, 1),
            };
            first = first.checked_add(nodes)?;
            if node < first {
                return tasks.trim().parse().ok();
            }
        }
        None
    }

    /// Returns the first host of the step's list.
    fn first_node(&self) -> Result<String, EnvironmentError> {
        let names = ["SLURM_STEP_NODELIST", "SLURM_NODELIST"];
        let name = names.into_iter().find(|name| self.is_set(name));
        let name = name.unwrap_or(names[0]).to_owned();
        let list: String = self.required(Launcher::Slurm, &name)?;
        first_node(&list).map_err(|source| EnvironmentError::NodeList { name, source })
    }

    fn slurm_port(&self) -> Result<u16, EnvironmentError> {
        let job: u64 = self.required(Launcher::Slurm, "SLURM_JOB_ID")?;
        let step: u64 = self.required(Launcher::Slurm, "SLURM_STEP_ID")?;
        let port = SLURM_FIRST_PORT + job.wrapping_add(step) % SLURM_PORTS;
        // At most 30,999.
        Ok(u16::try_from(port).unwrap_or(u16::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn read(variables: &str) -> Result<Environment, EnvironmentError> {
        let pairs: Vec<(&str, &str)> = variables
            .split_whitespace()
            .map(|pair| pair.split_once('=').unwrap())
            .collect();
        Environment::read(|name| {
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    /// Checks rank and size, rank and size on the machine, and the meeting.
    #[track_caller]
    fn check(variables: &str, launcher: Launcher, expected: &str) {
        let found = read(variables).unwrap();
        assert_eq!(found.launcher, launcher);
        let local = match found.local {
            Some(local) => format!("{} of {}", local.rank, local.size),
            None => "unknown".to_owned(),
        };
        let meeting = found.meeting.map(|meeting| meeting.to_string());
        let text = format!(
            "{} of {}, {local} here, {}",
            found.rank,
            found.size,
            meeting.as_deref().unwrap_or("no meeting")
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn every_launcher_is_read() {
        check("", Launcher::Alone, "0 of 1, 0 of 1 here, no meeting");
        check(
            "MASTER_ADDR=a MASTER_PORT=1",
            Launcher::Alone,
            "0 of 1, 0 of 1 here, no meeting",
        );
        let torch = "RANK=5 WORLD_SIZE=8 MASTER_ADDR=a MASTER_PORT=29500";
        check(torch, Launcher::Torchrun, "5 of 8, unknown here, a:29500");
        check(
            &format!("{torch} LOCAL_RANK=1 LOCAL_WORLD_SIZE=4"),
            Launcher::Torchrun,
            "5 of 8, 1 of 4 here, a:29500",
        );
        check(
            "JOB_COMPLETION_INDEX=2 WORLD_SIZE=3 MASTER_ADDR=job-0.job MASTER_PORT=4000",
            Launcher::Kubernetes,
            "2 of 3, 0 of 1 here, job-0.job:4000",
        );
        let open_mpi = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 \
                        OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2";
        check(
            open_mpi,
            Launcher::OpenMpi,
            "1 of 4, 1 of 2 here, no meeting",
        );
        check(
            &format!("{open_mpi} MASTER_ADDR=a MASTER_PORT=1"),
            Launcher::OpenMpi,
            "1 of 4, 1 of 2 here, a:1",
        );
        check(
            "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1",
            Launcher::Mpich,
            "3 of 4, 0 of 1 here, no meeting",
        );
    }

    #[test]
    fn slurm_counts_inside_of_a_step_only() {
        let batch = "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=17 SLURM_STEP_ID=4294967291";
        check(batch, Launcher::Alone, "0 of 1, 0 of 1 here, no meeting");
        let step = "SLURM_PROCID=5 SLURM_NTASKS=9 SLURM_STEP_NUM_TASKS=7 SLURM_LOCALID=1 SLURM_NODEID=2 \
                    SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_JOB_ID=123456 SLURM_STEP_ID=0";
        for (list, first) in [
            ("node7", "node7"),
            ("node7,node8", "node7"),
            ("node[07-09,12]", "node07"),
            ("node[7,9],login", "node7"),
            ("rack[1-2]-ib,login", "rack1-ib"),
            ("rack[0-1]node[00-15]", "rack0node00"),
            ("r[1,3]n[07-08]-x,login", "r1n07-x"),
        ] {
            check(
                &format!("{step} SLURM_STEP_NODELIST={list}"),
                Launcher::Slurm,
                &format!("5 of 7, 1 of 2 here, {first}:26456"),
            );
        }
        check(
            &format!("{step} MASTER_ADDR=a MASTER_PORT=1"),
            Launcher::Slurm,
            "5 of 7, 1 of 2 here, a:1",
        );
    }

    #[test]
    fn errors_name_what_is_missing_or_wrong() {
        let texts = [
            "RANK=0",
            "WORLD_SIZE=2 MASTER_ADDR=a",
            "LOCAL_RANK=0",
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1 LOCAL_RANK=0",
            "RANK=two WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1",
            "RANK=2 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1",
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=70000",
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1 LOCAL_RANK=1 LOCAL_WORLD_SIZE=3",
            "RANK= WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1",
            "JOB_COMPLETION_INDEX=1",
            "OMPI_COMM_WORLD_SIZE=2",
            "PMI_RANK=1",
            "PMI_RANK=0 PMI_SIZE=1 MASTER_PORT=1",
            "SLURM_PROCID=0 SLURM_STEP_ID=0",
            "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2",
            "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_NODELIST=node[1-",
        ];
        let texts = texts.map(|variables| read(variables).unwrap_err().to_string());
        insta::assert_snapshot!(texts.join("\n"), @r#"
        this process looks started by torchrun, but WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set: set all variables of torchrun, or none
        this process looks started by torchrun, but RANK, MASTER_PORT are not set: set all variables of torchrun, or none
        this process looks started by torchrun, but RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set: set all variables of torchrun, or none
        this process looks started by torchrun, but LOCAL_WORLD_SIZE is not set: set all variables of torchrun, or none
        RANK is `two`: expected a whole number in its range
        torchrun says that this is rank 2 of 2: ranks count from 0
        MASTER_PORT is `70000`: expected a whole number in its range
        torchrun says that this is rank 1 of 3 on its machine, and that all machines have 2 ranks: ranks count from 0, and a machine has no more than all
        this process looks started by torchrun, but RANK is not set: set all variables of torchrun, or none
        this process looks started by Kubernetes, but WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set: set all variables of Kubernetes, or none
        this process looks started by Open MPI, but OMPI_COMM_WORLD_RANK is not set: set all variables of Open MPI, or none
        this process looks started by MPICH, but PMI_SIZE is not set: set all variables of MPICH, or none
        this process looks started by MPICH, but MASTER_ADDR is not set: set all variables of MPICH, or none
        this process looks started by Slurm, but SLURM_NTASKS is not set: set all variables of Slurm, or none
        this process looks started by Slurm, but SLURM_STEP_NODELIST is not set: set all variables of Slurm, or none
        SLURM_NODELIST is not a list of nodes, such as rack[0-1]node[00-15],login: set MASTER_ADDR and MASTER_PORT to where the first rank listens, or correct the list
        "#);
    }

    #[test]
    fn addresses_are_read() {
        for text in ["node0:29500", "10.0.0.1:1", "[fe80::1]:29500"] {
            assert_eq!(text.parse::<Meeting>().unwrap().to_string(), text);
        }
        for text in [
            "node0",
            "node0:0",
            "node0:70000",
            ":1",
            "[]:1",
            "fe80::1",
            "[a:1",
        ] {
            let error = text.parse::<Meeting>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("`{text}` is not an address with a port")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_free_port_can_be_listened_on() {
        let meeting = Meeting::on_this_machine().unwrap();
        TcpListener::bind((meeting.host, meeting.port)).unwrap();
    }

    proptest::proptest! {
        /// No value of any variable panics.
        #[test]
        fn arbitrary_variables_never_panic(values in proptest::collection::vec(".{0,12}", 8), slurm: bool) {
            let names = match slurm {
                true => ["SLURM_PROCID", "SLURM_STEP_ID", "SLURM_NTASKS", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE",
                         "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_LOCALID"],
                false => ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                          "PMI_RANK", "PMI_SIZE"],
            };
            let _ = Environment::read(|name| {
                match name {
                    "SLURM_STEP_ID" if values[1].len() % 2 == 0 => Some("0".to_owned()),
                    _ => names.iter().position(|known| *known == name).map(|at| values[at].clone()),
                }
            });
        }
    }
}
