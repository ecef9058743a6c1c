//! Checks that an implementation of [`Link`] or [`Batch`] keeps its contract, for the tests of programs with their own
//! implementations.
//!
//! ```
//! use tinderbox_pipeline::testing::{check_batch, check_link};
//! # use burn::tensor::{Device, Tensor};
//!
//! // The closure for `PipelineBuilder::links`.
//! check_link(|_, link| Box::new(link));
//! let x = Tensor::<2>::zeros([4, 2], &Device::flex());
//! check_batch(&(x.clone(), vec![x]));
//! ```

use std::fmt::Display;
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use burn::tensor::{Device, Tensor};
use tinderbox_fake::{DynTensor, RecordOptions, record};

use crate::batch::{Batch, BatchMapper, Division, leaves, split_batch};
pub use crate::runtime::Point;
#[cfg(feature = "testing")]
pub use crate::runtime::at_points;
use crate::runtime::{Abort, Link, LinkMessage, LocalLink, Tag, local_links};
use crate::schedule::{Edge, Message, MicroBatchIndex, RankIndex, StageIndex};
use crate::{LinkError, PipelineError, StepError};

/// Longer than any wait of a check that passes.
const LONG: Duration = Duration::from_secs(60);

fn tag(micro_batch: usize) -> Tag {
    Tag {
        round: 0,
        message: LinkMessage::Schedule(Message::Values {
            edge: Edge::chain_forward(StageIndex::new(0)),
            micro_batch: MicroBatchIndex::new(micro_batch),
        }),
    }
}

/// Checks links that [`PipelineBuilder::links`](crate::PipelineBuilder::links) creates by `wrap`. Messages must be
/// matched by their tags, and `send` must not wait for the receiver. A wait must end by its timeout or when any rank
/// aborts, and the first reason is kept. Takes less than a second with fast links.
///
/// # Panics
///
/// If the links break a rule; the message names the rule.
pub fn check_link(wrap: impl Fn(RankIndex, LocalLink) -> Box<dyn Link>) {
    let (first, second) = (RankIndex::new(0), RankIndex::new(1));
    let pair = |timeout| {
        let abort = Abort::default();
        let mut links = local_links(2, &abort, timeout).into_iter();
        let links = [first, second].map(|rank| wrap(rank, links.next().expect("two links")));
        (links, abort)
    };

    let ([mut a, mut b], _abort) = pair(LONG);
    let sends = move || {
        for micro_batch in [0, 1] {
            let posted = b.post_receive(first, tag(micro_batch));
            passed("`post_receive` fails", posted);
            let value = Tensor::<1>::from_floats([micro_batch as f32], &Device::flex());
            let sent = a.send(second, tag(micro_batch), vec![value.into()]);
            passed("`send` fails before the receiver polls", sent);
        }
        (a, b)
    };
    let (_a, mut b) = within("`send` waits for the receiver", sends);
    for micro_batch in [1, 0] {
        let polled = b.poll(first, tag(micro_batch));
        let values = passed("`poll` of a sent message fails", polled);
        let [value] = &values[..] else {
            panic!("a message of one value arrives with {}", values.len());
        };
        assert_eq!(
            number(value),
            Some(micro_batch as f32),
            "a message has other values than were sent with its tag"
        );
    }

    let ([_a, mut b], _abort) = pair(Duration::from_millis(20));
    let waited = b.poll(first, tag(3));
    assert!(
        matches!(&waited, Err(LinkError::Timeout { key, .. }) if *key == tag(3)),
        "a wait for a message that no rank sends ends with {waited:?}, not with a timeout that names it"
    );

    let ([a, mut b], abort) = pair(LONG);
    let polls = move || {
        let waiting = std::thread::spawn(move || b.poll(first, tag(0)));
        a.abort(PipelineError::Stopped);
        a.abort(StepError::NoOptimizer.into());
        waiting.join().expect("`poll` does not panic")
    };
    let waited = within("a wait does not end when a rank aborts", polls);
    assert!(
        matches!(waited, Err(LinkError::Aborted)),
        "a wait ends with {waited:?} after a rank aborted"
    );
    let reason = abort.take_reason();
    assert!(
        matches!(reason, Some(PipelineError::Stopped)),
        "of two reasons to abort, {reason:?} is kept, not the first"
    );
}

/// Returns the value, or panics with the rule and the error.
fn passed<T, E: Display>(rule: &str, result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{rule}: {error}"))
}

/// Runs a part of a check; panics with the rule if it does not end.
fn within<T: Send + 'static>(rule: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, ended) = channel();
    let thread = std::thread::spawn(move || sender.send(run()));
    match (ended.recv_timeout(LONG / 2), thread) {
        (Ok(value), _) => value,
        (Err(RecvTimeoutError::Timeout), _) => panic!("{rule}"),
        (Err(RecvTimeoutError::Disconnected), thread) => match thread.join() {
            Err(panic) => resume_unwind(panic),
            Ok(_) => unreachable!("a thread that ends has sent its value"),
        },
    }
}

/// The element of a tensor.
fn number(value: &DynTensor) -> Option<f32> {
    value.to_data().ok()?.iter::<f32>().next()
}

