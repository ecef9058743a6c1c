//! The types of a model's modules.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use tinderbox_deferred::ParameterTable;

use super::json::Json;
use crate::FormatError;

/// Maximum size of the types in a manifest, in bytes of JSON.
const MAX_MODULES_BYTES: u64 = 16 << 20;

/// The types of the modules of a model that have parameters of their own, by path: `Linear` for `layers.0.query`. The path of
/// the model itself is empty. The types determine the names and layouts in other libraries.
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

    /// Returns whether there are no types.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the field of a manifest; `None` without types.
    pub(crate) fn to_json(&self) -> Result<Option<Json>, FormatError> {
        let json = (!self.is_empty()).then(|| Json::of(self, MAX_MODULES_BYTES));
        json.transpose()
    }

    /// Parses the field of a manifest; a field of another form has no types.
    pub(super) fn of_json(json: Option<&Json>) -> Self {
        let types: BTreeMap<String, Vec<String>> = Json::parsed(json, MAX_MODULES_BYTES);
        let of_paths = |(name, paths): (String, Vec<String>)| {
            paths.into_iter().map(move |path| (path, name.clone()))
        };
        types.into_iter().flat_map(of_paths).collect()
    }
}

/// Collects pairs of a path and a type.
impl FromIterator<(String, String)> for ModuleTypes {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(types: I) -> Self {
        Self(types.into_iter().collect())
    }
}

/// Serializes the sorted paths of each type.
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
        let of = |text: &str| ModuleTypes::of_json(Some(&Json::of_text(text).unwrap()));
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
