//! The epochs of a data loader, with a position from which a run resumes.

use std::sync::Arc;

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use derive_more::Debug;
use tinderbox::Position;

use crate::EpochsError;

/// The epochs of a data loader of Burn.
///
/// A position is the number of items that all epochs so far have returned. Save it with a checkpoint, and
/// [skip](Self::skip_to) to it when the run is resumed. Create the loader as before, with the same seed: a loader shuffles
/// every epoch, in the order of epochs.
///
/// A loader with more than one worker returns batches in an order that depends on timing: a resumed run then repeats
/// some items of the interrupted epoch and misses others. On Linux this causes a `tracing` warning.
///
/// ```
/// # use std::sync::Arc;
/// # use burn::data::{dataloader::{DataLoaderBuilder, batcher::Batcher}, dataset::InMemDataset};
/// # use burn::tensor::{Device, Tensor};
/// # #[derive(Clone)]
/// # struct Numbers;
/// # impl Batcher<f32, Tensor<1>> for Numbers {
/// #     fn batch(&self, items: Vec<f32>, device: &Device) -> Tensor<1> {
/// #         Tensor::from_floats(items.as_slice(), device)
/// #     }
/// # }
/// let loader = || {
///     DataLoaderBuilder::new(Numbers)
///         .batch_size(4)
///         .shuffle(7)
///         .build(InMemDataset::new((0..10).map(|n| n as f32).collect()))
/// };
/// let mut first = tinderbox_train::Epochs::new(loader());
/// let all: Vec<_> = first.next_epoch()?.collect::<Result<_, _>>()?;
/// assert_eq!((all.len(), first.position()), (3, 10));
///
/// let mut resumed = tinderbox_train::Epochs::new(loader());
/// resumed.skip_to(4)?;
/// let rest: Vec<_> = resumed.next_epoch()?.collect::<Result<_, _>>()?;
/// assert_eq!(rest[0].to_data(), all[1].to_data());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[debug("Epochs {{ place: {place:?}, .. }}")]
pub struct Epochs<B> {
    loader: Arc<dyn DataLoader<B>>,
    /// The current place; before the first epoch, the place where it begins. Its samples are items.
    place: Position,
    is_begun: bool,
}

impl<B> Epochs<B> {
    /// Creates the epochs of a loader, at the first item.
    pub fn new(loader: Arc<dyn DataLoader<B>>) -> Self {
        Self {
            loader,
            place: Position::default(),
            is_begun: false,
        }
    }

    /// Returns the position: the number of items so far.
    pub fn position(&self) -> u64 {
        items_before(self.place, self.loader.num_items())
    }

    /// Returns the number of epochs that have ended.
    pub fn ended(&self) -> usize {
        self.place.epoch as usize
    }

    /// Returns the number of items of an epoch.
    pub fn items(&self) -> usize {
        self.loader.num_items()
    }

    /// Sets the position at which the first epoch begins. When it begins, this costs the order of every earlier epoch, and
    /// the skipped batches.
    ///
    /// # Errors
    ///
    /// If an epoch has begun, or the loader has no items and the position is not 0.
    pub fn skip_to(&mut self, position: u64) -> Result<(), EpochsError> {
        if self.is_begun {
            return Err(EpochsError::Begun);
        }
        let items = self.loader.num_items() as u64;
        if items == 0 && position > 0 {
            return Err(EpochsError::NoItems { position });
        }
        let epoch = position.checked_div(items).unwrap_or(0);
        let sample = position - epoch * items;
        self.place = Position { epoch, sample };
        Ok(())
    }

    /// Begins the next epoch, or the rest of the epoch at the position of [`skip_to`](Self::skip_to). An epoch that was left
    /// before its end counts as ended.
    ///
    /// # Errors
    ///
    /// If the loader can't load a skipped batch, or no batch ends at the position.
    pub fn next_epoch(&mut self) -> Result<Epoch<'_, B>, EpochsError> {
        let workers = (!self.is_begun).then(worker_threads);
        if !self.is_begun {
            // Every call shuffles the items.
            (0..self.place.epoch).for_each(|_| drop(self.loader.iter()));
        } else if self.place.sample > 0 {
            self.place = self.place.next_epoch();
        }
        self.is_begun = true;
        let position = self.position();
        let mut batches = self.loader.iter();
        let (mut skipped, target) = (0, self.place.sample);
        while skipped < target {
            let between = || EpochsError::BetweenBatches { position };
            batches.next().ok_or_else(between)??;
            skipped = batches.progress().items_processed as u64;
            // Several workers return batches in another order, and the last batch of each worker may be smaller.
            let has_workers = || workers.is_some_and(|before| before < worker_threads());
            if skipped > target && !has_workers() {
                return Err(between());
            }
        }
        self.place.sample = skipped;
        Ok(Epoch {
            items: self.loader.num_items(),
            batches,
            place: &mut self.place,
            is_ended: false,
            workers,
        })
    }
}

/// The batches of an epoch.
#[derive(Debug)]
#[debug("Epoch {{ place: {place:?}, .. }}")]
pub struct Epoch<'a, B> {
    batches: Box<dyn DataLoaderIterator<B> + 'a>,
    place: &'a mut Position,
    /// The items of an epoch.
    items: usize,
    is_ended: bool,
    /// In the first epoch, the number of worker threads before it, until there are more.
    workers: Option<usize>,
}

impl<B> Epoch<'_, B> {
    /// Returns the position after the last returned batch: the number of items of all epochs so far.
    pub fn position(&self) -> u64 {
        items_before(*self.place, self.items)
    }

    /// Returns the progress of the data loader.
    pub fn progress(&self) -> Progress {
        self.batches.progress()
    }
}

impl<B> Iterator for Epoch<'_, B> {
    type Item = Result<B, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_ended {
            return None;
        }
        let batch = self.batches.next();
        // All workers have run when an epoch ends.
        let is_edge = self.place.sample == 0 || batch.is_none();
        if is_edge && self.workers.is_some_and(|before| before < worker_threads()) {
            self.workers = None;
            tracing::warn!(
                "the data loader has more than one worker: the order of its batches depends on timing, so the run \
                 can't be repeated or resumed exactly; use `num_workers(1)`"
            );
        }
        match &batch {
            Some(_) => self.place.sample = self.batches.progress().items_processed as u64,
            None => {
                self.is_ended = true;
                *self.place = self.place.next_epoch();
            }
        }
        batch
    }
}

/// Returns the number of items of all epochs before a place.
fn items_before(place: Position, items_per_epoch: usize) -> u64 {
    place.epoch * items_per_epoch as u64 + place.sample
}

/// Returns the number of threads of this process that are the second or a later worker of a data loader of Burn, by their
/// names; 0 on systems without a list of threads.
fn worker_threads() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let names = threads.flatten().filter_map(|thread| {
        let name = std::fs::read_to_string(thread.path().join("comm")).ok()?;
        Some(name.trim_end().strip_prefix("dataloader-")? != "0")
    });
    names.filter(|is_later| *is_later).count()
}
