//! The example `summary`: tables, JSON, flags.

use crate::command_line::example;

fn printed(arguments: &[&str]) -> (String, String) {
    let output = example("summary", arguments);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (printed, errors) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {errors}");
    (printed, errors)
}

/// Numbers of parameters as published by Meta.
#[test]
fn models_have_their_sizes() {
    for (model, parameters, elements) in [
        ("llama8b", "291 parameters", "8,030,261,248"),
        ("llama70b", "723 parameters", "70,553,706,496"),
        ("llama405b", "1,137 parameters", "405,853,388,800"),
    ] {
        let (printed, _) = printed(&["--model", model, "--width", "100"]);
        let all = printed.lines().find(|line| line.starts_with(parameters));
        assert!(all.is_some_and(|line| line.contains(elements)), "{printed}");
        assert!(printed.contains("constructed deferred in "), "{printed}");
    }
}

#[test]
fn width_and_length_are_chosen() {
    let (narrow, _) = printed(&["--width", "50"]);
    let table = narrow.lines().filter(|line| !line.contains("deferred"));
    assert!(
        table.clone().all(|line| line.chars().count() <= 50),
        "{narrow}"
    );
    assert!(table.count() < 40, "{narrow}");
    let (full, _) = printed(&["--width", "50", "--full"]);
    assert!(full.lines().count() > 723, "{full}");
}

#[test]
fn json_is_all_that_is_printed() {
    let (json, errors) = printed(&["--json", "--model", "llama8b"]);
    let summary: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(summary["type"], "Llama");
    assert_eq!(summary["totals"]["elements"], 8_030_261_248_u64);
    assert!(errors.starts_with("constructed deferred in "), "{errors}");
}

#[test]
fn wrong_values_get_one_line_and_exit_code_2() {
    for (arguments, expected) in [
        (
            vec!["--model", "gpt"],
            "error: invalid value 'gpt' for '--model <MODEL>' [possible values: llama8b, llama70b, \
             llama405b] (see --help)\n",
        ),
        (
            vec!["--width", "3"],
            "error: invalid value '3' for '--width <N>': expected a whole number of at least 24 \
             (see --help)\n",
        ),
        (
            vec!["--json", "--full"],
            "error: the argument '--json' cannot be used with '--full' (see --help)\n",
        ),
        (
            vec!["--wide"],
            "error: unexpected argument '--wide' found (see --help)\n",
        ),
    ] {
        let output = example("summary", &arguments);
        assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn help_explains_each_flag() {
    let (help, _) = printed(&["--help"]);
    for flag in ["--model", "--json", "--width", "--full"] {
        let mut lines = help.lines().map(str::trim_start);
        let line = lines.find(|line| line.starts_with(flag));
        // Clap prints the text next to the flag or below it.
        let text = line.map(|line| format!("{line} {}", lines.next().unwrap_or("")));
        let text = text.unwrap_or_else(|| panic!("{flag} in: {help}"));
        assert!(text.split_whitespace().count() > 4, "{text}");
    }
}
