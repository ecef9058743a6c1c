//! The known schedules by name.

use std::fmt;
use std::str::FromStr;

use derive_more::Display;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::lists::Schedule;

use super::placement::{Lists, Placement, Shape};
use super::{breadth_first, dual_pipe_v, interleaved, v_shape};

/// The maximum number of stages times micro-batches that is generated: a list of some gigabytes,
/// beyond any real step.
const MAX_TASKS: usize = 1 << 26;

/// A known schedule.
///
/// In the formulas p is the number of ranks, v the chunks per rank, m the micro-batches, and F, I, W
/// and B = I + W are the times of all chunks of a rank together. The bubble
/// is the time in which a rank is idle between its first action and its last. The peak is the maximum
/// number of micro-batches that a rank holds for all its chunks. Both are the values of the worst rank.
///
/// Every number of micro-batches is supported. Below the number that a formula requires, the bubble is larger, or the
/// schedule is another one where stated.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(into = "String", try_from = "String")]
#[non_exhaustive]
pub enum ScheduleKind {
    /// `gpipe`: all forwards, then all backwards. Bubble (p-1)(F+B), peak m (arXiv 1811.06965).
    GPipe,
    /// `1f1b`: forwards and backwards in turn. Bubble (p-1)(F+B) for m >= p, peak min(m, p-r) on
    /// rank r (arXiv 2006.09503).
    #[default]
    OneFOneB,
    /// `looped-bfs`: GPipe chunk by chunk. Bubble (p-1)(F+B)/v for m >= p, peak m
    /// (arXiv 2211.05953).
    LoopedBfs,
    /// `interleaved-1f1b`: 1F1B over several chunks. Bubble (p-1)(F+B)/v for m >= p, peak
    /// p + (p-1)/v on rank 0. If m is not a multiple of p, the rounds are longer than p, and all
    /// chunks but one hold correspondingly more (arXiv 2104.04473).
    Interleaved1F1B,
    /// `zb-h1`: 1F1B with split backwards. Bubble (p-1)(F+I-W), or (p-1)I if W is longer than F,
    /// for m >= p; peak p on every rank (arXiv 2401.10241).
    ZbH1,
    /// `zb-h2`: ZB-H1 with a longer warm-up. Bubble (p-1)(F+I-2W), or (p-1)(I-F) if that is more, or
    /// 0 if both are negative, for m >= 2p-1; peak 2p-1 (arXiv 2401.10241).
    ZbH2,
    /// `interleaved-zb`: ZB-H1 over several chunks. Its bubble is ZB-H1's divided by v, its
    /// peak p, and more as for interleaved 1F1B if m is not a multiple of p.
    InterleavedZb,
    /// `zbv`: two chunks in a V with split backwards. No bubble at F = I = W for m >= 2p-1, peak p
    /// on every rank (arXiv 2401.10241).
    Zbv,
    /// `v-half`: a V with half the peak. Bubble less than (p-1)(F+B)/2 at F = I = W, peak (p+2)/2
    /// rounded down (arXiv 2405.15362). If I is much longer than F and W, it waits as V-Min does.
    VHalf,
    /// `v-min`: a V with a third of the peak. Bubble less than 2(p-1)(F+B)/3 at F = I = W, peak (p+4)/3
    /// rounded down. If F, I and W differ, it waits in every micro-batch, so the bubble grows with m
    /// (arXiv 2405.15362).
    VMin,
    /// `dualpipev`: a V that overlaps the forward of one chunk with the backward of the other. Bubble
    /// (p-1)(F+B)/3 at F = I = W, less if a pair takes less time than its programs one after the
    /// other; peak p + 1/2 on every rank. For m < 2p it is [`ScheduleKind::Zbv`], including the name
    /// (arXiv 2412.19437).
    DualPipeV,
}

/// The numbers of chunks per rank that a schedule supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
pub enum ChunkCounts {
    /// One stage per rank.
    #[display("1 chunk")]
    One,
    /// One or more.
    #[display("1 chunk or more")]
    Any,
    /// Two, in a V.
    #[display("2 chunks")]
    Two,
}

impl ChunkCounts {
    /// Returns whether a number of chunks is supported.
    pub const fn contains(self, chunks: usize) -> bool {
        match self {
            Self::One => chunks == 1,
            Self::Any => chunks >= 1,
            Self::Two => chunks == 2,
        }
    }

    /// Returns the smallest supported number.
    pub const fn least(self) -> usize {
        match self {
            Self::One | Self::Any => 1,
            Self::Two => 2,
        }
    }
}

/// An error of generating a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScheduleKindError {
    /// No schedule has the name.
    #[error("`{name}` is not a schedule{}: write one of {}", hint(*nearest), names())]
    Name {
        /// The name.
        name: String,
        /// The schedule whose name has the longest prefix in common.
        nearest: Option<ScheduleKind>,
    },
    /// A number of chunks per rank that the schedule does not support.
    #[error(
        "{kind} runs {expected} per rank, found {found}: change the number of chunks, which are the stages of a rank, \
         or use another schedule"
    )]
    Chunks {
        /// The schedule.
        kind: ScheduleKind,
        /// The supported numbers.
        expected: ChunkCounts,
        /// The requested number.
        found: usize,
    },
    /// More actions than the limit.
    #[error(
        "{ranks} ranks with {chunks} chunks and {micro_batches} micro-batches are more than {limit} \
         forwards: make the step smaller"
    )]
    TooLarge {
        /// The number of ranks.
        ranks: usize,
        /// The number of chunks per rank.
        chunks: usize,
        /// The number of micro-batches.
        micro_batches: usize,
        /// The largest product of the three.
        limit: usize,
    },
}

