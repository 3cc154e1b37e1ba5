//! Multi-head linear attention straight from the packed queries, keys and values: Katharopoulos et al., 2020 (arXiv 2006.16236) without
//! the normaliser, as Bolya et al., 2022 (arXiv 2209.07484), section 3.2 writes it.

use super::first_order;
use crate::Kernel;
use crate::attention::{self, linear};
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

/// Per head `phi(q_h) (phi(k_h)^T v_h)`, with phi over the whole width before heads are split.
///
/// Shapes: `qkv` `[batch, tokens, 3 * width]` with queries, keys and values side by side and heads side by side within each, result
/// `[batch, tokens, width]`, all f32; `heads` divides the width. The backward pass keeps `qkv` alone. At `heads = width` it is
/// [`hydra_attention`](super::hydra_attention), which computes that case faster.
pub fn linear_attention(qkv: Tensor<3>, heads: usize, kernel: Kernel) -> Tensor<3> {
    let [_, _, packed] = qkv.dims();
    match packed == 3 * heads {
        true => super::hydra_attention(qkv, kernel),
        false => Tensor::from_dispatch(<Dispatch as LinearAttentionOps>::linear_attention(qkv.into_dispatch(), heads, kernel)),
    }
}

/// [`linear_attention`](fn@linear_attention) composed of Burn's operations.
pub fn linear_attention_plain(qkv: Tensor<3>, heads: usize, kernel: Kernel) -> Tensor<3> {
    let [q, k, v] = attention::thirds(qkv);
    linear::attention(q, k, v, heads, kernel)
}

/// A backend with multi-head linear attention in one piece.
#[backend_extension(Cube: cfg(feature = "gpu"), Flex: cfg(feature = "flex"), Autodiff, Fusion: cfg(feature = "gpu"))]
pub trait LinearAttentionOps: Backend {
    /// See [`linear_attention`](fn@linear_attention).
    #[fusion(dtype = qkv, shape = attention::mixed(qkv))]
    fn linear_attention(qkv: FloatTensor<Self>, heads: usize, kernel: Kernel) -> FloatTensor<Self>;

    /// The gradient of `qkv` from that of the result.
    #[fusion(dtype = qkv, shape = qkv)]
    fn linear_attention_backward(
        qkv: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        heads: usize,
        kernel: Kernel,
    ) -> FloatTensor<Self>;
}

impl<B: LinearAttentionOps, C: CheckpointStrategy> LinearAttentionOps for Autodiff<B, C> {
    fn linear_attention(qkv: FloatTensor<Self>, heads: usize, kernel: Kernel) -> FloatTensor<Self> {
        let prepared = LinearAttentionBackward.prepare::<C>([qkv.node()]).compute_bound().stateful();
        let qkv = qkv.into_primitive();
        match prepared {
            OpsKind::Tracked(prepared) => {
                let mixed = B::linear_attention(qkv.clone(), heads, kernel);
                prepared.finish((qkv, heads, kernel), mixed)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::linear_attention(qkv, heads, kernel)),
        }
    }

    fn linear_attention_backward(_: FloatTensor<Self>, _: FloatTensor<Self>, _: usize, _: Kernel) -> FloatTensor<Self> {
        first_order("linear attention")
    }
}

#[derive(Debug)]
struct LinearAttentionBackward;

impl<B: LinearAttentionOps> Backward<B, 1> for LinearAttentionBackward {
    type State = (FloatTensor<B>, usize, Kernel);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let (qkv, heads, kernel) = ops.state;
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, B::linear_attention_backward(qkv, gradient, heads, kernel));
        }
    }
}
