//! The points of a run at which a test calls a function.

use crate::schedule::Action;

/// The next work of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Its rank runs an action of its list.
    Action(Action),
    /// It sends the losses and norms of its rank to all others.
    Report,
    /// It waits until its keepers have the last snapshot, and takes one.
    Snapshot,
    /// It sends a part of a snapshot to its keeper.
    Keep,
    /// It agrees with the others on the processes that remain.
    Regroup,
    /// It moves snapshots to the processes that need them under the next plan.
    Move,
    /// It starts its rank again.
    Restart,
}

#[cfg(not(feature = "testing"))]
pub(crate) const fn reach(_: Point) {}

#[cfg(feature = "testing")]
pub use testing::at_points;
#[cfg(feature = "testing")]
pub(crate) use testing::reach;

#[cfg(feature = "testing")]
mod testing {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::Point;

    type Reached = Rc<dyn Fn(Point)>;

    thread_local! {
        static REACHED: RefCell<Option<Reached>> = const { RefCell::new(None) };
    }

    /// Calls a function at every [`Point`] that ranks on this thread reach while code runs. These are the ranks of a
    /// simulation.
    ///
    /// The function may panic at [`Point::Action`], as the action could.
    pub fn at_points<R>(reached: impl Fn(Point) + 'static, run: impl FnOnce() -> R) -> R {
        let before = REACHED.replace(Some(Rc::new(reached)));
        let result = run();
        REACHED.set(before);
        result
    }

    pub(crate) fn reach(point: Point) {
        let reached = REACHED.with_borrow(Clone::clone);
        if let Some(reached) = reached {
            reached(point);
        }
    }
}