/// The name of a kind, its numbers of chunks, whether it splits backwards, and its generator.
type Row = (&'static str, ChunkCounts, bool, fn(Shape) -> Lists);

/// The rows of all kinds, in their order.
static ROWS: [Row; ScheduleKind::ALL.len()] = {
    use ChunkCounts::{Any, One, Two};
    [
        ("gpipe", One, false, breadth_first::breadth_first),
        ("1f1b", One, false, interleaved::interleaved),
        ("looped-bfs", Any, false, breadth_first::breadth_first),
        ("interleaved-1f1b", Any, false, interleaved::interleaved),
        ("zb-h1", One, true, interleaved::zero_bubble),
        ("zb-h2", One, true, interleaved::zero_bubble_h2),
        ("interleaved-zb", Any, true, interleaved::zero_bubble),
        ("zbv", Two, true, v_shape::zbv),
        ("v-half", Two, true, v_shape::v_half),
        ("v-min", Two, true, v_shape::v_min),
        ("dualpipev", Two, true, dual_pipe_v::dual_pipe_v),
    ]
};

impl ScheduleKind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::GPipe,
        Self::OneFOneB,
        Self::LoopedBfs,
        Self::Interleaved1F1B,
        Self::ZbH1,
        Self::ZbH2,
        Self::InterleavedZb,
        Self::Zbv,
        Self::VHalf,
        Self::VMin,
        Self::DualPipeV,
    ];

    /// Returns the row of the table of kinds.
    const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Returns the name, which is also the text and file form.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Returns the placement of stages on ranks.
    pub const fn placement(self) -> Placement {
        match self.chunks() {
            ChunkCounts::Two => Placement::V,
            _ => Placement::Loop,
        }
    }

    /// Returns the supported numbers of chunks per rank.
    pub const fn chunks(self) -> ChunkCounts {
        self.row().1
    }

    /// Returns whether it has `I` and `W`, at least for some micro-batches.
    pub const fn splits_backward(self) -> bool {
        self.row().2
    }

    /// Returns the compute actions of one training step; stages = ranks x chunks.
    ///
    /// Without a rank or a micro-batch the lists are empty, and [`verify`](crate::verify) rejects
    /// them. Linear in actions; the V-shaped kinds need p (p + m) steps.
    ///
    /// # Errors
    ///
    /// [`ScheduleKindError::Chunks`] for a number of chunks that the kind does not support, and
    /// [`ScheduleKindError::TooLarge`] for more actions than the limit.
    pub fn generate(
        self,
        ranks: usize,
        chunks: usize,
        micro_batches: usize,
    ) -> Result<Schedule, ScheduleKindError> {
        if !self.chunks().contains(chunks) {
            return Err(ScheduleKindError::Chunks {
                kind: self,
                expected: self.chunks(),
                found: chunks,
            });
        }
        let stages = ranks.checked_mul(chunks);
        let tasks = stages.and_then(|stages| stages.checked_mul(micro_batches.max(1)));
        if tasks.is_none_or(|tasks| tasks > MAX_TASKS) {
            return Err(ScheduleKindError::TooLarge {
                ranks,
                chunks,
                micro_batches,
                limit: MAX_TASKS,
            });
        }
        let shape = Shape {
            placement: self.placement(),
            ranks,
            chunks,
            micro_batches,
        };
        let kind = match self {
            Self::DualPipeV if micro_batches < 2 * ranks => Self::Zbv,
            kind => kind,
        };
        let map = shape.placement.stage_to_rank(ranks, chunks);
        let lists = kind.row().3(shape);
        Ok(Schedule::training(kind.name(), map, micro_batches, lists))
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<ScheduleKind> for String {
    fn from(kind: ScheduleKind) -> Self {
        kind.name().to_owned()
    }
}

impl TryFrom<String> for ScheduleKind {
    type Error = ScheduleKindError;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}

impl FromStr for ScheduleKind {
    type Err = ScheduleKindError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| ScheduleKindError::Name {
            name: name.to_owned(),
            nearest: nearest(name),
        })
    }
}

/// Returns the first kind whose name has the longest prefix in common with a text, if any.
fn nearest(text: &str) -> Option<ScheduleKind> {
    let shared = |kind: &ScheduleKind| {
        let letters = kind.name().chars().zip(text.chars());
        let same = letters.take_while(|(a, b)| a.eq_ignore_ascii_case(b));
        same.count()
    };
    let best = ScheduleKind::ALL.into_iter().rev().max_by_key(shared);
    best.filter(|kind| shared(kind) > 0)
}

/// Returns a suggestion.
fn hint(nearest: Option<ScheduleKind>) -> String {
    nearest.map_or_else(String::new, |kind| format!(" (did you mean `{kind}`?)"))
}

/// Returns all names.
fn names() -> String {
    ScheduleKind::ALL.map(ScheduleKind::name).join(", ")
}
