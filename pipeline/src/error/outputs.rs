//! Errors of reading the outputs of a step.

use tinderbox_fake::FakeError;

/// Errors of reading a named output.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The forward has no output with this name.
    #[error("the forward has no output `{name}`; it has {}", listed(known))]
    Unknown {
        /// The name.
        name: String,
        /// The names of its outputs.
        known: Vec<String>,
    },
    /// The output has another rank or kind.
    #[error("the output `{name}` can't be read")]
    Type {
        /// The name.
        name: String,
        /// The cause.
        source: FakeError,
    },
    /// The output has different shapes in different micro-batches, beyond its first dimension.
    #[error(
        "the output `{name}` has shape {first:?} in micro-batch 0 and {other:?} in micro-batch {micro_batch}, which can't be \
         joined along the first dimension: read them one by one (`output`)"
    )]
    Shapes {
        /// The name.
        name: String,
        /// Its shape in the first micro-batch.
        first: Vec<usize>,
        /// Another micro-batch.
        micro_batch: usize,
        /// Its shape there.
        other: Vec<usize>,
    },
}

fn listed(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.is_empty() {
        true => "none: name them with `Outputs::with`".into(),
        false => quoted.join(", "),
    }
}
