//! What holds for the structure of all crates: read from their sources, with a parser.

mod host;
mod imports;
mod limits;
mod pure;
mod sizes;
mod source;
mod surface;
