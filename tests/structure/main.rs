//! What holds for the structure of all crates: read from their sources, with a parser.

mod imports;
mod source;
