//! Deferred models, their tables, programs, recipes and values; in one program, because linking Burn is slow.

mod concurrent;
mod contract;
mod errors;
mod materialize;
mod observe;
mod program;
mod recipe;
mod stability;
mod summary;
mod sums;
mod table;
