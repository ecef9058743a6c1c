//! Modules of a stage in a few words.

use super::PlanStage;
use super::escape::visible;

/// What a module is called in summaries: its first name, and with an element of a list the element's
/// number, which stands for all that is in it.
pub(super) fn short_name(module: &str) -> String {
    let mut parts = module.split('.');
    let name = parts.next().unwrap_or("");
    let element = parts.next().filter(|part| part.parse::<usize>().is_ok());
    match (name, element) {
        ("", None) => "(root)".to_owned(),
        (name, None) => visible(name).into_owned(),
        (name, Some(element)) => visible(&format!("{name}.{element}")).into_owned(),
    }
}

/// Modules of a stage in a few words: the common ends of `blocks.0.norm`, `blocks.0.attention.query`
/// are cut off, and what follows each other is joined.
pub(super) fn summary(stage: &PlanStage) -> String {
    let mut names: Vec<String> = Vec::new();
    for module in &stage.modules {
        let name = short_name(module);
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::samples;

    #[test]
    fn what_follows_each_other_is_joined() {
        for (modules, expected) in [
            (&[][..], ""),
            (&["", "norm"], "(root) norm"),
            (
                &[
                    "tokens",
                    "blocks.0.norm",
                    "blocks.0.attention.query",
                    "blocks.1.norm",
                ],
                "tokens blocks.0 blocks.1",
            ),
            (
                &["blocks.0.norm", "head", "blocks.0.mlp"],
                "blocks.0 head blocks.0",
            ),
            (&["encoder.layer.0", "encoder.layer.1"], "encoder"),
            (&["a\u{1b}[2J.0"], "a\\u{1b}[2J.0"),
            (&[".0"], ".0"),
        ] {
            let mut stage = samples::two_stages().stages[0].clone();
            stage.modules = modules.iter().map(|module| (*module).to_owned()).collect();
            assert_eq!(summary(&stage), expected);
        }
    }
}
