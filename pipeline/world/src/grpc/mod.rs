//! The engine over gRPC: HTTP/2 connections between all pairs of processes.
//!
//! The first rank listens where the ranks meet. Every other rank calls `Join` there with its rank and the port that it
//! listens on. When all have joined, the answer is the addresses of all. Then every rank calls `Carry` at every rank below
//! it. The two streams of that call carry frames in both directions, in gRPC messages of at most 1 MiB. The bytes of a
//! message are the memory of the tensors, without a copy.
//!
//! Framing, flow control and TLS come from `tonic` and `hyper`; the messages are not protobuf.

mod body;
mod call;
mod engine;
mod join;
mod read;
mod service;
mod tls;

pub use engine::Grpc;
#[cfg(test)]
mod tests;
