//! How much work an operation is, from its shapes and dtypes alone.
//!
//! [`operation_cost`] counts FLOPs and bytes of any operation that Burn can record. Counts are those
//! of the mathematics, not of a machine: each operation alone, by its textbook form, with nothing
//! known of caches, fusion or the shapes of tiles. With a machine's FLOPs and bytes per second they
//! give its roofline (Williams, Waterman and Patterson, doi:10.1145/1498765.1498785).
//!
//! # What is counted
//!
//! - **FLOPs**: operations on single elements. A multiplication and an addition are two; an `exp`, a
//!   `tanh`, a comparison, a cast, a bitwise operation or a choice by a mask is one. Ints and bools
//!   count like floats. Moving data takes none.
//! - **Bytes read**: every distinct input once, at its own size, broadcast or not. Of a table only
//!   what is selected, and never more than the table. Nothing of an input whose shape alone matters.
//! - **Bytes written**: every output.
//! - **Views** read and write nothing; on a backend that copies them, they cost the copy.
//! - Bytes are those of the stored dtype; those of quantized tensors are packed, with their scales.
//!
//! | family | FLOPs | bytes read | bytes written |
//! |---|---|---|---|
//! | matrix product, `m x k` by `k x n` | `2 m n k` per batch | both | result |
//! | linear, gradients of its input and weight | `2 rows d_input d_output` | operands, bias | result |
//! | convolution and its gradients | `2 x` elements of the result `x` input channels / groups `x` kernel | the two that are multiplied, bias | result |
//! | transposed convolution and its gradients | `2 x` elements of the input `x` output channels / groups `x` kernel | the same | result |
//! | deformable convolution | a convolution, and 8 per sample (9 with a mask) | all | result |
//! | its gradients | two convolutions, and 32 per sample (35 with a mask) | all but the bias | all gradients |
//! | gradient of a bias | elements of the result's gradient | that gradient | bias |
//! | attention, `s` scores | `2 s d + 2 s d_v + 6 s`; masks and bias `s` each, soft cap `3 s` | all | result |
//! | layer norm | 6 or 7 per element, 4 per row | all | result |
//! | batch norm with given statistics | 4 per element, 2 per channel | all | result |
//! | softmax, log softmax, softmin | 5; 5 and 1 per row; 6 | input | result |
//! | other activations | 1 to 11 per element | all | result |
//! | elementwise, comparison, mask, cast, bits | 1 per element of the result; clamp 2, cross product 3 | all | result |
//! | quantize, dequantize | 4 per element; 1 per level of scales | all | result |
//! | reduction | 1 per element read; a mean 1 per result more, a magnitude 2 | input | result |
//! | running sum, product, extremum | 1 per element | input | result |
//! | sort, largest `k` | `ceil(log2 n)` per element of rows of `n` | input | results |
//! | pooling and gradient of averages | elements of the window per position | input, or gradient | result |
//! | gradient of a maximum pool | 1 per position | gradient, indices | result |
//! | interpolation, grid sample | 2 per tap and element; coordinates 3 each; nearest 0 | the input or its taps, the grid | result |
//! | connectionist temporal classification | 13 per state; backward 33, and 3 per class | what is selected; backward all | result |
//! | gather, select, embedding | 0 | indices, and what they select | result |
//! | scatter, assignment | 1 per value, 0 if it is put in place | all | result |
//! | gradient of an embedding | 1 per element of the result's gradient | gradient, indices | the whole table |
//! | concatenation, repetition, padding, laid-out windows | 0 | all | result |
//! | reshape, swap, permute, flip, expand, slice, unfold | 0 | 0 | 0 |
//! | zeros, ones, full | 0 | 0 | result |
//! | random numbers | 1, Bernoulli 2, uniform in a range or normal 3 per element | 0 | result |
//! | all-reduce over `p` devices | `(p - 1) / p` per element, a mean 1 more | `2 n (p - 1) / p` sent | as many received |
//! | operation of an extension | 1 per element of the largest input or of the outputs | all | all |
//!
//! # Limits
//!
//! - Values are not known: lengths of sequences, masks and repeated indices save nothing.
//! - Strides are not known: a broadcast tensor counts at its own size where the operation broadcasts
//!   it, and at its expanded size where an expansion came before; a reshape that must copy counts
//!   as a view.
//! - An update of a part counts out of place, the whole tensor read and written.
//! - Burn records no Fourier transforms and no decompositions of matrices as operations of their
//!   own, so there is no count for these.
//!
//! | file | what it counts |
//! |---|---|
//! | `operation.rs` | any operation, by its kind |
//! | `count.rs`, `size.rs` | nothing: what counts and sizes are |
//! | `elementwise.rs`, `activation.rs` | one element at a time |
//! | `numeric.rs`, `module.rs` | nothing: they send operations to their families |
//! | `creation.rs` | constants and random numbers |
//! | `movement.rs` | views, copies and selection |
//! | `reduction.rs` | reductions, running sums and sorting |
//! | `matrix.rs`, `convolution.rs`, `deformable.rs` | products |
//! | `normalization.rs`, `pooling.rs`, `interpolation.rs`, `sequence.rs` | other layers |
//! | `collective.rs` | between devices |

mod activation;
mod collective;
mod convolution;
mod count;
mod creation;
mod deformable;
mod elementwise;
#[cfg(test)]
mod fixture;
mod interpolation;
mod matrix;
mod module;
mod movement;
mod normalization;
mod numeric;
mod operation;
mod pooling;
mod reduction;
#[cfg(test)]
mod samples;
mod sequence;
mod size;

pub use count::OperationCost;
pub use operation::{is_heavy, operation_cost};
