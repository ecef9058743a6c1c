//! Runs a Llama model that does not fit in memory: the parameters of each stage are read from Hugging Face's files before it
//! runs, while the one before it computes, and what fits beside them stays.

mod flags;
mod make;

use std::hash::{DefaultHasher, Hasher};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use burn::tensor::{DType, Device, TensorData};
use clap::Parser;
use tinderbox::deferred::{human_bytes, peak_process_bytes};
use tinderbox::error::GenerateError;
use tinderbox::generate::Decoder;
use tinderbox::planner::DiskRate;
use tinderbox::{Deferred, Generate, Outputs, Streamed, Traceable};
use tinderbox_models::decoder::decode::Plain;
use tinderbox_models::decoder::model::{Llama, Step};
use tinderbox_models::decoder::weights;

use flags::{Command, Flags, Run};

fn main() -> ExitCode {
    let done = match Flags::parse().command {
        Command::Run(flags) => run(&flags),
        Command::Make(flags) => make::make(&flags.dir, flags.size, flags.seed).map(|exported| {
            let (dir, files) = (flags.dir.display(), exported.files.len());
            let (tensors, bytes) = (exported.tensors, human_bytes(exported.bytes));
            println!("{dir}: {tensors} tensors in {files} file(s), {bytes}");
        }),
    };
    match done {
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

fn run(flags: &Run) -> Result<()> {
    let length = usize::from(flags.length);
    // The last token is not an input.
    let config = weights::config(&flags.dir, flags.tokens.len() + length - 1)?;
    let of_model = config.clone();
    let model = Deferred::new(move |device| of_model.init(device))?;
    let weights = weights::source(&flags.dir, &config, model.parameters())?;
    let (count, bytes) = (model.parameters().len(), model.parameters().bytes());
    println!("{count} parameters of {} in memory", human_bytes(bytes));
    let device = Device::flex();
    if flags.in_memory {
        let llama: Llama = model.materialize(&device, &weights)?;
        return report(flags, &mut Plain::new(&llama, &config, &device));
    }
    let budget = flags.memory.unwrap_or_default();
    let example = Step::new(&[0], 0, config.caches(1, &device), &device);
    let trace = model.trace_forward(&example, |llama: &Llama, step| {
        let (scores, caches) = llama.forward(step);
        Outputs::none().with("scores", scores).carry(caches)
    })?;
    let plan = trace.plan_streamed(budget)?;
    let mut streamed = Streamed::builder(&model, &trace, &plan)
        .source(weights)
        .memory_limit(budget)
        .start()?;
    println!("{} stages", plan.stages.len());
    let (mut carry, mut steps) = (streamed.carry(), config.steps());
    let mut is_reported = false;
    let mut scores = |text: &[i32], done: usize| -> Result<TensorData> {
        let output = streamed.evaluate_carried(&mut carry, steps(&text[done..], done))?;
        if done > 0 && !is_reported {
            is_reported = true;
            // Bytes only: no time is printed.
            if let Some(pass) = streamed.predict(DiskRate::new(u64::MAX)) {
                let (kept, read) = (human_bytes(pass.kept_bytes), human_bytes(pass.read_bytes));
                println!("{kept} remain in memory, {read} are read for each token");
            }
        }
        let scores = output.tensor::<2>("scores")?;
        Ok(scores.cast(DType::F32).into_data())
    };
    report(flags, &mut scores)
}

/// Adds the scores of each token to a digest.
struct Digested<'a> {
    decoder: &'a mut dyn Decoder,
    digest: DefaultHasher,
}

impl Decoder for Digested<'_> {
    fn scores(&mut self, text: &[i32], done: usize) -> Result<TensorData, GenerateError> {
        let scores = self.decoder.scores(text, done)?;
        self.digest.write(scores.as_bytes());
        Ok(scores)
    }
}

/// Generates tokens with the highest scores, and prints them and the figures.
fn report(flags: &Run, decoder: &mut dyn Decoder) -> Result<()> {
    let mut digested = Digested {
        decoder,
        digest: DefaultHasher::new(),
    };
    let started = Instant::now();
    let generate = Generate::new(usize::from(flags.length));
    let generated = generate.run_with(&mut digested, &flags.tokens, |_| ())?;
    let seconds = started.elapsed().as_secs_f64();
    println!("tokens {:?}", generated.tokens);
    println!("digest of the scores {:016x}", digested.digest.finish());
    println!(
        "the first token after {:.2} s",
        generated.first.as_secs_f64()
    );
    if let Some(speed) = generated.tokens_per_s() {
        println!("{:.2} s for each token after it", 1.0 / speed);
    }
    println!("{seconds:.2} s in total");
    if let Some(peak) = peak_process_bytes() {
        println!("the most memory of the process {}", human_bytes(peak));
    }
    Ok(())
}
