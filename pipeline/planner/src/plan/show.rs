//! The plan as tables for the terminal.

use std::fmt;

use tinderbox_ids::text::wrapped;

use super::Plan;
use super::facts::{outcome, purpose};
use super::tables::{self, WIDTH};

/// Formats the purpose of the plan, and its stages, ranks, boundaries and ties in tables of at most 80
/// columns where names allow it. Linear in the file and in the parameters of its stages.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: usize = 13;
        for (position, facts) in [purpose(self), outcome(self)].into_iter().enumerate() {
            if position > 0 {
                writeln!(f)?;
            }
            for (mut name, lines) in facts {
                let lines = lines.iter();
                for line in lines.flat_map(|line| wrapped(line.split(' '), " ", WIDTH - NAMES)) {
                    writeln!(f, "{}", format!("{name:<NAMES$}{line}").trim_end())?;
                    name = "";
                }
            }
        }
        let tables = [
            tables::stages,
            tables::costs,
            tables::ranks,
            tables::memory,
            tables::boundaries,
            tables::ties,
        ];
        tables.iter().try_for_each(|table| table(self).fmt(f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::samples;

    #[test]
    fn two_stages() {
        insta::assert_snapshot!(samples::two_stages().to_string(), @r#"
        model        5f3c9a1e0000, 16 parameters, 61.2 MiB
        program      training: tokens i64[8, 128], targets i64[8, 128], operations
                     07ab41c2d9e8
        machine      2 ranks, no memory limit
                     a message takes 5.00 µs, an action 3.00 µs besides its work
        schedule     1f1b, 4 micro-batches
        partitioner  chain
                     the blocks form a chain, of which every cut was tried

        step         168 ms, of which the ranks are idle 31.9 %
        lower bound  46.0 ms, so the step is at most 264.9 % above the optimum
        bottleneck   stage 0, 14.0 ms of F and B per micro-batch
        messages     129 MiB between ranks per step

        Stages
        ───────────────────────────────────────────────────────────────────────
        stage  rank  modules                         parameters    MiB   FLOPs
        ═══════════════════════════════════════════════════════════════════════
            0     0  embedding blocks.0 blocks.1             10  48.19  60.8 %
            1     1  blocks.2 head                6 (+1 shared)  37.05  39.2 %
        ───────────────────────────────────────────────────────────────────────

        One micro-batch on each stage
        ─────────────────────────────────────────────────────────────────
        stage   F ms   B ms   I ms   W ms  kept MiB  for W MiB  sent MiB
        ═════════════════════════════════════════════════════════════════
            0  4.660  9.320  5.126  4.194     20.00      10.00      4.25
            1  3.000  6.000  3.300  2.700     12.25       6.00     28.00
        ─────────────────────────────────────────────────────────────────

        One step on each rank
        idle: the part of the step in which a rank runs nothing
        bubble: the idle time of a rank between its first and its last action
        ─────────────────────────────────────────
        rank  stages  busy ms  bubble ms    idle
        ═════════════════════════════════════════
           0  0         163.3        4.4   2.6 %
           1  1          65.1       97.9  61.2 %
        ─────────────────────────────────────────

        Memory of each rank at its peak, MiB
        ───────────────────────────────────────────────────────────────────────────────
        rank  parameters  gradients  optimizer  activations  transient  buffers  total
        ═══════════════════════════════════════════════════════════════════════════════
           0        48.2       48.2       96.4         40.0        6.0     28.0  266.8
           1        37.1       13.1       26.1         12.3        6.0      4.3   98.7
        ───────────────────────────────────────────────────────────────────────────────

        Boundaries, per micro-batch
        ──────────────────────────────────────────────────────────
        from              to                ranks   values    MiB
        ══════════════════════════════════════════════════════════
        stage 0 forward   stage 1 forward   0 -> 1       2   4.25
        stage 1 backward  stage 0 backward  1 -> 0       7  28.00
        ──────────────────────────────────────────────────────────

        Parameters that several stages read
        ────────────────────────────────────────────────
        parameter         also called  owner    copies
        ════════════════════════════════════════════════
        embedding.weight  head.tied    stage 0  stage 1
        ────────────────────────────────────────────────
        "#);
    }

    #[test]
    fn four_stages_on_different_ranks() {
        insta::assert_snapshot!(samples::four_stages().to_string(), @"
        model        5f3c9a1e0000, 36 parameters, 121 MiB
        program      training: tokens i64[8, 128], targets i64[8, 128], operations
                     07ab41c2d9e8
        machine      4 ranks, 1.00 GiB to 2.00 GiB, at 100.0 % to 150.0 % of full speed
                     a message takes 20.0 µs and 80.0 µs per MiB, an action 3.00 µs
                     besides its work
        schedule     zb-h1, 8 micro-batches, stages may recompute
        partitioner  chain
                     the blocks form a chain, of which every cut was tried

        step         247 ms, of which the ranks are idle 35.8 %
        lower bound  92.0 ms, so the step is at most 168.6 % above the optimum
        bottleneck   stage 1, 18.4 ms of F and B per micro-batch
        messages     386 MiB between ranks per step

        Stages
        ────────────────────────────────────────────────────────────────────────────────
        stage  rank  modules                      parameters    MiB   FLOPs  backward
        ════════════════════════════════════════════════════════════════════════════════
            0     0  embedding blocks.0                    8  40.16  17.0 %
                     blocks.1
            1     1  blocks.1 blocks.2                     8  24.09  24.0 %  recomputes
                     blocks.3
            2     2  blocks.3 blocks.4                    10  32.13  31.3 %
                     blocks.5
            3     3  blocks.6 blocks.7 head   10 (+1 shared)  49.10  27.7 %
        ────────────────────────────────────────────────────────────────────────────────

        One micro-batch on each stage
        ──────────────────────────────────────────────────────────────
        stage  F ms   B ms  I ms  W ms  kept MiB  for W MiB  sent MiB
        ══════════════════════════════════════════════════════════════
            0  3.26   6.52  3.59  2.93     16.00       8.00      4.25
            1  4.60  13.80  9.66  4.14      4.00       8.00      8.00
            2  4.00   8.00  4.40  3.60     24.00      10.00      8.00
            3  3.53   7.07  3.89  3.18     20.25      10.00     28.00
        ──────────────────────────────────────────────────────────────

        One step on each rank
        idle: the part of the step in which a rank runs nothing
        bubble: the idle time of a rank between its first and its last action
        ────────────────────────────────────────────────────────────────────
        rank  stages    speed  busy ms  bubble ms    idle     limit    full
        ════════════════════════════════════════════════════════════════════
           0  0       100.0 %    167.8       79.2  32.1 %  1.00 GiB  27.6 %
           1  1       100.0 %    201.0        8.0  18.6 %  1.00 GiB  14.7 %
           2  2       150.0 %    143.8       36.4  41.8 %  2.00 GiB  10.3 %
           3  3       150.0 %    122.2      111.9  50.5 %  2.00 GiB   9.1 %
        ────────────────────────────────────────────────────────────────────

        Memory of each rank at its peak, MiB
        ───────────────────────────────────────────────────────────────────────────────
        rank  parameters  gradients  optimizer  activations  transient  buffers  total
        ═══════════════════════════════════════════════════════════════════════════════
           0        40.2       40.2       80.3         64.0        6.0     52.0  282.6
           1        24.1       24.1       48.2         24.0       22.0      8.0  150.4
           2        32.1       32.1       64.3         68.0        6.0      8.0  210.5
           3        49.1       25.1       50.2         50.3        6.0      4.8  185.4
        ───────────────────────────────────────────────────────────────────────────────

        Boundaries, per micro-batch
        ──────────────────────────────────────────────────────────
        from              to                ranks   values    MiB
        ══════════════════════════════════════════════════════════
        stage 0 forward   stage 1 forward   0 -> 1       1   4.00
        stage 0 forward   stage 3 forward   0 -> 3       1   0.25
        stage 1 forward   stage 2 forward   1 -> 2       1   4.00
        stage 1 backward  stage 0 backward  1 -> 0       1   4.00
        stage 2 forward   stage 3 forward   2 -> 3       1   4.00
        stage 2 backward  stage 1 backward  2 -> 1       1   4.00
        stage 3 backward  stage 0 backward  3 -> 0       6  24.00
        stage 3 backward  stage 2 backward  3 -> 2       1   4.00
        ──────────────────────────────────────────────────────────

        Parameters that several stages read
        ────────────────────────────────────────────────
        parameter         also called  owner    copies
        ════════════════════════════════════════════════
        embedding.weight  head.tied    stage 0  stage 3
        ────────────────────────────────────────────────
        ");
    }

    #[test]
    fn eight_stages_fit_the_terminal() {
        let text = samples::eight_stages().to_string();
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest.unwrap() <= WIDTH, "{text}");
        insta::assert_snapshot!(text, @"
        model        5f3c9a1e0000, 68 parameters, 218 MiB
        program      training: tokens i64[8, 128], targets i64[8, 128], operations
                     07ab41c2d9e8
        machine      4 ranks of 2 stages in a loop, 900 MiB each
                     a message takes 5.00 µs, an action 3.00 µs besides its work
        schedule     interleaved-1f1b, 8 micro-batches
        partitioner  chain
                     the blocks form a chain, of which every cut was tried

        step         443 ms, of which the ranks are idle 21.8 %
        lower bound  225 ms, so the step is at most 96.7 % above the optimum
        bottleneck   stage 7, 15.9 ms of F and B per micro-batch
        messages     642 MiB between ranks per step

        Stages
        ────────────────────────────────────────────────────────────────────────
        stage  rank  modules                          parameters    MiB   FLOPs
        ════════════════════════════════════════════════════════════════════════
            0     0  embedding blocks.0 blocks.1              10  48.19  12.4 %
            1     1  blocks.2 blocks.3                         8  24.09  12.2 %
            2     2  blocks.4 blocks.5                         8  24.09  12.2 %
            3     3  blocks.6 blocks.7                         8  24.09  12.2 %
            4     0  blocks.8 blocks.9                         8  24.09  12.2 %
            5     1  blocks.10 blocks.11                       8  24.09  12.2 %
            6     2  blocks.12 blocks.13                       8  24.09  12.2 %
            7     3  blocks.14 blocks.15 head     10 (+1 shared)  49.10  14.1 %
        ────────────────────────────────────────────────────────────────────────

        One micro-batch on each stage
        ──────────────────────────────────────────────────────────────
        stage  F ms   B ms  I ms  W ms  kept MiB  for W MiB  sent MiB
        ══════════════════════════════════════════════════════════════
            0  4.66   9.32  5.13  4.19     20.00      10.00      4.25
            1  4.60   9.20  5.06  4.14     20.00       8.00      8.00
            2  4.60   9.20  5.06  4.14     20.00       8.00      8.00
            3  4.60   9.20  5.06  4.14     20.00       8.00      8.00
            4  4.60   9.20  5.06  4.14     20.00       8.00      8.00
            5  4.60   9.20  5.06  4.14     20.00       8.00      8.00
            6  4.60   9.20  5.06  4.14     20.00       8.00      8.00
            7  5.30  10.60  5.83  4.77     20.25      10.00     28.00
        ──────────────────────────────────────────────────────────────

        One step on each rank
        idle: the part of the step in which a rank runs nothing
        bubble: the idle time of a rank between its first and its last action
        ──────────────────────────────────────────────────────────
        rank  stages  busy ms  bubble ms    idle    limit    full
        ══════════════════════════════════════════════════════════
           0  0 4       383.5       59.9  13.5 %  900 MiB  68.8 %
           1  1 5       328.4       47.0  25.9 %  900 MiB  43.4 %
           2  2 6       328.4       33.1  25.9 %  900 MiB  39.0 %
           3  3 7       347.4       82.1  21.6 %  900 MiB  38.2 %
        ──────────────────────────────────────────────────────────

        Memory of each rank at its peak, MiB
        ───────────────────────────────────────────────────────────────────────────────
        rank  parameters  gradients  optimizer  activations  transient  buffers  total
        ═══════════════════════════════════════════════════════════════════════════════
           0        72.3       72.3      144.6        220.0        6.0    104.0  619.1
           1        48.2       48.2       96.4        180.0        6.0     12.0  390.8
           2        48.2       48.2       96.4        140.0        6.0     12.0  350.8
           3        73.2       49.2       98.4        100.3        6.0     17.0  344.0
        ───────────────────────────────────────────────────────────────────────────────

        Boundaries, per micro-batch
        ──────────────────────────────────────────────────────────
        from              to                ranks   values    MiB
        ══════════════════════════════════════════════════════════
        stage 0 forward   stage 1 forward   0 -> 1       1   4.00
        stage 0 forward   stage 7 forward   0 -> 3       1   0.25
        stage 1 forward   stage 2 forward   1 -> 2       1   4.00
        stage 1 backward  stage 0 backward  1 -> 0       1   4.00
        stage 2 forward   stage 3 forward   2 -> 3       1   4.00
        stage 2 backward  stage 1 backward  2 -> 1       1   4.00
        stage 3 forward   stage 4 forward   3 -> 0       1   4.00
        stage 3 backward  stage 2 backward  3 -> 2       1   4.00
        stage 4 forward   stage 5 forward   0 -> 1       1   4.00
        stage 4 backward  stage 3 backward  0 -> 3       1   4.00
        stage 5 forward   stage 6 forward   1 -> 2       1   4.00
        stage 5 backward  stage 4 backward  1 -> 0       1   4.00
        stage 6 forward   stage 7 forward   2 -> 3       1   4.00
        stage 6 backward  stage 5 backward  2 -> 1       1   4.00
        stage 7 backward  stage 0 backward  3 -> 0       6  24.00
        stage 7 backward  stage 6 backward  3 -> 2       1   4.00
        ──────────────────────────────────────────────────────────

        Parameters that several stages read
        ────────────────────────────────────────────────
        parameter         also called  owner    copies
        ════════════════════════════════════════════════
        embedding.weight  head.tied    stage 0  stage 7
        ────────────────────────────────────────────────
        ");
    }

    #[test]
    fn empty_tables_are_omitted() {
        let mut plan = samples::own_lists();
        plan.boundaries.clear();
        plan.ties.clear();
        plan.prediction.ranks.clear();
        insta::assert_snapshot!(plan.to_string(), @r#"
        model        5f3c9a1e0000, 16 parameters, 61.2 MiB
        program      training: tokens i64[8, 128], targets i64[8, 128], operations
                     07ab41c2d9e8
        machine      2 ranks, no memory limit
                     a message takes 5.00 µs, an action 3.00 µs besides its work
        schedule     its own compute lists, since 1f1b does not fit the ranks, 3
                     micro-batches
        partitioner  chain
                     the blocks form a chain, of which every cut was tried

        step         129 ms, of which the ranks are idle 20.5 %
        lower bound  34.5 ms, so the step is at most 274.8 % above the optimum
        bottleneck   stage 1, 11.1 ms of F and B per micro-batch
        messages     48.0 MiB between ranks per step

        Stages
        ──────────────────────────────────────────────────────────────
        stage  rank  modules                parameters    MiB   FLOPs
        ══════════════════════════════════════════════════════════════
            0     0  embedding blocks.0              4  28.11  12.5 %
            1     1  blocks.0 blocks.1               6  20.08  48.3 %
            2     0  blocks.2 head       6 (+1 shared)  37.05  39.2 %
        ──────────────────────────────────────────────────────────────

        One micro-batch on each stage
        ─────────────────────────────────────────────────────────────────
        stage   F ms   B ms   I ms   W ms  kept MiB  for W MiB  sent MiB
        ═════════════════════════════════════════════════════════════════
            0  0.960  1.920  1.056  0.864      8.00      4.000      4.25
            1  3.700  7.400  4.070  3.330     16.00      6.000      8.00
            2  3.000  6.000  3.300  2.700     12.25      6.000     28.00
        ─────────────────────────────────────────────────────────────────
        "#);
    }

    #[test]
    fn lines_are_broken_between_words() {
        let wrapped = |line: &str| wrapped(line.split(' '), " ", 4);
        assert_eq!(wrapped("a bc def"), ["a bc", "def"]);
        assert_eq!(wrapped("longer a"), ["longer", "a"]);
        assert_eq!(wrapped(""), [""]);
    }
}
