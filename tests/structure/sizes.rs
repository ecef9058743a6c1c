//! Bounds of what one person can read at once: lines of functions and fields of structs.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, Fields, ImplItemFn, Item, ItemFn, ItemStruct, TraitItemFn};

use crate::source::{Crate, attributes, is_test};

const MAX_LINES: usize = 70;
const MAX_FIELDS: usize = 12;
const MAX_FIELDS_OF_PIPELINE: usize = 6;

/// The functions and structs of a file, without tests.
#[derive(Default)]
struct Sizes {
    /// Each function with its lines, from its signature to its end.
    functions: Vec<(String, usize)>,
    /// Each struct with its fields.
    structs: Vec<(String, usize)>,
}

impl Sizes {
    fn add(&mut self, name: &syn::Ident, signature: Span, body: &Block) {
        let lines = body.span().end().line - signature.start().line + 1;
        self.functions.push((name.to_string(), lines));
    }
}

impl<'ast> Visit<'ast> for Sizes {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.add(&function.sig.ident, function.sig.span(), &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.add(&function.sig.ident, function.sig.span(), &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(body) = &function.default {
            self.add(&function.sig.ident, function.sig.span(), body);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        if let Fields::Named(fields) = &item.fields {
            self.structs
                .push((item.ident.to_string(), fields.named.len()));
        }
    }
}

/// Returns the sizes in each file of the pipeline and of its graph, by its path.
fn sizes() -> Vec<(String, Sizes)> {
    let mut all = Vec::new();
    for name in ["pipeline/graph", "pipeline"] {
        for (file, syntax) in Crate::read(name).files {
            let mut sizes = Sizes::default();
            sizes.visit_file(&syntax);
            all.push((file.display().to_string(), sizes));
        }
    }
    all
}

#[test]
fn no_function_of_the_pipeline_is_longer_than_a_page() {
    let mut long = Vec::new();
    for (file, sizes) in sizes() {
        let too_long = sizes
            .functions
            .into_iter()
            .filter(|(_, lines)| *lines > MAX_LINES);
        long.extend(too_long.map(|(name, lines)| format!("{file}: {name} has {lines} lines")));
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn no_struct_of_the_pipeline_has_many_fields() {
    let mut wide = Vec::new();
    for (file, sizes) in sizes() {
        let too_wide = sizes
            .structs
            .into_iter()
            .filter(|(_, fields)| *fields > MAX_FIELDS);
        wide.extend(too_wide.map(|(name, fields)| format!("{file}: {name} has {fields} fields")));
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

#[test]
fn the_pipeline_itself_has_few_fields() {
    let all = sizes();
    let mut structs = all.iter().flat_map(|(_, sizes)| &sizes.structs);
    let (_, fields) = structs
        .find(|(name, _)| name == "Pipeline")
        .expect("a struct `Pipeline`");
    assert!(
        *fields <= MAX_FIELDS_OF_PIPELINE,
        "`Pipeline` has {fields} fields"
    );
}
