//! Processes that descend from this one.

use std::fmt::Display;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

use crate::terminal::say;

/// How often processes that are being ended are looked at.
const LOOK: Duration = Duration::from_millis(1);

/// How long processes are given to end after SIGKILL: one that waits for a device may take long.
const LONGEST: Duration = Duration::from_secs(5);

/// Lets this process adopt its descendants when their parents end, where the system can (Linux): it is then the parent of
/// all that are left, also of those that began a session of their own.
pub(super) fn adopt() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Held while children are started, waited for or signalled: the id of one that another thread has waited for may be the
/// id of another process.
static CHILDREN: Mutex<()> = Mutex::new(());

/// Starts a child.
pub(super) fn start(command: &mut Command) -> io::Result<Child> {
    let _held = CHILDREN.lock();
    command.spawn()
}

/// Returns a child that has ended, adopted ones too.
pub(super) fn ended() -> Option<(Pid, ExitStatus)> {
    let _held = CHILDREN.lock();
    let (child, status) = wait(WaitOptions::NOHANG).ok()??;
    Some((child, ExitStatus::from_raw(status.as_raw())))
}

/// Ends all descendants but some, if this process [adopts](adopt) them.
///
/// It signals its children only, again and again: the children of a child that has ended are its own then.
pub(super) fn end_all_but(kept: &[Pid]) {
    let began = Instant::now();
    loop {
        let held = CHILDREN.lock();
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => continue,
            // There is no child.
            Err(_) => return,
            Ok(None) => {}
        }
        let mut left = children();
        left.retain(|child| !kept.contains(child));
        if left.is_empty() {
            return;
        }
        for child in &left {
            // It may have ended by now.
            let _ = kill_process(*child, Signal::KILL);
        }
        drop(held);
        if began.elapsed() > LONGEST {
            let left: Vec<String> = left.iter().map(ToString::to_string).collect();
            let text = format!("processes that do not end are left: {}", left.join(", "));
            return say("warning", &text);
        }
        thread::sleep(LOOK);
    }
}

/// Returns the children of this process, as far as the system has `/proc`.
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

/// Returns what follows the name of a process in its `stat`: its state, its parent and more. The name is in parentheses.
pub(super) fn stat(id: impl Display) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned())
}
