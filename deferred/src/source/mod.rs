//! Sources of parameter values.

mod request;
mod values;

use std::collections::BTreeSet;
use std::sync::Arc;

use burn::tensor::Device;
use tinderbox_fake::DynTensor;

use crate::{Mismatch, Mismatches, Observer, ParameterPath, ParameterTable, SourceError};

pub use request::Request;
pub use values::Values;

/// The values of a load, in the order of the requests.
pub type Loaded = Result<Vec<DynTensor>, SourceError>;

/// Values of parameters, by path and region: an [`Initializer`](crate::Initializer), a checkpoint,
/// a gathered model.
pub trait Source: Send + Sync {
    /// Loads the requested values, in the order of the requests.
    ///
    /// # Errors
    ///
    /// All requests that can't be served are named in one [`SourceError::Mismatch`], and so are all
    /// [values that differ](Mismatch::Differ) under the paths of one parameter. An error returns no values.
    ///
    /// The observer is notified of each complete value; `&()` ignores all events.
    fn load(&self, requests: &[Request], observer: &dyn Observer) -> Loaded;

    /// Loads values that are loaded repeatedly, and for which the system's cache of files is too small: a source of files
    /// reads around the cache. The default is [`load`](Self::load).
    ///
    /// # Errors
    ///
    /// The errors of [`load`](Self::load).
    fn load_uncached(&self, requests: &[Request], observer: &dyn Observer) -> Loaded {
        self.load(requests, observer)
    }

    /// Checks a model and the requests before anything is computed, for example for values that a source has
    /// and the model does not. Accepts everything by default; requests that
    /// [`load`](Self::load) rejects need not be rejected here.
    ///
    /// # Errors
    ///
    /// All mismatches, in one [`SourceError::Mismatch`].
    fn check(&self, _model: &ParameterTable, _requests: &[Request]) -> Result<(), SourceError> {
        Ok(())
    }

    /// Returns the bytes, as far as known, that a load temporarily needs in addition to the values. They are compared with
    /// the available memory before anything is computed. 0 by default.
    fn working_bytes(&self, _requests: &[Request]) -> u64 {
        0
    }

    /// Runs the closure that constructs a model, for the parameters that this source loads. A source with a seed can seed
    /// the backend's generator first, so that values that the closure draws outside of parameters are the same each time.
    fn construct(&self, _device: &Device, construct: &mut dyn FnMut()) {
        construct();
    }

    /// Returns a description for error messages, such as ``initializer with seed 42`` or a directory.
    fn describe(&self) -> String;

    /// Combines this source with another for the parameters that it lacks: for example a checkpoint, and an initializer for
    /// parameters that were added to the model since.
    fn or_else<S: Source>(self, other: S) -> OrElse<Self, S>
    where
        Self: Sized,
    {
        OrElse {
            first: self,
            second: other,
            modules: None,
        }
    }

    /// Combines the sources as [`or_else`](Self::or_else) does, for the parameters of these modules only. A parameter of
    /// another module that this source lacks is an error, for example after a wrong renaming.
    fn or_else_in<S: Source>(self, modules: &[&str], other: S) -> OrElse<Self, S>
    where
        Self: Sized,
    {
        let modules = modules.iter().map(|module| (*module).to_owned());
        OrElse {
            modules: Some(modules.collect()),
            ..self.or_else(other)
        }
    }

    /// Combines the values of this source with the construction of another: for example saved values, and an initializer
    /// that seeds the values that the constructor draws outside of parameters.
    fn constructed_by<C: Source>(self, constructor: C) -> ConstructedBy<Self, C>
    where
        Self: Sized,
    {
        ConstructedBy {
            values: self,
            constructor,
        }
    }
}

/// Implements methods of a source by the methods of another source.
macro_rules! forward {
    ($self:ident => $to:expr; $($method:ident)*) => { $(forward!(@$method $self, $to);)* };
    (@load $self:ident, $to:expr) => {
        fn load(&$self, requests: &[Request], observer: &dyn Observer) -> Loaded {
            $to.load(requests, observer)
        }
    };
    (@load_uncached $self:ident, $to:expr) => {
        fn load_uncached(&$self, requests: &[Request], observer: &dyn Observer) -> Loaded {
            $to.load_uncached(requests, observer)
        }
    };
    (@check $self:ident, $to:expr) => {
        fn check(&$self, model: &ParameterTable, requests: &[Request]) -> Result<(), SourceError> {
            $to.check(model, requests)
        }
    };
    (@working_bytes $self:ident, $to:expr) => {
        fn working_bytes(&$self, requests: &[Request]) -> u64 {
            $to.working_bytes(requests)
        }
    };
    (@construct $self:ident, $to:expr) => {
        fn construct(&$self, device: &Device, construct: &mut dyn FnMut()) {
            $to.construct(device, construct);
        }
    };
    (@describe $self:ident, $to:expr) => {
        fn describe(&$self) -> String {
            $to.describe()
        }
    };
}

impl<S: Source + ?Sized> Source for &S {
    forward!(self => (**self); load load_uncached check working_bytes construct describe);
}

impl<S: Source + ?Sized> Source for Box<S> {
    forward!(self => (**self); load load_uncached check working_bytes construct describe);
}

impl<S: Source + ?Sized> Source for Arc<S> {
    forward!(self => (**self); load load_uncached check working_bytes construct describe);
}

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
    /// Splits the mismatches of the first source into parameters that the second may supply, and errors.
    fn split(&self, mismatches: Mismatches) -> (BTreeSet<ParameterPath>, Mismatches) {
        let may_supply = |path: &ParameterPath| match &self.modules {
            Some(modules) => modules.iter().any(|module| path.is_under(module)),
            None => true,
        };
        let mut missing = BTreeSet::new();
        let mut wrong = Vec::new();
        for mismatch in mismatches.0 {
            match mismatch {
                Mismatch::Missing { path } if may_supply(&path) => {
                    missing.insert(path);
                }
                other => wrong.push(other),
            }
        }
        (missing, Mismatches(wrong))
    }
}

