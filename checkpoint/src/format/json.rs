//! JSON of the caller, kept as text because a parsed value uses many times the memory.

use std::fmt;

use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, value::RawValue};

use super::limits::check_size;
use crate::FormatError;

/// Maximum nesting depth of arrays and objects.
const MAX_NESTING: usize = 126;

/// JSON text within the nesting limit that every reader supports.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Json(Box<RawValue>);

impl Json {
    /// Serializes a value to at most `limit_bytes` bytes.
    pub(crate) fn of(value: &impl Serialize, limit_bytes: u64) -> Result<Self, FormatError> {
        let text = serde_json::value::to_raw_value(value)?;
        check_nesting(text.get())?;
        check_size(text.get().len() as u64, limit_bytes)?;
        Ok(Self(text))
    }

    /// Checks that text is JSON that can be parsed to a value.
    pub(super) fn of_text(text: &str) -> Result<Self, FormatError> {
        check_nesting(text)?;
        // A skipped value can contain an unpaired surrogate, or a number that overflows a float.
        let _: Discarded = serde_json::from_str(text)?;
        Ok(Self(RawValue::from_string(text.to_owned())?))
    }

    /// Checks that text is JSON of at most `limit_bytes` bytes.
    pub(super) fn within(text: &str, limit_bytes: u64) -> Result<Self, FormatError> {
        check_size(text.len() as u64, limit_bytes)?;
        Self::of_text(text)
    }

    /// Parses an optional field; a field of another form, or of more bytes than the limit, has the default value.
    pub(super) fn parsed<T: DeserializeOwned + Default>(field: Option<&Self>, limit: u64) -> T {
        let field = field.filter(|json| json.text().len() as u64 <= limit);
        let parsed = field.and_then(|json| serde_json::from_str(json.text()).ok());
        parsed.unwrap_or_default()
    }

    /// Returns the text.
    pub(crate) fn text(&self) -> &str {
        self.0.get()
    }

    /// Parses the value.
    pub(crate) fn value(&self) -> Value {
        let value = serde_json::from_str(self.text());
        value.expect("the constructors check that the text can be parsed")
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

/// Methods of a visitor that discard a value.
macro_rules! discarded {
    ($($visit:ident($type:ty)),*) => {$(
        fn $visit<E>(self, _: $type) -> Result<Self, E> {
            Ok(self)
        }
    )*};
}

/// A value that is parsed and discarded.
struct Discarded;

impl<'de> Deserialize<'de> for Discarded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Discarded)
    }
}

impl<'de> Visitor<'de> for Discarded {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    discarded! { visit_bool(bool), visit_i64(i64), visit_u64(u64), visit_f64(f64), visit_str(&str) }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while let Some(Self) = list.next_element()? {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while let Some((Self, Self)) = map.next_entry()? {}
        Ok(self)
    }
}

/// Checks the nesting depth of valid JSON.
fn check_nesting(json: &str) -> Result<(), FormatError> {
    let (mut depth, mut in_text, mut escaped) = (0usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => depth += 1,
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_NESTING {
            return Err(FormatError::Nesting { limit: MAX_NESTING });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text that is kept can always be parsed to a value.
    #[test]
    fn strings_and_numbers_that_can_not_be_parsed_are_refused() {
        for text in [
            r#""\ud800""#,
            r#"{"\ud800":1}"#,
            "[1e999]",
            &"9".repeat(400),
            r#"{"a":"\udc00\ud800"}"#,
        ] {
            assert!(Json::of_text(text).is_err(), "{text}");
        }
        for text in [r#""\ud83d\ude00""#, "1e308", "-0.0", "18446744073709551616"] {
            Json::of_text(text).unwrap().value();
        }
    }

    #[test]
    fn arrays_and_objects_count_as_nesting() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let of = |text: &str| Json::of_text(text).map(|json| json.value());
        assert!(of(&nested(126)).is_ok());
        assert!(matches!(
            of(&nested(127)),
            Err(FormatError::Nesting { limit: 126 })
        ));
        // Adjacent values, and brackets in strings, do not count as nesting.
        let beside = format!("[{}\"\\\"{}\"]", "[],{},".repeat(200), "[".repeat(200));
        assert_eq!(of(&beside).unwrap().as_array().unwrap().len(), 401);
    }
}
