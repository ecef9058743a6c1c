//! Pictures of a step: for the terminal, as SVG, and as a trace for Perfetto and `chrome://tracing`.
//!
//! All three show a [`Timeline`](crate::Timeline), predicted by the simulator or measured in a run. They
//! are pure functions to text: equal timelines have equal bytes. They accept any timeline, even an
//! invalid one: names are escaped, and times after the end are drawn at the edge.
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

pub use picture::{BUBBLE, IDLE, meanings};
pub use svg::svg;
pub use terminal::terminal;
pub use trace::trace;
