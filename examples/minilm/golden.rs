//! The embeddings of the original model, created by `make_golden.py`.

use anyhow::{Context, Result, ensure};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use serde_json::Value;

/// Sentences with the original model's embeddings.
pub struct Golden {
    sentences: Vec<Sentence>,
}

struct Sentence {
    text: String,
    tokens: Vec<i32>,
    embedding: Vec<f64>,
}

impl Golden {
    /// Reads the committed file.
    pub fn read() -> Result<Self> {
        let file: Value = serde_json::from_str(include_str!("golden.json"))?;
        let sentences = file["sentences"].as_array().context("no sentences")?;
        let sentences = sentences.iter().map(|sentence| {
            let tokens: Vec<i32> = serde_json::from_value(sentence["token_ids"].clone())?;
            Ok(Sentence {
                text: serde_json::from_value(sentence["text"].clone())?,
                embedding: serde_json::from_value(sentence["embedding"].clone())?,
                tokens,
            })
        });
        Ok(Self {
            sentences: sentences.collect::<Result<_>>()?,
        })
    }

    /// Returns the tokens of each sentence.
    pub fn tokens(&self) -> impl Iterator<Item = &[i32]> {
        self.sentences.iter().map(|sentence| &*sentence.tokens)
    }

    /// Returns all sentences as one batch, padded on the right: tokens, and the padding mask.
    pub fn batch(&self, device: &Device) -> (Tensor<2, Int>, Tensor<2, Bool>) {
        let lengths = self.sentences.iter().map(|sentence| sentence.tokens.len());
        let longest = lengths.max().unwrap_or(0);
        let (mut tokens, mut padding) = (Vec::new(), Vec::new());
        for sentence in &self.sentences {
            let missing = longest - sentence.tokens.len();
            tokens.extend(sentence.tokens.iter().copied());
            tokens.extend(vec![0; missing]);
            padding.extend(vec![false; sentence.tokens.len()]);
            padding.extend(vec![true; missing]);
        }
        let shape = [self.sentences.len(), longest];
        (
            Tensor::from_data(TensorData::new(tokens, shape), device),
            Tensor::from_data(TensorData::new(padding, shape), device),
        )
    }

    /// Returns the maximum difference of a component of the concatenated embeddings; prints it for every
    /// sentence.
    pub fn compare(&self, found: &[f32]) -> Result<f64> {
        let expected: usize = self.sentences.iter().map(|s| s.embedding.len()).sum();
        ensure!(
            found.len() == expected,
            "{} components instead of {expected}",
            found.len()
        );
        let mut found = found.iter().copied();
        let mut largest: f64 = 0.0;
        for sentence in &self.sentences {
            let difference = sentence.embedding.iter().zip(found.by_ref());
            let difference =
                difference.map(|(expected, found)| (expected - f64::from(found)).abs());
            // Not `f64::max`, which ignores NaN.
            let difference =
                difference.fold(0.0, |a: f64, b| if b > a || b.is_nan() { b } else { a });
            println!("{difference:.1e} from the original: {:.60}", sentence.text);
            ensure!(!difference.is_nan(), "a component is NaN");
            largest = largest.max(difference);
        }
        Ok(largest)
    }
}
