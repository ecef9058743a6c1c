//! The text form of actions and schedules, read and written.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::action::{Action, Compute, Message, Task};
use super::dependencies::{Edge, Endpoint, Tie};
use super::error::ParseError;
use super::index::{GroupIndex, MicroBatchIndex, RankIndex, StageIndex};
use super::lists::{Form, Mode, Schedule};

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Training => "training",
            Self::ForwardOnly => "forward-only",
        })
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ComputeOnly => "compute only",
            Self::Lowered => "lowered",
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.stage, self.compute.letter())
    }
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.from, self.to)
    }
}

impl fmt::Display for Tie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}U>{}U", self.owner, self.replica)
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}{}{}",
            self.stage,
            self.compute.letter(),
            self.micro_batch
        )
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compute(task) => task.fmt(f),
            Self::Send(Message::Values {
                edge,
                micro_batch: k,
            }) => {
                write!(f, "{}{k}>{}{k}", edge.from, edge.to)
            }
            Self::Receive(Message::Values {
                edge,
                micro_batch: k,
            }) => {
                write!(f, "{}{k}<{}{k}", edge.to, edge.from)
            }
            Self::Send(Message::Tie(tie)) => tie.fmt(f),
            Self::Receive(Message::Tie(tie)) => write!(f, "{}U<{}U", tie.replica, tie.owner),
            Self::Reduce { stage, group } => write!(f, "{stage}R{group}"),
            Self::Update { stage } => write!(f, "{stage}U"),
        }
    }
}

impl From<Action> for String {
    fn from(action: Action) -> Self {
        action.to_string()
    }
}

/// One row per rank, without name, counts and stage-to-rank map, which the rows imply.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, actions) in self.ranks.iter().enumerate() {
            if rank > 0 {
                writeln!(f)?;
            }
            for (position, action) in actions.iter().enumerate() {
                let space = if position == 0 { "" } else { " " };
                write!(f, "{space}{action}")?;
            }
        }
        Ok(())
    }
}

impl TryFrom<String> for Action {
    type Error = ParseError;

    fn try_from(word: String) -> Result<Self, ParseError> {
        word.parse()
    }
}

impl FromStr for Action {
    type Err = ParseError;

    fn from_str(word: &str) -> Result<Self, ParseError> {
        parse_action(word).ok_or_else(|| ParseError::Word {
            word: word.to_owned(),
        })
    }
}

/// What stands on one side of a `>` or `<`, or alone.
enum Side {
    /// `2F5`.
    Task(Task),
    /// `2R2`.
    Reduce(StageIndex, GroupIndex),
    /// `2U`.
    Update(StageIndex),
}

fn parse_action(word: &str) -> Option<Action> {
    if let Some((from, to)) = word.split_once('>') {
        return Some(Action::Send(message(parse_side(from)?, parse_side(to)?)?));
    }
    if let Some((to, from)) = word.split_once('<') {
        return Some(Action::Receive(message(
            parse_side(from)?,
            parse_side(to)?,
        )?));
    }
    Some(match parse_side(word)? {
        Side::Task(task) => Action::Compute(task),
        Side::Reduce(stage, group) => Action::Reduce { stage, group },
        Side::Update(stage) => Action::Update { stage },
    })
}

/// The message between two sides; they speak of one micro-batch, or of two updates.
fn message(from: Side, to: Side) -> Option<Message> {
    match (from, to) {
        (Side::Task(from), Side::Task(to)) if from.micro_batch == to.micro_batch => {
            let end = |task: Task| Endpoint {
                stage: task.stage,
                compute: task.compute,
            };
            let edge = Edge {
                from: end(from),
                to: end(to),
            };
            Some(Message::Values {
                edge,
                micro_batch: from.micro_batch,
            })
        }
        (Side::Update(owner), Side::Update(replica)) => Some(Message::Tie(Tie { owner, replica })),
        _ => None,
    }
}

fn parse_side(text: &str) -> Option<Side> {
    let letter_at = text.find(|c: char| !c.is_ascii_digit())?;
    let stage = StageIndex::new(text[..letter_at].parse().ok()?);
    let mut rest = text[letter_at..].chars();
    let letter = rest.next()?;
    let number = rest.as_str();
    if letter == 'U' {
        return number.is_empty().then_some(Side::Update(stage));
    }
    // `parse` alone would take a sign.
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    let number: usize = if digits {
        number.parse().ok()?
    } else {
        return None;
    };
    if letter == 'R' {
        return Some(Side::Reduce(stage, GroupIndex::new(number)));
    }
    let compute = Compute::ALL
        .into_iter()
        .find(|compute| compute.letter() == letter)?;
    Some(Side::Task(Task {
        stage,
        compute,
        micro_batch: MicroBatchIndex::new(number),
    }))
}

