//! The types of a model's modules.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use tinderbox_deferred::ParameterTable;

use super::json::Json;
use crate::FormatError;

/// Maximum size of the types in a manifest, in bytes of JSON.
const MAX_MODULES_BYTES: u64 = 16 << 20;

/// The types of the modules of a model that have parameters of their own, by path: `Linear` for `layers.0.query`. The path of
/// the model itself is empty. From the types follow the names and layouts of other libraries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleTypes(BTreeMap<String, String>);

impl ModuleTypes {
    /// Returns the types of the modules of a model.
    pub fn of(model: &ParameterTable) -> Self {
        let types = model.iter().map(|parameter| {
            let module = parameter.path.module().to_owned();
            (module, parameter.owner().to_owned())
        });
        Self(types.collect())
    }

    /// Returns the type of the module at a path.
    pub fn get(&self, module: &str) -> Option<&str> {
        self.0.get(module).map(String::as_str)
    }

    /// Returns whether no type is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the field of a manifest; `None` if no type is known.
    pub(crate) fn to_json(&self) -> Result<Option<Json>, FormatError> {
        let json = (!self.is_empty()).then(|| Json::of(self, MAX_MODULES_BYTES));
        json.transpose()
    }

    /// Parses the field of a manifest. A field of another form has no types.
    pub(super) fn of_json(json: &Json) -> Self {
        if json.text().len() as u64 > MAX_MODULES_BYTES {
            return Self::default();
        }
        let parsed: Result<BTreeMap<String, Vec<String>>, _> = serde_json::from_str(json.text());
        let paths = parsed.unwrap_or_default().into_iter();
        let types = paths.flat_map(|(name, paths)| {
            let paths = paths.into_iter();
            paths.map(move |path| (path, name.clone()))
        });
        Self(types.collect())
    }
}

/// From paths and types.
impl FromIterator<(String, String)> for ModuleTypes {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(types: I) -> Self {
        Self(types.into_iter().collect())
    }
}

/// The sorted paths of each type.
impl Serialize for ModuleTypes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut paths: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (path, name) in &self.0 {
            paths.entry(name).or_default().push(path);
        }
        paths.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_another_form_has_no_types() {
        let of = |text: &str| ModuleTypes::of_json(&Json::of_text(text).unwrap());
        let types = of(r#"{"LayerNorm":["a.norm"],"Linear":["","b"]}"#);
        assert_eq!(types.get(""), Some("Linear"));
        assert_eq!(types.get("a.norm"), Some("LayerNorm"));
        assert_eq!(types.get("a"), None);
        let json = types.to_json().unwrap().unwrap();
        assert_eq!(json.text(), r#"{"LayerNorm":["a.norm"],"Linear":["","b"]}"#);
        for other in ["null", "{}", "[]", "1", r#"{"Linear":"a"}"#, r#"{"a":[1]}"#] {
            assert!(of(other).is_empty(), "{other}");
        }
        let large = format!(r#"{{"Linear":["{}"]}}"#, "a".repeat(16 << 20));
        assert!(of(&large).is_empty());
        assert_eq!(ModuleTypes::default().to_json().unwrap(), None);
    }
}
