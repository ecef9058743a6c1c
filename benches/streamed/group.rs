//! A control group with a memory limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A group, which is removed when it is dropped.
pub struct Group(PathBuf);

impl Group {
    /// Makes a group; `None` where this process may not.
    pub fn new(limit_bytes: u64) -> Option<Self> {
        let name = format!("tinderbox-{}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        // The older hierarchy has a tree for each resource.
        let kinds = [
            (root.join("memory").join(&name), "memory.limit_in_bytes"),
            (root.join(&name), "memory.max"),
        ];
        kinds.into_iter().find_map(|(dir, file)| {
            fs::create_dir(&dir).ok()?;
            let group = Self(dir);
            fs::write(group.0.join(file), limit_bytes.to_string()).ok()?;
            Some(group)
        })
    }

    /// Makes a command's process a member: a shell joins the group, and becomes the command.
    pub fn join(&self, command: &mut Command) {
        let procs = self.0.join("cgroup.procs");
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(procs);
        shell.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        *command = shell;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have ended.
        let _ = fs::remove_dir(&self.0);
    }
}
