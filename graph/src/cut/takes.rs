//! How often each value of a micro-batch is taken at a stage, by who makes it.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_fake::ValueId;

use super::parts::Parts;
use crate::schedule::{Compute, Edge};
use crate::trace::JointGraph;

/// How often a value is taken, which depends on how the backward of its micro-batch runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// Where it runs whole, as `B`.
    pub whole: usize,
    /// Where it runs as `I` and `W`.
    pub split: usize,
}

impl Takes {
    /// The number for a micro-batch.
    pub fn of(self, is_split: bool) -> usize {
        if is_split { self.split } else { self.whole }
    }

    fn add(&mut self, whole: usize, split: usize) {
        self.whole += whole;
        self.split += split;
    }
}

/// The values of a micro-batch that somebody takes, by who makes them.
pub(super) struct Taken {
    /// The forward, or for a named output whoever gave it to the forward.
    pub(super) forward: BTreeMap<ValueId, Takes>,
    /// Other stages.
    pub(super) messages: BTreeMap<ValueId, Takes>,
    /// `B`, or `I`.
    pub(super) backward: BTreeMap<ValueId, Takes>,
    /// What the forward makes, taken or not, but for what is handed to it; and the running states that it reads, which
    /// it hands to the backward as it read them.
    made_forward: BTreeSet<ValueId>,
}

impl Taken {
    /// Counts the uses by the programs of a stage, in the order of [`Compute::ALL`], and by messages.
    pub(super) fn count(
        joint: &JointGraph,
        [forward, whole, input, weight]: [&Parts; Compute::ALL.len()],
        sends: &BTreeMap<Edge, Vec<ValueId>>,
        receives: &BTreeMap<Edge, Vec<ValueId>>,
    ) -> Self {
        let coming = receives.values().flatten();
        let mut taken = Self {
            forward: BTreeMap::new(),
            messages: coming.map(|value| (*value, Takes::default())).collect(),
            backward: BTreeMap::new(),
            made_forward: forward.made(joint),
        };
        let states = joint.running().iter();
        let states = states.map(|position| joint.parameters()[*position]);
        let read = states.filter(|state| forward.reads.contains(state));
        taken.made_forward.extend(read);
        for (edge, values) in sends {
            let makers = match edge.from.compute {
                Compute::Forward => &mut taken.forward,
                _ => &mut taken.backward,
            };
            for value in values {
                makers.entry(*value).or_default().add(1, 1);
            }
        }
        // The loss and each named output are read once by the driver.
        let named = joint.outputs().iter().map(|(_, value)| *value);
        let results = named.chain(joint.loss());
        for value in results.filter(|value| forward.targets.contains(value)) {
            taken.forward.entry(value).or_default().add(1, 1);
        }
        for value in &forward.reads {
            if let Some(takes) = taken.messages.get_mut(value) {
                takes.add(1, 1);
            }
        }
        taken.add_reads(&whole.reads, 1, 0);
        taken.add_reads(&input.reads, 0, 1);
        // What `I` makes is handed from it to `W`, also where the forward has made it before: a stage
        // that recomputes keeps nothing of its forward.
        let made = input.made(joint);
        taken.add_reads(weight.reads.difference(&made), 0, 1);
        for value in weight.reads.intersection(&made) {
            taken.backward.entry(*value).or_default().add(0, 1);
        }
        taken
    }

    /// Counts what a backward program reads of the forward and of messages.
    fn add_reads<'v>(
        &mut self,
        reads: impl IntoIterator<Item = &'v ValueId>,
        whole: usize,
        split: usize,
    ) {
        for value in reads {
            if self.made_forward.contains(value) {
                self.forward.entry(*value).or_default().add(whole, split);
            } else if let Some(takes) = self.messages.get_mut(value) {
                takes.add(whole, split);
            }
        }
    }

    /// The values that a program makes for others.
    pub(super) fn outputs(&self, compute: Compute) -> Vec<(ValueId, Takes)> {
        let made = match compute {
            Compute::Forward => &self.forward,
            Compute::Backward | Compute::InputGradient => &self.backward,
            _ => return Vec::new(),
        };
        let made = made.iter().map(|(value, takes)| (*value, *takes));
        let kept = made.filter(|(_, takes)| match compute {
            Compute::Forward => true,
            _ => takes.of(compute == Compute::InputGradient) > 0,
        });
        kept.collect()
    }

    /// Whether a value is available before the backward: the forward made it, or it came for the forward.
    pub(super) fn is_of_forward(&self, value: ValueId, forward: &Parts) -> bool {
        let came = self.messages.contains_key(&value) && forward.reads.contains(&value);
        came || self.made_forward.contains(&value)
    }

    /// Whether a value is kept with its micro-batch.
    pub(super) fn is_value(&self, value: ValueId) -> bool {
        self.made_forward.contains(&value)
            || self.messages.contains_key(&value)
            || self.backward.contains_key(&value)
    }
}
