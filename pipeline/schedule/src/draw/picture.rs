//! The common model of all pictures: the actions of each rank as boxes, and figures next to them.

use tinderbox_ids::text::{count_text, permille_text, share_text, time_text};
use tinderbox_ids::{RankIndex, StageIndex};

use super::palette::Kind;
use crate::action::Action;
use crate::lists::stages_by_rank;
use crate::simulate::{RankTimeline, Span, TimeUnit, Timeline, most_waiting};
use crate::task::{Compute, Task};

/// The names of a row's figures.
pub(super) const FIGURES: [&str; 3] = ["idle", "peak", "memory"];

/// The idle time of a rank in words.
pub const IDLE: &str = "idle: the part of the step in which a rank runs nothing";
/// The bubble of a rank in words.
pub const BUBBLE: &str = "bubble: the idle time of a rank between its first and its last action";

/// Returns the figures of a step in words: idle time, bubble, peak and, if the costs are in bytes, memory.
pub fn meanings(has_bytes: bool) -> impl Iterator<Item = &'static str> {
    let peak = "peak: the most micro-batches whose activations a rank holds";
    let memory = has_bytes.then_some("memory: the most bytes that a rank holds");
    [IDLE, BUBBLE, peak].into_iter().chain(memory)
}

/// The maximum number of columns per quantum of time in a short step.
const MAX_COLUMNS_PER_QUANTUM: u64 = 8;

/// One box. An overlapped pair has two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) kind: Kind,
    /// The number of the rank's lower stages.
    pub(super) chunk: usize,
    pub(super) micro_batch: Option<usize>,
}

/// An action that is drawn.
pub(super) struct Drawn<'a> {
    pub(super) span: &'a Span,
    pub(super) pieces: Vec<Piece>,
}

/// A rank.
pub(super) struct Row<'a> {
    pub(super) list: &'a RankTimeline,
    /// `stage 3` or `stages 0, 7`; empty for a rank without stages.
    pub(super) stages: String,
    pub(super) actions: Vec<Drawn<'a>>,
    /// The maximum number of micro-batches that waited for the end of their backward at a time, once per stage.
    pub(super) held: usize,
    /// `held` divided by the number of the rank's stages.
    peak: String,
    /// The rank's idle time as a fraction of the whole step.
    idle: String,
}

/// A timeline as it is drawn.
pub(super) struct Picture<'a> {
    pub(super) timeline: &'a Timeline,
    pub(super) rows: Vec<Row<'a>>,
    /// The end of the last action, even if the lists are not in order.
    pub(super) length: u64,
    /// The largest number of stages of a rank.
    pub(super) chunks: usize,
    /// Whether the peaks are bytes and not only `held`: uniform costs count one byte per micro-batch.
    pub(super) has_bytes: bool,
}

impl<'a> Picture<'a> {
    /// Linear in the number of actions.
    pub(super) fn of(timeline: &'a Timeline) -> Self {
        let stages = stages_by_rank(&timeline.stage_to_rank);
        let mut chunks = vec![0; timeline.stage_to_rank.len()];
        for (chunk, stage) in stages.values().flat_map(|own| own.iter().enumerate()) {
            chunks[stage.index()] = chunk;
        }
        let spans = || timeline.ranks.iter().flat_map(|rank| &rank.spans);
        let mut tasks = spans().flat_map(|span| span.action.tasks());
        let is_training = tasks.any(|task| task.compute != Compute::Forward);
        let most_held = if is_training { usize::MAX } else { 1 };
        let makespan = timeline.makespan();
        let rows = timeline.ranks.iter().enumerate().map(|(rank, list)| {
            let own = stages.get(&RankIndex::new(rank));
            let own = own.map_or(&[][..], Vec::as_slice);
            let held = most_waiting(list.spans.iter().map(|span| &span.action)).min(most_held);
            Row {
                list,
                stages: stages_text(own),
                actions: drawn(list, &chunks),
                held,
                peak: peak_text(held, own.len()),
                idle: share_text(makespan.saturating_sub(list.busy()), makespan),
            }
        });
        let rows: Vec<Row<'_>> = rows.collect();
        let differs = |row: &Row<'_>| ![0, row.held as u64].contains(&row.list.peak_bytes());
        Self {
            length: spans().map(|span| span.end).max().unwrap_or(0),
            chunks: chunks.iter().max().map_or(0, |last| last + 1),
            has_bytes: rows.iter().any(differs),
            timeline,
            rows,
        }
    }

