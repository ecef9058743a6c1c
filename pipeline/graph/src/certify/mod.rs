//! Proves before the first run that a pipeline computes the recorded graph.
//!
//! Cutting a graph adds no arithmetic, so the equality of computations can be checked without running
//! them. Every value of the uncut graph has a fingerprint. It is a hash of the operation's kind, attributes and
//! operands, down to parameters, tensors of the batch, constants and keys of random values. Two checks run on
//! fingerprints instead of tensors:
//!
//! 1. [`certify_programs`] runs every program of every stage, once per cut. Given the values that its
//!    bindings name, each operation, output and gradient must have the fingerprint of the uncut graph.
//! 2. [`certify_lists`] runs the lists of all ranks, once per lists and cuts of their micro-batches:
//!    messages, values between programs, sums of gradients, updates, copies of shared parameters and
//!    carried tensors. A program is a single step of this run: the first check proves that the program
//!    computes its outputs from the inputs that it names.
//!
//! Both checks read the programs and lists that will run, the recorded graph and the ownership of
//! parameters, and share no code with the cut, the lowering and the verifier. They assume that Burn's
//! interpreter runs an operation as it is recorded, and that the runtime runs the lists as
//! [`certify_lists`] reads them. Casts of mixed precision and the dtypes of booleans on GPUs are
//! inserted later and treated as the identity.

mod fingerprint;
mod lists;
mod messages;
mod programs;
mod reference;
mod refused;
mod run;
mod sums;
#[cfg(test)]
mod tests;

pub use lists::certify_lists;
pub use programs::{CertifiedPrograms, CertifiedStep, certify_programs};
