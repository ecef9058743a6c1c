//! Pictures of a step: for the terminal, as SVG, and as a trace for Perfetto and `chrome://tracing`.
//!
//! All three show a [`Timeline`](crate::Timeline), predicted by the simulator or measured in a run. They
//! are pure functions to text: equal timelines have equal bytes. They accept any timeline, also
//! one of no schedule: names are escaped, and times after the end are drawn at the edge.
//!
//! Programs are drawn with their micro-batch. Updates, reduces and sends are drawn where they have a
//! duration. During a receive the rank waits, so it is drawn as idle.

#[doc(hidden)]
pub mod escape;
mod palette;
mod picture;
mod svg;
mod terminal;
#[cfg(test)]
mod tests;
mod trace;
#[doc(hidden)]
pub mod units;

#[doc(hidden)]
pub use palette::COLORS;
pub use svg::{SvgOptions, svg};
pub use terminal::{TerminalOptions, terminal};
pub use trace::trace;
