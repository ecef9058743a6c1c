//! Timelines for the tests of all pictures, and the tests of whole SVGs.

pub(super) mod samples;
mod svg;
