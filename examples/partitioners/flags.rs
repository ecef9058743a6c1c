//! The command line.

use clap::{Arg, Command, value_parser};

pub struct Flags {
    pub ranks: usize,
    pub micro_batches: usize,
    /// Number of measured steps of each plan.
    pub turns: usize,
    /// A substring of the names of the models to run.
    pub model: String,
}

impl Flags {
    /// Reads the command line; exits with a message if it is invalid.
    pub fn read() -> Self {
        let number = |name: &'static str, default: &'static str, help: &'static str| {
            Arg::new(name)
                .long(name)
                .default_value(default)
                .value_parser(value_parser!(u64).range(1..=1024))
                .help(help)
        };
        let command = Command::new("partitioners")
            .about("Compares the partitioners on five models, predicted and measured")
            .arg(number("ranks", "2", "Ranks, with one thread each"))
            .arg(number("micro-batches", "8", "Micro-batches per step"))
            .arg(number("turns", "7", "Measured steps of each plan"))
            .arg(
                Arg::new("model")
                    .long("model")
                    .default_value("")
                    .help("Substring of the names of the models to run"),
            );
        let matches = command.get_matches();
        let number = |name: &str| {
            let value = matches.get_one::<u64>(name);
            value.map_or(1, |value| *value as usize)
        };
        Self {
            ranks: number("ranks"),
            micro_batches: number("micro-batches"),
            turns: number("turns"),
            model: matches
                .get_one::<String>("model")
                .cloned()
                .unwrap_or_default(),
        }
    }
}