impl<A: Source, B: Source> Source for OrElse<A, B> {
    fn load(&self, requests: &[Request], observer: &dyn Observer) -> Loaded {
        let missing = match self.first.load(requests, observer) {
            // Nothing was computed: a source checks all requests before it serves the first.
            Err(SourceError::Mismatch {
                described,
                mismatches,
            }) => {
                let (missing, mut wrong) = self.split(mismatches);
                if self.modules.is_none() && !wrong.0.is_empty() {
                    // The second source gets no requests, so it may lack them too.
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
            source = %self.second.describe(), "a second source supplies the missing parameters"
        );
        let mut values: Vec<Option<DynTensor>> = vec![None; requests.len()];
        let sources: [(&dyn Source, bool); 2] = [(&self.first, false), (&self.second, true)];
        for (source, has_missing) in sources {
            let supplies = |at: &usize| missing.contains(&requests[*at].path) == has_missing;
            let positions: Vec<usize> = (0..requests.len()).filter(supplies).collect();
            let some: Vec<Request> = positions.iter().map(|at| requests[*at].clone()).collect();
            let made = one_per_request(source, &some, source.load(&some, observer)?)?;
            for (at, value) in positions.into_iter().zip(made) {
                values[at] = Some(value);
            }
        }
        Ok(values.into_iter().flatten().collect())
    }

    fn load_uncached(&self, requests: &[Request], observer: &dyn Observer) -> Loaded {
        let uncached = OrElse {
            first: Uncached(&self.first),
            second: Uncached(&self.second),
            modules: self.modules.clone(),
        };
        uncached.load(requests, observer)
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
        let lacking = requests.iter().filter(|r| missing.contains(&r.path));
        let lacking: Vec<Request> = lacking.cloned().collect();
        self.second.check(model, &lacking)
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
        let (first, second) = (self.first.describe(), self.second.describe());
        format!("{first}, or else {second}")
    }
}

/// The values of one source, in models that are constructed for another one; see
/// [`constructed_by`](Source::constructed_by).
#[derive(Clone, Debug)]
pub struct ConstructedBy<S, C> {
    values: S,
    constructor: C,
}

impl<S: Source, C: Source> Source for ConstructedBy<S, C> {
    forward!(self => self.values; load load_uncached check working_bytes describe);
    forward!(self => self.constructor; construct);
}

/// A source that reports all of its loads to an observer, in addition to the observer of each load: for example the loads
/// of all ranks of a pipeline.
#[derive(Clone, derive_more::Debug)]
pub struct Observed<S> {
    source: S,
    #[debug(skip)]
    observer: Arc<dyn Observer>,
}

impl<S: Source> Observed<S> {
    /// Creates a source with an observer.
    pub fn new(source: S, observer: Arc<dyn Observer>) -> Self {
        Self { source, observer }
    }
}

impl<S: Source> Source for Observed<S> {
    fn load(&self, requests: &[Request], observer: &dyn Observer) -> Loaded {
        let bytes = requests.iter().map(Request::bytes).sum();
        self.observer.begin(requests.len(), bytes);
        let both = Both(observer, &*self.observer);
        let values = self.source.load(requests, &both)?;
        self.observer.end();
        Ok(values)
    }

    fn load_uncached(&self, requests: &[Request], observer: &dyn Observer) -> Loaded {
        Observed::new(Uncached(&self.source), self.observer.clone()).load(requests, observer)
    }

    forward!(self => self.source; check working_bytes construct describe);
}

/// Reports each value to two observers.
struct Both<'a>(&'a dyn Observer, &'a dyn Observer);

impl Observer for Both<'_> {
    fn advanced(&self, bytes: u64) {
        self.0.advanced(bytes);
        self.1.advanced(bytes);
    }

    fn completed(&self, path: &ParameterPath, bytes: u64) {
        self.0.completed(path, bytes);
        self.1.completed(path, bytes);
    }
}

/// A source with only [uncached](Source::load_uncached) loads.
#[derive(Clone, Debug)]
pub struct Uncached<S>(pub S);

impl<S: Source> Source for Uncached<S> {
    fn load(&self, requests: &[Request], observer: &dyn Observer) -> Loaded {
        self.0.load_uncached(requests, observer)
    }

    forward!(self => self.0; check working_bytes construct describe);
}

/// Returns the values that a source has loaded, if there is one for each request.
pub(crate) fn one_per_request(
    source: &dyn Source,
    requests: &[Request],
    values: Vec<DynTensor>,
) -> Loaded {
    match values.len() == requests.len() {
        true => Ok(values),
        false => Err(SourceError::Count {
            described: source.describe(),
            expected: requests.len(),
            found: values.len(),
        }),
    }
}

/// Returns the value for each request, or all mismatches in one error.
pub(crate) fn check_all<T>(
    source: &impl Source,
    requests: &[Request],
    check: impl Fn(&Request) -> Result<T, Vec<Mismatch>>,
) -> Result<Vec<T>, SourceError> {
    let mut mismatches = Mismatches::default();
    let mut found = Vec::with_capacity(requests.len());
    for request in requests {
        match check(request) {
            Ok(answer) => found.push(answer),
            Err(more) => mismatches.0.extend(more),
        }
    }
    mismatches.none_in(|| source.describe())?;
    Ok(found)
}
