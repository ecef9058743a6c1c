//! Parses the text of a backtrace, because the frames are not public in the standard library.

use crate::brackets::{inside, parts};

/// The information that a backtrace has about a panic.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Found {
    /// The outermost operation of Burn.
    pub(super) operation: Option<String>,
    /// The line of the recorded code that called it.
    pub(super) place: Option<String>,
    /// Whether a frame of the recorded code was found.
    pub(super) is_in_caller: bool,
}

/// The owner of a frame's code. Of several that a name has, the last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// The standard library, this project, and frames without information.
    Between,
    Burn,
    Caller,
}

/// Searches outwards for the first frame of the recorded code.
pub(super) fn find(backtrace: &str) -> Found {
    let mut found = Found::default();
    for Frame { name, place } in frames(backtrace) {
        // Frames further out are the caller of the recording, so the recorded code did not call the operation.
        if name.starts_with("tinderbox_fake::record::") || is_in(place, "fake", "record.rs:") {
            return Found::default();
        }
        match owner(name, place) {
            Owner::Burn => found.operation = operation(name, place).or(found.operation),
            Owner::Between => {}
            Owner::Caller => {
                found.place = place.map(|place| place.trim_start_matches("./").to_owned());
                found.is_in_caller = true;
                break;
            }
        }
    }
    found
}

struct Frame<'a> {
    name: &'a str,
    /// File, line and column.
    place: Option<&'a str>,
}

fn frames(backtrace: &str) -> impl Iterator<Item = Frame<'_>> {
    let mut lines = backtrace.lines().map(str::trim_start).peekable();
    std::iter::from_fn(move || {
        let line = lines.next()?;
        let name = match line.split_once(": ") {
            Some((index, name)) if index.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => line,
        };
        let place = lines.next_if(|next| next.starts_with("at "));
        let place = place.map(|place| &place["at ".len()..]);
        Some(Frame { name, place })
    })
}

/// The crates of this project that call Burn, by the names of their folders.
const OWN: [&str; 5] = ["fake", "deferred", "graph", "pipeline", "checkpoint"];

/// The runtimes on which Burn runs its own work.
const RUNTIMES: [&str; 3] = ["futures_lite", "rayon", "rayon_core"];

fn owner(name: &str, place: Option<&str>) -> Owner {
    // A shim of the standard library has the name of the closure that it calls.
    if place.is_some_and(|place| place.starts_with("/rustc/")) {
        return Owner::Between;
    }
    let by_name = paths(name).into_iter().filter_map(crate_owner);
    // With debug information of lines only, names have no path.
    let owner = by_name.max().or_else(|| place.map(place_owner));
    owner.unwrap_or(Owner::Between)
}

/// Returns the paths whose crates may own a name: `<A as B>::c` is code of the crate of `A` or of the crate of `B`.
fn paths(name: &str) -> Vec<&str> {
    match name.strip_prefix('<').and_then(inside) {
        Some(inner) => parts(inner, " as "),
        None => vec![name],
    }
}

/// Returns the owner of a path, if it begins with the name of a crate.
fn crate_owner(path: &str) -> Option<Owner> {
    let path = path.trim_start_matches(|c: char| !(c.is_alphanumeric() || c == '_'));
    let words = ["mut ", "const ", "dyn "].iter();
    let path = words.fold(path, |path, word| path.strip_prefix(word).unwrap_or(path));
    let (name, _) = path.split_once("::")?;
    match name {
        "std" | "core" | "alloc" | "test" | "__rustc" => Some(Owner::Between),
        name if RUNTIMES.contains(&name) => Some(Owner::Between),
        name if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') => None,
        name if name.starts_with("tinderbox") => Some(Owner::Between),
        name if name.starts_with("burn") || name.starts_with("cubecl") => Some(Owner::Burn),
        _ => Some(Owner::Caller),
    }
}

