//! The JSON document in an envelope: format and version first, then field by field.
//!
//! A field remains text until it is read by its unescaped name, so a limit on the size of a field applies
//! whether or not its name is written with escapes.
//!
//! An object inside a field may be an array of the fields in their order, because `serde` accepts this form.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{de::StrRead, value::RawValue};

use super::json::Json;
use super::limits::{MAX_MANIFEST_BYTES, check_size};
use super::{envelope, lists};
use crate::{FormatError, digest::Text, error::short};

/// The only supported major version; every minor version of it is supported.
pub(crate) const VERSION: u32 = 1;
/// Maximum number of fields of a document, known or unknown.
const MAX_FIELDS: usize = 1024;

/// The fields of a document as raw JSON.
#[derive(Debug)]
pub(super) struct Fields<'a>(BTreeMap<Cow<'a, str>, &'a RawValue>);

impl<'a> Fields<'a> {
    /// Parses the fields of a sealed document of the given format. Checks the version and the required
    /// features first, so that a newer document is not reported as damaged.
    ///
    /// Memory: one entry per field.
    pub(super) fn of(bytes: &'a [u8], expected: &'static str) -> Result<Self, FormatError> {
        check_size(bytes.len() as u64, MAX_MANIFEST_BYTES)?;
        let mut fields: Self = serde_json::from_slice(envelope::open(bytes)?)?;
        let Text(found) = fields.take("format")?;
        if found != expected {
            let found = short(&found);
            return Err(FormatError::Format { expected, found });
        }
        let (expected, found) = (VERSION, fields.take("version")?);
        if found != expected {
            return Err(FormatError::Version { expected, found });
        }
        if fields.0.contains_key("required_features") {
            let first: Vec<Text<'_>> = fields.take_with("required_features", |json| {
                lists::list_while(json, |_| false)
            })?;
            if let Some(Text(feature)) = first.first() {
                let feature = short(feature);
                return Err(FormatError::Feature { feature });
            }
        }
        Ok(fields)
    }

    /// Parses and removes a field.
    pub(super) fn take<T: Deserialize<'a>>(&mut self, key: &'static str) -> Result<T, FormatError> {
        self.take_with(key, |json| T::deserialize(json))
    }

    /// Parses and removes a field with a function.
    pub(super) fn take_with<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut serde_json::Deserializer<StrRead<'a>>) -> Result<T, serde_json::Error>,
    ) -> Result<T, FormatError> {
        let mut json = serde_json::Deserializer::from_str(self.take_text(field)?);
        read(&mut json).map_err(|source| FormatError::Field { field, source })
    }

    /// Parses and removes the minor version; without the field, it is 0.
    pub(super) fn take_minor(&mut self) -> Result<u32, FormatError> {
        match self.0.contains_key("minor") {
            true => self.take("minor"),
            false => Ok(0),
        }
    }

    /// Removes an optional field and returns its JSON.
    pub(super) fn take_json(&mut self, field: &'static str) -> Result<Option<Json>, FormatError> {
        let value = self.0.remove(field);
        value.map(|value| Json::of_text(value.get())).transpose()
    }

    /// Removes a field and returns its raw JSON.
    pub(super) fn take_text(&mut self, field: &'static str) -> Result<&'a str, FormatError> {
        let value = self.0.remove(field);
        let value = value.ok_or_else(|| serde_json::Error::missing_field(field))?;
        Ok(value.get())
    }

    /// Returns the remaining fields as raw JSON.
    pub(super) fn rest(self) -> Result<BTreeMap<String, Json>, FormatError> {
        let fields = self.0.into_iter();
        let owned = fields.map(|(name, json)| Ok((name.into_owned(), Json::of_text(json.get())?)));
        owned.collect()
    }

    /// Rejects remaining fields.
    pub(super) fn end(self) -> Result<(), FormatError> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(unknown) => {
                let message = format!("unknown field `{}`", short(unknown));
                Err(serde_json::Error::custom(message).into())
            }
        }
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some(Text(name)) = map.next_key()? {
            if fields.contains_key(&name) {
                let name = short(&name);
                return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
            }
            if fields.len() == MAX_FIELDS {
                let message = format!("more than {MAX_FIELDS} fields");
                return Err(A::Error::custom(message));
            }
            fields.insert(name, map.next_value()?);
        }
        Ok(Fields(fields))
    }
}
