//! The indices of a schedule, each with a type of its own, so that stages and ranks are not confused.

use derive_more::Display;
use serde::{Deserialize, Serialize};

/// One newtype per kind of index. They differ in name and meaning only. A step of thousands of ranks has tens of millions
/// of actions, so they are small.
macro_rules! indices {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Serialize, Deserialize)]
        #[serde(transparent)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
        pub struct $name(u32);

        impl $name {
            /// Creates an index, counted from zero. An index of more than 32 bits, which no list has, becomes the largest
            /// of 32 bits.
            pub const fn new(index: usize) -> Self {
                const MOST: usize = u32::MAX as usize;
                Self(if index > MOST { u32::MAX } else { index as u32 })
            }

            /// Returns the number, for indexing a list.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

indices! {
    /// A stage: one part of the cut model, in the order of the forward pass.
    StageIndex;
    /// A rank: one worker with its own list of actions, which runs one or several stages. Also the number of a process of
    /// a world, and the position of a rank in its replica.
    RankIndex;
    /// A micro-batch of one training step.
    MicroBatchIndex;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_a_plain_number_in_text_and_on_disk() {
        let rank = RankIndex::new(7);
        assert_eq!(rank.index(), 7);
        assert_eq!(format!("{rank:>3}"), "  7");
        assert_eq!(serde_json::to_string(&rank).unwrap(), "7");
        assert_eq!(serde_json::from_str::<RankIndex>("7").unwrap(), rank);
        assert!(serde_json::from_str::<RankIndex>("-1").is_err());
    }
}
