//! Worlds over every engine: the values that all ranks see, and the failures that they report.

mod calls;
mod engines;
mod faults;
mod regroup;
mod support;
