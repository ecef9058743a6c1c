//! What is drawn of an action: its kind, its micro-batch, and which of the rank's stages it is of.

use std::collections::BTreeMap;

use super::palette::{Kind, Shade};
use crate::action::{Action, Task};
use crate::index::{RankIndex, StageIndex};
use crate::simulate::{RankTimeline, Span, Timeline};

/// One box. An overlapped pair has two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) kind: Kind,
    /// Counts the stages of the rank, from its lowest.
    pub(super) chunk: usize,
    pub(super) micro_batch: Option<usize>,
}

impl Piece {
    pub(super) const fn shade(self) -> Shade {
        Shade::of_chunk(self.chunk)
    }
}

/// A span that is drawn: its place in the list, its times and the kind of its first box.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drawn {
    pub(super) position: usize,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) kind: Kind,
}

/// For every stage, how many lower stages its rank has.
#[derive(Debug)]
pub(super) struct Chunks(Vec<usize>);

impl Chunks {
    pub(super) fn of(timeline: &Timeline) -> Self {
        let mut stages: BTreeMap<RankIndex, usize> = BTreeMap::new();
        let chunks = timeline.stage_to_rank.iter().map(|rank| {
            let count = stages.entry(*rank).or_default();
            *count += 1;
            *count - 1
        });
        Self(chunks.collect())
    }

    /// The most stages that a rank has.
    pub(super) fn most(&self) -> usize {
        self.0.iter().max().map_or(0, |last| last + 1)
    }

    fn chunk(&self, stage: StageIndex) -> usize {
        self.0.get(stage.index()).copied().unwrap_or(0)
    }

    fn task(&self, task: &Task) -> Piece {
        Piece {
            kind: task.compute.into(),
            chunk: self.chunk(task.stage),
            micro_batch: Some(task.micro_batch.index()),
        }
    }

    /// The boxes of an action: none for a receive, which is waiting, and none for what is done for
    /// the step as a whole and takes no time.
    pub(super) fn pieces(&self, span: &Span) -> impl Iterator<Item = Piece> {
        let once = |kind, stage| {
            (span.duration() > 0).then(|| Piece {
                kind,
                chunk: self.chunk(stage),
                micro_batch: None,
            })
        };
        let pieces = match &span.action {
            Action::Compute(task) => [Some(self.task(task)), None],
            Action::Overlap(tasks) => tasks.each_ref().map(|task| Some(self.task(task))),
            Action::Update { stage } => [once(Kind::Update, *stage), None],
            Action::Reduce { stage, .. } => [once(Kind::Reduce, *stage), None],
            Action::Send(message) => [once(Kind::Send, message.sender()), None],
            Action::Receive(_) => [None, None],
        };
        pieces.into_iter().flatten()
    }

    /// The spans of a rank that are drawn.
    pub(super) fn drawn<'a>(&'a self, list: &'a RankTimeline) -> impl Iterator<Item = Drawn> + 'a {
        let spans = list.spans.iter().enumerate();
        spans.filter_map(|(position, span)| {
            let piece = self.pieces(span).next()?;
            Some(Drawn {
                position,
                start: span.start,
                end: span.end,
                kind: piece.kind,
            })
        })
    }
}

/// The stages of each rank in words: `stage 3`, `stages 0, 7`; empty for a rank without any.
pub(super) fn stage_labels(timeline: &Timeline) -> Vec<String> {
    let mut stages: Vec<Vec<String>> = vec![Vec::new(); timeline.ranks.len()];
    for (stage, rank) in timeline.stage_to_rank.iter().enumerate() {
        if let Some(stages) = stages.get_mut(rank.index()) {
            stages.push(stage.to_string());
        }
    }
    let label = |stages: &Vec<String>| match stages.as_slice() {
        [] => String::new(),
        [one] => format!("stage {one}"),
        many => format!("stages {}", many.join(", ")),
    };
    stages.iter().map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TimeUnit;

    fn v_shaped() -> Timeline {
        Timeline {
            name: "v".to_owned(),
            unit: TimeUnit::Ticks,
            stage_to_rank: [0, 1, 1, 0].map(RankIndex::new).to_vec(),
            ranks: vec![RankTimeline::default(); 2],
        }
    }

    #[test]
    fn stages_are_counted_per_rank() {
        let chunks = Chunks::of(&v_shaped());
        assert_eq!((&chunks.0, chunks.most()), (&vec![0, 0, 1, 1], 2));
        assert_eq!(stage_labels(&v_shaped()), ["stages 0, 3", "stages 1, 2"]);
        let mut short = v_shaped();
        short.stage_to_rank.truncate(1);
        assert_eq!(stage_labels(&short), ["stage 0", ""]);
    }

    #[test]
    fn an_action_has_as_many_boxes_as_programs_or_one_where_it_takes_time() {
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
            let action = word.parse().unwrap();
            let span = Span {
                action,
                start: 0,
                end,
            };
            let chunks = Chunks::of(&v_shaped());
            let pieces = chunks.pieces(&span).map(|piece| {
                let micro_batch = piece.micro_batch.map_or("-".to_owned(), |k| k.to_string());
                format!("{}{} {micro_batch}", piece.kind.letter(), piece.chunk)
            });
            assert_eq!(pieces.collect::<Vec<_>>().join(", "), expected, "{word}");
        }
    }
}
