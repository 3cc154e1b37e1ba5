//! Gradients of a step: summed over its batches, measured, scaled.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};
use manyheads_model::VisionTransformer;
use manyheads_model::ops::sum_of_squares;

use crate::error::{Error, Result};
use crate::recipe::optimizer::Slots;

/// The gradient of the loss summed over batches: one flat tensor per parameter, without autodiff.
#[derive(Debug, Clone, Default)]
pub struct GradientSum {
    tensors: Vec<Tensor<1>>,
}

impl GradientSum {
    /// Adds what one backward pass left, in one part or several, for the trained ones of `model`'s parameters.
    ///
    /// # Errors
    /// Names a parameter that got no gradient: it would silently stay as it was initialised.
    pub fn add(&mut self, model: &VisionTransformer, gradients: &mut [Gradients], slots: &Slots) -> Result<()> {
        let mut visitor = Collect { gradients, found: Vec::with_capacity(slots.places.len()) };
        model.visit(&mut visitor);
        let mut found = Vec::with_capacity(slots.trained.len());
        for (gradient, place) in visitor.found.into_iter().zip(&slots.places) {
            let Some(place) = place else { continue };
            found.push(gradient.ok_or_else(|| {
                let name = &slots.trained[*place].name;
                Error::Failed(format!("the parameter {name} got no gradient: it does not take part in the loss"))
            })?);
        }
        self.tensors = match self.tensors.is_empty() {
            true => found,
            false => std::mem::take(&mut self.tensors).into_iter().zip(found).map(|(sum, new)| sum + new).collect(),
        };
        Ok(())
    }

    /// Multiplies every gradient by `factor`.
    pub fn scale(&mut self, factor: f64) {
        self.tensors = std::mem::take(&mut self.tensors).into_iter().map(|tensor| tensor * factor).collect();
    }

    /// L2 norm of the whole gradient, `[1]`, left on the device.
    pub fn norm(&self, fused: bool) -> Tensor<1> {
        norm(&self.tensors, fused)
    }

    /// Scales the gradient down to `limit` where its `norm` is above it, as `torch.nn.utils.clip_grad_norm_`; nothing is read back.
    pub fn clip(&mut self, norm: Tensor<1>, limit: f64) {
        let factor = ((norm + 1e-6).recip() * limit).clamp_max(1.0);
        self.tensors = std::mem::take(&mut self.tensors).into_iter().map(|tensor| tensor * factor.clone()).collect();
    }

    /// The gradients, one per parameter.
    pub fn into_tensors(self) -> Vec<Tensor<1>> {
        self.tensors
    }
}

/// L2 norm of all `tensors` together, `[1]`, left on the device. `fused`: each in one pass, where the device has that form.
pub fn norm(tensors: &[Tensor<1>], fused: bool) -> Tensor<1> {
    let squared = |tensor: Tensor<1>| if fused { sum_of_squares(tensor) } else { sum(tensor.square()) };
    let squares: Vec<Tensor<1>> = tensors.iter().map(|tensor| squared(tensor.clone())).collect();
    sum(Tensor::cat(squares, 0)).sqrt()
}

/// Sum of a flat tensor in a fixed order: rows first, then over the rows. Burn's full `sum` may add atomically on a GPU.
pub fn sum(tensor: Tensor<1>) -> Tensor<1> {
    let [length] = tensor.dims();
    let rows = 1usize << length.trailing_zeros().min(12);
    let partial = tensor.reshape([rows, length / rows]).sum_dim(1);
    partial.reshape([1, rows]).sum_dim(1).reshape([1])
}

struct Collect<'a> {
    gradients: &'a mut [Gradients],
    found: Vec<Option<Tensor<1>>>,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let gradient = self.gradients.iter_mut().find_map(|part| value.grad_remove(part));
        self.found.push(gradient.map(|gradient| gradient.reshape([-1])));
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use burn::tensor::Device;

    fn gradients(values: &[&[f32]]) -> GradientSum {
        let tensors = values.iter().map(|v| Tensor::from_data(*v, &Device::flex())).collect();
        GradientSum { tensors }
    }

    /// Burn clips each parameter by itself; PyTorch and timm clip the norm of all of them.
    #[test]
    fn the_norm_is_that_of_all_parameters_together() {
        let mut sum = gradients(&[&[3.0, 0.0, 0.0], &[0.0, 4.0]]);
        let norm = sum.norm(true);
        assert_eq!(norm.clone().into_scalar::<f32>(), 5.0);
        sum.clip(norm, 1.0);
        let clipped: Vec<f32> = sum.tensors.iter().flat_map(|t| t.clone().into_data().try_to_vec::<f32>().unwrap()).collect();
        for (got, expected) in clipped.iter().zip([0.6, 0.0, 0.0, 0.0, 0.8]) {
            assert!((got - expected).abs() < 1e-6, "{clipped:?}");
        }
    }

    #[test]
    fn a_short_gradient_is_left_alone() {
        let mut sum = gradients(&[&[0.3], &[0.4]]);
        sum.clip(sum.norm(false), 1.0);
        assert_eq!(sum.tensors[0].clone().into_scalar::<f32>(), 0.3);
    }

    #[test]
    fn sums_are_right_for_every_length() {
        for length in (1..70).chain([4096, 4095, 12_288, 100_000]) {
            let values: Vec<f32> = (0..length).map(|i| (i % 7) as f32).collect();
            let expected: f32 = values.iter().sum();
            assert_eq!(sum(Tensor::from_data(&values[..], &Device::flex())).into_scalar::<f32>(), expected, "{length}");
        }
    }
}
