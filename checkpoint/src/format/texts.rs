//! Named texts of a manifest: the settings of a training, and the digests of CPU results.

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

/// Parses the field of a manifest. A value that is not a text, for example of a newer version, is returned as JSON; a field of
/// another form has no texts.
pub(super) fn of_json(json: Option<&Json>) -> BTreeMap<String, String> {
    let values: BTreeMap<String, serde_json::Value> = Json::parsed(json, MAX_TEXTS_BYTES);
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
    fn texts_round_trip_and_other_forms_are_tolerated() {
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