    /// Returns all boxes.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        let actions = self.rows.iter().flat_map(|row| &row.actions);
        actions.flat_map(|action| &action.pieces)
    }

    /// Returns a summary of the step: ranks, time, bubble, idle time.
    pub(super) fn summary(&self) -> Vec<String> {
        let (timeline, unit) = (self.timeline, self.timeline.unit);
        let (bubble, makespan) = (timeline.largest_bubble(), timeline.makespan());
        // Overlapping times, which no rank has, would make this negative.
        let idle = (timeline.idle_share().clamp(0.0, 1.0) * 1000.0).round();
        let (largest, share) = (time_in(bubble, unit), share_text(bubble, makespan));
        vec![
            count_text(timeline.ranks.len(), "rank"),
            time_in(makespan, unit),
            format!("largest bubble {largest} ({share})"),
            format!("idle {}", permille_text(idle as u64)),
        ]
    }

    /// Returns the number of columns of a terminal for the time axis, at most `available`.
    ///
    /// If all times are multiples of a quantum, every quantum has the same number of columns if there
    /// are enough, so that equal times have equal widths. Otherwise the whole width is used.
    pub(super) fn columns(&self, available: usize) -> usize {
        let spans = self.rows.iter().flat_map(|row| &row.list.spans);
        let times = spans.flat_map(|span| [span.start, span.end]);
        let quantum = times.fold(0, common_divisor);
        let Some(quanta) = self.length.checked_div(quantum) else {
            return 0;
        };
        match (available as u64).checked_div(quanta) {
            None | Some(0) => available,
            Some(each) => (quanta * each.min(MAX_COLUMNS_PER_QUANTUM)) as usize,
        }
    }
}

/// Returns micro-batches, counted once per stage of a rank, as micro-batches of the rank: `4.5`.
fn peak_text(held: usize, stages: usize) -> String {
    let peak = held as f64 / stages.max(1) as f64;
    let decimals = usize::from(peak < 1000.0);
    format!("{peak:.decimals$}")
}

fn stages_text(stages: &[StageIndex]) -> String {
    let names: Vec<String> = stages.iter().map(StageIndex::to_string).collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => format!("stage {one}"),
        many => format!("stages {}", many.join(", ")),
    }
}

impl Row<'_> {
    /// Returns for each of `count` columns over `length` the position of the action that it shows, or `None` for
    /// idle time.
    ///
    /// A column shows the kind that has most of its time, and the longest action of that kind. If actions are
    /// narrower than a column, kinds and idle time alternate in proportion to their times. A column
    /// with the middle of such an action is never idle.
    pub(super) fn shown(&self, length: u64, count: usize) -> Vec<Option<usize>> {
        let width = length as f64 / count as f64;
        // The time of each kind, and last the idle time, in earlier columns that did not show it.
        let mut waiting = [0.0; Kind::COUNT + 1];
        let show = (0..count).map(|column| {
            let (left, right) = (column as f64 * width, (column + 1) as f64 * width);
            let mut times = [0.0; Kind::COUNT + 1];
            let mut longest = [(0.0, None); Kind::COUNT + 1];
            let (mut is_mixed, mut is_busy) = (false, false);
            let ended = |action: &Drawn<'_>| action.span.end as f64 <= left;
            let first = self.actions.partition_point(ended);
            for (at, action) in self.actions.iter().enumerate().skip(first) {
                let (start, end) = (action.span.start as f64, action.span.end as f64);
                if start >= right {
                    break;
                }
                let time = (end.min(right) - start.max(left)).max(0.0);
                let kind = action.pieces[0].kind as usize;
                times[kind] += time;
                if time > longest[kind].0 {
                    longest[kind] = (time, Some(at));
                }
                let is_narrow = time > 0.0 && end - start < width;
                is_mixed |= is_narrow;
                is_busy |= is_narrow && (left..right).contains(&f64::midpoint(start, end));
            }
            times[Kind::COUNT] = width - times.iter().sum::<f64>();
            if !is_mixed {
                waiting.fill(0.0);
            }
            for (waiting, time) in waiting.iter_mut().zip(times) {
                *waiting += time;
            }
            let kinds = (0..waiting.len()).filter(|kind| times[*kind] > 0.0);
            let kinds = kinds.filter(|kind| *kind < Kind::COUNT || !is_busy);
            // The first of the kinds with the same time.
            let by_time = |a: &usize, b: &usize| waiting[*a].total_cmp(&waiting[*b]);
            let kind = kinds.rev().max_by(by_time)?;
            waiting[kind] -= width;
            longest[kind].1
        });
        show.collect()
    }

    /// Returns idle time, micro-batches and bytes.
    pub(super) fn figures(&self) -> [String; FIGURES.len()] {
        let bytes = tinderbox_ids::text::human_bytes(self.list.peak_bytes());
        [self.idle.clone(), self.peak.clone(), bytes]
    }
}

