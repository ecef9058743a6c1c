//! Links between the threads of one process.

use std::time::Duration;

use tinderbox_fake::DynTensor;
use tinderbox_link::{Mailbox, mailboxes};

use super::link::{Abort, Link, Tag};
use super::points::System;
use crate::schedule::RankIndex;
use crate::{LinkError, PipelineError};

/// One rank's end of in-process links, which pass tensors without a copy.
#[derive(Debug)]
pub struct LocalLink {
    mailbox: Mailbox<Tag, Vec<DynTensor>, System>,
    abort: Abort,
}

/// Returns the ends of links between `ranks` ranks, in the order of the ranks. A wait for a message
/// fails after `timeout`.
pub(crate) fn local_links(ranks: usize, abort: &Abort, timeout: Duration) -> Vec<LocalLink> {
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
