//! Links between the threads of one process.

use std::time::Duration;

use tinderbox_fake::DynTensor;
use tinderbox_link::{Crossbeam, Mailbox, mailboxes};

use super::link::{Abort, Link, Tag};
use crate::schedule::RankIndex;
use crate::{LinkError, PipelineError};

/// One rank's end of in-process links, which pass tensors without a copy.
#[derive(Debug)]
pub struct LocalLink {
    mailbox: Mailbox<Tag, Vec<DynTensor>, Crossbeam>,
    abort: Abort,
}

/// Returns the ends of links between `ranks` ranks, in the order of the ranks. A wait for a message
/// fails after `timeout`.
pub(super) fn local_links(ranks: usize, abort: &Abort, timeout: Duration) -> Vec<LocalLink> {
    let link = |mailbox| LocalLink {
        mailbox,
        abort: abort.clone(),
    };
    let mailboxes = mailboxes(ranks, abort, timeout);
    mailboxes.into_iter().map(link).collect()
}

impl Link for LocalLink {
    fn post_receive(&mut self, from: RankIndex, tag: Tag) -> Result<(), LinkError> {
        self.mailbox.post(from, &tag)
    }

    fn send(&mut self, to: RankIndex, tag: Tag, values: Vec<DynTensor>) -> Result<(), LinkError> {
        self.mailbox.send(to, tag, values)
    }

    fn poll(&mut self, from: RankIndex, tag: Tag) -> Result<Vec<DynTensor>, LinkError> {
        self.mailbox.poll(from, tag)
    }

    fn abort(&self, reason: PipelineError) {
        self.abort.trigger(reason);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

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
        assert!(matches!(&error, LinkError::Timeout { key, .. } if key.to_string().contains('3')));
    }

    #[test]
    fn a_wait_ends_when_a_rank_aborts() {
        let (a, mut b, abort) = pair(Duration::from_secs(60));
        let waiting = std::thread::spawn(move || b.poll(RankIndex::new(0), tag(0)).unwrap_err());
        let started = Instant::now();
        a.abort(PipelineError::Stopped);
        assert_eq!(waiting.join().unwrap(), LinkError::Aborted);
        assert!(started.elapsed() < Duration::from_secs(30));
        a.abort(PipelineError::NoOptimizer);
        assert!(
            matches!(abort.take_reason(), Some(PipelineError::Stopped)),
            "the first is kept"
        );
    }
}
