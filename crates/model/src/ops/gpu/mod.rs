//! The fused operations on GPUs, for Burn's Cube backend: one source for CUDA, Vulkan, Metal and WebGPU.
//!
//! Kernels read and write tensors in vectors along the width and compute in f32 whatever the tensors' type. Units of a workgroup meet in
//! shared memory alone, so no size of a subgroup is assumed. No sum is atomic: each is cut into pieces by the shapes, and a second pass
//! adds the pieces in their order, so that a device gives the same bits each time.

mod columns;
mod gelu;
mod hydra;
mod layer_norm;
mod phi;
mod residual;
mod rows;
mod sums;
mod tensor;
