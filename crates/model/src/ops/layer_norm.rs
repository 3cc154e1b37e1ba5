//! Layer norm: Ba et al., Layer Normalization, 2016 (arXiv 1607.06450).

use super::first_order;
use super::skip::Skip;
use crate::profile::{Kind, Span};
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` over the last axis, with the biased variance, in one pass.
///
/// Shapes: `x` and the result `[..., width]`, `gamma` and `beta` `[width]`, all f32. The backward pass keeps `x` alone.
pub fn layer_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, beta: Tensor<1>, epsilon: f64) -> Tensor<D> {
    layer_norm_of_branch(x, gamma, beta, epsilon).0
}

/// [`layer_norm`] at the beginning of a residual branch of `x`, and what the branch's end must be given,
/// [`residual`](super::residual()).
pub fn layer_norm_of_branch<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, beta: Tensor<1>, epsilon: f64) -> (Tensor<D>, Skip) {
    let span = Span::open(Kind::Norms, &x);
    let skip = Skip::default();
    let (x, gamma, beta) = (span.input(x), span.input(gamma), span.input(beta));
    let (x, gamma, beta) = (x.into_dispatch(), gamma.into_dispatch(), beta.into_dispatch());
    let y = <Dispatch as LayerNormOps>::normalise(x, gamma, beta, epsilon, skip.clone());
    (span.close(Tensor::from_dispatch(y)), skip)
}

/// [`layer_norm`] composed of Burn's operations.
pub fn layer_norm_plain<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, beta: Tensor<1>, epsilon: f64) -> Tensor<D> {
    let (variance, mean) = x.clone().var_mean_bias(D - 1);
    (x - mean) / (variance + epsilon).sqrt() * gamma.unsqueeze() + beta.unsqueeze()
}

/// A backend with layer norm in one piece.
#[backend_extension(Cube: cfg(feature = "gpu"), Flex: cfg(feature = "flex"), Autodiff, Fusion: cfg(feature = "gpu"))]
pub trait LayerNormOps: Backend {
    /// See [`layer_norm`](fn@layer_norm).
    #[fusion(dtype = x, shape = x)]
    fn normalise(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
        skip: Skip,
    ) -> FloatTensor<Self>;

    /// Gradients of `x`, `gamma` and `beta` from that of the result.
    #[fusion(meta = |x, gamma, _, _| (x.clone(), gamma.clone(), gamma.clone()))]
    fn normalise_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// [`Self::normalise_backward`] with `past` added to the gradient of `x`.
    #[fusion(meta = |x, gamma, _, _, _| (x.clone(), gamma.clone(), gamma.clone()))]
    fn normalise_backward_add(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        past: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl<B: LayerNormOps, C: CheckpointStrategy> LayerNormOps for Autodiff<B, C> {
    fn normalise(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
        skip: Skip,
    ) -> FloatTensor<Self> {
        let prepared = LayerNormBackward.prepare::<C>([x.node(), gamma.node(), beta.node()]).compute_bound().stateful();
        let (x, gamma, beta) = (x.into_primitive(), gamma.into_primitive(), beta.into_primitive());
        match prepared {
            OpsKind::Tracked(prepared) => {
                let y = B::normalise(x.clone(), gamma.clone(), beta, epsilon, skip.clone());
                prepared.finish(LayerNormState::<B> { x, gamma, epsilon, skip }, y)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::normalise(x, gamma, beta, epsilon, skip)),
        }
    }

    fn normalise_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        first_order("layer norm")
    }

    fn normalise_backward_add(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        first_order("layer norm")
    }
}

#[derive(Debug)]
struct LayerNormBackward;

#[derive(Debug, Clone)]
struct LayerNormState<B: Backend> {
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    epsilon: f64,
    skip: Skip,
}

impl<B: LayerNormOps> Backward<B, 3> for LayerNormBackward {
    type State = LayerNormState<B>;

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let LayerNormState { x, gamma, epsilon, skip } = ops.state;
        let (x, gamma, beta) = match skip.take::<B>() {
            Some(past) => B::normalise_backward_add(x, gamma, gradient, past, epsilon),
            None => B::normalise_backward(x, gamma, gradient, epsilon),
        };
        for (parent, gradient) in ops.parents.iter().zip([x, gamma, beta]) {
            if let Some(parent) = parent {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}
