//! Fields of a module that visitors do not see, from its debug text.

use std::collections::BTreeSet;
use std::fmt::Debug;

use burn::module::Module;

use super::visit::collect_all;

/// Returns the paths of the fields of a module that are tensors but not parameters, for errors. It returns all of them,
/// because Burn does not show which tensor a field has. Fields of types with another debug format are not found.
pub fn tensor_fields(module: &impl Debug) -> Vec<String> {
    paths_of(module, |value| value == "Tensor {")
}

/// Returns the paths of the parameters of a module that its visitors do not see, as in a field with `#[module(skip)]`,
/// for errors. Fields of types with another debug format are not found.
pub fn skipped_parameters(module: &impl Module) -> Vec<String> {
    // Flags, such as the one of a dropout, are parameters that are not tensors.
    let seen = collect_all(module, |place, _| Some(place.id.to_string()));
    let seen: BTreeSet<String> = seen.into_iter().collect();
    let is_unseen = |id: &str| !seen.contains(id);
    paths_of(module, |value| parameter_id(value).is_some_and(is_unseen))
}

/// The prefix of the debug text of a parameter; its id follows.
const PARAMETER: &str = "Param: ";

/// Returns the id of a parameter from its debug text.
fn parameter_id(value: &str) -> Option<&str> {
    value.strip_prefix(PARAMETER)?.split_whitespace().next()
}

/// The last characters of a line that opens a value.
const OPENING: [char; 3] = ['{', '[', '('];

/// Returns the paths of the running states of a module that have updates which they have not applied, for errors. States
/// of types with another debug format are not found.
pub fn pending_states(module: &impl Debug) -> Vec<String> {
    const UPDATES: &str = ".values.inner.data";
    let updates = paths_of(module, |value| value == "ThreadId(").into_iter();
    let states = updates.filter_map(|path| path.strip_suffix(UPDATES).map(str::to_owned));
    let mut states: Vec<String> = states.collect();
    states.dedup();
    states
}

/// Returns the paths of the values whose text is accepted.
fn paths_of(module: &impl Debug, accepts: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    walk(module, |path, value| {
        found.extend(accepts(value).then_some(path));
    });
    found
}

/// Returns the ids of the parameters of a module that follow a number that is 0 in their module's debug text, as the flag
/// of a dropout follows its rate.
pub(super) fn without_effect(module: &impl Debug) -> Vec<String> {
    let mut found = Vec::new();
    // The path of the module of the last number that is 0.
    let mut zero: Option<String> = None;
    let module_of = |path: &str| path.rsplit_once('.').map_or("", |(of, _)| of).to_owned();
    walk(module, |path, value| {
        let id = parameter_id(value).filter(|_| zero.as_ref() == Some(&module_of(&path)));
        found.extend(id.map(str::to_owned));
        let is_zero = value.trim_end_matches(',').parse::<f64>() == Ok(0.0);
        zero = is_zero.then(|| module_of(&path));
    });
    found
}

/// Visits the path and the text of every value, or of the line that opens it.
fn walk(module: &impl Debug, mut visit: impl FnMut(String, &str)) {
    let mut open: Vec<Open> = Vec::new();
    // A pretty-printed value opens (`name: Type {`), closes (`},`) or is whole (`name: 3,`) on each line.
    for line in format!("{module:#?}").lines() {
        let line = line.trim();
        if line.starts_with(['}', ']', ')']) {
            open.pop();
            // The key of a map closes on the line on which its value opens.
            if line.ends_with(OPENING) {
                open.push(Open::default());
            }
            continue;
        }
        let (field, value) = match line.split_once(": ") {
            Some((field, value)) if !line.starts_with(PARAMETER) => (Some(field), value),
            _ => (None, line),
        };
        let next = Open::of(field, value, open.last_mut());
        let names = open.iter().chain([&next]);
        let names = names.filter_map(|open| open.name.as_deref());
        visit(names.collect::<Vec<_>>().join("."), value);
        if line.ends_with(OPENING) {
            open.push(next);
        }
    }
}