/// Checks a batch. [`Batch::map_tensors`] must visit the same tensors in the same order at every call, each
/// under its own name, and return the tensors that replace them. `batch` needs at least one sample.
///
/// # Panics
///
/// If the batch breaks a rule; the message names the rule.
pub fn check_batch<B: Batch>(batch: &B) {
    let described = |batch: &B| {
        let leaves = leaves(batch).into_iter();
        let described = leaves.map(|(name, value)| (name, value.shape().to_vec(), value.dtype()));
        described.collect::<Vec<_>>()
    };
    let known = described(batch);
    assert_eq!(known, described(batch), "two calls visit other tensors");
    let mut names: Vec<&String> = known.iter().map(|(name, ..)| &name.name).collect();
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(
        twice, None,
        "two tensors have the same name: visit each with `field`"
    );
    let replaces = record(&RecordOptions::default(), |device| {
        let mut replacements = Vec::new();
        let mut replace = |_: &_, tensor: DynTensor| {
            let fake = DynTensor::zeros(tensor.shape(), tensor.dtype(), device);
            replacements.push(fake.captured_id());
            fake
        };
        let mut mapper = BatchMapper::new(&mut replace);
        let mapped = batch.clone().map_tensors(&mut mapper);
        let found = leaves(&mapped).into_iter();
        let found = found.map(|(_, tensor)| tensor.captured_id());
        found.eq(replacements)
    });
    let (replaces, _) = passed("the tensors can't be replaced by fake ones", replaces);
    assert!(replaces, "a replaced tensor is not returned in its place");
    let samples = known
        .iter()
        .find_map(|(name, shape, _)| match name.division {
            Division::Samples { axis } => Some(shape[axis]),
            Division::Whole => None,
        });
    let samples = samples.unwrap_or(0);
    let parts = split_batch(batch, samples);
    let parts = passed("the batch can't be split into its samples", parts);
    let mut expected = known;
    for (name, shape, _) in &mut expected {
        if let Division::Samples { axis } = name.division {
            shape[axis] = 1;
        }
    }
    for (part, _) in parts {
        assert_eq!(
            described(&part),
            expected,
            "a part has other tensors than the batch"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;
    use crate::{BatchMapper, Whole};

    #[test]
    fn the_links_and_batches_of_this_crate_pass() {
        check_link(|_, link| Box::new(link));
        let x = || Tensor::<2>::zeros([4, 2], &Device::flex());
        check_batch(&x());
        check_batch(&(
            x(),
            Some(vec![x(), x()]),
            [x(), x()],
            Whole(x()),
            None::<Tensor<1>>,
        ));
    }

    /// Delivers the first message for every tag.
    struct InOrder(LocalLink);

    impl Link for InOrder {
        fn post_receive(&mut self, from: RankIndex, tag: Tag) -> Result<(), LinkError> {
            self.0.post_receive(from, tag)
        }

        fn send(&mut self, to: RankIndex, _: Tag, values: Vec<DynTensor>) -> Result<(), LinkError> {
            self.0.send(to, tag(0), values)
        }

        fn poll(&mut self, from: RankIndex, _: Tag) -> Result<Vec<DynTensor>, LinkError> {
            self.0.poll(from, tag(0))
        }

        fn abort(&self, reason: PipelineError) {
            self.0.abort(reason);
        }
    }

    /// Visits both tensors under one name.
    #[derive(Clone)]
    struct Unnamed(Tensor<2>, Tensor<2>);

    impl Batch for Unnamed {
        fn map_tensors(self, mapper: &mut BatchMapper<'_>) -> Self {
            Self(self.0.map_tensors(mapper), self.1.map_tensors(mapper))
        }
    }

    /// Returns its old tensor.
    #[derive(Clone)]
    struct Unchanged(Tensor<2>);

    impl Batch for Unchanged {
        fn map_tensors(self, mapper: &mut BatchMapper<'_>) -> Self {
            mapper.field("x", self.0.clone());
            self
        }
    }

    /// Returns its tensors in each other's place.
    #[derive(Clone)]
    struct Exchanged(Tensor<2>, Tensor<2>);

    impl Batch for Exchanged {
        fn map_tensors(self, mapper: &mut BatchMapper<'_>) -> Self {
            let (x, y) = (mapper.field("x", self.0), mapper.field("y", self.1));
            Self(y, x)
        }
    }

    #[test]
    fn others_are_refused_with_the_rule() {
        let text = |check: fn()| match catch_unwind(check).unwrap_err().downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => (*panic.downcast::<&str>().unwrap()).to_owned(),
        };
        let link = text(|| check_link(|_, link| Box::new(InOrder(link))));
        assert!(link.contains("other values"), "{link}");
        let names = text(|| {
            let x = Tensor::zeros([4, 2], &Device::flex());
            check_batch(&Unnamed(x.clone(), x));
        });
        assert!(names.contains("the same name"), "{names}");
        for check in [
            || check_batch(&Unchanged(Tensor::zeros([1, 2], &Device::flex()))),
            || {
                let x = Tensor::zeros([4, 2], &Device::flex());
                check_batch(&Exchanged(x.clone(), x));
            },
        ] as [fn(); 2]
        {
            let old = text(check);
            assert!(old.contains("in its place"), "{old}");
        }
    }
}
