//! Where a module keeps tensors that are no parameters: Burn's visitors do not show such fields, `Debug` does.

use std::fmt::Debug;

/// The paths of the fields of a module that are tensors and no parameters, from its debug text, for errors. A field
/// whose type prints itself in another way is left out.
pub fn tensor_fields(module: &impl Debug) -> Vec<String> {
    let mut open: Vec<Open> = Vec::new();
    let mut found = Vec::new();
    // A pretty-printed value opens (`name: Type {`), closes (`},`) or is whole (`name: 3,`) on each line.
    for line in format!("{module:#?}").lines() {
        let line = line.trim();
        if line.starts_with(['}', ']', ')']) {
            open.pop();
        } else if line.ends_with(['{', '[', '(']) {
            let next = Open::of(line, open.last_mut());
            open.push(next);
            if line == "Tensor {" || line.ends_with(": Tensor {") {
                let names = open.iter().filter_map(|open| open.name.as_deref());
                found.push(names.collect::<Vec<_>>().join("."));
            }
        }
    }
    found
}

/// A value that the text is inside of.
struct Open {
    name: Option<String>,
    /// The next element's number, where elements have no names.
    next: Option<usize>,
}

impl Open {
    fn of(line: &str, parent: Option<&mut Open>) -> Self {
        let (field, value) = match line.split_once(": ") {
            Some((field, value)) => (Some(field.to_owned()), value),
            None => (None, line),
        };
        let index = || {
            let next = parent?.next.as_mut()?;
            *next += 1;
            Some((*next - 1).to_string())
        };
        Self {
            name: field.or_else(index),
            // A list or a tuple; what is inside of `Some(` goes by the option's name.
            next: matches!(value, "[" | "(").then_some(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use burn::nn::{Linear, LinearConfig};
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
    }

    #[test]
    fn names_every_tensor_that_is_no_parameter() {
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
    }
}
