//! A launcher that runs while a test looks at it.

use std::io::{BufRead, BufReader, Lines, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// The longest wait of a test before it fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// The command that runs a program with the default action of every signal. If `nohup` or a shell runs the tests in the
/// background, the tests ignore some signals, and so would ranks.
pub const DEFAULT_SIGNALS: &[&str] = match cfg!(target_os = "linux") {
    true => &["env", "--default-signal"],
    false => &[],
};

/// A running `tinderbox launch`, in a process group of its own. It ends with its ranks when it is dropped.
pub struct Launched {
    child: Child,
    lines: Receiver<String>,
    errors: Option<ChildStderr>,
}

/// Sends the results of a function, on a thread that ends with its input, so that a test can wait with a limit.
fn on_thread<T: Send + 'static>(
    mut read: impl FnMut() -> Option<T> + Send + 'static,
) -> Receiver<T> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || while read().is_some_and(|one| sender.send(one).is_ok()) {});
    receiver
}

impl Launched {
    /// Runs a shell script as ranks.
    pub fn start(arguments: &[&str], script: &str) -> Self {
        Self::start_by(DEFAULT_SIGNALS, arguments, script)
    }

    /// Runs a shell script as ranks. A program with its arguments is before the command, and becomes it.
    pub fn start_by(before: &[&str], arguments: &[&str], script: &str) -> Self {
        let command = [env!("CARGO_BIN_EXE_tinderbox"), "launch"];
        let all = [before, &command, arguments, &["--", "sh", "-c", script]].concat();
        let mut child = Command::new(all[0])
            .args(&all[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut lines: Lines<BufReader<ChildStdout>> =
            BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            lines: on_thread(move || lines.next()?.ok()),
            errors: child.stderr.take(),
            child,
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for this many lines that end with a text.
    #[track_caller]
    pub fn wait_for(&self, count: usize, text: &str) {
        for _ in 0..count {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("no {count} times `{text}`"));
            assert!(line.ends_with(text), "`{line}` is not `{text}`");
        }
    }

    /// Waits for its end; returns its exit code, the lines that were not read, and what it printed as errors.
    #[track_caller]
    pub fn end(mut self) -> (Option<i32>, Vec<String>, String) {
        let mut lines = Vec::new();
        let ended = loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => lines.push(line),
                Err(error) => break error,
            }
        };
        assert_eq!(ended, RecvTimeoutError::Disconnected, "it runs on");
        let mut errors = String::new();
        let mut stream = self.errors.take().unwrap();
        stream.read_to_string(&mut errors).unwrap();
        (self.child.wait().unwrap().code(), lines, errors)
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // It fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process, or to a group if the number is negative.
#[track_caller]
pub fn send(signal: &str, to: i64) {
    send_all(signal, &[to]);
}

/// Sends a signal to processes at once.
#[track_caller]
pub fn send_all(signal: &str, to: &[i64]) {
    let sent = Command::new("kill")
        .args(["-s", signal, "--"])
        .args(to.iter().map(ToString::to_string))
        .status();
    assert!(sent.unwrap().success());
}

/// Returns the children of a process, also those that have ended and were not waited for.
#[cfg(target_os = "linux")]
pub fn children(parent: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let of_parent = ids.filter(|id| {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        status
            .lines()
            .any(|line| line == format!("PPid:\t{parent}"))
    });
    of_parent.collect()
}

/// Returns the process that runs the ranks of a launcher.
#[cfg(target_os = "linux")]
pub fn supervisor(launched: &Launched) -> u32 {
    let children = children(launched.id());
    assert_eq!(children.len(), 1, "{children:?}");
    children[0]
}

/// A pipe that processes hold while they live.
#[cfg(target_os = "linux")]
pub struct Held {
    dir: tempfile::TempDir,
    lines: Receiver<String>,
}

#[cfg(target_os = "linux")]
impl Held {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("held");
        assert!(
            Command::new("mkfifo")
                .arg(&path)
                .status()
                .unwrap()
                .success()
        );
        let mut opened = None;
        let lines = on_thread(move || {
            // Waits for the first process that opens it.
            let open = || BufReader::new(std::fs::File::open(&path).unwrap()).lines();
            opened.get_or_insert_with(open).next()?.ok()
        });
        Self { dir, lines }
    }

    /// Returns its path: a process that has opened it holds it, and so do the processes that it starts.
    pub fn path(&self) -> String {
        self.dir.path().join("held").to_str().unwrap().to_owned()
    }

    /// Waits until this many lines were written.
    #[track_caller]
    pub fn wait_for(&self, count: usize) {
        for at in 0..count {
            let line = self.lines.recv_timeout(PATIENCE);
            assert!(line.is_ok(), "{at} of {count} processes have begun");
        }
    }

    /// Waits until no process holds it.
    #[track_caller]
    pub fn wait_until_free(&self) {
        let next = self.lines.recv_timeout(PATIENCE);
        assert_eq!(
            next,
            Err(RecvTimeoutError::Disconnected),
            "processes run on"
        );
    }
}
