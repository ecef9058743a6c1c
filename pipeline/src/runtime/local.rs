//! Links between the threads of one process.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, select, unbounded};
use tinderbox_fake::DynTensor;

use super::link::{Abort, Link, Tag, deadline};
use crate::schedule::RankIndex;
use crate::{LinkError, PipelineError};

struct Letter {
    from: RankIndex,
    tag: Tag,
    values: Vec<DynTensor>,
}

/// One rank's end of in-process links: tensors are handed over, not copied.
#[expect(missing_debug_implementations, reason = "holds channels of tensors")]
pub struct LocalLink {
    rank: RankIndex,
    inbox: Receiver<Letter>,
    peers: Vec<Sender<Letter>>,
    /// Messages that came before they were asked for.
    early: HashMap<(RankIndex, Tag), Vec<DynTensor>>,
    abort: Abort,
    timeout: Duration,
}

/// The ends of links that join `ranks` ranks, in the order of the ranks. A wait for a message ends
/// with an error after `timeout`.
pub fn local_links(ranks: usize, abort: &Abort, timeout: Duration) -> Vec<LocalLink> {
    let (peers, inboxes): (Vec<_>, Vec<_>) = (0..ranks).map(|_| unbounded()).unzip();
    let link = |(rank, inbox)| LocalLink {
        rank: RankIndex::new(rank),
        inbox,
        peers: peers.clone(),
        early: HashMap::new(),
        abort: abort.clone(),
        timeout,
    };
    inboxes.into_iter().enumerate().map(link).collect()
}

impl Link for LocalLink {
    fn post_receive(&mut self, _from: RankIndex, _tag: Tag) -> Result<(), LinkError> {
        // A channel takes messages whether they are waited for or not.
        match self.abort.is_triggered() {
            true => Err(LinkError::Aborted),
            false => Ok(()),
        }
    }

    fn send(&mut self, to: RankIndex, tag: Tag, values: Vec<DynTensor>) -> Result<(), LinkError> {
        if self.abort.is_triggered() {
            return Err(LinkError::Aborted);
        }
        let letter = Letter {
            from: self.rank,
            tag,
            values,
        };
        let peer = self
            .peers
            .get(to.index())
            .ok_or(LinkError::Closed { rank: to })?;
        peer.send(letter)
            .map_err(|_| LinkError::Closed { rank: to })
    }

    fn poll(&mut self, from: RankIndex, tag: Tag) -> Result<Vec<DynTensor>, LinkError> {
        let deadline = deadline(self.timeout);
        loop {
            if let Some(values) = self.early.remove(&(from, tag)) {
                return Ok(values);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            select! {
                recv(self.abort.signal()) -> _ => return Err(LinkError::Aborted),
                recv(self.inbox) -> letter => match letter {
                    Ok(letter) => {
                        self.early.insert((letter.from, letter.tag), letter.values);
                    }
                    Err(_) => return Err(LinkError::Closed { rank: from }),
                },
                default(left) => return Err(LinkError::Timeout {
                    from,
                    message: tag.to_string(),
                    timeout: self.timeout,
                }),
            }
        }
    }

    fn abort(&self, reason: PipelineError) {
        self.abort.trigger(reason);
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor};

    use super::*;
    use crate::schedule::{Edge, Message, MicroBatchIndex, StageIndex};

    fn tag(micro_batch: usize) -> Tag {
        Tag {
            round: 0,
            message: Message::Values {
                edge: Edge::chain_forward(StageIndex::new(0)),
                micro_batch: MicroBatchIndex::new(micro_batch),
            },
        }
    }

    fn value(number: f32) -> Vec<DynTensor> {
        vec![Tensor::<1>::from_floats([number], &Device::flex()).into()]
    }

    fn pair(timeout: Duration) -> (LocalLink, LocalLink, Abort) {
        let abort = Abort::default();
        let mut links = local_links(2, &abort, timeout);
        let second = links.pop().unwrap();
        (links.pop().unwrap(), second, abort)
    }

    #[test]
    fn messages_are_matched_by_tag() {
        let (mut a, mut b, _) = pair(Duration::from_secs(5));
        let (first, second) = (RankIndex::new(0), RankIndex::new(1));
        a.send(second, tag(0), value(0.0)).unwrap();
        a.send(second, tag(1), value(1.0)).unwrap();
        for micro_batch in [1, 0] {
            let values = b.poll(first, tag(micro_batch)).unwrap();
            let data = values[0].to_data().unwrap().try_to_vec::<f32>().unwrap();
            assert_eq!(data, [micro_batch as f32]);
        }
    }

    #[test]
    fn a_wait_ends_by_timeout_with_what_was_waited_for() {
        let (_a, mut b, _) = pair(Duration::from_millis(20));
        let error = b.poll(RankIndex::new(0), tag(3)).unwrap_err();
        assert!(matches!(&error, LinkError::Timeout { message, .. } if message.contains('3')));
    }

    #[test]
    fn a_wait_ends_when_a_rank_aborts() {
        let (a, mut b, abort) = pair(Duration::from_secs(60));
        let waiting = std::thread::spawn(move || b.poll(RankIndex::new(0), tag(0)).unwrap_err());
        let started = Instant::now();
        a.abort(PipelineError::Stopped);
        assert_eq!(waiting.join().unwrap(), LinkError::Aborted);
        assert!(started.elapsed() < Duration::from_secs(1));
        a.abort(PipelineError::NoOptimizer);
        assert!(
            matches!(abort.take_reason(), Some(PipelineError::Stopped)),
            "the first is kept"
        );
    }
}
