//! The scheduler and the links in two hundred settings, and the errors of the scheduler.

mod auto;
mod waiting;
