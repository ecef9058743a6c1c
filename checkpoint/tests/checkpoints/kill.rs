//! A process that is killed or runs out of disk space during a save leaves an intact checkpoint.

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tinderbox_checkpoint::{CheckpointMeta, Role, Run, SaveError, SaveTensor, StoreError};
use tinderbox_checkpoint_tests::{
    Contents, Random, TIMEOUT, load, meta, names, save, small_contents,
};

const RUN_DIR: &str = "TINDERBOX_TEST_RUN_DIR";
/// The number of kills, unless `TINDERBOX_TEST_KILLS` is set.
const KILLS: u64 = 20;

/// Added to the seed of a step whose checkpoint is replaced, for other contents.
const REPLACED: u64 = 1 << 40;

/// Returns the contents of a step, in both processes.
fn contents_of(step: u64) -> Contents {
    let mut contents = small_contents(step);
    let large = Random(step).data(&[40_000], burn::tensor::DType::F32);
    contents.0.insert((Role::Model, "large".into()), large);
    contents
}

/// Runs this test binary again, with one test, as another process.
fn child(test: &str, run_dir: &Path, shell: Option<&str>) -> Command {
    let exe = std::env::current_exe().unwrap();
    let mut command = match shell {
        Some(script) => {
            let mut sh = Command::new("sh");
            sh.args(["-c", &format!("{script}; exec \"$0\" \"$@\"")])
                .arg(exe);
            sh
        }
        None => Command::new(exe),
    };
    command
        .args(["--exact", &format!("kill::{test}"), "--nocapture"])
        .env(RUN_DIR, run_dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Ends the child on any outcome of the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_kill_at_any_instant_leaves_a_whole_checkpoint() {
    if let Ok(run_dir) = std::env::var(RUN_DIR) {
        // The child: continues from the newest checkpoint, forever.
        let run_dir = Path::new(&run_dir);
        Run::local(run_dir).clean().unwrap();
        let newest = Run::local(run_dir).latest().unwrap();
        let mut step = newest.map_or(0, |latest| latest.checkpoint.step());
        loop {
            step += 1;
            save(run_dir, meta(step, 1), &contents_of(step));
            // And replaces the existing checkpoint.
            let replacing = CheckpointMeta {
                replace: true,
                ..meta(step, 1)
            };
            save(run_dir, replacing, &contents_of(step + REPLACED));
        }
    }
    let seed = std::env::var("TINDERBOX_TEST_SEED").map_or(0x5eed, |s| s.parse().unwrap());
    eprintln!("seed {seed}: set TINDERBOX_TEST_SEED to repeat it");
    let mut random = Random(seed);
    let run = tempfile::tempdir().unwrap();
    let test = "a_kill_at_any_instant_leaves_a_whole_checkpoint";
    let (mut last, mut torn, mut replaced) = (0, 0, 0);
    let kills = std::env::var("TINDERBOX_TEST_KILLS").map_or(KILLS, |n| n.parse().unwrap());
    for kill in 0..kills {
        let running = Killed(child(test, run.path(), None).spawn().unwrap());
        // At some time after the first save of the child.
        let started = Instant::now();
        while newest_name(run.path()) <= Some(last) && started.elapsed() < TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(random.next() % 15_000));
        drop(running);
        torn += u32::from(names(run.path()).iter().any(|n| n.starts_with('.')));
        let checkpoint = Run::local(run.path()).latest().unwrap().unwrap().checkpoint;
        let step = checkpoint.step();
        assert!(step > last, "kill {kill}: {step} after {last}");
        assert_eq!(
            Some(step),
            newest_name(run.path()),
            "kill {kill}: none was skipped"
        );
        checkpoint.verify().unwrap();
        let loaded = load(&checkpoint).unwrap();
        let first = loaded == contents_of(step);
        assert!(
            first || loaded == contents_of(step + REPLACED),
            "kill {kill}: step {step}"
        );
        replaced += u64::from(!first);
        last = step;
    }
    // Most kills must hit a save, or the test proves nothing.
    assert!(
        u64::from(torn) >= kills / 4,
        "only {torn} of {kills} kills fell into a save"
    );
    Run::local(run.path()).clean().unwrap();
    assert!(names(run.path()).iter().all(|n| n.starts_with("step-")));
    eprintln!("{torn} of {kills} kills fell into a save; {last} steps, {replaced} found replaced");
}

/// Returns the highest step according to the names alone.
fn newest_name(run_dir: &Path) -> Option<u64> {
    let steps = names(run_dir).into_iter();
    steps
        .filter_map(|n| n.strip_prefix("step-")?.parse().ok())
        .max()
}

#[test]
fn a_full_disk_is_one_clear_error() {
    if let Ok(run_dir) = std::env::var(RUN_DIR) {
        // The child: no file may grow beyond 32 KiB.
        let run_dir = Path::new(&run_dir);
        let attempt = Run::local(run_dir).begin(meta(2, 1)).unwrap();
        let tensors: Vec<_> = contents_of(2)
            .0
            .into_iter()
            .map(|((role, name), data)| SaveTensor::whole(name, role, data))
            .collect();
        let error = attempt
            .handle()
            .write_rank(0, &tensors, &BTreeMap::new(), &());
        let Err(SaveError::Io(StoreError {
            action,
            path,
            source,
        })) = error
        else {
            panic!("{error:?}");
        };
        assert_eq!(action, "write");
        assert!(path.ends_with("model-rank-00000.safetensors"));
        assert_eq!(source.kind(), std::io::ErrorKind::FileTooLarge);
        // The files of the rank are removed before the attempt.
        let left = names(path.parent().unwrap());
        assert_eq!(left, ["attempt.json", "failed-rank-00000.txt"]);
        // Proof that this ran: a filter that matches no test succeeds as well.
        std::fs::write(run_dir.join("proof"), "").unwrap();
        return;
    }
    let run = tempfile::tempdir().unwrap();
    save(run.path(), meta(1, 1), &contents_of(1));
    // The shell determines whether the limit counts blocks of 512 or 1024 bytes. With the signal ignored, the
    // write fails as on a full disk.
    let limit = "trap '' XFSZ; ulimit -f 64";
    let status = child("a_full_disk_is_one_clear_error", run.path(), Some(limit))
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(names(run.path()), ["proof", "step-00000001"]);
    let checkpoint = Run::local(run.path()).latest().unwrap().unwrap().checkpoint;
    assert!(load(&checkpoint).unwrap() == contents_of(1));
}
