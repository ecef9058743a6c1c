//! Worlds over every engine: what all ranks see, and what they report of each other.

mod calls;
mod engines;
mod faults;
mod regroup;
mod support;
