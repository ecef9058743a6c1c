//! How often which fault happened where.

use std::collections::BTreeMap;
use std::fmt;

use crate::faults::{KINDS, Kind, PHASES, PLACES, Phase, Place};

#[derive(Debug, Default)]
pub struct Table(BTreeMap<(Place, Phase, Kind), u64>);

impl Table {
    pub fn add(&mut self, happened: &[(Kind, Place, Phase)]) {
        for (kind, place, phase) in happened {
            *self.0.entry((*place, *phase, *kind)).or_default() += 1;
        }
    }

    pub fn join(&mut self, other: Self) {
        for (key, count) in other.0 {
            *self.0.entry(key).or_default() += count;
        }
    }

    fn of(&self, place: Place, phase: Phase, kind: Kind) -> u64 {
        self.0.get(&(place, phase, kind)).copied().unwrap_or(0)
    }

    /// What happened fewer times than this.
    pub fn rare(&self, least: u64) -> Vec<(Place, Phase, Kind, u64)> {
        let all = PLACES.iter().flat_map(|place| {
            let phases = PHASES.iter();
            phases.flat_map(move |phase| KINDS.iter().map(move |kind| (*place, *phase, *kind)))
        });
        let possible = all.filter(|(place, phase, kind)| place.can_have(*kind, *phase));
        let counted = possible.map(|(place, phase, kind)| {
            let count = self.of(place, phase, kind);
            (place, phase, kind, count)
        });
        counted.filter(|(.., count)| *count < least).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:14} {:6}", "place", "phase")?;
        for kind in KINDS {
            write!(f, "{:>9}", format!("{kind:?}"))?;
        }
        writeln!(f)?;
        for place in PLACES {
            for phase in PHASES {
                if !place.can_have(Kind::Kill, phase) {
                    continue;
                }
                let (name, of) = (format!("{place:?}"), format!("{phase:?}"));
                write!(f, "{name:14} {of:6}")?;
                for kind in KINDS {
                    match place.can_have(kind, phase) {
                        true => write!(f, "{:>9}", self.of(place, phase, kind))?,
                        false => write!(f, "{:>9}", "-")?,
                    }
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}
