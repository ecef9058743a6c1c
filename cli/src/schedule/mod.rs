//! `tinderbox schedule`: schedules.

mod command;
mod given;

pub(crate) use command::{AutoFlags, ShowFlags, auto, list, show, verify};
pub(crate) use given::{Given, Shape};
