//! Proves that what a pipeline runs computes what was recorded, before it runs for the first time.
//!
//! Cutting a graph adds no arithmetic, so equality of computations can be decided without numbers. Every value of the
//! uncut graph has a [fingerprint](fingerprint::Fingerprint): a hash of its operation's kind, attributes and operands,
//! down to parameters, tensors of the batch, constants and keys of random values. Two runs on fingerprints instead of
//! tensors follow:
//!
//! 1. [`certify_programs`] runs every program of every stage, once per cut. Given the values that its bindings name,
//!    each operation, output and gradient must have the fingerprint of the uncut graph.
//! 2. [`certify_lists`] runs the lists of all ranks, once per lists and cuts of their micro-batches: messages, values
//!    between programs, sums of gradients, updates and copies of shared parameters. A program is one step of it: by the
//!    first run, it makes the values that it is to make if it gets those that it names.
//!
//! Both read the programs and lists that will run, the recorded graph and who owns which parameter, and share no code
//! with the cut, the lowering and the verifier. What they rely on is that Burn's interpreter runs an operation as it is
//! recorded, and that the runtime runs the lists as [`certify_lists`] reads them. Casts of mixed precision and the types
//! that booleans have on GPUs come after, and are taken for the identity.

mod copies;
mod fingerprint;
mod lists;
mod messages;
mod programs;
mod reference;
#[cfg(test)]
mod tests;

pub(crate) use lists::{CertifiedMicroBatch, Lists, certify_lists};
pub(crate) use programs::{Certificate, certify_programs};