/// Returns the actions of a rank that are drawn. Receives are not, and actions that run once per step are drawn
/// if they have a duration. `chunks` are the numbers of lower stages of each stage's rank.
fn drawn<'a>(list: &'a RankTimeline, chunks: &[usize]) -> Vec<Drawn<'a>> {
    let chunk = |stage: StageIndex| chunks.get(stage.index()).copied().unwrap_or(0);
    let task = |task: &Task| Piece {
        kind: Kind::PROGRAMS[task.compute.slot()],
        chunk: chunk(task.stage),
        micro_batch: Some(task.micro_batch.index()),
    };
    let action = |span: &'a Span| {
        let kind = match span.action {
            Action::Update { .. } => Some(Kind::Update),
            Action::Send(_) => Some(Kind::Send),
            Action::Compute(_) | Action::Overlap(_) | Action::Receive(_) => None,
            _ => Some(Kind::Reduce),
        };
        let once = kind.filter(|_| span.duration() > 0).map(|kind| Piece {
            kind,
            chunk: chunk(span.action.stage()),
            micro_batch: None,
        });
        let pieces: Vec<Piece> = span.action.tasks().iter().map(task).chain(once).collect();
        (!pieces.is_empty()).then_some(Drawn { span, pieces })
    };
    list.spans.iter().filter_map(action).collect()
}

const fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Returns a time with its unit: `33 ticks`, `1.25 ms`.
pub(super) fn time_in(time: u64, unit: TimeUnit) -> String {
    match unit {
        TimeUnit::Ticks if time == 1 => "1 tick".to_owned(),
        TimeUnit::Ticks => format!("{time} ticks"),
        TimeUnit::Nanoseconds => time_text(time),
    }
}

