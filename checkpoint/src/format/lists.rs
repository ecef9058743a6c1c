//! The lists of a manifest, read with bounded memory.
//!
//! Some lists stop at the first element that violates a rule and keep it, because the validation of the
//! manifest then rejects it. An invalid list therefore does not use more memory than a valid one.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use serde::de::{Error as _, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Scalar;
use super::limits::{MAX_DIMENSIONS, MAX_TIED_NAMES};

/// A named scalar of the optimizer state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NamedScalar {
    pub(crate) name: String,
    pub(crate) value: Scalar,
}

impl NamedScalar {
    pub(crate) fn of((name, &value): (&String, &Scalar)) -> Self {
        let name = name.clone();
        Self { name, value }
    }
}

/// Serializes scalars as the list of version 1.
pub(super) fn serialize_scalars<S: Serializer>(
    scalars: &BTreeMap<String, Scalar>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(scalars.iter().map(NamedScalar::of))
}

/// Deserializes a whole list.
pub(super) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    list_while(deserializer, |_| true)
}

/// Deserializes sizes or offsets per dimension, up to one more than the limit, which validation rejects.
pub(super) fn dimensions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    list_while(deserializer, |all: &[u64]| all.len() <= MAX_DIMENSIONS)
}

/// Deserializes names while they are sorted.
pub(super) fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    list_while(deserializer, |all: &[String]| {
        ends_in_order(all, |a, b| a < b) && all.len() <= MAX_TIED_NAMES
    })
}

/// Deserializes the scalars of a manifest; rejects an unsorted list.
pub(super) fn scalars<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, Scalar>, D::Error> {
    struct Scalars;

    impl<'de> Visitor<'de> for Scalars {
        type Value = BTreeMap<String, Scalar>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of scalars")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut all: Self::Value = BTreeMap::new();
            while let Some(NamedScalar { name, value }) = list.next_element()? {
                if all.last_key_value().is_some_and(|(last, _)| *last >= name) {
                    let message = "the list of scalars is not sorted, or has duplicates";
                    return Err(A::Error::custom(message));
                }
                all.insert(name, value);
            }
            Ok(all)
        }
    }

    deserializer.deserialize_seq(Scalars)
}

/// Returns whether the last two elements are in order.
pub(super) fn ends_in_order<T>(all: &[T], in_order: impl Fn(&T, &T) -> bool) -> bool {
    match all {
        [.., a, b] => in_order(a, b),
        _ => true,
    }
}

/// Deserializes a list while a predicate holds, without excess capacity.
pub(super) fn list_while<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
    continues: impl FnMut(&[T]) -> bool,
) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(List(continues, PhantomData))
}

struct List<F, T>(F, PhantomData<T>);

impl<'de, F: FnMut(&[T]) -> bool, T: Deserialize<'de>> Visitor<'de> for List<F, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(next) = list.next_element()? {
            if all.len() == all.capacity() {
                // Grows by less than a factor of two, because the old and the new allocation coexist during growth.
                all.reserve_exact(1 + all.len() / 4);
            }
            all.push(next);
            if !(self.0)(&all) {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                break;
            }
        }
        all.shrink_to_fit();
        Ok(all)
    }
}
