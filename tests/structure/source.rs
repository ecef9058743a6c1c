//! The modules of a crate, with what each defines, imports and names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::punctuated::Punctuated;
use syn::visit::Visit;
use syn::{Attribute, Item, ItemMod, ItemUse, Token, UseTree, Visibility};

/// The path of a module from the root of its crate.
pub type ModulePath = Vec<String>;

/// A module, or an inline module, which has the file of the module around it.
#[derive(Debug, Default)]
pub struct Module {
    pub file: PathBuf,
    /// The names that it defines, but for modules.
    pub items: BTreeSet<String>,
    /// The names that it imports, with their paths; whether others may import them from it.
    pub imports: BTreeMap<String, (Vec<String>, bool)>,
    pub globs: Vec<Vec<String>>,
    /// The paths in its code.
    pub named: BTreeSet<Vec<String>>,
}

/// The modules of a crate, without tests.
#[derive(Default)]
pub struct Crate {
    pub modules: BTreeMap<ModulePath, Module>,
    /// Each file with its syntax.
    pub files: BTreeMap<PathBuf, syn::File>,
}

/// Returns the folders of the crates of the workspace; the last one is the root. Packages of tests, benches and examples
/// alone have no folder `src`, and are none.
pub fn crates() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, after) = manifest
        .split_once("\nmembers = [")
        .expect("a list of members");
    let (members, _) = after.split_once(']').unwrap();
    let members = members.split(',').map(|name| name.trim().trim_matches('"'));
    let members = members.filter(|name| !name.is_empty()).map(str::to_owned);
    let has_sources = |name: &String| root().join(name).join("src").is_dir();
    let crates: Vec<String> = members
        .chain([".".to_owned()])
        .filter(has_sources)
        .collect();
    assert!(crates.len() > 10, "{crates:?}");
    crates
}

/// Returns the root of the project: the folder around this package.
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = package
        .parent()
        .expect("the package is a folder of the project");
    root.to_owned()
}

impl Crate {
    /// Reads a crate by its folder.
    pub fn read(folder: &str) -> Self {
        let source = root().join(folder).join("src");
        let mut read = Self::default();
        for root in ["lib.rs", "main.rs"] {
            let file = source.join(root);
            if file.exists() {
                read.add_file(Vec::new(), &file);
            }
        }
        read
    }

    fn add_file(&mut self, path: ModulePath, file: &Path) {
        let text = fs::read_to_string(file).unwrap();
        let syntax = syn::parse_file(&text).unwrap();
        let (stem, folder) = (file.file_stem().unwrap(), file.parent().unwrap());
        let is_root = ["lib", "main", "mod"].iter().any(|root| stem == *root);
        let folder = if is_root {
            folder.to_owned()
        } else {
            folder.join(stem)
        };
        self.add(path, (file, &folder), &syntax.items);
        self.files.insert(file.to_owned(), syntax);
    }

    /// Adds a module of a file, whose inner modules are in a folder.
    fn add(&mut self, path: ModulePath, (file, folder): (&Path, &Path), items: &[Item]) {
        let mut module = Module {
            file: file.to_owned(),
            ..Module::default()
        };
        let mut names = Names::default();
        for item in items {
            if is_test(attributes(item)) {
                continue;
            }
            match item {
                Item::Mod(inner) => self.add_inner(&path, (file, folder), inner),
                Item::Use(import) => module.import(import),
                item => {
                    module.items.extend(name(item));
                    names.visit_item(item);
                }
            }
        }
        module.named = names.0;
        // A crate with a library and a program has two roots.
        let known = self.modules.entry(path).or_default();
        if known.file.as_os_str().is_empty() {
            *known = module;
        }
    }

    fn add_inner(&mut self, path: &ModulePath, (file, folder): (&Path, &Path), inner: &ItemMod) {
        let name = inner.ident.to_string();
        let mut of_inner = path.clone();
        of_inner.push(name.clone());
        let folder = folder.join(&name);
        if let Some((_, items)) = &inner.content {
            return self.add(of_inner, (file, &folder), items);
        }
        let found = [folder.with_extension("rs"), folder.join("mod.rs")];
        // One that a macro makes, or another system has, has no file here.
        if let Some(found) = found.iter().find(|found| found.exists()) {
            self.add_file(of_inner, found);
        }
    }