fn place_owner(place: &str) -> Owner {
    let is_own = |folder: &str| is_in(Some(place), folder, "");
    match package(place) {
        Some((name, _)) if name.starts_with("burn") || name.starts_with("cubecl") => Owner::Burn,
        Some((name, _)) if RUNTIMES.contains(&&*name.replace('-', "_")) => Owner::Between,
        _ if OWN.iter().any(|folder| is_own(folder)) => Owner::Between,
        _ => Owner::Caller,
    }
}

/// Returns whether a place is in the sources of a crate of this project, in a file whose path begins with `file`.
fn is_in(place: Option<&str>, folder: &str, file: &str) -> bool {
    let Some(place) = place else { return false };
    // The folder of this crate: `fake` in a workspace, `tinderbox-fake-0.1.0` in a registry.
    let manifest = env!("CARGO_MANIFEST_DIR");
    let (root, this) = manifest.rsplit_once('/').unwrap_or_default();
    let folder = match (this, folder) {
        ("fake", "graph") => "pipeline/graph",
        _ => folder,
    };
    let sources = format!("{root}/{}/src/{file}", this.replace("fake", folder));
    match place.strip_prefix("./") {
        Some(place) => std::env::current_dir()
            .is_ok_and(|dir| dir.join(place).to_string_lossy().starts_with(&sources)),
        None => place.starts_with(&sources),
    }
}

/// Returns the package that a place in Cargo's sources belongs to, and the file in it.
fn package(place: &str) -> Option<(&str, &str)> {
    let mut sources = ["/registry/src/", "/git/checkouts/"].iter();
    let (_, inside) = sources.find_map(|sources| place.split_once(sources))?;
    let (folder, file) = inside.split_once("/src/")?;
    let folder = folder.rsplit('/').next()?;
    let name = folder.rsplit_once('-');
    let name = name.filter(|(_, version)| version.contains('.'));
    Some((name.map_or(folder, |(name, _)| name), file))
}

