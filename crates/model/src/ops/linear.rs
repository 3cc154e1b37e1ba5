//! A linear layer: a product with a matrix, and a bias.

use super::first_order;
use crate::profile::{Kind, Span};
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::{Tensor, module};

/// `x W + b`.
///
/// Shapes: `x` `[..., in]`, `weight` `[in, out]`, `bias` `[out]`, result `[..., out]`, all f32.
pub fn linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let span = Span::open(Kind::MatrixProducts, &x);
    let (x, weight) = (span.input(x).into_dispatch(), span.input(weight).into_dispatch());
    let y = match bias {
        Some(bias) => <Dispatch as LinearOps>::affine(x, weight, span.input(bias).into_dispatch()),
        None => <Dispatch as LinearOps>::product(x, weight),
    };
    span.close(Tensor::from_dispatch(y))
}

/// [`linear`] as Burn computes it.
pub fn linear_plain<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let span = Span::open(Kind::MatrixProducts, &x);
    let bias = bias.map(|bias| span.input(bias));
    let y = module::linear(span.input(x), span.input(weight), bias);
    span.close(y)
}

/// A backend with linear layers in one piece.
#[backend_extension(Flex: cfg(feature = "flex"), Autodiff)]
pub trait LinearOps: Backend {
    /// `x W`.
    fn product(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `x W + b`.
    fn affine(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The gradient of `x` from that of the result: `g W^T`.
    fn product_backward_x(gradient: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The gradient of `weight` from that of the result: `x^T g`.
    fn product_backward_weight(x: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The gradient of `bias` from that of the result: its sum over all axes but the last.
    fn affine_backward_bias(gradient: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl<B: LinearOps, C: CheckpointStrategy> LinearOps for Autodiff<B, C> {
    fn product(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        let (needs_x, needs_weight) = (weight.is_tracked(), x.is_tracked());
        let prepared = ProductBackward.prepare::<C>([x.node(), weight.node()]).compute_bound().stateful();
        let (x, weight) = (x.into_primitive(), weight.into_primitive());
        match prepared {
            OpsKind::Tracked(prepared) => {
                let y = B::product(x.clone(), weight.clone());
                prepared.finish((needs_x.then_some(x), needs_weight.then_some(weight)), y)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::product(x, weight)),
        }
    }

    fn affine(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        let (needs_x, needs_weight) = (weight.is_tracked(), x.is_tracked());
        let prepared = AffineBackward.prepare::<C>([x.node(), weight.node(), bias.node()]).compute_bound().stateful();
        let (x, weight, bias) = (x.into_primitive(), weight.into_primitive(), bias.into_primitive());
        match prepared {
            OpsKind::Tracked(prepared) => {
                let y = B::affine(x.clone(), weight.clone(), bias);
                prepared.finish((needs_x.then_some(x), needs_weight.then_some(weight)), y)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::affine(x, weight, bias)),
        }
    }

    fn product_backward_x(_: FloatTensor<Self>, _: FloatTensor<Self>) -> FloatTensor<Self> {
        first_order("a linear layer")
    }

    fn product_backward_weight(_: FloatTensor<Self>, _: FloatTensor<Self>) -> FloatTensor<Self> {
        first_order("a linear layer")
    }

    fn affine_backward_bias(_: FloatTensor<Self>) -> FloatTensor<Self> {
        first_order("a linear layer")
    }
}

/// What the gradients need: `x` for that of the weight, and the weight for that of `x`.
type State<B> = (Option<FloatTensor<B>>, Option<FloatTensor<B>>);

#[derive(Debug)]
struct ProductBackward;

impl<B: LinearOps> Backward<B, 2> for ProductBackward {
    type State = State<B>;

    fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let [node_x, node_weight] = ops.parents;
        let (x, weight) = ops.state;
        if let (Some(node), Some(x)) = (node_weight, x) {
            gradients.register::<B>(node.id, B::product_backward_weight(x, gradient.clone()));
        }
        if let (Some(node), Some(weight)) = (node_x, weight) {
            gradients.register::<B>(node.id, B::product_backward_x(gradient, weight));
        }
    }
}

#[derive(Debug)]
struct AffineBackward;

impl<B: LinearOps> Backward<B, 3> for AffineBackward {
    type State = State<B>;

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let [node_x, node_weight, node_bias] = ops.parents;
        let (x, weight) = ops.state;
        if let Some(node) = node_bias {
            gradients.register::<B>(node.id, B::affine_backward_bias(gradient.clone()));
        }
        if let (Some(node), Some(x)) = (node_weight, x) {
            gradients.register::<B>(node.id, B::product_backward_weight(x, gradient.clone()));
        }
        if let (Some(node), Some(weight)) = (node_x, weight) {
            gradients.register::<B>(node.id, B::product_backward_x(gradient, weight));
        }
    }
}
