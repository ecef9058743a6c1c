//! The memory that a control group of Linux leaves to this process: in containers, less than the machine has.

use std::fs;
use std::path::Path;

/// The files of a hierarchy, by version.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// The fields of `memory.stat` with the cached bytes of files, which are freed when they are needed.
    cached: [&'static str; 2],
}

const FIRST: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: ["total_inactive_file", "total_active_file"],
};
const SECOND: Files = Files {
    limit: "memory.max",
    used: "memory.current",
    cached: ["inactive_file", "active_file"],
};

/// Returns the bytes that the groups of this process leave; `None` without a limit.
pub(super) fn available_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    available_in(&groups, Path::new("/sys/fs/cgroup"))
}

/// Returns the bytes that the groups of the list leave. `groups` has a line for each hierarchy: its number, its resources
/// and the path of the group.
fn available_in(groups: &str, root: &Path) -> Option<u64> {
    let fields = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let left = fields.filter_map(|(resources, path)| {
        let (base, files) = match resources {
            "" => (root.to_owned(), SECOND),
            _ if resources.split(',').any(|of| of == "memory") => (root.join("memory"), FIRST),
            _ => return None,
        };
        // The limits of all groups around it count.
        let groups = Path::new(path.trim_start_matches('/')).ancestors();
        let left = groups.filter_map(|group| files.left(&base.join(group)));
        left.min()
    });
    left.min()
}

impl Files {
    /// Returns the bytes that one group leaves.
    fn left(&self, group: &Path) -> Option<u64> {
        let read = |file: &str| fs::read_to_string(group.join(file)).ok();
        let number = |file: &str| -> Option<u64> { read(file)?.trim().parse().ok() };
        let (limit, used) = (number(self.limit)?, number(self.used)?);
        let stat = read("memory.stat").unwrap_or_default();
        let fields = stat.lines().filter_map(|line| line.split_once(' '));
        let cached = fields.filter(|(field, _)| self.cached.contains(field));
        let cached = cached.filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok());
        Some(limit.saturating_sub(used.saturating_sub(cached.sum())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    #[test]
    fn the_least_of_a_group_and_the_groups_around_it() {
        let root = tempfile::tempdir().unwrap();
        let groups = "0::/outer/inner\n";
        assert_eq!(available_in(groups, root.path()), None);
        let stat = "anon 7\ninactive_file 20\nactive_file 10\nfile 40\n";
        let outer = [
            ("memory.max", "1000\n"),
            ("memory.current", "900\n"),
            ("memory.stat", stat),
        ];
        write(&root.path().join("outer"), &outer);
        assert_eq!(available_in(groups, root.path()), Some(130));
        let inner = [("memory.max", "max\n"), ("memory.current", "50\n")];
        write(&root.path().join("outer/inner"), &inner);
        assert_eq!(available_in(groups, root.path()), Some(130));
        write(&root.path().join("outer/inner"), &[("memory.max", "60\n")]);
        assert_eq!(available_in(groups, root.path()), Some(10));
    }

    #[test]
    fn a_group_of_the_older_hierarchy() {
        let root = tempfile::tempdir().unwrap();
        let groups = "5:cpu,cpuacct:/a\n4:memory:/b\n0::/\n";
        let files = [
            ("memory.limit_in_bytes", "500\n"),
            ("memory.usage_in_bytes", "480\n"),
            (
                "memory.stat",
                "inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 5\n",
            ),
        ];
        write(&root.path().join("memory/b"), &files);
        assert_eq!(available_in(groups, root.path()), Some(125));
        let files = [("memory.limit_in_bytes", "9223372036854771712\n")];
        write(&root.path().join("memory"), &files);
        assert_eq!(available_in(groups, root.path()), Some(125));
    }
}
