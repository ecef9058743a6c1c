//! Pictures of a step: for the terminal, as SVG, and as a trace for Perfetto and `chrome://tracing`.
//!
//! All three show a [`Timeline`](crate::Timeline), whether predicted by the simulator or measured by
//! a run. They are pure functions to text, deterministic, and take any timeline, also one that was
//! read from a file and that no schedule could have: text of a name is made harmless, and what lies
//! beyond the picture is cut off at its edge.
//!
//! Programs are drawn with their micro-batch. Updates, reduces and sends are drawn where they take
//! time. A receive is time in which the rank waits, so it is drawn as idle.

mod arrows;
mod axis;
mod cells;
mod figures;
mod palette;
mod pieces;
#[cfg(test)]
mod samples;
mod svg;
mod terminal;
mod trace;
mod units;

pub use svg::{SvgOptions, svg};
pub use terminal::{TerminalOptions, terminal};
pub use trace::trace;
