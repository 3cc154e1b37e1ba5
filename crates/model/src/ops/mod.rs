//! Operations that are computed in one piece, forward and backward, where the device has them.
//!
//! An operation is a file here: the plain form, of Burn's own operations, which defines what is computed; a trait through which a backend
//! supplies the fused form and its gradient; the step of the backward pass; and the function that the network calls. The fused form for the
//! CPU is in `cpu/` under the same name.
//!
//! Reductions are f32 and have an order that follows from the shapes alone, so the number of threads changes no bit of a result.

mod adamw;
mod gelu;
mod hydra;
mod layer_norm;
mod linear;
mod linear_attention;
mod loss;
mod patches;
mod residual;
mod skip;
mod softmax_attention;

#[cfg(feature = "flex")]
mod cpu;
#[cfg(feature = "gpu")]
mod gpu;

pub use adamw::{AdamW, AdamWOps, adamw_step, adamw_step_plain, sum_of_squares};
pub use gelu::{GeluOps, gelu, gelu_plain};
pub use hydra::{HydraOps, hydra_attention, hydra_attention_plain};
pub use layer_norm::{LayerNormOps, layer_norm, layer_norm_of_branch, layer_norm_plain};
pub use linear::{LinearOps, linear, linear_plain};
pub use linear_attention::{LinearAttentionOps, linear_attention, linear_attention_plain};
pub use loss::{Loss, LossOps, loss_sum, loss_sum_plain};
pub use patches::{PatchOps, patches, patches_plain};
pub use residual::{ResidualOps, Scales, residual, residual_plain};
pub use skip::Skip;
pub use softmax_attention::{SoftmaxAttentionOps, softmax_attention, softmax_attention_plain};

use burn::tensor::{FloatDType, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a network's operations are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ops {
    /// Each in one piece with a gradient of its own, where the device has that form; otherwise as `plain`.
    #[default]
    Fused,
    /// Composed of Burn's operations. Slower; the reference that the fused form is held to.
    Plain,
}

/// How a forward pass computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compute {
    /// Float type of the matrix products.
    pub float: FloatDType,
    /// Whether operations take their fused form.
    pub fused: bool,
    /// What norms add to the variance.
    pub norm_eps: f64,
}

impl Compute {
    /// How a network that is set to `ops` computes on the device of `x`, with matrix products in the float type of `x`.
    pub fn of<const D: usize>(x: &Tensor<D>, ops: Ops, norm_eps: f64) -> Self {
        Self { float: x.dtype().into(), fused: ops == Ops::Fused && has_fused(x), norm_eps }
    }
}

impl Compute {
    /// Whether the products too are fused: they are where they run in f32.
    pub(crate) fn fused_f32(&self) -> bool {
        self.fused && self.float == FloatDType::F32
    }
}

/// Whether the device of `x` has the fused forms.
pub fn has_fused<const D: usize>(x: &Tensor<D>) -> bool {
    #[cfg(feature = "flex")]
    {
        use burn::backend::DispatchTensorKind;
        let tensor = x.clone().into_dispatch();
        let mut kind = &tensor.kind;
        while let DispatchTensorKind::Autodiff(inner) = kind {
            kind = inner;
        }
        matches!(kind, DispatchTensorKind::Flex(_))
    }
    #[cfg(not(feature = "flex"))]
    {
        let _ = x;
        false
    }
}

/// The last axis of a shape.
#[cfg(feature = "gpu")]
fn last_axis(shape: &burn::tensor::Shape) -> burn::tensor::Shape {
    burn::tensor::Shape::new([shape[shape.num_dims() - 1]])
}

/// What a gradient of a gradient says: Burn's autodiff is of first order, and so are these operations.
pub(crate) fn first_order(operation: &str) -> ! {
    unreachable!("the gradient of {operation} has no gradient: autodiff is of first order")
}
