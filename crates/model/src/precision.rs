//! Mixed precision: which part of the forward pass runs in which float type.
//!
//! Parameters stay f32. Matrix products run in the float type of the images (the compute type), so bf16 images give a bf16 forward pass
//! with f32 master weights. Norms, softmax, the token sums of linear and Hydra attention and the residual stream stay f32, as they do
//! under PyTorch's autocast. With f32 images every cast here is the identity and costs nothing.

use crate::ops::{self, Compute};
use burn::nn::{LayerNorm, Linear};
use burn::tensor::{FloatDType, Tensor};

/// `x` as f32.
pub(crate) fn to_f32<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.cast(FloatDType::F32)
}

/// `x W + b` in the compute type, whatever type `x` and the parameters have.
///
/// Shapes: `x` `[..., in]`, result `[..., out]` of the compute type.
pub(crate) fn linear<const D: usize>(layer: &Linear, x: Tensor<D>, compute: Compute) -> Tensor<D> {
    affine(x, layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()), compute)
}

/// `x W + b` in the compute type, whatever type they have. Shapes as in [`linear`].
pub(crate) fn affine<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>, compute: Compute) -> Tensor<D> {
    let Compute { float, .. } = compute;
    let (x, weight, bias) = (x.cast(float), weight.cast(float), bias.map(|bias| bias.cast(float)));
    match compute.fused_f32() {
        true => ops::linear(x, weight, bias),
        false => ops::linear_plain(x, weight, bias),
    }
}

/// Layer norm over the last axis in f32. Burn widens f16 only, and a mean of squares in bf16 keeps two to three digits.
///
/// Shapes: `x` `[..., D]`, result `[..., D]` of type f32.
pub(crate) fn layer_norm<const D: usize>(layer: &LayerNorm, x: Tensor<D>, compute: Compute) -> Tensor<D> {
    match &layer.beta {
        Some(beta) if compute.fused => ops::layer_norm(to_f32(x), layer.gamma.val(), beta.val(), compute.norm_eps),
        _ => layer.forward(to_f32(x)),
    }
}
