//! The exact GELU with the bias of the layer before it: Hendrycks & Gimpel, Gaussian Error Linear Units, 2016 (arXiv 1606.08415).

use super::first_order;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::{Tensor, activation};

/// `u * Phi(u)` with `u = x + bias` and Phi the normal distribution function, in one pass.
///
/// Shapes: `x` and the result `[..., width]`, `bias` `[width]`, all f32. The backward pass keeps `x` alone.
pub fn gelu<const D: usize>(x: Tensor<D>, bias: Tensor<1>) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as GeluOps>::bias_gelu(x.into_dispatch(), bias.into_dispatch()))
}

/// [`gelu`] composed of Burn's operations.
pub fn gelu_plain<const D: usize>(x: Tensor<D>, bias: Tensor<1>) -> Tensor<D> {
    activation::gelu(x + bias.unsqueeze())
}

/// A backend with bias and GELU in one piece.
#[backend_extension(Cube: cfg(feature = "gpu"), Flex: cfg(feature = "flex"), Autodiff, Fusion: cfg(feature = "gpu"))]
pub trait GeluOps: Backend {
    /// See [`gelu`](fn@gelu).
    #[fusion(dtype = x, shape = x)]
    fn bias_gelu(x: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Gradients of `x` and `bias` from that of the result.
    #[fusion(meta = |x, bias, _| (x.clone(), bias.clone()))]
    fn bias_gelu_backward(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl<B: GeluOps, C: CheckpointStrategy> GeluOps for Autodiff<B, C> {
    fn bias_gelu(x: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        let prepared = GeluBackward.prepare::<C>([x.node(), bias.node()]).compute_bound().stateful();
        let (x, bias) = (x.into_primitive(), bias.into_primitive());
        match prepared {
            OpsKind::Tracked(prepared) => {
                let y = B::bias_gelu(x.clone(), bias.clone());
                prepared.finish((x, bias), y)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::bias_gelu(x, bias)),
        }
    }

    fn bias_gelu_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        first_order("GELU")
    }
}

#[derive(Debug)]
struct GeluBackward;

impl<B: GeluOps> Backward<B, 2> for GeluBackward {
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let (x, bias) = ops.state;
        let (x, bias) = B::bias_gelu_backward(x, bias, gradient);
        for (parent, gradient) in ops.parents.iter().zip([x, bias]) {
            if let Some(parent) = parent {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}
