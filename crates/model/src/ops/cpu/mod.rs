//! The fused operations on the CPU, for Burn's Flex backend.
//!
//! Loops are plain Rust over lanes of a fixed number, compiled once for each level of instructions (AVX2, AVX-512, NEON) and picked when
//! they run; every sum has [`math::LANES`] partial sums whatever the processor's width. Work is cut into pieces whose number follows from
//! the shape alone, threads take pieces, and partial results are added in the order of the pieces.

mod adamw;
mod buffer;
mod element;
mod exp;
mod gelu;
mod hydra;
mod layer_norm;
mod linear;
mod linear_attention;
mod loss;
mod math;
mod patches;
mod pieces;
mod product;
mod residual;
mod scratch;
mod softmax_attention;
mod strided;
mod sums;
mod tensor;
mod tile;
mod vector;
