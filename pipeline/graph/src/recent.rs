//! A map that drops the least recently used values.

use std::borrow::Borrow;

/// A few values by key, the least recently used first. Cost of an access: linear in their number.
#[derive(Debug)]
pub struct Recent<K, V> {
    values: Vec<(K, V)>,
    capacity: usize,
}

impl<K: Eq, V> Recent<K, V> {
    /// An empty map that keeps `capacity` values.
    pub fn new(capacity: usize) -> Self {
        Self {
            values: Vec::new(),
            capacity,
        }
    }

    /// Returns a value and marks it as the most recently used.
    pub fn get<Q: Eq + ?Sized>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut values = self.values.iter();
        let position = values.position(|(known, _)| <K as Borrow<Q>>::borrow(known) == key)?;
        self.values[position..].rotate_left(1);
        self.values.last().map(|(_, value)| value)
    }

    /// Adds a value as the most recently used. No value is dropped before [`trim`](Self::trim).
    pub fn insert(&mut self, key: K, value: V) {
        self.values.retain(|(known, _)| *known != key);
        self.values.push((key, value));
    }

    /// Drops the least recently used values until the capacity is left, or `least` if that is more.
    /// Returns their keys.
    pub fn trim(&mut self, least: usize) -> Vec<K> {
        let surplus = self.values.len().saturating_sub(self.capacity.max(least));
        self.values.drain(..surplus).map(|(key, _)| key).collect()
    }

    /// All values.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.values.iter().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_value_is_dropped_first() {
        let mut recent = Recent::new(2);
        for key in ["a", "b", "c"] {
            recent.insert(key, key.to_uppercase());
        }
        assert_eq!(recent.get("a").unwrap(), "A");
        assert_eq!(recent.trim(3), [""; 0], "three are requested");
        assert_eq!(recent.trim(1), ["b"], "two are kept");
        assert_eq!(recent.get("b"), None);
        recent.insert("d", "D".into());
        assert_eq!(recent.trim(0), ["c"]);
        let mut values: Vec<&String> = recent.values().collect();
        values.sort();
        assert_eq!(values, ["A", "D"]);
    }
}
