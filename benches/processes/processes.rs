//! This program as several processes.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::ROLE;

/// The processes of a role. Dropping them ends them.
pub struct Processes {
    ranks: Vec<Rank>,
}

struct Rank {
    child: Child,
    say: ChildStdin,
    hear: BufReader<ChildStdout>,
}

impl Processes {
    pub fn start(role: &str, size: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        drop(listener);
        let ranks = (0..size).map(|rank| {
            let mut child = Command::new(std::env::current_exe().expect("it has a path"))
                .env(ROLE, role)
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", size.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .env("LOCAL_WORLD_SIZE", size.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a process starts");
            let say = child.stdin.take().expect("it is piped");
            let hear = BufReader::new(child.stdout.take().expect("it is piped"));
            Rank { child, say, hear }
        });
        Self {
            ranks: ranks.collect(),
        }
    }

    /// Sends a line to all ranks.
    pub fn say(&mut self, line: &str) {
        for rank in &mut self.ranks {
            writeln!(rank.say, "{line}").expect("the rank reads");
        }
    }

    /// Returns the next number that each rank prints.
    pub fn numbers(&mut self) -> Vec<f64> {
        let ranks = 0..self.ranks.len();
        ranks.map(|rank| self.number(rank)).collect()
    }

    /// Returns the next number that a rank prints.
    pub fn number(&mut self, rank: usize) -> f64 {
        let mut line = String::new();
        let hear = &mut self.ranks[rank].hear;
        hear.read_line(&mut line).expect("the rank prints");
        line.trim()
            .parse()
            .unwrap_or_else(|_| panic!("rank {rank} printed `{line}`"))
    }

    pub fn kill(&mut self, rank: usize) {
        self.ranks[rank].child.kill().expect("it runs");
    }

    pub fn ids(&self) -> Vec<u32> {
        self.ranks.iter().map(|rank| rank.child.id()).collect()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            // Those that have ended are gone.
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
    }
}

/// The lines that the parent sends to this process.
pub fn lines() -> impl Iterator<Item = String> {
    std::io::stdin().lines().map_while(Result::ok)
}
