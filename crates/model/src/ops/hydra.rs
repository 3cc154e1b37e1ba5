//! Hydra attention straight from the packed queries, keys and values: Bolya et al., 2022 (arXiv 2209.07484), section 3.3.

use super::first_order;
use crate::attention::{self, kernel::Kernel};
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

/// `phi(q) * sum_t(phi(k_t) * v_t)`, all products per feature.
///
/// Shapes: `qkv` `[batch, tokens, 3 * width]` with queries, keys and values side by side, result `[batch, tokens, width]`, all f32. The
/// backward pass keeps `qkv` alone; what it needs beside it is of size `batch * width`.
pub fn hydra_attention(qkv: Tensor<3>, kernel: Kernel) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as HydraOps>::hydra(qkv.into_dispatch(), kernel))
}

/// [`hydra_attention`] composed of Burn's operations.
pub fn hydra_attention_plain(qkv: Tensor<3>, kernel: Kernel) -> Tensor<3> {
    let [q, k, v] = attention::thirds(qkv);
    attention::hydra::attention(q, k, v, kernel)
}

/// A backend with Hydra attention in one piece.
#[backend_extension(Cube: cfg(feature = "gpu"), Flex: cfg(feature = "flex"), Autodiff, Fusion: cfg(feature = "gpu"))]
pub trait HydraOps: Backend {
    /// See [`hydra_attention`].
    #[fusion(dtype = qkv, shape = attention::mixed(qkv))]
    fn hydra(qkv: FloatTensor<Self>, kernel: Kernel) -> FloatTensor<Self>;

    /// The gradient of `qkv` from that of the result.
    #[fusion(dtype = qkv, shape = qkv)]
    fn hydra_backward(qkv: FloatTensor<Self>, gradient: FloatTensor<Self>, kernel: Kernel) -> FloatTensor<Self>;
}

impl<B: HydraOps, C: CheckpointStrategy> HydraOps for Autodiff<B, C> {
    fn hydra(qkv: FloatTensor<Self>, kernel: Kernel) -> FloatTensor<Self> {
        let prepared = HydraBackward.prepare::<C>([qkv.node()]).compute_bound().stateful();
        let qkv = qkv.into_primitive();
        match prepared {
            OpsKind::Tracked(prepared) => {
                let y = B::hydra(qkv.clone(), kernel);
                prepared.finish((qkv, kernel), y)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::hydra(qkv, kernel)),
        }
    }

    fn hydra_backward(_: FloatTensor<Self>, _: FloatTensor<Self>, _: Kernel) -> FloatTensor<Self> {
        first_order("Hydra attention")
    }
}

#[derive(Debug)]
struct HydraBackward;

impl<B: HydraOps> Backward<B, 1> for HydraBackward {
    type State = (FloatTensor<B>, Kernel);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let (qkv, kernel) = ops.state;
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, B::hydra_backward(qkv, gradient, kernel));
        }
    }
}
