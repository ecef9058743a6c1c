//! Two training steps in a pipeline, and the trained weights in the form of Hugging Face, for `transformers`.
//! `check_export.py` compares them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use serde_json::json;
use tinderbox::checkpoint::tools::{ExportLayout, ExportOptions};
use tinderbox::checkpoint::{CheckpointSource, Regex};
use tinderbox::{Deferred, Machine, Outputs, Pipeline, Traceable, export_pipeline};
use tinderbox_models::minilm::Bert;

use crate::golden::Golden;
use crate::{Sentences, embeddings};

/// How far the training moves the embeddings at least, in the largest component: farther than any tolerance.
const MOVED: f32 = 1e-3;
/// Other files of a model that `transformers` reads.
const OTHER_FILES: [&str; 5] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
];

/// Where the weights come from, and what is written.
pub struct Export<'a> {
    /// The directory of the weights.
    pub from: &'a Path,
    /// The directory to create.
    pub to: &'a Path,
    /// Maximum number of tensor bytes per file.
    pub file_bytes: u64,
}

/// Trains the sentences apart from each other, two steps from the weights of `source`, and writes the model to a new
/// directory, with the embeddings that the pipeline computes from its weights.
pub fn train_and_export(
    model: &Deferred<Bert>,
    source: CheckpointSource,
    golden: &Golden,
    stages: usize,
    export: &Export<'_>,
) -> Result<()> {
    let sentences = || golden.batch(&Device::flex());
    let trace = model.trace(
        &sentences(),
        1,
        |bert: &Bert, (tokens, padding): Sentences| {
            let embedding = bert.embed(tokens, padding);
            let cosines = embedding.clone().matmul(embedding.clone().transpose());
            Outputs::loss(cosines.square().mean()).with("embedding", embedding)
        },
    )?;
    let plan = trace.plan(&Machine::local(stages)?)?;
    let mut pipeline = Pipeline::builder(model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .source(source)
        .start()?;
    let before = embeddings(&pipeline.evaluate(sentences())?)?;
    for _ in 0..2 {
        let loss = pipeline.step(1e-4, sentences())?.loss;
        println!("loss {loss:?}");
    }
    let after = embeddings(&pipeline.evaluate(sentences())?)?;
    let moved = before.iter().zip(&after).map(|(a, b)| (a - b).abs());
    let moved = moved.fold(0.0, f32::max);
    ensure!(
        moved > MOVED,
        "the training moved the embeddings by {moved:.1e} only"
    );

    // The reverse of what was renamed to load the weights.
    let options = ExportOptions {
        layout: ExportLayout::PyTorch,
        file_bytes: export.file_bytes,
        ..ExportOptions::default()
    }
    .rename(Regex::new(r"\.self_attention\.")?, ".self.")
    .rename(Regex::new(r"\.layer_norm\.")?, ".LayerNorm.");
    let Export { from, to, .. } = export;
    let exported = export_pipeline(&mut pipeline, to, &options)?;
    println!(
        "trained two steps, which moved the embeddings by {moved:.1e}, and exported {} tensors to {:?}",
        exported.tensors, exported.files
    );

    for name in OTHER_FILES {
        if from.join(name).exists() {
            let copied = fs::copy(from.join(name), to.join(name));
            copied.with_context(|| format!("copying {name}"))?;
        }
    }
    let count = golden.tokens().count();
    let rows: Vec<&[f32]> = after.chunks(after.len() / count).collect();
    let tokens: Vec<&[i32]> = golden.tokens().collect();
    let embeddings = json!({ "token_ids": tokens, "embeddings": rows });
    fs::write(to.join("embeddings.json"), embeddings.to_string())?;
    Ok(())
}
