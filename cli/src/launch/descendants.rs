//! The descendants of this process.

use std::fmt::Display;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

use super::output::Notes;

/// The time between two looks at processes that are ending.
const LOOK: Duration = Duration::from_millis(1);

/// The longest wait for processes after SIGKILL. A process that waits for a device may take long.
const LONGEST: Duration = Duration::from_secs(5);

/// Lets this process adopt its descendants when their parents end (Linux). It becomes their parent even if they have sessions
/// of their own.
pub(super) fn adopt() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Returns a child that has ended, which may be an adopted one.
pub(super) fn ended() -> Option<(Pid, ExitStatus)> {
    let (child, status) = wait(WaitOptions::NOHANG).ok()??;
    Some((child, ExitStatus::from_raw(status.as_raw())))
}

/// Ends all descendants except some, if this process [adopts](adopt) them.
///
/// It signals only its children, repeatedly, because it adopts the children of a child that has ended. Returns the processes
/// that it has signalled. One thread alone starts, signals and waits for children: after a wait, another process may have the
/// id of a child.
pub(super) fn end_all_but(kept: &[Pid], notes: &Notes) -> Vec<Pid> {
    let began = Instant::now();
    let mut signalled = Vec::new();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => continue,
            // There is no child.
            Err(_) => return signalled,
            Ok(None) => {}
        }
        let mut left = children();
        left.retain(|child| !kept.contains(child));
        if left.is_empty() {
            return signalled;
        }
        for child in &left {
            // It fails if the child has ended.
            let _ = kill_process(*child, Signal::KILL);
            if !signalled.contains(child) {
                signalled.push(*child);
            }
        }
        if began.elapsed() > LONGEST {
            let left: Vec<String> = left.iter().map(ToString::to_string).collect();
            let text = format!("some processes do not end: {}", left.join(", "));
            notes.say("warning", &text);
            return signalled;
        }
        thread::sleep(LOOK);
    }
}

/// Returns the children of this process; none on a system without `/proc`.
pub(super) fn children() -> Vec<Pid> {
    let own = std::process::id();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let children = ids.filter(|id| parent(*id) == Some(own));
    children.filter_map(Pid::from_raw).collect()
}

/// Returns the parent of a process.
fn parent(id: i32) -> Option<u32> {
    stat(id)?.split(' ').nth(1)?.parse().ok()
}

/// Returns the text after the name of a process in its `stat`: its state, its parent and more. The name is in parentheses.
pub(super) fn stat(id: impl Display) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned())
}
