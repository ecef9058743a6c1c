//! Sharded checkpoints: whole or not there.
