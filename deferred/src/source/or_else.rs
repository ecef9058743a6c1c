//! A source with a fallback.

use std::collections::BTreeSet;

use burn::tensor::Device;
use tinderbox_fake::DynTensor;

use crate::{
    Mismatch, Mismatches, Observer, ParameterPath, ParameterTable, Request, Source, SourceError,
};

/// A source, and another for the parameters that the first lacks; see [`or_else`](Source::or_else) and
/// [`or_else_in`](Source::or_else_in). A mismatch other than a missing parameter in the first is still an error.
#[derive(Clone, Debug)]
pub struct OrElse<A, B> {
    first: A,
    second: B,
    /// The modules whose parameters may come from the second source; all if `None`.
    modules: Option<Vec<String>>,
}

impl<A: Source, B: Source> OrElse<A, B> {
    pub(crate) fn new(first: A, second: B, modules: Option<Vec<String>>) -> Self {
        Self {
            first,
            second,
            modules,
        }
    }

    /// Splits the mismatches of the first source into parameters that the second may supply, and errors.
    fn split(&self, mismatches: Mismatches) -> (BTreeSet<ParameterPath>, Mismatches) {
        let is_in = |path: &ParameterPath, module: &String| {
            let rest = path.as_str().strip_prefix(module.as_str());
            rest.is_some_and(|rest| module.is_empty() || rest.is_empty() || rest.starts_with('.'))
        };
        let mut missing = BTreeSet::new();
        let mut wrong = Vec::new();
        for mismatch in mismatches.0 {
            match mismatch {
                Mismatch::Missing { path }
                    if self.modules.as_ref().is_none_or(|modules| {
                        modules.iter().any(|module| is_in(&path, module))
                    }) =>
                {
                    missing.insert(path);
                }
                other => wrong.push(other),
            }
        }
        (missing, Mismatches(wrong))
    }

    /// Loads the requested values, of each source as `load` does.
    fn load_of_both(
        &self,
        requests: &[Request],
        load: impl Fn(&dyn Source, &[Request]) -> Result<Vec<DynTensor>, SourceError>,
    ) -> Result<Vec<DynTensor>, SourceError> {
        let missing = match load(&self.first, requests) {
            // Nothing was computed: a source checks all requests before it serves the first.
            Err(SourceError::Mismatch {
                described,
                mismatches,
            }) => {
                let (missing, mut wrong) = self.split(mismatches);
                if self.modules.is_none() && !wrong.0.is_empty() {
                    // The second source is not asked, so it may lack them too.
                    let paths = missing.iter().cloned();
                    wrong.0.extend(paths.map(|path| Mismatch::Missing { path }));
                }
                wrong.none_in(|| described)?;
                missing
            }
            done => return done,
        };
        tracing::info!(
            parameters = missing.len(), lacking = %self.first.describe(),
            source = %self.second.describe(), "what one source lacks comes from another"
        );
        let (theirs, ours): (Vec<_>, Vec<_>) =
            (0..requests.len()).partition(|at| missing.contains(&requests[*at].path));
        let mut values: Vec<Option<DynTensor>> = vec![None; requests.len()];
        let mut load_some = |source: &dyn Source, positions: &[usize]| {
            let some: Vec<Request> = positions.iter().map(|at| requests[*at].clone()).collect();
            let made = load(source, &some)?;
            if made.len() != some.len() {
                return Err(SourceError::Count {
                    described: source.describe(),
                    expected: some.len(),
                    found: made.len(),
                });
            }
            for (at, value) in positions.iter().zip(made) {
                values[*at] = Some(value);
            }
            Ok(())
        };
        load_some(&self.first, &ours)?;
        load_some(&self.second, &theirs)?;
        Ok(values.into_iter().flatten().collect())
    }
}

impl<A: Source, B: Source> Source for OrElse<A, B> {
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        self.load_of_both(requests, |source, some| source.load(some, observer))
    }

    fn load_uncached(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        self.load_of_both(requests, |source, some| {
            source.load_uncached(some, observer)
        })
    }

    /// Requests that the first source can't serve are checked with the second.
    fn check(&self, model: &ParameterTable, requests: &[Request]) -> Result<(), SourceError> {
        let (described, mismatches) = match self.first.check(model, requests) {
            Err(SourceError::Mismatch {
                described,
                mismatches,
            }) => (described, mismatches),
            done => return done,
        };
        let (missing, wrong) = self.split(mismatches);
        wrong.none_in(|| described)?;
        let asked = requests.iter().filter(|r| missing.contains(&r.path));
        let asked: Vec<Request> = asked.cloned().collect();
        self.second.check(model, &asked)
    }

    fn working_bytes(&self, requests: &[Request]) -> u64 {
        let first = self.first.working_bytes(requests);
        first.max(self.second.working_bytes(requests))
    }

    /// Uses the second source: the first has saved values, the second has the seed.
    fn construct(&self, device: &Device, construct: &mut dyn FnMut()) {
        self.second.construct(device, construct);
    }

    fn describe(&self) -> String {
        format!(
            "{}, or else {}",
            self.first.describe(),
            self.second.describe()
        )
    }
}
