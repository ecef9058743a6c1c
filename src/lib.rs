//! Builds Burn models without lighting them.
