//! The attention of a block: one projection to queries, keys and values, one of three ways to mix tokens, one projection back.
//!
//! A new way is one file here, one arm of [`AttentionKind`] and one word in the configuration.

pub mod hydra;
pub mod kernel;
pub mod linear;
pub mod softmax;

use crate::architecture::LayerAttention;
use crate::dropout::Mask;
use crate::ops::{self, Compute, Form, Fusible, Ops};
use crate::plan::AttentionKind;
use crate::precision::{self, Operation};
use crate::profile::{Kind, around};
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
    /// Shapes: `x` and the result `[batch, tokens, width]`; the result is f32.
    pub fn forward(&self, x: Tensor<3>, compute: Compute) -> Tensor<3> {
        precision::linear(&self.proj, self.mix(x, None, compute), compute)
    }

    /// What comes before the last projection, with dropout of the attention map, `[batch, heads, tokens, tokens]`, which softmax attention
    /// alone has. Shapes as in [`Self::forward`]; the result is of the type in which tokens are mixed.
    pub(crate) fn mix(&self, x: Tensor<3>, map: Option<&Mask<4>>, compute: Compute) -> Tensor<3> {
        let operation = match self.layer.kind {
            AttentionKind::Softmax => Operation::SoftmaxProducts,
            AttentionKind::Linear | AttentionKind::Hydra => Operation::TokenSums,
        };
        let qkv = operation.operand(precision::linear(&self.qkv, x, compute), compute.float);
        if map.is_some() && self.layer.kind == AttentionKind::Softmax {
            // What is dropped of a map is said entry by entry, so the map has to exist.
            return around(Kind::Attention, qkv, |qkv| {
                let [q, k, v] = thirds(qkv);
                softmax::dropping(q, k, v, self.heads, map)
            });
        }
        around(Kind::Attention, qkv, |qkv| mix(qkv, self.heads, self.layer, compute.form))
    }
}

/// Mixes tokens, without the projections before and after, as `ops` says and the device can.
///
/// Shapes: `qkv` `[batch, tokens, 3 * width]` with queries, keys and values side by side and heads side by side within each, result
/// `[batch, tokens, width]` of the same float type; `heads` divides the width.
pub fn attend(qkv: Tensor<3>, heads: usize, layer: LayerAttention, ops: Ops) -> Tensor<3> {
    let form = Form::of(&qkv, ops);
    mix(qkv, heads, layer, form)
}

fn mix(qkv: Tensor<3>, heads: usize, layer: LayerAttention, form: Form) -> Tensor<3> {
    let float: FloatDType = qkv.dtype().into();
    let kernel = layer.kernel.unwrap_or_default();
    let sums = |qkv| Operation::TokenSums.operand(qkv, float);
    let operation = match layer.kind {
        AttentionKind::Softmax => Fusible::SoftmaxAttention,
        // Linear attention with heads of one feature is Hydra attention.
        AttentionKind::Linear if qkv.dims()[2] == 3 * heads => Fusible::HydraAttention,
        AttentionKind::Linear => Fusible::LinearAttention,
        AttentionKind::Hydra => Fusible::HydraAttention,
    };
    match (layer.kind, form.fuses(operation)) {
        (AttentionKind::Softmax, true) => ops::softmax_attention(qkv, heads),
        (AttentionKind::Softmax, false) => ops::softmax_attention_plain(qkv, heads),
        (AttentionKind::Linear, true) => ops::linear_attention(sums(qkv), heads, kernel).cast(float),
        (AttentionKind::Linear, false) => ops::linear_attention_plain(qkv, heads, kernel),
        (AttentionKind::Hydra, true) => ops::hydra_attention(sums(qkv), kernel).cast(float),
        (AttentionKind::Hydra, false) => ops::hydra_attention_plain(qkv, kernel),
    }
}

/// `[batch, tokens, 3 * width]` as three tensors `[batch, tokens, width]`.
pub(crate) fn thirds(qkv: Tensor<3>) -> [Tensor<3>; 3] {
    let [_, _, tripled] = qkv.dims();
    let width = tripled / 3;
    [0, 1, 2].map(|part| qkv.clone().narrow(2, part * width, width))
}

/// The shape of mixed tokens, from that of packed queries, keys and values.
#[cfg(feature = "gpu")]
pub(crate) fn mixed(qkv: &burn::tensor::Shape) -> burn::tensor::Shape {
    let [batch, tokens, tripled] = qkv.dims();
    burn::tensor::Shape::new([batch, tokens, tripled / 3])
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
