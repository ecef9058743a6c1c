//! Finds every module of a package in its sources: types that are `pub`, and derive or implement `Module`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use syn::{Attribute, Item, Meta, UseTree, Visibility};

/// A type that is a Burn module.
#[derive(Debug, PartialEq, Eq)]
pub struct FoundModule {
    /// The path of its definition, such as `burn_nn::modules::linear::Linear`.
    pub path: String,
    /// Whether users of the package can name it.
    pub public: bool,
    /// The variants of an enum.
    pub variants: Vec<String>,
}

/// Returns the root source file of the package that this build uses.
pub fn of_package(name: &str) -> PathBuf {
    let cargo = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO"))
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo runs");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{complaint}");
        String::from_utf8(output.stdout).expect("cargo writes UTF-8")
    };
    // Packages for other platforms may not have been downloaded.
    let version = cargo(&["--version", "--verbose"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let metadata = cargo(&[
        "metadata",
        "--offline",
        "--format-version",
        "1",
        "--filter-platform",
        host.expect("cargo knows its host"),
    ]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).expect("it is JSON");
    let packages = metadata["packages"]
        .as_array()
        .expect("packages are listed");
    let package = packages.iter().find(|package| package["name"] == name);
    let targets = package.expect("the package is used")["targets"].as_array();
    let library = targets
        .into_iter()
        .flatten()
        .find(|target| target["kind"][0] == "lib");
    let root = library.expect("the package is a library")["src_path"].as_str();
    PathBuf::from(root.expect("a target has a root file"))
}

/// Returns every module type of the library with this root file, except tests.
pub fn modules(root: &Path) -> Vec<FoundModule> {
    let package = root.ancestors().nth(2).and_then(Path::file_name);
    let package = package
        .expect("the root file lies in the package")
        .to_string_lossy();
    // The directories of the registry include the version: `burn-nn-0.22.1`.
    let name = match package.rsplit_once('-') {
        Some((name, version)) if version.starts_with(|c: char| c.is_ascii_digit()) => name,
        _ => &package,
    };
    let file = read(root);
    let folder = root.parent().expect("a file lies in a folder");
    let tree = Tree::of(&file.items, folder);
    let public = tree.exported();
    let mut found = Vec::new();
    tree.collect(
        &name.replace('-', "_"),
        &mut Vec::new(),
        &public,
        &mut found,
    );
    found
}

fn read(path: &Path) -> syn::File {
    let text = std::fs::read_to_string(path);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A `mod` with its contents.
#[derive(Default)]
struct Tree {
    public: bool,
    children: BTreeMap<String, Tree>,
    /// Module types by name: whether they are `pub`, and their variants.
    types: BTreeMap<String, (bool, Vec<String>)>,
    /// Paths of `pub use`; the last segment may be `*`.
    exports: Vec<Vec<String>>,
}

/// A type by the names of its enclosing `mod`s, and its own.
type TypePath = Vec<String>;

impl Tree {
    fn of(items: &[Item], folder: &Path) -> Self {
        let mut tree = Self::default();
        let mut all = BTreeMap::new();
        let mut by_hand = Vec::new();
        for item in items {
            match item {
                Item::Mod(child) if !is_test(&child.attrs) => {
                    let name = child.ident.to_string();
                    let mut inner = match &child.content {
                        Some((_, items)) => Self::of(items, &folder.join(&name)),
                        None => Self::of_file(folder, &name),
                    };
                    inner.public = is_public(&child.vis);
                    tree.children.insert(name, inner);
                }
                Item::Struct(item) if !is_test(&item.attrs) => {
                    let name = item.ident.to_string();
                    let entry = (is_public(&item.vis), Vec::new());
                    all.insert(name.clone(), entry.clone());
                    if derives_module(&item.attrs) {
                        tree.types.insert(name, entry);
                    }
                }
                Item::Enum(item) if !is_test(&item.attrs) => {
                    let name = item.ident.to_string();
                    let variants = item.variants.iter().map(|v| v.ident.to_string());
                    let entry = (is_public(&item.vis), variants.collect());
                    all.insert(name.clone(), entry.clone());
                    if derives_module(&item.attrs) {
                        tree.types.insert(name, entry);
                    }
                }
                Item::Impl(item) if !is_test(&item.attrs) => {
                    let implemented = item.trait_.as_ref().map(|(_, path, _)| path);
                    let last = implemented.and_then(|path| path.segments.last());
                    if last.is_some_and(|segment| segment.ident == "Module")
                        && let syn::Type::Path(of) = &*item.self_ty
                        && let Some(name) = of.path.segments.last()
                    {
                        by_hand.push(name.ident.to_string());
                    }
                }
                Item::Use(item) if is_public(&item.vis) => {
                    flatten(&item.tree, &mut Vec::new(), &mut tree.exports);
                }
                _ => {}
            }
        }
        let by_hand = by_hand.into_iter();
        let by_hand = by_hand.filter_map(|name| all.remove_entry(&name));
        tree.types.extend(by_hand);
        tree
    }

    fn of_file(folder: &Path, name: &str) -> Self {
        let inside = folder.join(name);
        let beside = folder.join(format!("{name}.rs"));
        let path = match beside.exists() {
            true => beside,
            false => inside.join("mod.rs"),
        };
        Self::of(&read(&path).items, &inside)
    }

    fn child(&self, names: &[String]) -> Option<&Self> {
        names
            .iter()
            .try_fold(self, |tree, name| tree.children.get(name))
    }

    /// Returns the types that users can name through this `mod`.
    fn exported(&self) -> Vec<TypePath> {
        let own = self.types.iter().filter(|(_, (public, _))| *public);
        let mut found: Vec<TypePath> = own.map(|(name, _)| vec![name.clone()]).collect();
        let under = |names: &[String], inner: Vec<TypePath>| {
            let paths = inner.into_iter();
            paths
                .map(|path| names.iter().cloned().chain(path).collect())
                .collect::<Vec<TypePath>>()
        };
        for (name, child) in self.children.iter().filter(|(_, child)| child.public) {
            found.extend(under(std::slice::from_ref(name), child.exported()));
        }
        for export in &self.exports {
            let (last, names) = export.split_last().expect("a path has a name");
            let names: Vec<String> = names.iter().filter(|n| *n != "self").cloned().collect();
            let Some(child) = self.child(&names).filter(|_| !names.is_empty()) else {
                continue;
            };
            let inner = under(&names, child.exported());
            found.extend(
                inner
                    .into_iter()
                    .filter(|path| last == "*" || path.last() == Some(last)),
            );
        }
        found
    }

    fn collect(
        &self,
        package: &str,
        path: &mut Vec<String>,
        public: &[TypePath],
        found: &mut Vec<FoundModule>,
    ) {
        for (name, (_, variants)) in &self.types {
            path.push(name.clone());
            found.push(FoundModule {
                path: format!("{package}::{}", path.join("::")),
                public: public.contains(path),
                variants: variants.clone(),
            });
            path.pop();
        }
        for (name, child) in &self.children {
            path.push(name.clone());
            child.collect(package, path, public, found);
            path.pop();
        }
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    })
}

fn derives_module(attributes: &[Attribute]) -> bool {
    let mut found = false;
    for attribute in attributes.iter().filter(|a| a.path().is_ident("derive")) {
        let parsed = attribute.parse_nested_meta(|derived| {
            let last = derived.path.segments.last();
            found |= last.is_some_and(|segment| segment.ident == "Module");
            Ok(())
        });
        parsed.expect("a derive lists paths");
    }
    found
}

/// Returns the paths of a `use`.
fn flatten(tree: &UseTree, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let mut end = |name: String| {
        let mut whole = path.clone();
        whole.push(name);
        found.push(whole);
    };
    match tree {
        UseTree::Name(name) => end(name.ident.to_string()),
        UseTree::Rename(name) => end(name.ident.to_string()),
        UseTree::Glob(_) => end("*".into()),
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, path, found);
            }
        }
        UseTree::Path(step) => {
            path.push(step.ident.to_string());
            flatten(&step.tree, path, found);
            path.pop();
        }
    }
}