    /// Returns the module that defines what a path in a module names; none for another crate, or a name of the module itself.
    pub fn resolve(&self, from: &[String], path: &[String]) -> Option<ModulePath> {
        self.resolved(from, path, 16)
    }

    fn resolved(&self, from: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let depth = depth.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from.to_vec(),
            "super" => from.split_last()?.1.to_vec(),
            _ => return self.found(from, path, depth),
        };
        match rest.first().map(String::as_str) {
            None => Some(start),
            Some("super") => self.resolved(&start, rest, depth),
            Some(_) => self.found(&start, rest, depth),
        }
    }

    /// Returns the module that defines a path that begins with a name in a module.
    fn found(&self, at: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        let mut inner = at.to_vec();
        inner.push(first.clone());
        if self.modules.contains_key(&inner) {
            return match rest.is_empty() {
                true => Some(inner),
                false => self.found(&inner, rest, depth),
            };
        }
        let module = self.modules.get(at)?;
        if module.items.contains(first) {
            return Some(at.to_vec());
        }
        if let Some((imported, _)) = module.imports.get(first) {
            let mut whole = imported.clone();
            whole.extend_from_slice(rest);
            // A name that is imported from a crate of the same name.
            return match imported == path {
                true => None,
                false => self.resolved(at, &whole, depth),
            };
        }
        let mut globs = module.globs.iter();
        globs.find_map(|glob| self.resolved(at, &[glob, path].concat(), depth))
    }
}

impl Module {
    fn import(&mut self, import: &ItemUse) {
        let is_shared = !matches!(import.vis, Visibility::Inherited);
        let mut leaves = Vec::new();
        flatten(&import.tree, &mut Vec::new(), &mut leaves);
        for (path, name) in leaves {
            match name {
                Some(name) => drop(self.imports.insert(name, (path, is_shared))),
                None => self.globs.push(path),
            }
        }
    }
}

/// The paths of a tree of imports, each with the name that it gets; none for all names.
pub fn flatten(
    tree: &UseTree,
    before: &mut Vec<String>,
    found: &mut Vec<(Vec<String>, Option<String>)>,
) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, found);
            before.pop();
        }
        UseTree::Name(name) => {
            let mut path = before.clone();
            let name = name.ident.to_string();
            if name != "self" {
                path.push(name);
            }
            let last = path.last().cloned();
            found.push((path, last));
        }
        UseTree::Rename(rename) => {
            let mut path = before.clone();
            path.push(rename.ident.to_string());
            found.push((path, Some(rename.rename.to_string())));
        }
        UseTree::Glob(_) => found.push((before.clone(), None)),
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, before, found);
            }
        }
    }
}

/// Collects the paths in code, also in the arguments of macros as far as they are expressions.
#[derive(Default)]
struct Names(BTreeSet<Vec<String>>);

impl<'ast> Visit<'ast> for Names {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter();
        self.0
            .insert(segments.map(|one| one.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }

    /// `pub(super)` uses nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        let arguments = Punctuated::<syn::Expr, Token![,]>::parse_terminated;
        if let Ok(arguments) = called.parse_body_with(arguments) {
            arguments
                .iter()
                .for_each(|one| self.visit_expr_in_macro(one));
        }
        syn::visit::visit_macro(self, called);
    }

    fn visit_item_use(&mut self, import: &'ast ItemUse) {
        let mut leaves = Vec::new();
        flatten(&import.tree, &mut Vec::new(), &mut leaves);
        self.0.extend(leaves.into_iter().map(|(path, _)| path));
    }
}

impl Names {
    fn visit_expr_in_macro(&mut self, expression: &syn::Expr) {
        let mut inner = Names::default();
        inner.visit_expr(expression);
        self.0.extend(inner.0);
    }
}

/// Whether an item exists in tests only.
pub fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|one| {
        let is_test = |text: String| text == "test";
        one.path().is_ident("cfg")
            && one
                .parse_args::<syn::Ident>()
                .is_ok_and(|argument| is_test(argument.to_string()))
    })
}

pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The name that an item defines.
pub fn name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}
