//! What several benches share: figures, a model with its training in a pipeline and in plain Burn, and programs as several
//! processes.

#![allow(
    missing_docs,
    missing_debug_implementations,
    reason = "only benches use it"
)]

pub mod cases;
pub mod figures;
pub mod processes;
