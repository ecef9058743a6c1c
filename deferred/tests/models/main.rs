//! Deferred models, their tables, programs, recipes and values, in one program: what links Burn takes long to build.

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
