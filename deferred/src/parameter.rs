//! The table of a model's parameters.

use std::fmt;

use burn::tensor::DType;
use serde::{Deserialize, Serialize};
use tinderbox_fake::{TensorKind, ValueId};

use crate::ParameterPath;

/// When a module makes a parameter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// At its first use; never, if it gets another value before.
    Lazy,
    /// While the module is constructed (`Param::from_tensor`, running statistics).
    Eager,
}

/// One parameter of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// Where it stands in the module.
    pub path: ParameterPath,
    /// Type of the module that owns it, such as `Linear`.
    pub owner: String,
    /// Float, int or bool.
    pub kind: TensorKind,
    /// Size per dimension, as the forward sees it.
    pub shape: Vec<u64>,
    /// Type of an element.
    pub dtype: DType,
    /// Bytes of the elements.
    pub bytes: u64,
    /// Whether it gets gradients; buffers do not.
    pub trainable: bool,
    /// When the module makes it.
    pub origin: Origin,
    /// The first parameter that shares its id, when that is another one: clones of one `Param`.
    pub clone_of: Option<ParameterPath>,
    /// Its initial value in the graph of the model.
    pub value: ValueId,
}

/// Every parameter of a model, in the order in which the module visits them.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ParameterTable {
    parameters: Vec<Parameter>,
}

impl ParameterTable {
    pub(crate) fn new(parameters: Vec<Parameter>) -> Self {
        Self { parameters }
    }

    /// The parameters in visiting order.
    pub fn iter(&self) -> std::slice::Iter<'_, Parameter> {
        self.parameters.iter()
    }

    /// Number of parameters, clones included.
    pub fn len(&self) -> usize {
        self.parameters.len()
    }

    /// Whether the model has none.
    pub fn is_empty(&self) -> bool {
        self.parameters.is_empty()
    }

    /// The parameter at a path.
    pub fn get(&self, path: &ParameterPath) -> Option<&Parameter> {
        self.parameters
            .iter()
            .find(|parameter| &parameter.path == path)
    }

    /// Bytes of all parameters, clones counted once.
    pub fn bytes(&self) -> u64 {
        self.distinct().map(|parameter| parameter.bytes).sum()
    }

    /// Elements of all parameters, clones counted once.
    pub fn elements(&self) -> u64 {
        self.distinct()
            .map(|parameter| parameter.shape.iter().product::<u64>())
            .sum()
    }

    /// Bytes that constructing the module on a real device would take at once, lit or not.
    pub fn eager_bytes(&self) -> u64 {
        self.distinct()
            .filter(|parameter| parameter.origin == Origin::Eager)
            .map(|parameter| parameter.bytes)
            .sum()
    }

    /// The parameters that are no clones of earlier ones: what is loaded, saved and counted.
    pub fn distinct(&self) -> impl Iterator<Item = &Parameter> {
        self.parameters
            .iter()
            .filter(|parameter| parameter.clone_of.is_none())
    }

    /// Paths that resemble an unknown one, for error messages: those under its longest known prefix.
    pub fn near(&self, path: &str) -> Vec<ParameterPath> {
        const SHOWN: usize = 3;
        let mut prefix = path;
        loop {
            let found: Vec<_> = self
                .parameters
                .iter()
                .filter(|parameter| parameter.path.is_under(prefix))
                .take(SHOWN)
                .map(|parameter| parameter.path.clone())
                .collect();
            match (found.is_empty(), prefix.rsplit_once('.')) {
                (false, _) => return found,
                (true, Some((shorter, _))) => prefix = shorter,
                (true, None) => prefix = "",
            }
            if self.parameters.is_empty() {
                return Vec::new();
            }
        }
    }
}

impl<'a> IntoIterator for &'a ParameterTable {
    type Item = &'a Parameter;
    type IntoIter = std::slice::Iter<'a, Parameter>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for ParameterTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use comfy_table::{CellAlignment, Table, TableComponent, presets};
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        for between_rows in [
            TableComponent::HorizontalLines,
            TableComponent::MiddleIntersections,
        ] {
            table.remove_style(between_rows);
        }
        table.set_header([
            "parameter",
            "module",
            "shape",
            "dtype",
            "bytes",
            "trainable",
        ]);
        for parameter in self {
            let shape: Vec<String> = parameter.shape.iter().map(u64::to_string).collect();
            let note = match (&parameter.clone_of, parameter.trainable) {
                (Some(path), _) => format!("clone of {path}"),
                (None, true) => "yes".into(),
                (None, false) => "no".into(),
            };
            table.add_row([
                parameter.path.to_string(),
                parameter.owner.clone(),
                format!("[{}]", shape.join(", ")),
                dtype_name(parameter.dtype),
                group_digits(parameter.bytes),
                note,
            ]);
        }
        if let Some(column) = table.column_mut(4) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(f, "{table}")?;
        write!(
            f,
            "{} parameters, {} elements, {} bytes ({:.2} MiB)",
            self.distinct().count(),
            group_digits(self.elements()),
            group_digits(self.bytes()),
            self.bytes() as f64 / (1 << 20) as f64,
        )?;
        match self.eager_bytes() {
            0 => Ok(()),
            bytes => write!(
                f,
                ", {} bytes of them made eagerly by the module",
                group_digits(bytes)
            ),
        }
    }
}

fn dtype_name(dtype: DType) -> String {
    match dtype {
        DType::Bool(_) => "bool".into(),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// A number with a comma between groups of three digits.
fn group_digits(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn groups_digits() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1234567, "1,234,567"),
        ] {
            assert_eq!(super::group_digits(number), text);
        }
    }
}
/// temporary
#[derive(Debug, thiserror::Error)]
#[error("the model has no parameter `{path}`")]
pub struct UnknownPath {
    path: String,
}
impl ParameterTable {
    /// temporary
    pub fn find(&self, path: &str) -> Result<&Parameter, UnknownPath> {
        let known = self.get(&ParameterPath::new(path));
        known.ok_or_else(|| UnknownPath { path: path.into() })
    }
}
