//! The command line.

use clap::{Parser, ValueEnum, error::ErrorKind};
use tinderbox_models::llama::LlamaConfig;

/// Constructs a Llama model without allocating its parameters, and prints a summary of it.
#[derive(Parser, Debug)]
#[command(name = "summary")]
pub struct Flags {
    /// The model: 8, 70 or 405 billion parameters
    #[arg(long, value_enum, default_value_t = Model::Llama70b)]
    pub model: Model,
    /// Print the modules and parameters as JSON; time and memory go to standard error
    #[arg(long, conflicts_with_all = ["width", "full"])]
    pub json: bool,
    /// Width of the table in columns [default: the width of the terminal]
    #[arg(long, value_name = "N", value_parser = width)]
    pub width: Option<usize>,
    /// Print every layer, instead of collapsing equal ones
    #[arg(long)]
    pub full: bool,
}

/// A Llama model.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Model {
    /// Llama 3, 8 billion parameters in 32 layers
    Llama8b,
    /// Llama 3, 70 billion parameters in 80 layers
    Llama70b,
    /// Llama 3.1, 405 billion parameters in 126 layers
    Llama405b,
}

impl Model {
    /// Returns its sizes.
    pub fn config(self) -> LlamaConfig {
        match self {
            Self::Llama8b => LlamaConfig::llama_3_8b(),
            Self::Llama70b => LlamaConfig::llama_3_70b(),
            Self::Llama405b => LlamaConfig::llama_3_405b(),
        }
    }
}

fn width(text: &str) -> Result<usize, String> {
    const LEAST: usize = 24;
    match text.parse() {
        Ok(width) if width >= LEAST => Ok(width),
        _ => Err(format!("expected a whole number of at least {LEAST}")),
    }
}

impl Flags {
    /// Reads the command line. An invalid value ends the program with a one-line error and exit code 2.
    pub fn read() -> Self {
        Self::try_parse().unwrap_or_else(|error| match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.exit(),
            _ => {
                // Clap's first line has the error, a later one the possible values.
                let text = error.to_string();
                let mut lines = text.lines().map(str::trim);
                let said = lines.next().unwrap_or("error: invalid arguments");
                let possible = lines.find(|line| line.starts_with("[possible values"));
                let space = if possible.is_some() { " " } else { "" };
                eprintln!("{said}{space}{} (see --help)", possible.unwrap_or(""));
                std::process::exit(2)
            }
        })
    }
}
