//! Slurm's lists of nodes, such as `rack[0-1]node[00-15],login`.

use crate::error::NodeListError;

/// The most names that a list may have: the most nodes of a cluster of Slurm.
const MOST_NODES: usize = 65_536;

/// Returns the names of a list, in the order of Slurm: what the first name stands for comes first, and of several brackets in
/// a name, the last varies fastest. A number has as many digits as the first of its range is written with.
///
/// # Errors
///
/// When the list has no name or too many, when brackets do not match, or when what is between them is no number and no
/// range of two.
pub(crate) fn expand(list: &str) -> Result<Vec<String>, NodeListError> {
    let mut nodes = Vec::new();
    let mut rest = list;
    while !rest.is_empty() {
        let (name, after) = split_name(rest)?;
        rest = after;
        // Slurm ignores a comma too many.
        if !name.is_empty() {
            nodes.extend(expand_name(name, MOST_NODES - nodes.len())?);
        }
    }
    match nodes.is_empty() {
        true => Err(NodeListError::Empty),
        false => Ok(nodes),
    }
}

/// Returns the first name of a list with its brackets, and what follows its comma.
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

/// Returns the names of a name whose brackets match, at most `most`.
fn expand_name(name: &str, most: usize) -> Result<Vec<String>, NodeListError> {
    let too_many = NodeListError::TooMany { limit: MOST_NODES };
    let mut names = vec![String::new()];
    let mut rest = name;
    while let Some((text, after)) = rest.split_once('[')
        && let Some((inside, after)) = after.split_once(']')
    {
        let numbers = expand_numbers(name, inside)?;
        if names.len().saturating_mul(numbers.len()) > most {
            return Err(too_many);
        }
        let starts = names.iter().map(|start| format!("{start}{text}"));
        let with = |start: String| numbers.iter().map(move |number| format!("{start}{number}"));
        names = starts.flat_map(with).collect();
        rest = after;
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    match names.len() > most {
        true => Err(too_many),
        false => Ok(names),
    }
}

/// Returns the numbers of a list such as `07-09,12`, as they are written.
fn expand_numbers(name: &str, inside: &str) -> Result<Vec<String>, NodeListError> {
    let mut numbers = Vec::new();
    for range in inside.split(',') {
        let wrong = || NodeListError::Range {
            name: name.to_owned(),
            range: range.to_owned(),
        };
        let number = |text: &str| {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            // `parse` takes a sign, too.
            let number = is_number.then(|| text.parse::<u64>().ok()).flatten();
            number.ok_or_else(wrong)
        };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (from, to) = (number(first)?, number(last)?);
        let count = to.checked_sub(from).ok_or_else(wrong)?;
        let left = MOST_NODES - numbers.len();
        if usize::try_from(count).map_or(true, |count| count >= left) {
            return Err(NodeListError::TooMany { limit: MOST_NODES });
        }
        let width = first.len();
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names, with spaces between them.
    #[track_caller]
    fn check(list: &str, expected: &str) {
        assert_eq!(expand(list).unwrap().join(" "), expected, "{list}");
    }

    /// As `scontrol show hostnames` prints them.
    #[test]
    fn lists_have_the_names_of_slurm_in_its_order() {
        check("node7", "node7");
        check("node7,login", "node7 login");
        check("node[07-09,12]", "node07 node08 node09 node12");
        check("node[9-11]", "node9 node10 node11");
        check("node[098-101]", "node098 node099 node100 node101");
        check("[1-2]", "1 2");
        check("rack[1-2]-ib,login", "rack1-ib rack2-ib login");
        check(
            "rack[0-1]node[00-02]",
            "rack0node00 rack0node01 rack0node02 rack1node00 rack1node01 rack1node02",
        );
        check("r[1,3]n[07-08]-x", "r1n07-x r1n08-x r3n07-x r3n08-x");
        check("a[1-2][3-4]", "a13 a14 a23 a24");
        check(
            "a[0-1]b[0-1]c[5,7],z",
            "a0b0c5 a0b0c7 a0b1c5 a0b1c7 a1b0c5 a1b0c7 a1b1c5 a1b1c7 z",
        );
        check("a,,b,", "a b");
    }

    #[test]
    fn names_are_counted_before_they_are_made() {
        assert_eq!(expand("a[1-256]b[1-256]").unwrap().len(), 65_536);
        for list in [
            "a[1-256]b[1-257]",
            "a[1-256]b[1-256],c",
            "a[0-18446744073709551615]",
            "a[1-60000]b[1-60000]c[1-60000]",
            "a[1-60000,1-60000]",
        ] {
            let error = expand(list).unwrap_err();
            assert_eq!(error, NodeListError::TooMany { limit: 65_536 }, "{list}");
        }
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
        let texts = lists.map(|list| expand(list).unwrap_err().to_string());
        insta::assert_snapshot!(texts.join("\n"), @r"
        the list has no name
        the list has no name
        the brackets of `node[1-` do not match
        the brackets of `node1-2]` do not match
        the brackets of `n[[1]]` do not match
        `` between the brackets of `n[]` is no number and no range of two, such as 7 or 08-11
        `` between the brackets of `n[1,]` is no number and no range of two, such as 7 or 08-11
        `5-2` between the brackets of `n[5-2]` is no number and no range of two, such as 7 or 08-11
        `a-c` between the brackets of `n[a-c]` is no number and no range of two, such as 7 or 08-11
        `1-2-3` between the brackets of `n[1-2-3]` is no number and no range of two, such as 7 or 08-11
        `+1` between the brackets of `n[+1]` is no number and no range of two, such as 7 or 08-11
        `99999999999999999999` between the brackets of `n[99999999999999999999]` is no number and no range of two, such as 7 or 08-11
        ");
    }

    proptest::proptest! {
        /// A list of ranges against the same names written out, by nested loops.
        #[test]
        fn two_brackets_are_two_loops(from in 0_u64..50, more in 0_u64..6, other in 0_u64..1200, others in 0_u64..6) {
            let mut expected = Vec::new();
            for first in from..=from + more {
                for second in other..=other + others {
                    expected.push(format!("r{first:02}n{second:04}-x"));
                }
            }
            let list = format!("r[{from:02}-{:02}]n[{other:04}-{:04}]-x", from + more, other + others);
            proptest::prop_assert_eq!(expand(&list).unwrap(), expected);
        }
    }
}
