//! Which process keeps whose snapshots.

use crate::schedule::RankIndex;

/// Returns the keeper of each rank, by the machine of each process: a process on another machine if there is one, of those the
/// one that keeps the least, and of those the next. There are at least two processes.
pub(super) fn keepers(machines: &[String], ranks: usize) -> Vec<RankIndex> {
    let processes = machines.len();
    let mut kept = vec![0; processes];
    let keeper = |rank: usize| {
        let others = (1..processes).map(|distance| (rank + distance) % processes);
        let best = others.min_by_key(|other| (machines[*other] == machines[rank], kept[*other]));
        let best = best.expect("there is another process");
        kept[best] += 1;
        RankIndex::new(best)
    };
    (0..ranks).map(keeper).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(machines: &str, ranks: usize, expected: &[usize]) {
        let names: Vec<String> = machines.chars().map(String::from).collect();
        let found: Vec<usize> = keepers(&names, ranks)
            .iter()
            .map(|rank| rank.index())
            .collect();
        assert_eq!(found, expected, "{machines}");
        for (rank, keeper) in found.iter().enumerate() {
            let is_elsewhere = names.iter().any(|name| *name != names[rank]);
            assert_eq!(names[rank] != names[*keeper], is_elsewhere, "{machines}");
        }
    }

    /// The letter of each process is its machine.
    #[test]
    fn a_keeper_is_on_another_machine() {
        check("AA", 2, &[1, 0]);
        check("AAA", 3, &[1, 2, 0]);
        check("AAA", 2, &[1, 2]);
        check("AABB", 4, &[2, 3, 0, 1]);
        check("ABAB", 4, &[1, 2, 3, 0]);
        // With a spare on each, and after one of eight was lost.
        check("AABBAB", 4, &[2, 3, 4, 0]);
        check("AAABBBB", 7, &[3, 4, 5, 0, 1, 2, 0]);
        check("AAB", 3, &[2, 2, 0]);
    }
}
