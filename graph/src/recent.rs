//! A map that drops the least recently used values.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Values by key, each with the time of its last use, counted in uses.
#[derive(Debug)]
pub struct Recent<K, V> {
    values: HashMap<K, (u64, V)>,
    capacity: usize,
    uses: u64,
}

impl<K: Hash + Eq + Clone, V> Recent<K, V> {
    /// An empty map that keeps `capacity` values.
    pub fn new(capacity: usize) -> Self {
        Self {
            values: HashMap::new(),
            capacity,
            uses: 0,
        }
    }

    /// Returns a value and marks it as the most recently used.
    pub fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let (used, value) = self.values.get_mut(key)?;
        self.uses += 1;
        *used = self.uses;
        Some(value)
    }

    /// Adds a value as the most recently used. No value is dropped before [`trim`](Self::trim).
    pub fn insert(&mut self, key: K, value: V) {
        self.uses += 1;
        self.values.insert(key, (self.uses, value));
    }

    /// Drops the least recently used values until the capacity is left, or `least` if that is more.
    /// Returns their keys.
    pub fn trim(&mut self, least: usize) -> Vec<K> {
        let surplus = self.values.len().saturating_sub(self.capacity.max(least));
        let dropped = (0..surplus).filter_map(|_| {
            let oldest = self.values.iter().min_by_key(|(_, (used, _))| *used);
            let key = oldest.map(|(key, _)| key.clone())?;
            self.values.remove(&key);
            Some(key)
        });
        dropped.collect()
    }

    /// All values.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.values.values().map(|(_, value)| value)
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
