//! Cuts a joint graph into programs: per stage a forward, a whole backward, and the backward in two halves.
//!
//! A forward operation runs on the stage that the plan assigns it to. The stage of a backward operation is found in this order:
//!
//! 1. An operation that computes the gradient of a parameter runs on the owner of the parameter, if all values that it reads
//!    are available there and no other operation reads its result.
//! 2. Any other operation runs on the highest stage at which all forward values that it reads are available. That stage is not
//!    above the lowest stage among its gradient inputs.
//! 3. If no stage has all values, the operation runs on the stage that lacks the fewest bytes.
//! 4. An operation that reads only gradients moves to lower stages, toward its users, if this sends no more bytes.
//!
//! So gradients are computed by Burn's own operations under every cut, and data flows backward only from higher stages to lower
//! ones.
//!
//! The backward of a stage has two halves. The first half, `I`, computes the values that other stages wait for. The second
//! half, `W`, computes the gradients of the stage's own parameters. Values that both need are computed by `I` and kept for
//! `W`, except values that are cheaper to recompute. Both halves run the operations of the whole backward on the same
//! operands, so they compute the same bits.

mod assign;
mod cutting;
mod layout;
mod parts;
mod phase;
mod place;
mod programs;

pub use cutting::Cutting;
pub use layout::Layout;
pub use phase::{Binding, Phase};
pub use place::place_gradients;
pub use programs::{StagePrograms, step_bytes};
