//! Training data: batches by their position.

use std::error::Error;

use super::position::Position;

/// The error of a data source.
pub type DataError = Box<dyn Error + Send + Sync>;

/// The next batch of an epoch; `None` if the epoch has ended.
pub type NextBatch<B> = Result<Option<B>, DataError>;

/// Training data, in epochs.
///
/// A session requests the batch at a [`Position`], so that a resumed run continues with the next batch of the interrupted run.
/// The same position must have the same batch in every process and in every run.
///
/// - A closure `|position: Position| ...` that returns a batch, an `Option`, or a `Result` of either. `None` ends the epoch. A
///   closure that always returns a batch has one endless epoch.
/// - [`in_order`] for data that can only be read in order, such as an iterator.
/// - An implementation for a type that has data loaders. The loaders of Burn are shuffled again in each epoch, and skip
///   batches by loading them; `Epochs` of `tinderbox-train` does both.
///
/// ```
/// use tinderbox::session::{DataError, NextBatch, Position, TrainingData};
///
/// /// Batches of 4 numbers.
/// struct Numbers(Vec<f32>);
///
/// impl TrainingData<Vec<f32>> for Numbers {
///     fn epoch(
///         &mut self,
///         from: Position,
///     ) -> Result<impl FnMut(Position) -> NextBatch<Vec<f32>>, DataError> {
///         // Here a loader begins its epoch, and skips to the sample.
///         let mut batches = self.0[from.sample as usize..].chunks(4);
///         Ok(move |_| Ok(batches.next().map(<[f32]>::to_vec)))
///     }
/// }
///
/// let mut numbers = Numbers((0..10).map(|n| n as f32).collect());
/// let mut next = numbers.epoch(Position { epoch: 2, sample: 4 })?;
/// assert_eq!(next(Position { epoch: 2, sample: 4 })?, Some(vec![4.0, 5.0, 6.0, 7.0]));
/// assert_eq!(next(Position { epoch: 2, sample: 8 })?, Some(vec![8.0, 9.0]));
/// assert_eq!(next(Position { epoch: 2, sample: 10 })?, None);
/// # Ok::<(), tinderbox::session::DataError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no batches of type `{B}`",
    note = "training data is a closure `|position: Position| ...` that returns a batch, an `Option` of a batch, or a \
            `Result` of either; `session::in_order(...)`; or a type that implements `TrainingData`"
)]
pub trait TrainingData<B> {
    /// Begins an epoch, or the rest of an epoch. Returns a function that returns its batches in order. The function gets the
    /// position of each batch, the first time `from`.
    ///
    /// # Errors
    ///
    /// Returns an error if the data has no such position, or can't be read.
    fn epoch(&mut self, from: Position) -> Result<impl FnMut(Position) -> NextBatch<B>, DataError>;
}

impl<B, R, F> TrainingData<B> for F
where
    F: FnMut(Position) -> R,
    R: IntoBatch<B>,
{
    fn epoch(&mut self, _: Position) -> Result<impl FnMut(Position) -> NextBatch<B>, DataError> {
        Ok(move |position: Position| self(position).into_batch())
    }
}

/// The ways in which a closure or an iterator can return a batch: as it is, in an `Option`, or in a `Result` of either.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a batch of type `{B}`",
    note = "return a batch, an `Option` of a batch, or a `Result` of either"
)]
pub trait IntoBatch<B> {
    /// Returns the batch, or `None` if there are no more.
    ///
    /// # Errors
    ///
    /// Returns the error of the data source.
    fn into_batch(self) -> NextBatch<B>;
}

impl<B> IntoBatch<B> for B {
    fn into_batch(self) -> NextBatch<B> {
        Ok(Some(self))
    }
}

impl<B> IntoBatch<B> for Option<B> {
    fn into_batch(self) -> NextBatch<B> {
        Ok(self)
    }
}

impl<B, E: Into<DataError>> IntoBatch<B> for Result<B, E> {
    fn into_batch(self) -> NextBatch<B> {
        self.map(Some).map_err(Into::into)
    }
}

impl<B, E: Into<DataError>> IntoBatch<B> for Result<Option<B>, E> {
    fn into_batch(self) -> NextBatch<B> {
        self.map_err(Into::into)
    }
}

/// Training data that is read in order; from [`in_order`].
#[derive(Clone, Debug)]
pub struct InOrder<F>(F);

/// Returns training data that is read in order. The function returns the batches of an epoch, starting at a position, as an
/// iterator of batches or of results. It is called at the beginning of each epoch, and once more when a run continues within
/// an epoch.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// use tinderbox::session::{Position, in_order};
///
/// # let all: Vec<Tensor<2>> = (0..3).map(|n| Tensor::full([8, 4], n as f32, &Device::flex())).collect();
/// // Batches of 8 samples.
/// let data = in_order(|from: Position| all[from.sample as usize / 8..].iter().cloned());
/// # fn check(_: impl tinderbox::session::TrainingData<Tensor<2>>) {}
/// # check(data);
/// ```
pub const fn in_order<F>(epochs: F) -> InOrder<F> {
    InOrder(epochs)
}

impl<B, F, I> TrainingData<B> for InOrder<F>
where
    F: FnMut(Position) -> I,
    I: IntoIterator<Item: IntoBatch<B>>,
{
    fn epoch(&mut self, from: Position) -> Result<impl FnMut(Position) -> NextBatch<B>, DataError> {
        let mut batches = (self.0)(from).into_iter();
        Ok(move |_: Position| batches.next().map_or(Ok(None), IntoBatch::<B>::into_batch))
    }
}
