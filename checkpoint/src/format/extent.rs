//! How long the values of an object's fields are, before anything is parsed.

/// The fields of the JSON object in these bytes with the bytes of their values, as they are written; keys
/// with escapes are left as they are. Of bytes that are no JSON object it gives something: the parser
/// refuses them.
///
/// Cost: one pass, no memory.
pub(super) fn field_extents(json: &[u8]) -> impl Iterator<Item = (&[u8], u64)> {
    let (mut depth, mut in_text, mut escaped) = (0u32, false, false);
    let (mut text_start, mut key, mut value_start) = (0, &json[..0], None);
    let mut bytes = json.iter().enumerate();
    std::iter::from_fn(move || {
        for (at, byte) in bytes.by_ref() {
            if in_text {
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' => escaped = true,
                    b'"' => {
                        in_text = false;
                        if depth == 1 && value_start.is_none() {
                            key = &json[text_start + 1..at];
                        }
                    }
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => (in_text, text_start) = (true, at),
                b'{' | b'[' => depth += 1,
                b':' if depth == 1 && value_start.is_none() => value_start = Some(at + 1),
                b',' if depth == 1 => {
                    if let Some(start) = value_start.take() {
                        return Some((key, (at - start) as u64));
                    }
                }
                b'}' | b']' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0
                        && let Some(start) = value_start.take()
                    {
                        return Some((key, (at - start) as u64));
                    }
                }
                _ => {}
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::field_extents;

    #[test]
    fn cases() {
        let of = |json: &str| -> Vec<(String, u64)> {
            let fields = field_extents(json.as_bytes());
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            fields.map(|(key, bytes)| (text(key), bytes)).collect()
        };
        let expected = |fields: &[(&str, u64)]| -> Vec<(String, u64)> {
            fields
                .iter()
                .map(|(key, bytes)| ((*key).to_owned(), *bytes))
                .collect()
        };
        assert_eq!(of("{}"), expected(&[]));
        assert_eq!(
            of(r#"{"a":1,"b":[1,{"a":2}] , "c":{}}"#),
            expected(&[("a", 1), ("b", 12), ("c", 2)])
        );
        assert_eq!(
            of(r#"{"a":"}\\\",\"","a":null}"#),
            expected(&[("a", 10), ("a", 4)])
        );
        assert_eq!(of(r#"{"a":"x","b":"y"}"#), expected(&[("a", 3), ("b", 3)]));
        // Anything at all ends.
        for json in ["", "]", "}}", r#""a":"#, r#"{"a":"#, "[[[", "{,:,:}"] {
            of(json);
        }
    }
}
