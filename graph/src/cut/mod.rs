//! Cuts a joint graph into programs: per stage a forward and a backward, the backward whole and in two.
//!
//! Forward operations go where the plan says. A backward operation that makes the gradient of a parameter goes to the stage of
//! the parameter, if all that it reads is available there and no other operation reads its result. Any other goes to the highest
//! stage, not above the lowest stage among its gradient inputs, at which all forward values that it reads are available. Where
//! no stage has all of them, it goes to the one where the fewest bytes are missing. One that reads only gradients sinks toward
//! its users when no more bytes cross. So gradients are Burn's own, whatever the cut, and data flows backward only from higher
//! stages to lower ones.
//!
//! The backward of a stage is divided by what it is for: its first half, `I`, makes what other stages
//! wait for, its second half, `W`, the gradients of the stage's own parameters. What both need is made
//! by the first and kept for the second, except for what is cheaper to recompute. Both run the operations
//! of the whole, each on the same operands, so they give its bits.

mod assign;
mod cutting;
mod layout;
mod parts;
mod phase;
mod place;
mod programs;
mod takes;

pub use cutting::Cutting;
pub use layout::Layout;
pub use phase::{Binding, Phase};
pub use place::place_gradients;
pub use programs::{StagePrograms, step_bytes};
