//! Named texts of a manifest: the settings of a training, and what the CPU of the run computes.

use std::collections::BTreeMap;

use super::json::Json;
use crate::FormatError;

/// Maximum size of a field of texts in a manifest, in bytes of JSON.
const MAX_TEXTS_BYTES: u64 = 1 << 20;

/// Returns the field of a manifest; `None` without texts.
pub(crate) fn to_json(texts: &BTreeMap<String, String>) -> Result<Option<Json>, FormatError> {
    let json = (!texts.is_empty()).then(|| Json::of(texts, MAX_TEXTS_BYTES));
    json.transpose()
}

/// Parses the field of a manifest. A value that is no text, as of a newer version, is its JSON; a field of another form has
/// no texts.
pub(super) fn of_json(json: Option<&Json>) -> BTreeMap<String, String> {
    let json = json.filter(|json| json.text().len() as u64 <= MAX_TEXTS_BYTES);
    let parsed = json.and_then(|json| serde_json::from_str(json.text()).ok());
    let values: BTreeMap<String, serde_json::Value> = parsed.unwrap_or_default();
    let texts = values.into_iter().map(|(name, value)| match value {
        serde_json::Value::String(text) => (name, text),
        value => (name, value.to_string()),
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_as_written_and_other_forms_tolerated() {
        let of = |text: &str| of_json(Some(&Json::of_text(text).unwrap()));
        let texts: BTreeMap<String, String> = [("a", "1"), ("b", "")]
            .map(|(name, text)| (name.into(), text.into()))
            .into();
        let json = to_json(&texts).unwrap().unwrap();
        assert_eq!(json.text(), r#"{"a":"1","b":""}"#);
        assert_eq!(of(json.text()), texts);
        assert_eq!(of(r#"{"a":1,"b":""}"#), texts);
        for other in ["null", "[]", "1", r#""a""#] {
            assert!(of(other).is_empty(), "{other}");
        }
        assert!(of_json(None).is_empty());
        let large = "a".repeat(1 << 20);
        assert!(of(&format!(r#"{{"a":"{large}"}}"#)).is_empty());
        assert!(to_json(&[("a".to_owned(), large)].into()).is_err());
        assert_eq!(to_json(&BTreeMap::new()).unwrap(), None);
    }
}
