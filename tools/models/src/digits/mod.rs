//! A classifier of small handwritten digits, and its data set.

pub mod data;
pub mod model;
