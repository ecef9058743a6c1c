//! What the command line says.

use clap::{Arg, Command, value_parser};

pub struct Flags {
    pub ranks: usize,
    pub micro_batches: usize,
    /// How often the plans of a model take turns.
    pub turns: usize,
    /// A part of the name of the models to look at.
    pub model: String,
}

impl Flags {
    /// Reads the command line, or ends the program with a message.
    pub fn read() -> Self {
        let number = |name: &'static str, default: &'static str, help: &'static str| {
            Arg::new(name)
                .long(name)
                .default_value(default)
                .value_parser(value_parser!(u64).range(1..=1024))
                .help(help)
        };
        let command = Command::new("partitioners")
            .about("What each partitioner makes of five models, predicted and measured")
            .arg(number("ranks", "2", "Ranks, with one thread each"))
            .arg(number("micro-batches", "8", "Micro-batches of a step"))
            .arg(number("turns", "7", "Steps that count, of each plan"))
            .arg(
                Arg::new("model")
                    .long("model")
                    .default_value("")
                    .help("A part of the name of the models to look at"),
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
