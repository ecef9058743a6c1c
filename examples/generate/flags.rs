//! The command line.

use std::path::PathBuf;

use clap::{Parser, error::ErrorKind};

const NOTES: &str =
    "Without --weights the model is small, of bytes, and has initial values: it generates noise.
Exit codes: 0 on success, 1 on failure, 2 for invalid arguments, 3 if a device is not available.";

/// Continues a text with a Llama model in pipeline stages, on one machine.
#[derive(Parser, Debug, Clone)]
#[command(name = "generate", after_help = NOTES)]
pub struct Flags {
    /// Text to continue, as bytes
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "ROMEO:\n",
        conflicts_with = "tokens"
    )]
    pub prompt: String,
    /// Tokens to continue, such as 1,450,4996; the generated ones are printed as numbers
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(i32).range(0..))]
    pub tokens: Vec<i32>,
    /// Number of tokens to generate
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = at_least_one)]
    pub length: usize,
    /// Directory with config.json and model.safetensors (or its parts) of a Llama model, in Hugging Face's form
    #[arg(long, value_name = "DIR", requires = "tokens")]
    pub weights: Option<PathBuf>,
    /// Number of pipeline stages, each on a rank with its own thread
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = at_least_one)]
    pub stages: usize,
    /// Devices of the ranks, assigned in turn: flex (the CPU); with the feature cuda: cuda, or a list
    #[arg(long, value_name = "LIST", default_value = "flex")]
    pub device: String,
    /// Temperature of the probabilities from which tokens are drawn; 0 takes the most likely one
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = not_negative)]
    pub temperature: f32,
    /// Draw from the fewest tokens that have this probability together
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = probability)]
    pub top_p: f32,
    /// Seed of initial values and of the tokens that are drawn
    #[arg(long, value_name = "SEED", default_value_t = 42)]
    pub seed: u64,
    /// Also generate with plain Burn on one device, and compare tokens and speed
    #[arg(long)]
    pub compare: bool,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(_) => Err("it must be a whole number".into()),
    }
}

fn not_negative(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number >= 0.0 && number.is_finite() => Ok(number),
        _ => Err("it must be a number of at least 0".into()),
    }
}

fn probability(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(p) if p > 0.0 && p <= 1.0 => Ok(p),
        _ => Err("it must be a number above 0 and at most 1".into()),
    }
}

impl Flags {
    /// Reads the command line. An invalid value ends the program with a one-line error and exit code 2.
    pub fn read() -> Self {
        let flags = Self::try_parse().unwrap_or_else(|error| match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.exit(),
            _ => {
                let text = error.to_string();
                let line = text
                    .lines()
                    .next()
                    .unwrap_or("error: invalid arguments")
                    .to_owned();
                usage(line.strip_prefix("error: ").unwrap_or(&line))
            }
        });
        if flags.tokens.is_empty() && flags.prompt.is_empty() {
            usage("the prompt is empty: it must have at least one byte");
        }
        flags
    }

    /// Returns the tokens of the prompt.
    pub fn prompt(&self) -> Vec<i32> {
        match self.tokens.is_empty() {
            true => self.prompt.bytes().map(i32::from).collect(),
            false => self.tokens.clone(),
        }
    }
}

/// Ends the program with an error about an invalid value.
pub fn usage(message: &str) -> ! {
    eprintln!("error: {message} (see --help)");
    std::process::exit(2)
}
