//! Values by running the recorded initialization.

use std::sync::{Arc, OnceLock};

use tinderbox_fake::{DynTensor, FakeError, Graph, NodeId, ValueId};

use crate::program::{Executor, Program, RandomKey, RandomKeys, RunContext, is_random};
use crate::random::{Domain, Seed};
use crate::{Mismatch, Mismatches, ParameterTable, ProgramError, Request, Source, SourceError};

/// Makes parameters as their model would, from a seed.
///
/// Each value depends on the seed, the parameter's path and its own recipe: not on which others are
/// made, in which order, where, or by how many ranks.
#[derive(Clone, Debug)]
pub struct Replay {
    graph: Arc<Graph>,
    table: Arc<ParameterTable>,
    seed: Seed,
    keys: Arc<OnceLock<RandomKeys>>,
}

impl Replay {
    /// Replays the initialization in `graph` of the parameters in `table`.
    pub(crate) fn new(graph: Arc<Graph>, table: Arc<ParameterTable>, seed: Seed) -> Self {
        Self {
            graph,
            table,
            seed,
            keys: Arc::default(),
        }
    }

    /// The keys of all random operations of the initialization: the owner of one is the first
    /// parameter, in visiting order, whose recipe reaches it, and its draw is its position among
    /// the random operations of that recipe. One that no parameter reaches belongs to itself.
    pub fn random_keys(&self) -> &RandomKeys {
        self.keys.get_or_init(|| {
            let parameters = self.table.iter().map(|p| (p.path.as_str(), p.value));
            initialization_keys(&self.graph, parameters)
        })
    }

    fn value(&self, request: &Request, value: ValueId) -> Result<DynTensor, ProgramError> {
        let recipe = self.graph.backward_slice([value], |_| false);
        let program = Program::new(&self.graph, recipe.nodes, &[], &[value], self.random_keys())?;
        let executor = Executor::new(&request.device)?;
        let context = RunContext::initialization(self.seed);
        let mut outputs = executor.load(program).run(Vec::new(), &context)?;
        let tensor = outputs.pop().expect("the program has one output");
        let region = &request.region;
        let tensor = match region.is_whole(&request.shape) {
            true => tensor,
            false => tensor.slice(region),
        };
        Ok(tensor.cast_float(request.dtype))
    }

    fn check(&self, request: &Request) -> Result<ValueId, Vec<Mismatch>> {
        let Some(parameter) = self.table.get(&request.path) else {
            let path = request.path.clone();
            return Err(vec![Mismatch::Missing { path }]);
        };
        let mismatches = request.mismatches(&parameter.shape, parameter.dtype);
        match mismatches.is_empty() {
            true => Ok(parameter.value),
            false => Err(mismatches),
        }
    }
}

/// Keys of the random operations that the parameters of a graph are made with.
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

impl Source for Replay {
    fn load(&self, requests: &[Request]) -> Result<Vec<DynTensor>, SourceError> {
        let mut mismatches = Mismatches::default();
        let mut found = Vec::with_capacity(requests.len());
        for request in requests {
            match self.check(request) {
                Ok(value) => found.push(value),
                Err(found) => mismatches.0.extend(found),
            }
        }
        if !mismatches.0.is_empty() {
            return Err(SourceError::Mismatch {
                described: self.describe(),
                mismatches,
            });
        }
        let values = requests.iter().zip(found);
        values
            .map(|(request, value)| self.value(request, value))
            .collect::<Result<_, _>>()
            .map_err(|source| SourceError::Failed {
                described: self.describe(),
                source: Box::new(source),
            })
    }

    fn describe(&self) -> String {
        format!("replay of the initialization with seed {}", self.seed)
    }
}

/// Values that are in memory already, by path: a gathered model, say.
#[derive(Clone, Debug, Default)]
pub struct Values {
    values: std::collections::BTreeMap<crate::ParameterPath, DynTensor>,
}

impl FromIterator<(crate::ParameterPath, DynTensor)> for Values {
    fn from_iter<I: IntoIterator<Item = (crate::ParameterPath, DynTensor)>>(values: I) -> Self {
        Self {
            values: values.into_iter().collect(),
        }
    }
}

impl Values {
    fn check(&self, request: &Request) -> Result<&DynTensor, Vec<Mismatch>> {
        let path = || request.path.clone();
        let Some(value) = self.values.get(&request.path) else {
            return Err(vec![Mismatch::Missing { path: path() }]);
        };
        let shape: Vec<u64> = value.shape().iter().map(|d| *d as u64).collect();
        let mut mismatches = request.mismatches(&shape, value.dtype());
        if value.is_fake() {
            mismatches.push(Mismatch::Fake { path: path() });
        }
        match mismatches.is_empty() {
            true => Ok(value),
            false => Err(mismatches),
        }
    }
}

/// The requested part of a value that fits the request.
fn part(value: DynTensor, request: &Request) -> Result<DynTensor, FakeError> {
    let part = match request.region.is_whole(&request.shape) {
        true => value,
        false => value.slice(&request.region),
    };
    let part = part.to_device(&request.device)?;
    Ok(part.cast_float(request.dtype))
}

impl Source for Values {
    fn load(&self, requests: &[Request]) -> Result<Vec<DynTensor>, SourceError> {
        let mut mismatches = Mismatches::default();
        let mut values = Vec::with_capacity(requests.len());
        for request in requests {
            match self.check(request) {
                Ok(value) => values.push(value.clone()),
                Err(found) => mismatches.0.extend(found),
            }
        }
        if !mismatches.0.is_empty() {
            return Err(SourceError::Mismatch {
                described: self.describe(),
                mismatches,
            });
        }
        let parts = values.into_iter().zip(requests);
        parts
            .map(|(value, request)| part(value, request))
            .collect::<Result<_, _>>()
            .map_err(|source| SourceError::Failed {
                described: self.describe(),
                source: Box::new(source),
            })
    }

    fn describe(&self) -> String {
        format!("{} values in memory", self.values.len())
    }
}