/// A value whose text is not closed yet.
#[derive(Default)]
struct Open {
    name: Option<String>,
    /// The next element's index, if elements have no names.
    next: Option<usize>,
}

impl Open {
    fn of(field: Option<&str>, value: &str, parent: Option<&mut Open>) -> Self {
        let index = || {
            let next = parent?.next.as_mut()?;
            *next += 1;
            Some((*next - 1).to_string())
        };
        Self {
            name: field.map(str::to_owned).or_else(index),
            // A list or a tuple; the content of `Some(` has the path of the option.
            next: matches!(value, "[" | "(").then_some(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::module::RunningState;
    use burn::nn::{BatchNorm, BatchNormConfig, DropoutConfig, Linear, LinearConfig};
    use burn::tensor::{Device, Tensor};

    use super::*;

    #[derive(Module, Debug)]
    struct Inner {
        layer: Linear,
        table: Tensor<2>,
        optional: Option<Tensor<1>>,
        tables: Vec<Tensor<1>>,
    }

    #[derive(Module, Debug)]
    struct Outer {
        blocks: Vec<Inner>,
        pair: (Tensor<1>, Linear),
        #[module(skip)]
        skipped: Tensor<1>,
        #[module(skip)]
        target: Option<Linear>,
    }

    #[test]
    fn names_every_field_that_no_visitor_sees() {
        let device = &Device::flex();
        let tensor = || Tensor::ones([1], device);
        let linear = || LinearConfig::new(2, 2).init(device);
        let inner = |optional| Inner {
            layer: linear(),
            table: Tensor::zeros([2, 2], device),
            optional,
            tables: vec![tensor(), tensor()],
        };
        let outer = Outer {
            blocks: vec![inner(None), inner(Some(tensor()))],
            pair: (tensor(), linear()),
            skipped: tensor(),
            target: Some(linear()),
        };
        let expected = [
            "blocks.0.table",
            "blocks.0.tables.0",
            "blocks.0.tables.1",
            "blocks.1.table",
            "blocks.1.optional",
            "blocks.1.tables.0",
            "blocks.1.tables.1",
            "pair.0",
            "skipped",
        ];
        assert_eq!(tensor_fields(&outer), expected);
        assert_eq!(tensor_fields(&linear()), Vec::<String>::new());
        let expected = ["target.weight", "target.bias"];
        assert_eq!(skipped_parameters(&outer), expected);
        assert_eq!(skipped_parameters(&linear()), Vec::<String>::new());
        // Its flag is a parameter that is not a tensor.
        let dropout = DropoutConfig::new(0.5).init();
        assert_eq!(skipped_parameters(&dropout), Vec::<String>::new());
    }

    #[derive(Module, Debug)]
    struct Running {
        count: RunningState<Tensor<1>>,
        norms: Vec<BatchNorm>,
        table: Tensor<1>,
        #[module(skip)]
        skipped: RunningState<Tensor<1>>,
    }

    #[test]
    fn names_running_states_with_updates() {
        let device = &Device::flex();
        let state = || RunningState::new(Tensor::ones([1], device));
        let mut running = Running {
            count: state(),
            norms: vec![BatchNormConfig::new(1).init(device)],
            table: Tensor::ones([1], device),
            skipped: state(),
        };
        assert_eq!(pending_states(&running), Vec::<String>::new());
        let zeros = || Tensor::zeros([1], device);
        running.count.update(zeros());
        running.skipped.update(zeros());
        let var = running.norms[0].running_var.clone();
        std::thread::scope(|scope| scope.spawn(|| var.update(zeros())).join()).unwrap();
        var.update(zeros());
        let expected = ["count", "norms.0.running_var", "skipped"];
        assert_eq!(pending_states(&running), expected);
        // A map in the text does not hide the fields after it.
        assert!(tensor_fields(&running).contains(&"table".to_owned()));
        running = running.valid();
        assert_eq!(pending_states(&running), ["skipped"]);
    }
}