#[test]
fn finds_modules_however_they_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("sample-nn-1.2.3/src/lib.rs");
    let files = [
        (
            "lib.rs",
            "pub mod layers; mod hidden; mod named; pub use hidden::{*}; pub use named::{Chosen};
             #[cfg(test)] mod checks; #[derive(Debug)] pub struct NotOne;",
        ),
        (
            "layers/mod.rs",
            "mod dense; pub use dense::{*}; mod secret { #[derive(Module)] pub struct Secret; }
             #[derive(Debug,\n    Module,\n)]\n#[module(custom_display)]\npub enum Kind { One, Two(u8) }",
        ),
        (
            "layers/dense.rs",
            "#[derive(Module, Debug)] pub struct Dense; #[derive(Module)] struct Private;
             #[cfg(test)] mod tests { #[derive(Module)] pub struct InTest; }",
        ),
        ("hidden.rs", "pub struct ByHand<T>(T); impl<T: X> burn::module::Module for ByHand<T> {}"),
        (
            "named.rs",
            "#[derive(burn::Module)] pub struct Chosen; #[derive(Module)] pub struct Left;",
        ),
    ];
    for (name, text) in files {
        let path = root.with_file_name(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let found: Vec<String> = modules(&root)
        .into_iter()
        .map(|m| format!("{} {} {:?}", m.path, m.public, m.variants))
        .collect();
    assert_eq!(
        found,
        [
            "sample_nn::hidden::ByHand true []",
            "sample_nn::layers::Kind true [\"One\", \"Two\"]",
            "sample_nn::layers::dense::Dense true []",
            "sample_nn::layers::dense::Private false []",
            "sample_nn::layers::secret::Secret false []",
            "sample_nn::named::Chosen true []",
            "sample_nn::named::Left false []",
        ]
    );
}
