//! Losses against soft targets, summed over a batch.

use super::first_order;
use crate::profile::{Kind, Span};
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::{Tensor, activation};

/// Which loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    /// `-sum_c target_c * log softmax(logits)_c` of each row.
    SoftCrossEntropy,
    /// The mean over classes of the binary cross-entropy of each logit, as `torch.nn.BCEWithLogitsLoss` has it.
    BinaryCrossEntropy,
}

/// The sum of a loss over the rows, `[1]`, in one pass.
///
/// Shapes: `logits` and `targets` `[batch, classes]` in f32. No gradient goes to the targets. The backward pass keeps its inputs alone.
pub fn loss_sum(logits: Tensor<2>, targets: Tensor<2>, loss: Loss) -> Tensor<1> {
    let span = Span::open(Kind::Loss, &logits);
    let (logits, targets) = (span.input(logits).into_dispatch(), targets.into_dispatch());
    span.close(Tensor::from_dispatch(<Dispatch as LossOps>::loss_sum(logits, targets, loss)))
}

/// [`loss_sum`] composed of Burn's operations.
pub fn loss_sum_plain(logits: Tensor<2>, targets: Tensor<2>, loss: Loss) -> Tensor<1> {
    let span = Span::open(Kind::Loss, &logits);
    let logits = span.input(logits);
    let [batch, classes] = logits.dims();
    let sum = |rows: Tensor<2>| rows.reshape([1, batch]).sum_dim(1).reshape([1]);
    span.close(match loss {
        Loss::SoftCrossEntropy => sum((activation::log_softmax(logits, 1) * targets).sum_dim(1)).neg(),
        Loss::BinaryCrossEntropy => {
            // max(x, 0) − x t + ln(1 + e^−|x|): no exponential overflows.
            let smooth = (logits.clone().abs().neg().exp() + 1.0).log();
            sum((logits.clone().clamp_min(0.0) - logits * targets + smooth).sum_dim(1)) / classes as f64
        }
    })
}

/// A backend with losses in one piece.
#[backend_extension(Cube: cfg(feature = "gpu"), Flex: cfg(feature = "flex"), Autodiff, Fusion: cfg(feature = "gpu"))]
pub trait LossOps: Backend {
    /// See [`loss_sum`].
    #[fusion(dtype = logits, shape = [1].into())]
    fn loss_sum(logits: FloatTensor<Self>, targets: FloatTensor<Self>, loss: Loss) -> FloatTensor<Self>;

    /// The gradient of `logits` from that of the sum.
    #[fusion(dtype = logits, shape = logits)]
    fn loss_sum_backward(
        logits: FloatTensor<Self>,
        targets: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        loss: Loss,
    ) -> FloatTensor<Self>;
}

impl<B: LossOps, C: CheckpointStrategy> LossOps for Autodiff<B, C> {
    fn loss_sum(logits: FloatTensor<Self>, targets: FloatTensor<Self>, loss: Loss) -> FloatTensor<Self> {
        let prepared = LossBackward.prepare::<C>([logits.node()]).compute_bound().stateful();
        let (logits, targets) = (logits.into_primitive(), targets.into_primitive());
        match prepared {
            OpsKind::Tracked(prepared) => {
                let sum = B::loss_sum(logits.clone(), targets.clone(), loss);
                prepared.finish((logits, targets, loss), sum)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::loss_sum(logits, targets, loss)),
        }
    }

    fn loss_sum_backward(_: FloatTensor<Self>, _: FloatTensor<Self>, _: FloatTensor<Self>, _: Loss) -> FloatTensor<Self> {
        first_order("a loss")
    }
}

#[derive(Debug)]
struct LossBackward;

impl<B: LossOps> Backward<B, 1> for LossBackward {
    type State = (FloatTensor<B>, FloatTensor<B>, Loss);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let (logits, targets, loss) = ops.state;
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, B::loss_sum_backward(logits, targets, gradient, loss));
        }
    }
}
