//! The differences between two plans: a generic comparison of their JSON, and its text.

mod compare;
#[cfg(test)]
mod tests;
mod text;

pub use compare::{Change, PlanDiff};