impl Schedule {
    /// Reads the text form: one row per rank, blank rows skipped.
    ///
    /// A stage is on the rank whose row runs it; there are as many micro-batches as the highest
    /// number asks for. A text with a backward, reduce or update is for training, one with anything
    /// besides compute is lowered. The result is a claim until [`verify`](super::verify) has accepted
    /// it.
    ///
    /// # Errors
    ///
    /// [`ParseError::Word`] for a word that is no action, [`ParseError::Gap`] if stages are missing.
    pub fn parse(name: &str, text: &str) -> Result<Self, ParseError> {
        let rows = text.lines().filter(|row| !row.trim().is_empty());
        let ranks = rows
            .map(|row| row.split_whitespace().map(str::parse).collect())
            .collect::<Result<Vec<Vec<Action>>, _>>()?;
        let mut stage_ranks = BTreeMap::new();
        let mut micro_batches = 0;
        let (mut mode, mut form) = (Mode::ForwardOnly, Form::ComputeOnly);
        for (rank, action) in ranks
            .iter()
            .enumerate()
            .flat_map(|(r, list)| list.iter().map(move |action| (RankIndex::new(r), action)))
        {
            for task in action.tasks() {
                stage_ranks.entry(task.stage).or_insert(rank);
                micro_batches = micro_batches.max(task.micro_batch.index().saturating_add(1));
                if task.compute != Compute::Forward {
                    mode = Mode::Training;
                }
            }
            if action.tasks().is_empty() {
                form = Form::Lowered;
            }
            if matches!(action, Action::Reduce { .. } | Action::Update { .. }) {
                mode = Mode::Training;
            }
        }
        if let Some((gap, _)) = stage_ranks
            .keys()
            .enumerate()
            .find(|(at, s)| s.index() != *at)
        {
            return Err(ParseError::Gap {
                stage: StageIndex::new(gap),
            });
        }
        Ok(Self {
            name: name.to_owned(),
            mode,
            form,
            stages: stage_ranks.len(),
            micro_batches,
            stage_to_rank: stage_ranks.into_values().collect(),
            ranks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Dependencies, gpipe, lower, one_f_one_b};
    use super::*;

    #[test]
    fn words_survive_a_round_trip() {
        for word in [
            "0F0", "12B345", "1I2", "1W2", "0F2>1F2", "1F2<0F2", "3B0>0W0", "2R2", "2R0", "7U",
            "0U>3U", "3U<0U",
        ] {
            assert_eq!(word.parse::<Action>().unwrap().to_string(), word);
        }
    }

    #[test]
    fn other_words_are_refused() {
        for word in [
            "",
            "F",
            "0",
            "0F",
            "F0",
            "0f0",
            "0X0",
            "0F+1",
            "0F-1",
            "-1F0",
            "0F0 ",
            "0U0",
            "0R",
            "0F0>1F1",
            "0F0>1U",
            "0U>1F0",
            "0R0>1R0",
            "0F0>",
            ">",
            "0F0<1F0>2F0",
            "0é0",
            "0Fé",
            "0F99999999999999999999999",
        ] {
            let error = word.parse::<Action>().unwrap_err();
            assert_eq!(
                error,
                ParseError::Word {
                    word: word.to_owned()
                }
            );
        }
        insta::assert_snapshot!("0x0".parse::<Action>().unwrap_err(), @r"`0x0` is no action: write stage, letter F, B, I or W and micro-batch, such as `0F2`, or `0F2>1F2`, `1F2<0F2`, `0R0`, `0U`, `0U>3U`, `3U<0U`");
    }

    #[test]
    fn a_schedule_survives_a_round_trip() {
        for schedule in [gpipe(3, 2), one_f_one_b(2, 5)] {
            let lowered = lower(&schedule, &Dependencies::chain(schedule.stages));
            for schedule in [schedule, lowered] {
                let text = format!("\n{schedule}\n\n");
                assert_eq!(Schedule::parse(&schedule.name, &text).unwrap(), schedule);
            }
        }
    }

    #[test]
    fn a_row_implies_its_stages() {
        let schedule = Schedule::parse("v", "0F0 3F0\n1F0 2F0").unwrap();
        let ranks = [0, 1, 1, 0].map(RankIndex::new);
        assert_eq!(schedule.stage_to_rank, ranks);
        assert_eq!((schedule.stages, schedule.micro_batches), (4, 1));
        assert_eq!(
            (schedule.mode, schedule.form),
            (Mode::ForwardOnly, Form::ComputeOnly)
        );

        let error = Schedule::parse("gap", "0F0 18446744073709551615F0").unwrap_err();
        insta::assert_snapshot!(error, @r"no row runs stage 1: number the stages from 0 without a gap");
        let error = Schedule::parse("word", "0F0\n1F0 nonsense").unwrap_err();
        assert_eq!(
            error,
            ParseError::Word {
                word: "nonsense".to_owned()
            }
        );
    }
}