/// Returns `Type::method`. If the name has no path, the type is the type of the file, or its module.
fn operation(name: &str, place: Option<&str>) -> Option<String> {
    let mut segments = parts(name, "::").into_iter().rev();
    let method = segments.find(|segment| !segment.starts_with(['{', '<']))?;
    let method = method.split(['{', '<']).next()?;
    let of = segments.find(|segment| !segment.starts_with('{'));
    let Some(of) = of else {
        let (package, file) = package(place?)?;
        let module = file.split(".rs:").next()?.trim_end_matches("/mod");
        return Some(match (package, module.starts_with("tensor/api/")) {
            ("burn-tensor", true) => format!("Tensor::{method}"),
            _ => format!("{}::{method}", module.rsplit('/').next()?),
        });
    };
    let of = match of.strip_prefix('<').and_then(inside) {
        Some(inner) => {
            let inner = inner.strip_prefix("impl ").unwrap_or(inner);
            let inner = parts(inner, " for ").pop().unwrap_or(inner);
            parts(inner, " as ")[0]
        }
        None => of,
    };
    let of = parts(of, "::").pop()?.split('<').next()?;
    Some(match of.starts_with(char::is_uppercase) {
        true => format!("{of}::{method}"),
        false => method.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::{Found, find, operation};

    #[test]
    fn operations_have_short_names() {
        for (name, expected) in [
            (
                "burn_tensor::tensor::api::base::Tensor<_,_>::to_data",
                "Tensor::to_data",
            ),
            (
                "<burn_tensor::Tensor<2, burn_tensor::Int>>::one_hot::<3>",
                "Tensor::one_hot",
            ),
            (
                "burn_tensor::tensor::api::int::<impl burn_tensor::tensor::api::base::Tensor<_,_>>::one_hot",
                "Tensor::one_hot",
            ),
            (
                "<burn_nn::Linear as burn_core::module::Module>::visit",
                "Linear::visit",
            ),
            (
                "<burn_tensor::Tensor<_,_> as core::ops::arith::Add<E>>::add",
                "Tensor::add",
            ),
            (
                "burn_nn::loss::ctc::CTCLoss::forward::{{closure}}",
                "CTCLoss::forward",
            ),
            (
                "burn_nn::loss::ctc::CTCLoss::forward::{closure#0}",
                "CTCLoss::forward",
            ),
            ("burn_tensor::tensor::module::ctc_loss", "ctc_loss"),
            ("burn_x::f::<fn(u8) -> burn_y::Z>", "f"),
        ] {
            assert_eq!(operation(name, None).as_deref(), Some(expected), "{name}");
        }
    }

    /// Debug information of lines only has no paths.
    #[test]
    fn names_without_a_path_have_the_path_of_the_file() {
        let registry = "/home/me/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f";
        for (name, file, expected) in [
            (
                "one_hot<1, burn_tensor::bridge::kind::Int, 2>",
                "burn-tensor-0.22.1/src/tensor/api/orderable.rs",
                "Tensor::one_hot",
            ),
            (
                "forward<2>",
                "burn-nn-0.22.1/src/loss/poisson.rs",
                "poisson::forward",
            ),
            ("new", "burn-nn-0.22.1/src/modules/norm/mod.rs", "norm::new"),
        ] {
            let text = format!(
                "   0: {{closure#0}}\n             at {registry}/{file}:7:8\n   1: {name}\n             \
                 at {registry}/{file}:1:2\n   2: call_once<(), ()>\n             at /rustc/5/library/core/f.rs:1:2\n   \
                 3: {{closure#1}}\n             at /home/me/net/src/net.rs:7:9\n"
            );
            let found = find(&text);
            assert_eq!(found.operation.as_deref(), Some(expected));
            assert_eq!(found.place.as_deref(), Some("/home/me/net/src/net.rs:7:9"));
        }
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/src/record.rs:1:2");
        let text = format!(
            "   0: {{closure#0}}\n             at {own}\n   1: main\n             at ./src/main.rs:1:1\n"
        );
        assert_eq!(find(&text), Found::default());
    }

    #[test]
    fn the_first_frame_of_the_caller_is_found() {
        let check = |backtrace: &str, operation: Option<&str>, place: Option<&str>, caller| {
            let expected = Found {
                operation: operation.map(str::to_owned),
                place: place.map(str::to_owned),
                is_in_caller: caller,
            };
            assert_eq!(find(backtrace), expected, "{backtrace}");
        };
        let inner = "   0: std::backtrace::Backtrace::create\n             at /rustc/5/library/std/src/b.rs:1:2\n   \
             1: tinderbox_fake::scope::note\n   2: __rustc::rust_begin_unwind\n   \
             3: burn_capture::capture::read\n   4: burn_tensor::Tensor<_>::to_data\n   \
             5: core::ops::function::FnOnce::call_once{{vtable.shim}}\n";
        let caller =
            |name: &str| format!("{inner}   6: {name}\n             at ./src/net.rs:7:9\n");
        let (operation, place) = (Some("Tensor::to_data"), Some("src/net.rs:7:9"));
        for name in [
            "gpt::Net::forward",
            "<gpt::Net as burn_core::module::Module>::visit",
            "<burn_tensor::Tensor<_> as gpt::Extension>::read",
            "<&mut gpt::Net as core::fmt::Debug>::fmt",
        ] {
            check(&caller(name), operation, place, true);
        }
        // Without lines, and without a caller inside the recording.
        check(
            &format!("{inner}   6: gpt::forward\n"),
            operation,
            None,
            true,
        );
        let outer = "   6: tinderbox_fake::record::record_dyn\n   7: gpt::main\n";
        check(&format!("{inner}{outer}"), None, None, false);
        check("   0: <unknown>\n   1: <unknown>\n", None, None, false);
        check("", None, None, false);
        check("disabled backtrace", None, None, false);
    }
}
