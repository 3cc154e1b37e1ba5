//! The end of a residual branch: the bias of its last layer, its scales, and the sum with what it branched off from.

use super::first_order;
use super::skip::Skip;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

/// What a residual branch is multiplied by.
#[derive(Debug, Clone, Default)]
pub struct Scales {
    /// A factor for each feature, `[width]`: LayerScale.
    pub features: Option<Tensor<1>>,
    /// A factor for each sample, `[batch]`: stochastic depth. No gradient goes there.
    pub samples: Option<Tensor<1>>,
}

/// `x + (branch + bias) * features * samples`, in one pass.
///
/// Shapes: `x`, `branch` and the result `[batch, tokens, width]`, `bias` `[width]`, all f32. `skip` comes from the
/// [`layer_norm_of_branch`](super::layer_norm_of_branch) of `x` that the branch begins with: it takes the gradient that goes past the
/// branch, so that the sum of both is no pass of its own.
pub fn residual(x: Tensor<3>, branch: Tensor<3>, bias: Tensor<1>, scales: Scales, skip: Skip) -> Tensor<3> {
    let [batch, _, width] = x.dims();
    let device = x.device().inner();
    let scaled = scales.features.is_some() || scales.samples.is_some();
    let (x, branch, bias) = (x.into_dispatch(), branch.into_dispatch(), bias.into_dispatch());
    Tensor::from_dispatch(if scaled {
        let ones = |count| Tensor::<1>::ones([count], &device);
        let features = scales.features.unwrap_or_else(|| ones(width)).into_dispatch();
        let samples = scales.samples.unwrap_or_else(|| ones(batch)).into_dispatch();
        <Dispatch as ResidualOps>::residual_scaled(x, branch, bias, features, samples, skip)
    } else {
        <Dispatch as ResidualOps>::residual(x, branch, bias, skip)
    })
}

/// [`residual`] composed of Burn's operations.
pub fn residual_plain(x: Tensor<3>, branch: Tensor<3>, bias: Tensor<1>, scales: Scales) -> Tensor<3> {
    let mut branch = branch + bias.unsqueeze();
    if let Some(features) = scales.features {
        branch = branch * features.unsqueeze();
    }
    if let Some(samples) = scales.samples {
        let [batch] = samples.dims();
        branch = branch * samples.reshape([batch, 1, 1]);
    }
    x + branch
}

/// A backend with the end of a residual branch in one piece.
#[backend_extension(Cube: cfg(feature = "gpu"), Flex: cfg(feature = "flex"), Autodiff, Fusion: cfg(feature = "gpu"))]
pub trait ResidualOps: Backend {
    /// `x + branch + bias`.
    #[fusion(dtype = x, shape = x)]
    fn residual(x: FloatTensor<Self>, branch: FloatTensor<Self>, bias: FloatTensor<Self>, skip: Skip) -> FloatTensor<Self>;

    /// `x + (branch + bias) * features * samples`.
    #[fusion(dtype = x, shape = x)]
    fn residual_scaled(
        x: FloatTensor<Self>,
        branch: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        features: FloatTensor<Self>,
        samples: FloatTensor<Self>,
        skip: Skip,
    ) -> FloatTensor<Self>;

    /// The gradient of `bias` in [`Self::residual`] from that of the result.
    #[fusion(dtype = gradient, shape = super::last_axis(gradient))]
    fn residual_backward(gradient: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Gradients of `branch`, `bias` and `features` in [`Self::residual_scaled`] from that of the result.
    #[fusion(meta = |branch, bias, features, _, _| (branch.clone(), bias.clone(), features.clone()))]
    fn residual_scaled_backward(
        branch: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        features: FloatTensor<Self>,
        samples: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Gradients of `branch` and `bias` in [`Self::residual_scaled`], where `features` need none.
    #[fusion(meta = |features, _, gradient| (gradient.clone(), features.clone()))]
    fn residual_samples_backward(
        features: FloatTensor<Self>,
        samples: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl<B: ResidualOps, C: CheckpointStrategy> ResidualOps for Autodiff<B, C> {
    fn residual(x: FloatTensor<Self>, branch: FloatTensor<Self>, bias: FloatTensor<Self>, skip: Skip) -> FloatTensor<Self> {
        let prepared = ResidualBackward.prepare::<C>([branch.node(), bias.node()]).compute_bound().stateful();
        let (x, branch, bias) = (x.into_primitive(), branch.into_primitive(), bias.into_primitive());
        let y = B::residual(x, branch, bias, skip.clone());
        match prepared {
            OpsKind::Tracked(prepared) => prepared.finish(skip, y),
            OpsKind::UnTracked(prepared) => prepared.finish(y),
        }
    }

    fn residual_scaled(
        x: FloatTensor<Self>,
        branch: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        features: FloatTensor<Self>,
        samples: FloatTensor<Self>,
        skip: Skip,
    ) -> FloatTensor<Self> {
        let learned = features.is_tracked();
        let prepared = ScaledBackward.prepare::<C>([branch.node(), bias.node(), features.node()]).compute_bound().stateful();
        let (x, branch, bias) = (x.into_primitive(), branch.into_primitive(), bias.into_primitive());
        let (features, samples) = (features.into_primitive(), samples.into_primitive());
        let kept = learned.then(|| (branch.clone(), bias.clone()));
        let y = B::residual_scaled(x, branch, bias, features.clone(), samples.clone(), skip.clone());
        match prepared {
            OpsKind::Tracked(prepared) => prepared.finish(ScaledState::<B> { kept, features, samples, skip }, y),
            OpsKind::UnTracked(prepared) => prepared.finish(y),
        }
    }

    fn residual_backward(_: FloatTensor<Self>) -> FloatTensor<Self> {
        first_order("a residual")
    }

    fn residual_scaled_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        first_order("a residual")
    }

    fn residual_samples_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        first_order("a residual")
    }
}

#[derive(Debug)]
struct ResidualBackward;

impl<B: ResidualOps> Backward<B, 2> for ResidualBackward {
    type State = Skip;

    fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let [node_branch, node_bias] = ops.parents;
        ops.state.put::<B>(gradient.clone());
        if let Some(node) = node_bias {
            gradients.register::<B>(node.id, B::residual_backward(gradient.clone()));
        }
        if let Some(node) = node_branch {
            gradients.register::<B>(node.id, gradient);
        }
    }
}

#[derive(Debug)]
struct ScaledBackward;

#[derive(Debug, Clone)]
struct ScaledState<B: Backend> {
    /// The branch and the bias, which the gradient of `features` needs.
    kept: Option<(FloatTensor<B>, FloatTensor<B>)>,
    features: FloatTensor<B>,
    samples: FloatTensor<B>,
    skip: Skip,
}

impl<B: ResidualOps> Backward<B, 3> for ScaledBackward {
    type State = ScaledState<B>;

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let ScaledState { kept, features, samples, skip } = ops.state;
        skip.put::<B>(gradient.clone());
        let (branch, bias, features) = match kept {
            Some((branch, bias)) => {
                let (branch, bias, features) = B::residual_scaled_backward(branch, bias, features, samples, gradient);
                (branch, bias, Some(features))
            }
            None => {
                let (branch, bias) = B::residual_samples_backward(features, samples, gradient);
                (branch, bias, None)
            }
        };
        for (parent, gradient) in ops.parents.iter().zip([Some(branch), Some(bias), features]) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}
