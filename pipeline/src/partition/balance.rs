//! The most even contiguous cut.

use super::Unit;

/// How much worse than the most even cut the fullest stage may be, if less data crosses then.
const TOLERANCE: f64 = 0.10;

/// The first unit of every stage, for `stages` stages in the order of the units.
///
/// A stage's load is the larger of its shares of bytes and of forward FLOPs. Among the cuts whose
/// fullest stage is within 10 % of the smallest possible, the one with the fewest boundary bytes is
/// taken, then the most even. Exact, by dynamic programming: `O(stages * units^2)`.
///
/// Returns `None` when there are fewer units than stages.
pub(crate) fn balance(units: &[Unit], stages: usize) -> Option<Vec<usize>> {
    if stages == 0 || units.len() < stages {
        return None;
    }
    let total_bytes = units.iter().map(|u| u.bytes).sum::<u64>().max(1) as f64;
    let total_flops = units.iter().map(|u| u.flops).sum::<u64>().max(1) as f64;
    let mut sums = vec![(0u64, 0u64)];
    for unit in units {
        let (bytes, flops) = *sums.last().expect("it starts with one");
        sums.push((bytes + unit.bytes, flops + unit.flops));
    }
    let load = |from: usize, to: usize| {
        let bytes = (sums[to].0 - sums[from].0) as f64 / total_bytes;
        let flops = (sums[to].1 - sums[from].1) as f64 / total_flops;
        bytes.max(flops)
    };
    let even = best(units, stages, &load, |_| true)?.load;
    let limit = even * (1.0 + TOLERANCE);
    Some(best(units, stages, &load, |load| load <= limit)?.starts)
}

#[derive(Clone)]
struct Cuts {
    load: f64,
    bytes: u64,
    starts: Vec<usize>,
}

/// The best cut: the most even where `allowed` allows every load, otherwise the fewest bytes.
fn best(
    units: &[Unit],
    stages: usize,
    load: &impl Fn(usize, usize) -> f64,
    allowed: impl Fn(f64) -> bool,
) -> Option<Cuts> {
    let limited = !allowed(f64::INFINITY);
    let better = |a: (u64, f64), b: (u64, f64)| match limited {
        true => a < b,
        false => a.1 < b.1,
    };
    // For each end, the best cut of the units before it into the stages so far.
    let mut row: Vec<Option<Cuts>> = vec![None; units.len() + 1];
    row[0] = Some(Cuts {
        load: 0.0,
        bytes: 0,
        starts: Vec::new(),
    });
    for stage in 0..stages {
        let mut next: Vec<Option<Cuts>> = vec![None; units.len() + 1];
        for (end, best) in next.iter_mut().enumerate().skip(stage + 1) {
            for start in stage..end {
                let Some(before) = &row[start] else { continue };
                let here = load(start, end);
                if !allowed(here) {
                    continue;
                }
                let crossing = match start {
                    0 => 0,
                    start => units[start].boundary_bytes,
                };
                let cost = (before.bytes + crossing, before.load.max(here));
                let known = best.as_ref().map(|known| (known.bytes, known.load));
                if known.is_none_or(|known| better(cost, known)) {
                    let mut starts = before.starts.clone();
                    starts.push(start);
                    *best = Some(Cuts {
                        bytes: cost.0,
                        load: cost.1,
                        starts,
                    });
                }
            }
        }
        row = next;
    }
    row.pop().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(rows: &[(u64, u64, u64)]) -> Vec<Unit> {
        let unit = |(index, row): (usize, &(u64, u64, u64))| Unit {
            module: index.to_string(),
            parameters: Vec::new(),
            bytes: row.0,
            flops: row.1,
            boundary_bytes: row.2,
        };
        rows.iter().enumerate().map(unit).collect()
    }

    /// Every contiguous cut, by brute force.
    fn all_cuts(units: usize, stages: usize) -> Vec<Vec<usize>> {
        if stages == 1 {
            return vec![vec![0]];
        }
        (stages - 1..units)
            .flat_map(|last| {
                all_cuts(last, stages - 1)
                    .into_iter()
                    .map(move |mut starts| {
                        starts.push(last);
                        starts
                    })
            })
            .collect()
    }

    #[test]
    fn cuts_evenly() {
        let even = units(&[(1, 1, 8); 8]);
        assert_eq!(balance(&even, 4), Some(vec![0, 2, 4, 6]));
        assert_eq!(balance(&even, 1), Some(vec![0]));
        assert_eq!(balance(&even, 9), None);
        assert_eq!(balance(&even, 0), None);
    }

    #[test]
    fn fewer_boundary_bytes_win_within_the_tolerance() {
        let mut rows = vec![(20, 20, 100); 40];
        rows[19].2 = 1;
        assert_eq!(
            balance(&units(&rows), 2),
            Some(vec![0, 19]),
            "5 % less even, 99 bytes less"
        );
        rows[19].2 = 100;
        rows[15].2 = 1;
        assert_eq!(
            balance(&units(&rows), 2),
            Some(vec![0, 20]),
            "25 % less even"
        );
    }

    #[test]
    fn is_the_optimum() {
        let rows: Vec<(u64, u64, u64)> = (0u64..9)
            .map(|i| (1 + i * 7 % 5, 1 + i * 11 % 7, 1 + i * 13 % 6))
            .collect();
        let units = units(&rows);
        let (bytes, flops) = rows
            .iter()
            .fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
        let load = |starts: &[usize]| {
            let ends = starts.iter().skip(1).copied().chain([rows.len()]);
            starts
                .iter()
                .zip(ends)
                .map(|(from, to)| {
                    let b: u64 = rows[*from..to].iter().map(|r| r.0).sum();
                    let f: u64 = rows[*from..to].iter().map(|r| r.1).sum();
                    (b as f64 / bytes as f64).max(f as f64 / flops as f64)
                })
                .fold(0.0, f64::max)
        };
        let crossing = |starts: &[usize]| starts[1..].iter().map(|s| rows[*s].2).sum::<u64>();
        for stages in 1..=9 {
            let cuts = all_cuts(rows.len(), stages);
            let even = cuts.iter().map(|c| load(c)).fold(f64::INFINITY, f64::min);
            let fewest = cuts
                .iter()
                .filter(|c| load(c) <= even * 1.1)
                .map(|c| crossing(c))
                .min()
                .unwrap();
            let found = balance(&units, stages).unwrap();
            assert!(load(&found) <= even * 1.1, "{stages} stages");
            assert_eq!(crossing(&found), fewest, "{stages} stages");
        }
    }
}
