//! The fused operations on GPUs, for Burn's Cube backend: one source for CUDA, Vulkan, Metal and WebGPU.
//!
//! Kernels read and write tensors in vectors along the width and compute in f32 whatever the tensors' type. Units of a workgroup meet in
//! shared memory alone, so no size of a subgroup is assumed. No sum is atomic: each is cut into pieces by the shapes, and a second pass
//! adds the pieces in their order, so that a device gives the same bits each time.

mod adamw;
mod byte_patches;
mod columns;
mod gelu;
mod hydra;
mod layer_norm;
mod linear_attention;
mod loss;
mod phi;
mod residual;
mod rows;
mod softmax_attention;
mod softmax_tile;
mod sums;
mod tensor;

pub use softmax_attention::fits as softmax_attention_fits;
