//! The cores of a rank: the cores that its process may use, divided among the ranks that may use the same cores.

use std::fs;

use serde::{Deserialize, Serialize};
use tinderbox_world::World;

use crate::error::Result;

/// The machine and the cores of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    machine: String,
    /// The numbers of the cores that the process may use; empty if the system does not report them.
    cores: Vec<u32>,
}

/// Returns how many threads a rank uses by default. In a world, all processes call this.
pub(crate) fn threads(world: Option<&World>, ranks: usize) -> Result<usize> {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let Some(world) = world else {
        return Ok((usable / ranks).max(1));
    };
    let (machine, cores) = (tinderbox_world::machine(), allowed("self"));
    let own = Place { machine, cores };
    let all = world.all_gather(own.clone())?;
    // Processes beyond the ranks wait.
    let all = &all[..ranks.min(all.len())];
    let here = all.iter().filter(|p| p.machine == own.machine).count();
    let of_machine = allowed("1").len();
    if own.cores.len() * here < of_machine {
        tracing::warn!(
            rank = world.rank().index(),
            cores = own.cores.len(),
            of_machine,
            ranks = here,
            "this process may use few of the machine's cores: its launcher binds it to them; Open MPI's `mpirun` does not with \
             `--bind-to none`"
        );
    }
    Ok((usable / own.sharers(all)).max(1))
}

impl Place {
    /// Returns the number of processes, including this one, that may use a core of this process.
    fn sharers(&self, all: &[Self]) -> usize {
        let shares = |other: &&Self| {
            let is_unknown = self.cores.is_empty() || other.cores.is_empty();
            let mut cores = self.cores.iter();
            other.machine == self.machine
                && (is_unknown || cores.any(|core| other.cores.contains(core)))
        };
        all.iter().filter(shares).count().max(1)
    }
}

/// Returns the cores that a process may use, as Linux reports them; empty on other systems. The first process of a machine or a
/// container may use all its cores.
fn allowed(process: &str) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    cores(list.unwrap_or_default()).unwrap_or_default()
}

/// Reads a list such as `0-3,8`.
fn cores(list: &str) -> Option<Vec<u32>> {
    let mut cores = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read() {
        assert_eq!(cores("\t0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(cores("5"), Some(vec![5]));
        assert_eq!(cores(""), Some(vec![]));
        assert_eq!(cores("a-b"), None);
    }

    /// Processes that are bound to cores of their own share none; the processes of a container share all.
    #[test]
    fn processes_that_may_use_the_same_cores_share_them() {
        let place = |machine: &str, list: &str| Place {
            machine: machine.to_owned(),
            cores: cores(list).unwrap(),
        };
        for (all, expected) in [
            ([place("a", "0-3"), place("a", "4-7"), place("b", "0-7")], 1),
            ([place("a", "0-7"), place("a", "0-7"), place("b", "0-7")], 2),
            ([place("a", "0-1"), place("a", "1-2"), place("a", "3")], 2),
            // A system that does not report cores.
            ([place("a", ""), place("a", ""), place("a", "")], 3),
        ] {
            assert_eq!(all[0].sharers(&all), expected, "{all:?}");
        }
    }
}
