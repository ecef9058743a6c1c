//! Programs as several processes, and what they and this one say to each other.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tinderbox::World;
use tinderbox::world::Meeting;

/// The variable that makes a bench a rank of a figure, with the name of its role.
pub const ROLE: &str = "TINDERBOX_BENCH_ROLE";

/// The variable with the address that a rank connects to, to receive what it is to do.
const CONTROL: &str = "TINDERBOX_BENCH_CONTROL";

/// The variable with the command that starts ranks over MPI.
pub const MPIRUN: &str = "TINDERBOX_MPIRUN";

/// Whether ranks are joined by MPI.
const OVER_MPI: &str = "TINDERBOX_BENCH_OVER_MPI";

/// What joins the processes of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Grpc,
    Mpi,
}

impl Engine {
    /// The end of the names of its figures.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Mpi => "mpi",
        }
    }

    /// Returns the engines that can be run, and says which can't.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Grpc];
        match (cfg!(feature = "mpi"), std::env::var(MPIRUN)) {
            (true, Ok(_)) => all.push(Self::Mpi),
            (true, Err(_)) => println!("NOT RUN: the figures of MPI, because {MPIRUN} is not set"),
            (false, _) => {
                println!("NOT RUN: the figures of MPI, because this program does not link it")
            }
        }
        all
    }
}

/// The processes of a role. Dropping them ends them.
pub struct Processes {
    children: Vec<Child>,
    ranks: Vec<Rank>,
}

struct Rank {
    id: u32,
    say: TcpStream,
    hear: BufReader<TcpStream>,
}

impl Processes {
    /// Starts this program as the ranks of a world.
    pub fn start(role: &str, size: usize, engine: Engine) -> Self {
        Self::start_with(role, size, engine, &[])
    }

    /// As [`start`](Self::start), with more variables.
    pub fn start_with(role: &str, size: usize, engine: Engine, set: &[(&str, String)]) -> Self {
        let own = std::env::current_exe().expect("it has a path");
        let mut commands = match engine {
            Engine::Grpc => ranks(size, || Command::new(&own)),
            Engine::Mpi => {
                let mpirun = std::env::var(MPIRUN).expect("it is set");
                let mut words = mpirun.split_whitespace();
                let mut command = Command::new(words.next().expect("it names a program"));
                command.args(words).args(["-n", &size.to_string()]);
                command.arg(&own).env(OVER_MPI, "1");
                vec![command]
            }
        };
        for command in &mut commands {
            command.env(ROLE, role).envs(set.iter().cloned());
        }
        Self::spawn(commands, size)
    }

    /// Starts a program in Python as ranks that find each other as the ranks of `torchrun` do.
    pub fn start_python(python: &str, script: &str, sizes: &[(&str, usize)], size: usize) -> Self {
        let command = || {
            let mut command = Command::new(python);
            let sizes = sizes.iter().map(|(name, size)| (name, size.to_string()));
            command.arg(script).envs(sizes);
            command
        };
        Self::spawn(ranks(size, command), size)
    }

    fn spawn(commands: Vec<Command>, size: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener
            .local_addr()
            .expect("it has an address")
            .to_string();
        let spawn = |mut command: Command| {
            let command = command.env(CONTROL, &address).stdin(Stdio::null());
            command.spawn().expect("a process starts")
        };
        let mut processes = Self {
            children: commands.into_iter().map(spawn).collect(),
            ranks: Vec::new(),
        };
        let mut ranks: Vec<Option<Rank>> = (0..size).map(|_| None).collect();
        for _ in 0..size {
            let say = accept(&listener, &mut processes.children);
            say.set_nodelay(true).expect("it is connected");
            let mut hear = BufReader::new(say.try_clone().expect("it is connected"));
            let mut line = String::new();
            hear.read_line(&mut line)
                .expect("the rank says which it is");
            let (rank, id) = line.trim().split_once(' ').expect("two numbers");
            let rank: usize = rank.parse().expect("a rank");
            let id = id.parse().expect("a process");
            ranks[rank] = Some(Rank { id, say, hear });
        }
        processes.ranks = ranks.into_iter().flatten().collect();
        assert_eq!(processes.ranks.len(), size, "each rank connects once");
        processes
    }

    /// Sends a line to all ranks.
    pub fn say(&mut self, line: &str) {
        for rank in &mut self.ranks {
            writeln!(rank.say, "{line}").expect("the rank reads");
        }
    }

    /// Returns the next number that each rank says.
    pub fn numbers(&mut self) -> Vec<f64> {
        let ranks = 0..self.ranks.len();
        ranks.map(|rank| self.number(rank)).collect()
    }

    /// Returns the next number that a rank says.
    pub fn number(&mut self, rank: usize) -> f64 {
        let mut line = String::new();
        let hear = &mut self.ranks[rank].hear;
        hear.read_line(&mut line).expect("the rank speaks");
        line.trim()
            .parse()
            .unwrap_or_else(|_| panic!("rank {rank} said `{line}`"))
    }

    /// Kills a rank that is a child of this process.
    pub fn kill(&mut self, rank: usize) {
        self.children[rank].kill().expect("it runs");
    }

    pub fn ids(&self) -> Vec<u32> {
        self.ranks.iter().map(|rank| rank.id).collect()
    }
}

/// Waits for a rank; panics if one has ended instead.
fn accept(listener: &TcpListener, children: &mut [Child]) -> TcpStream {
    listener.set_nonblocking(true).expect("it listens");
    loop {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(false).expect("it is connected");
            return stream;
        }
        for child in &mut *children {
            let ended = child.try_wait().expect("it is a child");
            assert!(ended.is_none(), "a rank ended: {ended:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns a command per rank, with the variables of `torchrun`.
fn ranks(size: usize, command: impl Fn() -> Command) -> Vec<Command> {
    let port = Meeting::on_this_machine().expect("a port is free").port;
    let rank = |rank: usize| {
        let mut command = command();
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", size.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("LOCAL_WORLD_SIZE", size.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string());
        command
    };
    (0..size).map(rank).collect()
}

impl Drop for Processes {
    fn drop(&mut self) {
        // Ranks end when nobody is there to ask for more.
        self.ranks.clear();
        let began = Instant::now();
        for child in &mut self.children {
            while began.elapsed() < END && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Those that have ended are gone.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// How long ranks are given to end.
const END: Duration = Duration::from_secs(5);

/// Joins the world that a rank was started in.
pub fn world() -> World {
    match std::env::var(OVER_MPI) {
        #[cfg(feature = "mpi")]
        Ok(_) => tinderbox::mpi::world().expect("all ranks come"),
        _ => World::from_env().expect("all ranks come"),
    }
}

/// A rank's connection with the program that started it.
pub struct Control(TcpStream);

impl Control {
    pub fn connect(world: &World) -> Self {
        let address = std::env::var(CONTROL).expect("the parent sets it");
        let mut stream = TcpStream::connect(address).expect("the parent listens");
        stream.set_nodelay(true).expect("it is connected");
        let rank = world.rank().index();
        writeln!(stream, "{rank} {}", std::process::id()).expect("the parent reads");
        Self(stream)
    }

    /// The lines that the parent sends, until it is gone.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let stream = self.0.try_clone().expect("it is connected");
        BufReader::new(stream).lines().map_while(Result::ok)
    }

    pub fn say(&self, number: f64) {
        // The parent may have ended.
        let _ = writeln!(&self.0, "{number:.9}");
    }
}
