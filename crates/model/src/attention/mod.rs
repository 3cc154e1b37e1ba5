//! The attention of a block: one projection to queries, keys and values, one of three ways to mix tokens, one projection back.
//!
//! A new way is one file here, one arm of [`AttentionKind`] and one word in the configuration.

pub mod hydra;
pub mod kernel;
pub mod linear;
pub mod softmax;

use crate::architecture::LayerAttention;
use crate::plan::AttentionKind;
use crate::precision;
use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{FloatDType, Tensor};
use kernel::Kernel;

/// Attention over the tokens of an image, with its projections.
#[derive(Module, Debug)]
pub struct Attention {
    /// Width -> 3 * width. The output holds queries, keys and values in this order, heads side by side within each (timm's layout).
    pub qkv: Linear,
    /// Width -> width, from the heads side by side.
    pub proj: Linear,
    heads: usize,
    #[module(skip)]
    layer: LayerAttention,
}

impl Attention {
    pub(crate) fn new(qkv: Linear, proj: Linear, heads: usize, layer: LayerAttention) -> Self {
        Self { qkv, proj, heads, layer }
    }

    /// How this layer attends.
    pub fn layer(&self) -> LayerAttention {
        self.layer
    }

    /// Mixes tokens.
    ///
    /// Shapes: `x` and the result `[batch, tokens, width]`. Products run in `compute`, which is the result's type too.
    pub fn forward(&self, x: Tensor<3>, compute: FloatDType) -> Tensor<3> {
        let qkv = precision::linear(&self.qkv, x, compute);
        let [q, k, v] = thirds(qkv);
        let kernel = self.layer.kernel.unwrap_or_default();
        let mixed = match self.layer.kind {
            AttentionKind::Softmax => softmax::attention(q, k, v, self.heads),
            AttentionKind::Linear => linear::attention(q, k, v, self.heads, kernel),
            AttentionKind::Hydra => hydra::attention(q, k, v, kernel),
        };
        precision::linear(&self.proj, mixed, compute)
    }
}

/// `[batch, tokens, 3 * width]` as three tensors `[batch, tokens, width]`.
fn thirds(qkv: Tensor<3>) -> [Tensor<3>; 3] {
    let [_, _, tripled] = qkv.dims();
    let width = tripled / 3;
    [0, 1, 2].map(|part| qkv.clone().narrow(2, part * width, width))
}

/// `[batch, tokens, width]` as `[batch, heads, tokens, width / heads]`.
fn split_heads(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, tokens, width] = x.dims();
    x.reshape([batch, tokens, heads, width / heads]).swap_dims(1, 2)
}

/// The inverse of [`split_heads`].
fn merge_heads(x: Tensor<4>) -> Tensor<3> {
    let [batch, heads, tokens, head_width] = x.dims();
    x.swap_dims(1, 2).reshape([batch, tokens, heads * head_width])
}
