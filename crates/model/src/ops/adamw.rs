//! One step of AdamW: Loshchilov & Hutter, Decoupled Weight Decay Regularization, 2019 (arXiv 1711.05101), as `torch.optim.AdamW`
//! computes it. No gradients pass through.

use super::first_order;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

/// The numbers of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Share of the old mean of the gradient in the new one, and of the old mean of its square.
    pub betas: [f64; 2],
    /// Added to the root of the mean square.
    pub epsilon: f64,
    /// The length of the step.
    pub learning_rate: f64,
    /// Share of a value, times the learning rate, that is taken off it.
    pub weight_decay: f64,
    /// `1 - beta1^t`, by which the mean is divided in step t.
    pub correction1: f64,
    /// `sqrt(1 - beta2^t)`, by which the root of the mean square is divided.
    pub correction2: f64,
}

/// The new values, mean and mean square of a parameter, in one pass, in place where nothing else refers to the old ones.
///
/// Shapes: all `[count]` in f32, without autodiff.
pub fn adamw_step(numbers: AdamW, values: Tensor<1>, gradient: Tensor<1>, first: Tensor<1>, second: Tensor<1>) -> [Tensor<1>; 3] {
    let (values, first, second) = <Dispatch as AdamWOps>::adamw_step(
        values.into_dispatch(),
        gradient.into_dispatch(),
        first.into_dispatch(),
        second.into_dispatch(),
        numbers,
    );
    [values, first, second].map(Tensor::from_dispatch)
}

/// [`adamw_step`] composed of Burn's operations.
pub fn adamw_step_plain(
    numbers: AdamW,
    values: Tensor<1>,
    gradient: Tensor<1>,
    first: Tensor<1>,
    second: Tensor<1>,
) -> [Tensor<1>; 3] {
    let AdamW { betas: [beta1, beta2], epsilon, learning_rate, weight_decay, correction1, correction2 } = numbers;
    let first = first * beta1 + gradient.clone() * (1.0 - beta1);
    let second = second * beta2 + gradient.square() * (1.0 - beta2);
    let denominator = second.clone().sqrt() / correction2 + epsilon;
    let decay = learning_rate * weight_decay;
    let kept = if decay == 0.0 { values } else { values * (1.0 - decay) };
    [kept - first.clone() / denominator * (learning_rate / correction1), first, second]
}

/// The sum of the squares of all values, `[1]`, in an order that follows from their number.
///
/// Shapes: `x` `[count]` in f32, without autodiff.
pub fn sum_of_squares(x: Tensor<1>) -> Tensor<1> {
    Tensor::from_dispatch(<Dispatch as AdamWOps>::sum_of_squares(x.into_dispatch()))
}

/// A backend with the passes of an optimizer in one piece each.
#[backend_extension(Cube: cfg(feature = "gpu"), Flex: cfg(feature = "flex"), Autodiff, Fusion: cfg(feature = "gpu"))]
pub trait AdamWOps: Backend {
    /// See [`adamw_step`].
    #[fusion(meta = |values, _, first, second, _| (values.clone(), first.clone(), second.clone()))]
    fn adamw_step(
        values: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        numbers: AdamW,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// See [`sum_of_squares`].
    #[fusion(dtype = x, shape = [1].into())]
    fn sum_of_squares(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl<B: AdamWOps, C: CheckpointStrategy> AdamWOps for Autodiff<B, C> {
    fn adamw_step(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: AdamW,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        first_order("a step of AdamW")
    }

    fn sum_of_squares(_: FloatTensor<Self>) -> FloatTensor<Self> {
        first_order("the norm of a gradient")
    }
}
