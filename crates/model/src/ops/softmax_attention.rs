//! Softmax attention in tiles, straight from the packed queries, keys and values: Dao et al., FlashAttention, 2022 (arXiv 2205.14135).

use super::first_order;
use crate::attention::{self, softmax};
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
#[cfg(feature = "gpu")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Tensor};

/// Per head `softmax(q k^T / sqrt(head_width)) v`, computed in f32.
///
/// Shapes: `qkv` `[batch, tokens, 3 * width]` with queries, keys and values side by side and heads side by side within each, result
/// `[batch, tokens, width]`, of one float type; `heads` divides the width. The backward pass keeps `qkv`, the result, and two numbers a
/// head and token; no matrix of scores exists. On GPUs that holds for heads of a multiple of 4 features, up to 128; others are plain.
pub fn softmax_attention(qkv: Tensor<3>, heads: usize) -> Tensor<3> {
    match qkv.dtype() {
        DType::F32 | DType::BF16 | DType::F16 if fits(&qkv, heads) => {
            let (mixed, _) = <Dispatch as SoftmaxAttentionOps>::softmax_attention(qkv.into_dispatch(), heads);
            Tensor::from_dispatch(mixed)
        }
        _ => softmax_attention_plain(qkv, heads),
    }
}

/// Whether the device of `qkv` computes heads of this width in tiles.
fn fits(qkv: &Tensor<3>, heads: usize) -> bool {
    #[cfg(feature = "gpu")]
    if super::Form::of(qkv, super::Ops::Fused) == super::Form::Gpu {
        let [_, _, tripled] = qkv.dims();
        return super::gpu::softmax_attention_fits(tripled / 3 / heads);
    }
    let _ = (qkv, heads);
    true
}

/// [`softmax_attention`](fn@softmax_attention) composed of Burn's operations, with a matrix of scores for each head.
pub fn softmax_attention_plain(qkv: Tensor<3>, heads: usize) -> Tensor<3> {
    let [q, k, v] = attention::thirds(qkv);
    softmax::attention(q, k, v, heads)
}

/// A backend with softmax attention in one piece.
#[backend_extension(Cube: cfg(feature = "gpu"), Flex: cfg(feature = "flex"), Autodiff, Fusion: cfg(feature = "gpu"))]
pub trait SoftmaxAttentionOps: Backend {
    /// See [`softmax_attention`](fn@softmax_attention). The second result, `[batch, heads, tokens, 2]` in f32, is the greatest score of a
    /// row and the reciprocal of its sum of exponentials relative to that; it has no gradient.
    #[fusion(meta = results)]
    fn softmax_attention(qkv: FloatTensor<Self>, heads: usize) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradient of `qkv` from both results and the gradient of the first.
    #[fusion(dtype = qkv, shape = qkv)]
    fn softmax_attention_backward(
        qkv: FloatTensor<Self>,
        mixed: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        heads: usize,
    ) -> FloatTensor<Self>;
}

/// The shapes and types of the results.
#[cfg(feature = "gpu")]
fn results(qkv: &TensorSpec, heads: &usize) -> (TensorSpec, TensorSpec) {
    let mixed = attention::mixed(&qkv.shape);
    let [batch, tokens, _] = mixed.dims();
    let statistics = TensorSpec::new([batch, *heads, tokens, 2].into(), DType::F32);
    (TensorSpec::new(mixed, qkv.dtype), statistics)
}

impl<B: SoftmaxAttentionOps, C: CheckpointStrategy> SoftmaxAttentionOps for Autodiff<B, C> {
    fn softmax_attention(qkv: FloatTensor<Self>, heads: usize) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let prepared = SoftmaxAttentionBackward.prepare::<C>([qkv.node()]).compute_bound().stateful();
        let qkv = qkv.into_primitive();
        let (mixed, statistics) = B::softmax_attention(qkv.clone(), heads);
        let constant = Self::from_inner(statistics.clone());
        let mixed = match prepared {
            OpsKind::Tracked(prepared) => {
                let state = SoftmaxAttentionState::<B> { qkv, mixed: mixed.clone(), statistics, heads };
                prepared.finish(state, mixed)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(mixed),
        };
        (mixed, constant)
    }

    fn softmax_attention_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: usize,
    ) -> FloatTensor<Self> {
        first_order("softmax attention")
    }
}

#[derive(Debug)]
struct SoftmaxAttentionBackward;

#[derive(Debug, Clone)]
struct SoftmaxAttentionState<B: Backend> {
    qkv: FloatTensor<B>,
    mixed: FloatTensor<B>,
    statistics: FloatTensor<B>,
    heads: usize,
}

impl<B: SoftmaxAttentionOps> Backward<B, 1> for SoftmaxAttentionBackward {
    type State = SoftmaxAttentionState<B>;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let SoftmaxAttentionState { qkv, mixed, statistics, heads } = ops.state;
        if let [Some(parent)] = ops.parents {
            let gradient = B::softmax_attention_backward(qkv, mixed, statistics, gradient, heads);
            gradients.register::<B>(parent.id, gradient);
        }
    }
}
