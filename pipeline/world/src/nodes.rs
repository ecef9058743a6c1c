//! Slurm's lists of nodes, such as `rack[0-1]node[00-15],login`.

use crate::error::NodeListError;

/// Returns the first node of a list, as Slurm writes it: the first name, with the first number of each of its brackets.
///
/// # Errors
///
/// When the list has no name, when the brackets of a name do not match, or when a bracket of the first name contains
/// something other than numbers and ranges of two numbers.
pub(crate) fn first_node(mut list: &str) -> Result<String, NodeListError> {
    let mut first = None;
    while !list.is_empty() {
        let (name, after) = split_name(list)?;
        list = after;
        // Slurm ignores an extra comma.
        first = first.or(Some(name).filter(|name| !name.is_empty()));
    }
    let name = first.ok_or(NodeListError::Empty)?;
    let (mut node, mut rest) = (String::new(), name);
    while let Some((text, after)) = rest.split_once('[')
        && let Some((inside, after)) = after.split_once(']')
    {
        node += text;
        node += first_number(name, inside)?;
        rest = after;
    }
    Ok(node + rest)
}

/// Returns the first name of a list with its brackets, and the rest of the list after its comma.
fn split_name(list: &str) -> Result<(&str, &str), NodeListError> {
    let name = || list.trim().to_owned();
    let mut is_open = false;
    for (at, character) in list.char_indices() {
        match (character, is_open) {
            (',', false) => return Ok((list[..at].trim(), &list[at + 1..])),
            ('[', false) | (']', true) => is_open = !is_open,
            ('[', true) | (']', false) => return Err(NodeListError::Brackets { name: name() }),
            _ => {}
        }
    }
    match is_open {
        true => Err(NodeListError::Brackets { name: name() }),
        false => Ok((list.trim(), "")),
    }
}

/// Returns the first number of a list such as `07-09,12`, with its zeros.
fn first_number<'a>(name: &str, inside: &'a str) -> Result<&'a str, NodeListError> {
    for range in inside.split(',') {
        let number = |text: &str| {
            // `parse` accepts a sign, too.
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse::<u64>().ok()).flatten()
        };
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let numbers = number(from).zip(number(to));
        if numbers.is_none_or(|(from, to)| from > to) {
            let (name, range) = (name.to_owned(), range.to_owned());
            return Err(NodeListError::Range { name, range });
        }
    }
    Ok(inside.split([',', '-']).next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(list: &str, expected: &str) {
        assert_eq!(first_node(list).unwrap(), expected, "{list}");
    }

    /// The first line that `scontrol show hostnames` prints.
    #[test]
    fn the_first_node_is_the_first_of_slurm() {
        check("node7", "node7");
        check("node7,login", "node7");
        check("node[07-09,12]", "node07");
        check("node[9-11]", "node9");
        check("node[098-101]", "node098");
        check("[1-2]", "1");
        check("rack[1-2]-ib,login", "rack1-ib");
        check("rack[0-1]node[00-02]", "rack0node00");
        check("r[1,3]n[07-08]-x", "r1n07-x");
        check("a[1-2][3-4]", "a13");
        check("a[0-1]b[0-1]c[5,7],z", "a0b0c5");
        check(",a,,b,", "a");
        check(" a , b", "a");
    }

    /// The cost depends on the length of the text, not on the number of nodes.
    #[test]
    fn lists_of_many_nodes_cost_nothing() {
        check("a[0-18446744073709551615]", "a0");
        check("a[1-60000]b[1-60000]c[1-60000]", "a1b1c1");
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let lists = [
            "",
            ",",
            "a,node[1-",
            "node1-2]",
            "n[[1]]",
            "n[]",
            "n[1,]",
            "n[5-2]",
            "n[a-c]",
            "n[1-2-3]",
            "n[+1]",
            "n[99999999999999999999]",
        ];
        let texts = lists.map(|list| first_node(list).unwrap_err().to_string());
        insta::assert_snapshot!(texts.join("\n"), @r"
        the list has no name
        the list has no name
        the brackets of `node[1-` do not match
        the brackets of `node1-2]` do not match
        the brackets of `n[[1]]` do not match
        `` between the brackets of `n[]` is neither a number nor a range of two, such as 7 or 08-11
        `` between the brackets of `n[1,]` is neither a number nor a range of two, such as 7 or 08-11
        `5-2` between the brackets of `n[5-2]` is neither a number nor a range of two, such as 7 or 08-11
        `a-c` between the brackets of `n[a-c]` is neither a number nor a range of two, such as 7 or 08-11
        `1-2-3` between the brackets of `n[1-2-3]` is neither a number nor a range of two, such as 7 or 08-11
        `+1` between the brackets of `n[+1]` is neither a number nor a range of two, such as 7 or 08-11
        `99999999999999999999` between the brackets of `n[99999999999999999999]` is neither a number nor a range of two, such as 7 or 08-11
        ");
    }

    proptest::proptest! {
        /// Two brackets with ranges of any width, and other names after them.
        #[test]
        fn two_brackets_are_their_first_numbers(
            from in 0_u64..50, more in 0_u64..6, other in 0_u64..1200, others in 0_u64..6, names in "(,[a-z]{0,4}){0,3}",
        ) {
            let list = format!("r[{from:02}-{:02}]n[{other:04}-{:04}]-x{names}", from + more, other + others);
            let expected = format!("r{from:02}n{other:04}-x");
            proptest::prop_assert_eq!(first_node(&list).unwrap(), expected);
        }
    }
}
