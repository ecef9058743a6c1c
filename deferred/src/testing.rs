//! Checks for implementations of [`Source`], with the feature `testing`.

use std::fmt::{Debug, Display};

use burn::tensor::{Device, TensorData};
use parking_lot::Mutex;
use tinderbox_fake::{DynTensor, Region};

use crate::materialize::read_values;
use crate::{
    Mismatch, Observer, ParameterPath, ParameterTable, Request, Source, SourceError, Uncached,
};

/// A violation of the contract of a trait.
#[derive(Debug, thiserror::Error)]
#[error("an implementation violates its contract: {promise}; found {found}")]
pub struct Violation {
    /// The violated requirement.
    pub promise: &'static str,
    /// The observed behaviour.
    pub found: String,
}

/// Tests the contract of [`Source`] on a source that has a value of every parameter of a model, in its own shape and
/// dtype. Loads all of them several times.
///
/// # Errors
///
/// Returns the first violation.
pub fn check_source(
    source: &dyn Source,
    model: &ParameterTable,
    device: &Device,
) -> Result<(), Violation> {
    check(source, model, device)?;
    let uncached = Uncached(source);
    check(&uncached, model, device)?;
    let requests = requests(model, device);
    let promise = "an uncached load has the same values";
    let same = data(&load(&uncached, &requests)?)? == data(&load(source, &requests)?)?;
    expect(promise, same, true)
}

fn requests(model: &ParameterTable, device: &Device) -> Vec<Request> {
    let parameters = model.distinct();
    parameters.map(|p| Request::of(model, p, device)).collect()
}

fn check(source: &dyn Source, model: &ParameterTable, device: &Device) -> Result<(), Violation> {
    let requests = requests(model, device);
    let accepted = source.check(model, &requests);
    done("a model is accepted whose parameters it has", accepted)?;
    expect("it has a description", source.describe().is_empty(), false)?;
    expect("no requests have no values", load(source, &[])?.len(), 0)?;
    let whole = load(source, &requests)?;
    let reversed: Vec<Request> = requests.iter().rev().cloned().collect();
    let mut again = load(source, &reversed)?;
    again.reverse();
    let promise = "values do not depend on the order of the requests";
    expect(promise, data(&again)? == data(&whole)?, true)?;
    let parts = requests.iter().map(|request| Request {
        region: part_of(&request.shape),
        ..request.clone()
    });
    let parts: Vec<Request> = parts.collect();
    let slices = whole.into_iter().zip(&parts);
    let slices: Vec<DynTensor> = slices.map(|(v, part)| v.slice(&part.region)).collect();
    let same = data(&load(source, &parts)?)? == data(&slices)?;
    expect("a part has the elements of the whole", same, true)?;
    rejects(source, &requests)?;
    let mut constructed = 0;
    source.construct(device, &mut || constructed += 1);
    expect("a model is constructed once", constructed, 1)
}

/// Checks that requests that can't be served are rejected together.
fn rejects(source: &dyn Source, requests: &[Request]) -> Result<(), Violation> {
    let Some(first) = requests.first() else {
        return Ok(());
    };
    let unknown = |name: &str| Request {
        path: ParameterPath::new(name),
        clones: Vec::new(),
        ..first.clone()
    };
    let larger = Request {
        shape: first.shape.iter().map(|size| size + 1).collect(),
        ..first.clone()
    };
    let wrong = [unknown("not.a.parameter"), larger, unknown("nor.this")];
    let counted = Counted::default();
    let found = match source.load(&[requests, &wrong[..]].concat(), &counted) {
        Err(SourceError::Mismatch { mismatches, .. }) => mismatches.0,
        other => {
            let found = format!("{:?}", other.map(|values| values.len()));
            let promise = "what can't be served is a mismatch";
            return Err(Violation { promise, found });
        }
    };
    for name in ["not.a.parameter", "nor.this"] {
        let missing = Mismatch::Missing {
            path: ParameterPath::new(name),
        };
        let promise = "all missing parameters are named at once";
        expect(promise, found.contains(&missing), true)?;
    }
    let is_shape = |mismatch: &Mismatch| matches!(mismatch, Mismatch::Shape { .. });
    let promise = "another shape is named with them";
    expect(promise, found.iter().any(is_shape), true)?;
    let loaded = counted.0.into_inner();
    expect("nothing is loaded after an error", loaded, (0, 0))
}

/// Loads values, and checks that each is reported once.
fn load(source: &dyn Source, requests: &[Request]) -> Result<Vec<DynTensor>, Violation> {
    let counted = Counted::default();
    let values = read_values(requests, source, &counted);
    let values = done("requests for its values are served", values)?;
    let bytes = requests.iter().map(Request::bytes).sum();
    let completed = counted.0.into_inner();
    let promise = "every complete value is reported, with its bytes";
    expect(promise, completed, (requests.len(), bytes))?;
    Ok(values)
}

/// Counts complete values and their bytes.
#[derive(Default)]
struct Counted(Mutex<(usize, u64)>);

impl Observer for Counted {
    fn completed(&self, _: &ParameterPath, bytes: u64) {
        let mut counted = self.0.lock();
        counted.0 += 1;
        counted.1 += bytes;
    }
}

fn data(values: &[DynTensor]) -> Result<Vec<TensorData>, Violation> {
    let data = values.iter().map(DynTensor::to_data);
    done("values can be read", data.collect::<Result<_, _>>())
}

/// Returns the last two thirds of each dimension.
fn part_of(shape: &[u64]) -> Region {
    let (offset, size) = shape.iter().map(|size| (size / 3, size - size / 3)).unzip();
    Region::new(offset, size).expect("it is inside of the shape")
}

/// Returns the value of a call that must succeed.
///
/// # Errors
///
/// Returns a violation with the error.
pub fn done<T, E: Display>(promise: &'static str, result: Result<T, E>) -> Result<T, Violation> {
    result.map_err(|error| Violation {
        promise,
        found: format!("error `{error}`"),
    })
}

/// Checks that a value is the expected one.
///
/// # Errors
///
/// Returns a violation with both.
pub fn expect<T: PartialEq + Debug>(
    promise: &'static str,
    found: T,
    expected: T,
) -> Result<(), Violation> {
    if found == expected {
        return Ok(());
    }
    let found = format!("{found:?} instead of {expected:?}");
    Err(Violation { promise, found })
}
