//! Handwritten digits, from the file `examples/data/digits.txt`.

use std::sync::Arc;

use anyhow::{Context, Result};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::tensor::{Device, Int, Tensor, TensorData};
use tinderbox::Batch;

const PIXELS: usize = 8 * 8;
/// Every fifth digit is for validation.
const VALIDATION: usize = 5;

/// An image with the digit that it shows.
#[derive(Clone, Debug)]
pub struct Digit {
    /// From 0 to 1, row by row.
    pixels: [f32; PIXELS],
    digit: i64,
}

/// Images `[samples, 8, 8]` and digits `[samples]`.
#[derive(Clone, Debug, Batch)]
pub struct DigitBatch {
    /// From 0 to 1, `[samples, 8, 8]`.
    pub images: Tensor<3>,
    /// `[samples]`.
    pub targets: Tensor<1, Int>,
}

#[derive(Clone, Debug)]
struct DigitBatcher;

impl Batcher<Digit, DigitBatch> for DigitBatcher {
    fn batch(&self, items: Vec<Digit>, device: &Device) -> DigitBatch {
        let pixels: Vec<f32> = items.iter().flat_map(|item| item.pixels).collect();
        let digits: Vec<i64> = items.iter().map(|item| item.digit).collect();
        let count = items.len();
        DigitBatch {
            images: Tensor::from_data(TensorData::new(pixels, [count, 8, 8]), device),
            targets: Tensor::from_data(TensorData::new(digits, [count]), device),
        }
    }
}

/// Returns the digits for training and for validation.
pub fn read() -> Result<[Vec<Digit>; 2]> {
    let text = include_str!("../../../../examples/data/digits.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let digits = lines.map(|line| {
        let (digit, pixels) = line.split_once(' ').context("no space")?;
        let pixels = pixels.chars().map(|pixel| pixel.to_digit(17));
        let pixels: Vec<u32> = pixels.collect::<Option<_>>().context("no pixel")?;
        let pixels: Vec<f32> = pixels.iter().map(|pixel| *pixel as f32 / 16.0).collect();
        Ok(Digit {
            pixels: pixels.try_into().ok().context("not 64 pixels")?,
            digit: digit.parse()?,
        })
    });
    let digits = digits.collect::<Result<Vec<_>>>()?;
    let (valid, train): (Vec<_>, Vec<_>) = digits
        .into_iter()
        .enumerate()
        .partition(|(index, _)| index % VALIDATION == 0);
    let only = |part: Vec<(usize, Digit)>| part.into_iter().map(|(_, digit)| digit).collect();
    Ok([only(train), only(valid)])
}

/// Returns a loader of batches on the CPU, shuffled if it has a seed.
pub fn loader(
    digits: Vec<Digit>,
    batch_size: usize,
    seed: Option<u64>,
) -> Arc<dyn DataLoader<DigitBatch>> {
    let builder = DataLoaderBuilder::new(DigitBatcher)
        .batch_size(batch_size)
        .set_device(Device::flex());
    let builder = match seed {
        Some(seed) => builder.shuffle(seed),
        None => builder,
    };
    builder.build(InMemDataset::new(digits))
}
