//! The epochs of Burn's data loaders, from any position.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::{Dataset, DatasetError, InMemDataset};
use burn::tensor::Device;
use tinderbox_train::{Epochs, EpochsError};

#[derive(Clone)]
struct Same;

impl Batcher<usize, Vec<usize>> for Same {
    fn batch(&self, items: Vec<usize>, _: &Device) -> Vec<usize> {
        items
    }
}

type Loader = Arc<dyn DataLoader<Vec<usize>>>;

fn loader(items: usize, batch_size: usize, workers: usize) -> Loader {
    DataLoaderBuilder::new(Same)
        .batch_size(batch_size)
        .num_workers(workers)
        .shuffle(3)
        .build(InMemDataset::new((0..items).collect()))
}

/// All batches of some epochs, as the loader itself returns them, each with the number of items before it.
fn expected(loader: &Loader, epochs: usize) -> Vec<(u64, Vec<usize>)> {
    let mut position = 0;
    let batches = (0..epochs).flat_map(|_| loader.iter().map(Result::unwrap).collect::<Vec<_>>());
    let batches = batches.map(|batch| {
        position += batch.len() as u64;
        (position - batch.len() as u64, batch)
    });
    batches.collect()
}

fn rest(mut epochs: Epochs<Vec<usize>>, count: usize) -> Vec<Vec<usize>> {
    let mut found = Vec::new();
    while epochs.ended() < count {
        let epoch = epochs.next_epoch().unwrap();
        for batch in epoch {
            found.push(batch.unwrap());
        }
    }
    found
}

#[test]
fn continues_at_every_batch() {
    const EPOCHS: usize = 3;
    for workers in [0, 1] {
        for (items, batch_size) in [(10, 4), (8, 4), (3, 5), (1, 1)] {
            let all = expected(&loader(items, batch_size, workers), EPOCHS);
            let end = (items * EPOCHS) as u64;
            let positions = all.iter().map(|(position, _)| *position).chain([end]);
            for position in positions {
                let mut epochs = Epochs::new(loader(items, batch_size, workers));
                epochs.skip_to(position).unwrap();
                assert_eq!(epochs.position(), position);
                let expected = all.iter().filter(|(at, _)| *at >= position);
                let expected: Vec<_> = expected.map(|(_, batch)| batch.clone()).collect();
                assert_eq!(
                    rest(epochs, EPOCHS),
                    expected,
                    "{items} {batch_size} {position}"
                );
            }
        }
    }
}

#[test]
fn the_position_is_after_each_batch() {
    let mut epochs = Epochs::new(loader(10, 4, 0));
    for epoch in 0..2 {
        let mut batches = epochs.next_epoch().unwrap();
        let mut positions = vec![batches.position()];
        while batches.next().is_some() {
            positions.push(batches.position());
        }
        let at = |items| epoch * 10 + items;
        assert_eq!(positions, [at(0), at(4), at(8), at(10)]);
        assert!(batches.next().is_none());
        drop(batches);
        assert_eq!(epochs.position(), at(10));
        assert_eq!(epochs.ended() as u64, epoch + 1);
    }
}

/// The rest of an epoch that was left is not returned later.
#[test]
fn an_epoch_may_be_left() {
    let all = expected(&loader(10, 4, 0), 2);
    let mut epochs = Epochs::new(loader(10, 4, 0));
    epochs.next_epoch().unwrap().next().unwrap().unwrap();
    assert_eq!((epochs.position(), epochs.ended()), (4, 0));
    let second = epochs.next_epoch().unwrap().next().unwrap().unwrap();
    assert_eq!(second, all[3].1);
    assert_eq!((epochs.position(), epochs.ended()), (14, 1));
}

#[test]
fn positions_that_do_not_exist_are_refused() {
    let at = |items, batch_size, position| {
        let mut epochs = Epochs::new(loader(items, batch_size, 0));
        epochs.skip_to(position)?;
        epochs.next_epoch().map(|_| ())
    };
    let between = at(10, 4, 15).unwrap_err();
    insta::assert_snapshot!(between, @"no batch ends at position 15: the data loader must have the batch size and the number of items of the run that is resumed");
    assert!(matches!(
        between,
        EpochsError::BetweenBatches { position: 15 }
    ));
    insta::assert_snapshot!(at(0, 4, 3).unwrap_err(), @"position 3 does not exist: the data loader has too few items");
    at(0, 4, 0).unwrap();
    let mut epochs = Epochs::new(loader(10, 4, 0));
    drop(epochs.next_epoch().unwrap());
    insta::assert_snapshot!(epochs.skip_to(4).unwrap_err(), @"an epoch has begun: skip before the first one begins");
}

struct Damaged;

impl Dataset<usize> for Damaged {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        match index {
            0..5 => Ok(index),
            _ => Err(DatasetError::new(std::io::Error::other("unreadable"))),
        }
    }

    fn len(&self) -> usize {
        10
    }
}

#[test]
fn errors_of_the_data_are_returned() {
    let loader = || DataLoaderBuilder::new(Same).batch_size(2).build(Damaged);
    let mut epochs = Epochs::new(loader());
    let batches: Vec<_> = epochs.next_epoch().unwrap().take(3).collect();
    assert!(batches[1].is_ok() && batches[2].is_err());
    let mut epochs = Epochs::new(loader());
    epochs.skip_to(6).unwrap();
    assert!(matches!(
        epochs.next_epoch().unwrap_err(),
        EpochsError::Dataset(_)
    ));
}

/// Counts warnings.
struct Count(Arc<AtomicUsize>);

impl tracing::Subscriber for Count {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// The order of the batches of several workers depends on timing. Threads can be counted on Linux only.
#[test]
#[cfg(target_os = "linux")]
fn several_workers_cause_a_warning() {
    for (workers, expected) in [(0, 0), (1, 0), (2, 1), (4, 1)] {
        let count = Arc::new(AtomicUsize::new(0));
        tracing::subscriber::with_default(Count(count.clone()), || {
            let epochs = Epochs::new(loader(20, 2, workers));
            let mut items: Vec<usize> = rest(epochs, 1).concat();
            items.sort_unstable();
            assert_eq!(items, (0..20).collect::<Vec<_>>());
        });
        assert_eq!(count.load(Ordering::Relaxed), expected, "{workers} workers");
    }
}
