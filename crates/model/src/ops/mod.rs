//! Operations that are computed in one piece, forward and backward, where the device has them.
//!
//! An operation is a file here: the plain form, of Burn's own operations, which defines what is computed; a trait through which a backend
//! supplies the fused form and its gradient; the step of the backward pass; and the function that the network calls. The fused form for the
//! CPU is in `cpu/` under the same name, and that for GPUs in `gpu/`; [`Form`] says which device has which.
//!
//! Reductions are f32 and have an order that follows from the shapes alone, so the number of threads changes no bit of a result, and a GPU
//! gives the same bits each time.

mod adamw;
mod byte_patches;
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
pub use byte_patches::{ByteImages, BytePatchOps, Cut, byte_patches, byte_patches_plain};
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

use burn::backend::DispatchTensorKind;
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

/// An operation that has a fused form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fusible {
    /// [`adamw_step`] and [`sum_of_squares`].
    AdamW,
    /// [`byte_patches`](fn@byte_patches).
    BytePatches,
    /// [`gelu`](fn@gelu).
    Gelu,
    /// [`hydra_attention`].
    HydraAttention,
    /// [`layer_norm`](fn@layer_norm).
    LayerNorm,
    /// [`linear`](fn@linear).
    Linear,
    /// [`linear_attention`](fn@linear_attention).
    LinearAttention,
    /// [`loss_sum`].
    Loss,
    /// [`patches`](fn@patches).
    Patches,
    /// [`residual`](fn@residual).
    Residual,
    /// [`softmax_attention`](fn@softmax_attention).
    SoftmaxAttention,
}

/// Whose fused forms operations take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Nobody's: all are plain.
    Plain,
    /// The CPU's, which has all that work on floats.
    Cpu,
    /// A GPU's, where products of matrices are Burn's, which it tunes.
    Gpu,
}

impl Form {
    /// The form of operations that are set to `ops`, on the device of `x`.
    pub fn of<const D: usize>(x: &Tensor<D>, ops: Ops) -> Self {
        match ops {
            Ops::Fused => of_device(x),
            Ops::Plain => Self::Plain,
        }
    }

    /// Whether `operation` is fused.
    pub fn fuses(self, operation: Fusible) -> bool {
        match self {
            Self::Plain => false,
            Self::Cpu => operation != Fusible::BytePatches,
            Self::Gpu => !matches!(operation, Fusible::Linear | Fusible::Patches),
        }
    }
}

/// Whether the device of `x` has fused forms.
pub fn has_fused<const D: usize>(x: &Tensor<D>) -> bool {
    of_device(x) != Form::Plain
}

fn of_device<const D: usize>(x: &Tensor<D>) -> Form {
    let tensor = x.clone().into_dispatch();
    let mut kind = &tensor.kind;
    loop {
        match kind {
            DispatchTensorKind::Autodiff(inner) => kind = inner,
            #[cfg(feature = "flex")]
            DispatchTensorKind::Flex(_) => return Form::Cpu,
            #[cfg(feature = "gpu")]
            DispatchTensorKind::Cube(_) => return Form::Gpu,
            #[allow(unreachable_patterns)]
            _ => return Form::Plain,
        }
    }
}

/// How a forward pass computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compute {
    /// Float type of the matrix products.
    pub float: FloatDType,
    /// Whose fused forms operations take.
    pub form: Form,
    /// What norms add to the variance.
    pub norm_eps: f64,
}

impl Compute {
    /// How a network that is set to `ops` computes on the device of `x`, with matrix products in the float type of `x`.
    pub fn of<const D: usize>(x: &Tensor<D>, ops: Ops, norm_eps: f64) -> Self {
        Self { float: x.dtype().into(), form: Form::of(x, ops), norm_eps }
    }

    /// Whether `operation` is fused. What multiplies matrices, and what prepares for it, is so in f32 only.
    pub(crate) fn fuses(&self, operation: Fusible) -> bool {
        let product = matches!(operation, Fusible::Linear | Fusible::Patches);
        self.form.fuses(operation) && (!product || self.float == FloatDType::F32)
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
