//! Keys of random operations.

use tinderbox_fake::{Graph, NodeId, ValueId};

use super::{RandomKey, RandomKeys, is_random};
use crate::random::Domain;

/// Returns the keys of the random operations in the recipes of a graph's parameters.
pub fn initialization_keys<'a>(
    graph: &Graph,
    parameters: impl IntoIterator<Item = (&'a str, ValueId)>,
) -> RandomKeys {
    let mut keys = RandomKeys::new();
    for (path, value) in parameters {
        let recipe = graph.backward_slice([value], |_| false);
        let draws = recipe
            .nodes
            .into_iter()
            .filter(|node| is_random(graph.node(*node)));
        for (draw, node) in (0..).zip(draws) {
            keys.entry(node).or_insert_with(|| RandomKey {
                domain: Domain::Init,
                owner: path.to_owned(),
                draw,
            });
        }
    }
    let unowned: Vec<NodeId> = graph
        .node_ids()
        .filter(|id| is_random(graph.node(*id)) && !keys.contains_key(id))
        .collect();
    for (ordinal, node) in unowned.into_iter().enumerate() {
        keys.insert(
            node,
            RandomKey {
                domain: Domain::Init,
                owner: format!("#{ordinal}"),
                draw: 0,
            },
        );
    }
    keys
}
