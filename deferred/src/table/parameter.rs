//! What is known of one parameter.

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
    #[serde(with = "tinderbox_fake::dtype_names")]
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

impl Parameter {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

impl fmt::Display for super::ParameterTable {
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
                tinderbox_fake::dtype_name(parameter.dtype).into(),
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
