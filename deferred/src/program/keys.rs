//! Keys of random operations.

use tinderbox_fake::{Graph, NodeId, ValueId};

use super::{RandomKey, RandomKeys, is_random};
use crate::random::Domain;

/// Returns the keys of the random operations of an initialization, given its parameters in visiting order.
///
/// The owner of an operation is the first parameter whose recipe contains it, and its draw is its index among the random
/// operations of that recipe. An operation that is in no recipe is its own owner.
pub fn initialization_keys<'a>(
    graph: &Graph,
    parameters: impl IntoIterator<Item = (&'a str, ValueId)>,
) -> RandomKeys {
    let key = |owner: String, draw| RandomKey {
        domain: Domain::Init,
        owner,
        draw,
    };
    let mut keys = RandomKeys::new();
    for (path, value) in parameters {
        let recipe = graph.backward_slice([value], |_| false).nodes;
        let draws = recipe.into_iter().filter(|id| is_random(graph.node(*id)));
        for (draw, node) in (0..).zip(draws) {
            keys.entry(node)
                .or_insert_with(|| key(path.to_owned(), draw));
        }
    }
    let random = graph.node_ids().filter(|id| is_random(graph.node(*id)));
    let unowned: Vec<NodeId> = random.filter(|id| !keys.contains_key(id)).collect();
    let unowned = unowned.into_iter().enumerate();
    keys.extend(unowned.map(|(ordinal, node)| (node, key(format!("#{ordinal}"), 0))));
    keys
}
