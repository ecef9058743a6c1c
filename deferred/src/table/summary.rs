//! A summary of a model's modules and parameters: a tree with totals.

use serde::Serialize;

use super::{Origin, Parameter, ParameterTable};

/// The modules and parameters of a model, with totals: structured data, which prints as a table.
///
/// Its JSON form is the form of the outermost module: its path, type and totals, and its entries, which are the
/// modules and parameters in it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Summary {
    /// The model itself.
    pub model: ModuleSummary,
}

/// One module, with its contents.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModuleSummary {
    /// Its path in the model; empty for the model itself.
    pub path: String,
    /// Its type, such as `Linear`, or `Vec`, `Array` and `Tuple` for Rust's own.
    #[serde(rename = "type")]
    pub kind: String,
    /// Totals of all parameters in it, at any depth.
    pub totals: Totals,
    /// The modules and parameters in it, in visiting order.
    pub entries: Vec<Entry>,
}

/// An entry of a module.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Entry {
    /// A module.
    Module(ModuleSummary),
    /// A parameter.
    Parameter(Parameter),
}

/// The totals of a set of parameters. Clones are counted but add no elements or bytes: their original does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Totals {
    /// Number of parameters.
    pub parameters: u64,
    /// Number of clones of other parameters.
    pub clones: u64,
    /// Elements of all parameters.
    pub elements: u64,
    /// Elements of trainable parameters.
    pub trainable_elements: u64,
    /// Bytes of all parameters.
    pub bytes: u64,
    /// Bytes of trainable parameters.
    pub trainable_bytes: u64,
    /// Elements of parameters that are initialized during construction.
    pub eager_elements: u64,
    /// Bytes of parameters that are initialized during construction.
    pub eager_bytes: u64,
}

impl Totals {
    fn add(&mut self, parameter: &Parameter) {
        if parameter.clone_of.is_some() {
            self.clones += 1;
            return;
        }
        self.parameters += 1;
        self.elements += parameter.elements();
        self.bytes += parameter.bytes;
        if parameter.trainable {
            self.trainable_elements += parameter.elements();
            self.trainable_bytes += parameter.bytes;
        }
        if parameter.origin == Origin::Eager {
            self.eager_elements += parameter.elements();
            self.eager_bytes += parameter.bytes;
        }
    }
}

impl ParameterTable {
    /// Returns the modules and parameters as a tree with totals.
    pub fn summary(&self) -> Summary {
        let kind = self.iter().next().and_then(|p| p.modules.split('.').next());
        let mut model = ModuleSummary::new("", kind.unwrap_or(""));
        for parameter in self {
            model.insert(parameter, 0, 0);
        }
        Summary { model }
    }
}

impl ModuleSummary {
    fn new(path: &str, kind: &str) -> Self {
        Self {
            path: path.to_owned(),
            kind: kind.to_owned(),
            totals: Totals::default(),
            entries: Vec::new(),
        }
    }

    /// Returns its name in the module around it; empty for the model itself.
    pub fn name(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or("")
    }

    /// Adds a parameter at any depth. The path of this module is the first `start` bytes of the parameter's path,
    /// including the dot after it, and has `depth` components.
    fn insert(&mut self, parameter: &Parameter, start: usize, depth: usize) {
        self.totals.add(parameter);
        let path = parameter.path.as_str();
        let Some((name, _)) = path[start..].split_once('.') else {
            self.entries.push(Entry::Parameter(parameter.clone()));
            return;
        };
        let inner = &path[..start + name.len()];
        // The parameters of a module are visited consecutively, so it is the last one, or new.
        let last = self.entries.last();
        if !matches!(last, Some(Entry::Module(module)) if module.path == inner) {
            let kind = parameter.modules.split('.').nth(depth + 1);
            let module = Self::new(inner, kind.unwrap_or(""));
            self.entries.push(Entry::Module(module));
        }
        if let Some(Entry::Module(module)) = self.entries.last_mut() {
            module.insert(parameter, inner.len() + 1, depth + 1);
        }
    }

    /// Returns whether another module is equal except for its path, such as the next layer of a model.
    pub fn is_like(&self, other: &Self) -> bool {
        self.is_like_within(other, &self.path, &other.path)
    }

    /// Compares modules inside of two compared modules, whose paths are ignored.
    fn is_like_within(&self, other: &Self, outer: &str, other_outer: &str) -> bool {
        let mut pairs = self.entries.iter().zip(&other.entries);
        self.kind == other.kind
            && self.totals == other.totals
            && self.entries.len() == other.entries.len()
            && pairs.all(|pair| match pair {
                (Entry::Module(a), Entry::Module(b)) => {
                    a.name() == b.name() && a.is_like_within(b, outer, other_outer)
                }
                (Entry::Parameter(a), Entry::Parameter(b)) => {
                    description(a, outer) == description(b, other_outer)
                }
                _ => false,
            })
    }
}

/// Returns the properties of a parameter inside of a module that are compared.
fn description<'a>(parameter: &'a Parameter, outer: &str) -> impl PartialEq + use<'a> {
    let original = parameter.clone_of.as_ref().map(|path| {
        let inside = path.as_str().strip_prefix(outer);
        let inside = inside.filter(|inside| inside.starts_with('.'));
        inside.unwrap_or(path.as_str())
    });
    let of_values = (&parameter.shape, parameter.dtype, parameter.trainable);
    (parameter.path.leaf(), of_values, parameter.origin, original)
}
