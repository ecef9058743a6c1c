//! Continues a text token by token with a Llama model in pipeline stages: the caches of keys and values stay on the
//! ranks, and only tokens and scores pass to them and back.

mod flags;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use burn::tensor::Device;
use tinderbox::checkpoint::dry_run;
use tinderbox::deferred::open_devices;
use tinderbox::deferred::random::Seed;
use tinderbox::generate::Generated;
use tinderbox::{Deferred, Generate, Machine, Outputs, Pipeline, Sampler, Traceable};
use tinderbox_models::decoder::decode::Plain;
use tinderbox_models::decoder::model::{Llama, LlamaConfig, Step};
use tinderbox_models::decoder::weights;

use flags::Flags;

fn main() -> ExitCode {
    match run(&Flags::read()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            for cause in error.chain().skip(1) {
                eprintln!("  because: {cause}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Result<ExitCode> {
    let devices = match open_devices(&flags.device) {
        Ok(devices) => devices,
        Err(error) => {
            eprintln!("error: {error}");
            return Ok(ExitCode::from(3));
        }
    };
    let prompt = flags.prompt();
    // The last token is not an input.
    let context = prompt.len() + flags.length - 1;
    let config = match &flags.weights {
        Some(dir) => weights::config(dir, context)?,
        None => LlamaConfig::of_bytes(context),
    };
    if let Some(token) = prompt.iter().find(|t| **t as usize >= config.vocabulary) {
        flags::usage(&format!(
            "token {token} is not below {}, the number of tokens of the model",
            config.vocabulary
        ));
    }

    // 1. The deferred model, a trace of one token at any place, and a plan.
    let of_model = config.clone();
    let model = Deferred::new(move |device| of_model.init(device))?;
    let host = Device::flex();
    let example = Step::new(&[0], 0, config.caches(1, &host), &host);
    let trace = model.trace_forward(&example, |llama: &Llama, step| {
        let (scores, caches) = llama.forward(step);
        Outputs::none().with("scores", scores).carry(caches)
    })?;
    let plan = trace.plan(&Machine::local(flags.stages)?)?;
    println!("{plan}");

    // 2. Each rank reads or initializes its own parameters.
    let builder = Pipeline::builder(&model, &trace, &plan)
        .devices(&devices)
        .seed(flags.seed);
    let weights = match &flags.weights {
        Some(dir) => Some(weights::source(dir, &config, model.parameters())?),
        None => None,
    };
    let mut pipeline = match &weights {
        Some(weights) => {
            println!("{}", dry_run(&model, &plan, weights)?);
            builder.source(weights.clone()).start()?
        }
        None => builder.start()?,
    };

    // 3. The prompt in one step, then one token at a time.
    let sampler = Sampler::new(flags.seed);
    let sampler = sampler.temperature(flags.temperature).top_p(flags.top_p);
    let generate = Generate::new(flags.length).sampler(sampler);
    let is_text = flags.tokens.is_empty();
    if is_text {
        print!("{}", flags.prompt);
    }
    let print = |token: i32| {
        let mut out = std::io::stdout().lock();
        // A closed terminal does not end the comparison.
        let _ = match is_text {
            true => out.write_all(&[token as u8]),
            false => write!(out, "{token} "),
        };
        let _ = out.flush();
    };
    let found = generate.run(&mut pipeline, &prompt, config.steps(), print)?;
    println!("\n");
    report("pipeline", &prompt, &found);
    drop(pipeline);

    // 4. The same loop in plain Burn.
    if flags.compare {
        let device = &devices[0];
        let plain: Llama = match &weights {
            Some(weights) => model.materialize(device, weights)?,
            None => model.materialize(device, &model.initializer(Seed::new(flags.seed)))?,
        };
        let mut plain = Plain::new(&plain, &config, device);
        let expected = generate.run_with(&mut plain, &prompt, |_| ())?;
        report("plain Burn", &prompt, &expected);
        let same = found.tokens.iter().zip(&expected.tokens);
        let equal = same
            .take_while(|(found, expected)| found == expected)
            .count();
        ensure!(
            equal == flags.length,
            "token {equal} differs: the pipeline generates {}, plain Burn {}",
            found.tokens[equal],
            expected.tokens[equal]
        );
        println!("all {equal} tokens are equal");
    }
    Ok(ExitCode::SUCCESS)
}

fn report(name: &str, prompt: &[i32], generated: &Generated) {
    println!(
        "{name}: the first token after {:.1} ms, for a prompt of {}",
        generated.first.as_secs_f64() * 1e3,
        prompt.len()
    );
    if let Some(speed) = generated.tokens_per_s() {
        println!("{name}: {speed:.1} tokens/s after it");
    }
}
