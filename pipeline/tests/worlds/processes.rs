//! Real processes over gRPC, on loopback.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use tinderbox_pipeline::ScheduleKind;
use tinderbox_world::World;

use crate::model::{builder, run};

/// The variable that makes this program a rank.
const RANKS: &str = "TINDERBOX_TEST_RANKS";

/// What a process of the tests does as a rank; in the tests themselves, nothing.
#[test]
fn rank() {
    let Ok(ranks) = std::env::var(RANKS) else {
        return;
    };
    let world = World::from_env().unwrap();
    let builder = builder(ranks.parse().unwrap(), ScheduleKind::OneFOneB);
    let mut pipeline = builder.world(&world).start().unwrap();
    println!(
        "seen {:016x}",
        digest(&format!("{:?}", run(&mut pipeline, 4)))
    );
}

fn digest(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[test]
fn processes_see_what_threads_see() {
    for ranks in [2, 3] {
        let mut threads = builder(ranks, ScheduleKind::OneFOneB).start().unwrap();
        let expected = format!(
            "seen {:016x}",
            digest(&format!("{:?}", run(&mut threads, 4)))
        );
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let spawn = |rank: usize| -> Child {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "processes::rank", "--nocapture"])
                .env(RANKS, ranks.to_string())
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", ranks.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.to_string())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let children: Vec<Child> = (0..ranks).map(spawn).collect();
        for (rank, mut child) in children.into_iter().enumerate() {
            let mut text = String::new();
            child
                .stdout
                .take()
                .unwrap()
                .read_to_string(&mut text)
                .unwrap();
            assert!(child.wait().unwrap().success(), "rank {rank}: {text}");
            assert!(
                text.contains(&expected),
                "rank {rank}: {text}, expected {expected}"
            );
        }
    }
}
