//! Mixed precision: which part of the forward pass runs in which float type.
//!
//! Parameters stay f32. Matrix products run in the float type of the images (the compute type), so bf16 images give a bf16 forward pass
//! with f32 master weights. Norms, softmax, the token sums of linear and Hydra attention and the residual stream stay f32, as they do
//! under PyTorch's autocast. With f32 images every cast here is the identity and costs nothing.

use burn::nn::{LayerNorm, Linear};
use burn::tensor::{FloatDType, Tensor, module};

/// `x` as f32.
pub(crate) fn to_f32<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.cast(FloatDType::F32)
}

/// `x W + b` in `compute`, whatever type `x` and the parameters have.
///
/// Shapes: `x` `[..., in]`, result `[..., out]` of type `compute`.
pub(crate) fn linear<const D: usize>(layer: &Linear, x: Tensor<D>, compute: FloatDType) -> Tensor<D> {
    module::linear(x.cast(compute), layer.weight.val().cast(compute), layer.bias.as_ref().map(|bias| bias.val().cast(compute)))
}

/// Layer norm over the last axis in f32. Burn widens f16 only, and a mean of squares in bf16 keeps two to three digits.
///
/// Shapes: `x` `[..., D]`, result `[..., D]` of type f32.
pub(crate) fn layer_norm<const D: usize>(layer: &LayerNorm, x: Tensor<D>) -> Tensor<D> {
    layer.forward(to_f32(x))
}
