//! `tinderbox schedule`: schedules.

mod command;
mod given;

pub(crate) use command::{AutoFlags, ShowFlags, auto, list, meanings, show, verify};
pub(crate) use given::{Given, OfNames, Shape};
