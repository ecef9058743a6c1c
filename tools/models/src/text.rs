//! Text as batches of characters: the data of the example `train_lm`.

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::tensor::{Device, Int, Tensor, TensorData};

/// The text of Shakespeare, which is a part of the program: it runs in any directory.
const SHAKESPEARE: &str = include_str!("../../../examples/data/shakespeare.txt");

/// A text as token ids, one per character, split into a training and a validation part.
#[derive(Debug)]
pub struct Text {
    characters: Vec<char>,
    train: Vec<i32>,
    validation: Vec<i32>,
}

/// Tokens and the next tokens, both `[samples, length]`.
pub type TokenBatch = (Tensor<2, Int>, Tensor<2, Int>);

impl Text {
    /// Reads a text from a file, or takes Shakespeare's text; its last tenth is the validation part.
    pub fn load(file: Option<&Path>) -> Result<Self> {
        let text = match file {
            Some(file) => {
                let text = fs::read_to_string(file);
                Cow::Owned(text.with_context(|| format!("{} can't be read", file.display()))?)
            }
            None => Cow::Borrowed(SHAKESPEARE),
        };
        let mut characters: Vec<char> = text.chars().collect();
        characters.sort_unstable();
        characters.dedup();
        let number = |c| {
            characters
                .binary_search(&c)
                .expect("every character was collected")
        };
        let tokens: Vec<i32> = text.chars().map(|c| number(c) as i32).collect();
        let split = tokens.len() - tokens.len() / 10;
        ensure!(split > 1000, "the text is too short to train on");
        let validation = tokens[split..].to_vec();
        let train = tokens[..split].to_vec();
        Ok(Self {
            characters,
            train,
            validation,
        })
    }

    /// Returns the number of different characters.
    pub fn vocabulary(&self) -> usize {
        self.characters.len()
    }

    /// Returns the numbers of characters of the training and the validation part.
    pub fn lengths(&self) -> (usize, usize) {
        (self.train.len(), self.validation.len())
    }

    /// Returns the training samples from index `position` on. Sample `n` of a seed is always the same section
    /// of the text, so a run that is resumed at a position continues where it stopped.
    pub fn batch(
        &self,
        seed: u64,
        position: u64,
        samples: usize,
        length: usize,
        device: &Device,
    ) -> TokenBatch {
        let starts = (position..position + samples as u64).map(|sample| {
            let choices = (self.train.len() - length - 1) as u64;
            (scramble(seed.wrapping_add(scramble(sample))) % choices) as usize
        });
        batch_of(&self.train, starts.collect(), length, device)
    }

    /// Returns the validation part in batches, without overlap; omits the remainder that does not fill a
    /// sequence.
    pub fn validation(
        &self,
        samples: usize,
        length: usize,
        device: &Device,
    ) -> impl Iterator<Item = (usize, TokenBatch)> {
        let starts: Vec<usize> = (0..self.validation.len() - length)
            .step_by(length)
            .collect();
        let batches: Vec<Vec<usize>> = starts.chunks(samples).map(<[usize]>::to_vec).collect();
        let device = device.clone();
        batches.into_iter().map(move |starts| {
            (
                starts.len(),
                batch_of(&self.validation, starts, length, &device),
            )
        })
    }

    /// Encodes a text; omits characters that are not in the vocabulary.
    pub fn encode(&self, text: &str) -> Vec<i32> {
        let numbers = text
            .chars()
            .filter_map(|c| self.characters.binary_search(&c).ok());
        numbers.map(|number| number as i32).collect()
    }

    /// Decodes token ids to text.
    pub fn decode(&self, tokens: &[i32]) -> String {
        tokens
            .iter()
            .map(|token| self.characters[*token as usize])
            .collect()
    }
}

fn batch_of(tokens: &[i32], starts: Vec<usize>, length: usize, device: &Device) -> TokenBatch {
    let shape = [starts.len(), length];
    let piece = |shift: usize| {
        let pieces = starts
            .iter()
            .flat_map(|start| &tokens[start + shift..start + shift + length]);
        TensorData::new(pieces.copied().collect::<Vec<i32>>(), shape)
    };
    (
        Tensor::from_data(piece(0), device),
        Tensor::from_data(piece(1), device),
    )
}

/// Mixes 64 bits (the finalizer of SplitMix64): equal inputs have equal, pseudorandom outputs.
pub fn scramble(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