/// Returns the marks of the time axis: zero and at most `most` times after it, up to `length`, at multiples of
/// 1, 2 or 5 times a power of ten. Measured times have their unit, ticks have none.
pub(super) fn marks(length: u64, unit: TimeUnit, most: u64) -> impl Iterator<Item = (u64, String)> {
    let powers = (0..20).map(|digits| 10_u64.pow(digits));
    let mut steps = powers.flat_map(|power| [1, 2, 5].map(|factor| power.saturating_mul(factor)));
    let step = steps.find(|step| length / step <= most.max(1));
    let step = step.unwrap_or(u64::MAX);
    (0..=length / step).map(move |count| {
        let time = count * step;
        let label = match unit {
            TimeUnit::Nanoseconds if time > 0 => time_text(time),
            _ => time.to_string(),
        };
        (time, label.replace(".00", "").replace(".0 ", " "))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::draw::tests::samples::{TIMES, one_f_one_b_sample, simulated};
    use crate::{Costs, Schedule, forward_only, gpipe, one_f_one_b, peak_bytes};

    /// A row of actions: word, start, end.
    fn row_of(actions: &[(&str, u64, u64)]) -> RankTimeline {
        let spans = actions.iter().map(|(word, start, end)| Span {
            action: word.parse().unwrap(),
            start: *start,
            end: *end,
        });
        RankTimeline {
            spans: spans.collect(),
            ..RankTimeline::default()
        }
    }

    fn timeline_of(ranks: Vec<RankTimeline>) -> Timeline {
        Timeline {
            name: "v".to_owned(),
            unit: TimeUnit::Ticks,
            stage_to_rank: [0, 1, 1, 0].map(RankIndex::new).to_vec(),
            ranks,
        }
    }

    /// The columns of ten ticks each that a rank has over a hundred.
    fn check_shown(actions: &[(&str, u64, u64)], expected: &str) {
        let timeline = timeline_of(vec![row_of(actions)]);
        let shown = Picture::of(&timeline).rows[0].shown(100, 10).into_iter();
        let text = shown.map(|at| at.map_or("·".to_owned(), |at| at.to_string()));
        assert_eq!(text.collect::<String>(), expected);
    }

    #[test]
    fn a_column_shows_what_has_most_of_it() {
        check_shown(&[], "··········");
        check_shown(&[("0F0", 0, 100)], "0000000000");
        // Less than half of the third column.
        check_shown(&[("0F0", 0, 24)], "00········");
        check_shown(&[("0F0", 0, 26)], "000·······");
        // Narrow, so it shows though most of its column is idle.
        check_shown(&[("0F0", 42, 43)], "····0·····");
        // Two forwards have more of the first column than the backward, whose middle is in the next.
        check_shown(
            &[("0F0", 0, 3), ("0F1", 3, 6), ("0B0", 6, 15)],
            "02········",
        );
        // Backwards in time, and after the end.
        check_shown(&[("0F0", 30, 20), ("0F1", 94, 900)], "·········1");
    }

    /// Forwards have a third of the time, so they have a third of the columns, even if a column is as
    /// long as the period.
    #[test]
    fn narrow_kinds_share_the_columns() {
        let mut list = RankTimeline::default();
        for start in (0..300).step_by(3) {
            let pair = row_of(&[("0F0", start, start + 1), ("0B0", start + 1, start + 3)]);
            list.spans.extend(pair.spans);
        }
        let timeline = timeline_of(vec![list]);
        let picture = Picture::of(&timeline);
        for count in [25, 40, 75, 100] {
            let shown = picture.rows[0].shown(300, count).into_iter().flatten();
            let actions = shown.map(|at| picture.rows[0].actions[at].pieces[0].kind);
            let forwards = actions.filter(|kind| *kind == Kind::Forward).count();
            assert!(forwards.abs_diff(count / 3) <= 1, "{forwards} of {count}");
        }
    }

    #[test]
    fn stages_are_counted_per_rank() {
        let mut timeline = timeline_of(vec![RankTimeline::default(); 2]);
        let stages = |timeline: &Timeline| {
            let picture = Picture::of(timeline);
            let stages = picture.rows.iter().map(|row| row.stages.clone());
            (picture.chunks, stages.collect::<Vec<_>>().join(" | "))
        };
        assert_eq!(
            stages(&timeline),
            (2, "stages 0, 3 | stages 1, 2".to_owned())
        );
        timeline.stage_to_rank.truncate(1);
        assert_eq!(stages(&timeline), (1, "stage 0 | ".to_owned()));
    }

    #[test]
    fn an_action_has_as_many_boxes_as_programs_or_one_if_it_has_a_duration() {
        let cases = [
            ("0F4", 0, "F0 4"),
            ("0F4&3B1", 2, "F0 4, B1 1"),
            ("3U", 0, ""),
            ("3U", 1, "U1 -"),
            ("0R0", 1, "R0 -"),
            ("9W0", 1, "W0 0"),
            ("3B1>2B1", 1, ">1 -"),
            ("3F1<2F1", 5, ""),
        ];
        for (word, end, expected) in cases {
            let timeline = timeline_of(vec![row_of(&[(word, 0, end)])]);
            let picture = Picture::of(&timeline);
            let pieces = picture.pieces().map(|piece| {
                let micro_batch = piece.micro_batch.map_or("-".to_owned(), |k| k.to_string());
                format!("{}{} {micro_batch}", piece.kind.letter(), piece.chunk)
            });
            assert_eq!(pieces.collect::<Vec<_>>().join(", "), expected, "{word}");
        }
    }

    #[test]
    fn held_micro_batches_are_those_of_the_lists() {
        let split = Schedule::parse("zb", "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1");
        let schedules = [
            gpipe(4, 7),
            one_f_one_b(4, 7),
            forward_only(3, 5),
            split.unwrap(),
        ];
        for schedule in schedules {
            let timeline = simulated(&schedule, &Costs::uniform(schedule.stages, TIMES));
            let picture = Picture::of(&timeline);
            let held: Vec<u64> = picture.rows.iter().map(|row| row.held as u64).collect();
            // A micro-batch has one byte.
            let bytes = peak_bytes(&schedule, &Costs::uniform(schedule.stages, TIMES));
            assert_eq!(held, bytes, "{}", schedule.name);
            assert!(!picture.has_bytes, "{}", schedule.name);
        }
    }

    /// ZBV has two stages on each rank, and a peak of p.
    #[test]
    fn peaks_are_micro_batches() {
        let zbv = crate::ScheduleKind::Zbv.generate(4, 2, 8).unwrap();
        let timeline = simulated(&zbv, &Costs::uniform(8, TIMES));
        let picture = Picture::of(&timeline);
        for row in &picture.rows {
            assert_eq!((row.held, &*row.peak), (8, "4.0"));
        }
        assert_eq!(peak_text(9, 2), "4.5");
        assert_eq!(peak_text(1000, 1), "1000");
    }

    /// The bubble of 1F1B in the literature is (p - 1) / (p - 1 + m) of the step, on every rank.
    #[test]
    fn every_rank_of_one_f_one_b_is_idle_as_long() {
        let timeline = one_f_one_b_sample(4, 8);
        let picture = Picture::of(&timeline);
        let idle = picture.rows.iter().map(|row| &*row.idle);
        assert_eq!(idle.collect::<Vec<_>>(), ["27.3 %"; 4]);
    }

    #[test]
    fn bytes_are_shown_where_they_are_bytes() {
        let mut costs = Costs::uniform(2, TIMES);
        costs.stages[1].resident_bytes = 100;
        assert!(Picture::of(&simulated(&gpipe(2, 2), &costs)).has_bytes);
    }

    #[test]
    fn a_step_is_summed_up_in_a_line() {
        let timeline = simulated(&one_f_one_b(4, 8), &Costs::uniform(4, TIMES));
        let found = Picture::of(&timeline).summary().join(", ");
        insta::assert_snapshot!(found, @"4 ranks, 33 ticks, largest bubble 9 ticks (27.3 %), idle 27.3 %");
    }

    #[test]
    fn marks_are_round_and_few() {
        use TimeUnit::{Nanoseconds, Ticks};
        let cases = [
            (0, Ticks, 8, "0"),
            (1, Ticks, 8, "0 | 1"),
            (33, Ticks, 8, "0 | 5 | 10 | 15 | 20 | 25 | 30"),
            (33, Ticks, 0, "0 | 20"),
            (1_000, Nanoseconds, 3, "0 | 500 ns | 1 µs"),
            (3_400_000, Nanoseconds, 4, "0 | 1 ms | 2 ms | 3 ms"),
            (34_000_000, Nanoseconds, 4, "0 | 10 ms | 20 ms | 30 ms"),
            (u64::MAX, Nanoseconds, 1, "0 | 10000000000 s"),
        ];
        for (length, unit, most, expected) in cases {
            let labels = marks(length, unit, most).map(|(_, label)| label);
            assert_eq!(labels.collect::<Vec<_>>().join(" | "), expected);
        }
    }

    proptest! {
        /// Consecutive actions, each at least a column long, are all shown, in their order.
        #[test]
        fn wide_actions_are_never_lost(times in prop::collection::vec(10_u64..50, 1..30), scale in 1_u64..1000) {
            let words = ["0F0", "0B0", "0I0", "0W0"].iter().cycle();
            let mut now = 0;
            let actions = times.iter().zip(words).map(|(time, word)| {
                let start = now;
                now += time * scale;
                (*word, start, now)
            });
            let list = row_of(&actions.collect::<Vec<_>>());
            let count = usize::try_from(now / scale).unwrap() / 9;
            let timeline = timeline_of(vec![list]);
            let mut shown = Picture::of(&timeline).rows[0].shown(now, count);
            shown.dedup();
            prop_assert_eq!(shown, (0..times.len()).map(Some).collect::<Vec<_>>());
        }

        /// Arbitrary times, as in a file.
        #[test]
        fn no_times_are_refused(
            times in prop::collection::vec((any::<u64>(), any::<u64>()), 0..20),
            length in any::<u64>(),
            count in 0_usize..50,
        ) {
            let actions = times.iter().map(|(start, end)| ("0F0", *start, *end));
            let timeline = timeline_of(vec![row_of(&actions.collect::<Vec<_>>())]);
            let picture = Picture::of(&timeline);
            prop_assert_eq!(picture.rows[0].shown(length, count).len(), count);
            prop_assert!(picture.columns(count) <= count);
        }
    }
}
