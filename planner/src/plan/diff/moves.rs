//! Parameters that another stage owns, those of a module together.

use std::collections::BTreeMap;
use std::ops::Range;

use tinderbox_path::ParameterPath;

use super::{ParameterMove, StagePlace};
use crate::PlanFile;

/// Names of modules deeper than this stand for themselves: no model is so deep, a made-up file may be.
const DEPTH: usize = 32;

/// Where a parameter was and where it is.
type Places = (Option<StagePlace>, Option<StagePlace>);

/// One parameter of both models, in the order of the earlier one's table.
struct Item<'a> {
    path: &'a str,
    /// `None` where it did not move.
    places: Option<Places>,
}

/// The parameters whose stage is another one.
pub(super) fn moves(earlier: &PlanFile, later: &PlanFile) -> Vec<ParameterMove> {
    let (before, after) = (owners(earlier), owners(later));
    let known: BTreeMap<&ParameterPath, ()> =
        later.parameters.iter().map(|one| (&one.path, ())).collect();
    let both = earlier
        .parameters
        .iter()
        .filter(|one| known.contains_key(&one.path));
    let items: Vec<Item<'_>> = both
        .map(|one| {
            let places = (
                before.get(&one.path).copied(),
                after.get(&one.path).copied(),
            );
            let stage = |place: Option<StagePlace>| place.map(|place| place.stage);
            Item {
                path: one.path.as_str(),
                places: (stage(places.0) != stage(places.1)).then_some(places),
            }
        })
        .collect();
    let mut found = Found {
        items: &items,
        moves: Vec::new(),
        end: 0,
    };
    found.search(0..items.len(), 0);
    found.moves
}

/// The stage that owns each parameter; the first that says so.
fn owners(plan: &PlanFile) -> BTreeMap<&ParameterPath, StagePlace> {
    let mut owners = BTreeMap::new();
    for stage in &plan.stages {
        for path in &stage.parameters {
            owners.entry(path).or_insert(StagePlace {
                stage: stage.stage,
                rank: stage.rank,
            });
        }
    }
    owners
}

struct Found<'a> {
    items: &'a [Item<'a>],
    moves: Vec<ParameterMove>,
    /// Behind the last parameter of the last move.
    end: usize,
}

impl Found<'_> {
    /// Looks for modules that moved as a whole among parameters with the same first `depth` names.
    fn search(&mut self, range: Range<usize>, depth: usize) {
        let mut start = range.start;
        while start < range.end {
            let name = prefix(self.items[start].path, depth + 1);
            let same = |item: &&Item<'_>| prefix(item.path, depth + 1) == name;
            let length = self.items[start..range.end].iter().take_while(same).count();
            let end = start + length;
            let places = self.items[start].places;
            let moved = |item: &Item<'_>| item.places == places;
            match places {
                _ if !self.items[start..end].iter().all(moved) => match depth + 1 < DEPTH {
                    true => self.search(start..end, depth + 1),
                    false => self.each(start..end),
                },
                Some(places) => self.push(name, start..end, places),
                None => {}
            }
            start = end;
        }
    }

    /// Parameters that can't be told apart by modules.
    fn each(&mut self, range: Range<usize>) {
        for at in range {
            if let Some(places) = self.items[at].places {
                self.push(self.items[at].path, at..at + 1, places);
            }
        }
    }

    /// Adds a module to the move right before it, if it moved as that did.
    fn push(&mut self, name: &str, range: Range<usize>, (from, to): Places) {
        let parameters = range.len();
        match self.moves.last_mut() {
            Some(last) if self.end == range.start && (last.from, last.to) == (from, to) => {
                last.last = Some(name.to_owned());
                last.parameters += parameters;
            }
            _ => self.moves.push(ParameterMove {
                first: name.to_owned(),
                last: None,
                parameters,
                from,
                to,
            }),
        }
        self.end = range.end;
    }
}

/// The first names of a path.
fn prefix(path: &str, names: usize) -> &str {
    let mut dots = path.match_indices('.');
    match dots.nth(names.saturating_sub(1)) {
        Some((at, _)) => &path[..at],
        None => path,
    }
}
