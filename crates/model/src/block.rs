//! One pre-norm transformer block.

use crate::attention::Attention;
use crate::dropout::{BlockMasks, Mask, drop};
use crate::ops::{self, Compute, Fusible, Scales};
use crate::precision::{Operation, affine, layer_norm, linear};
use burn::module::{Module, Param};
use burn::nn::{LayerNorm, Linear};
use burn::tensor::{Tensor, activation};

/// Two layers with an exact (erf) GELU between them.
#[derive(Module, Debug)]
pub struct Mlp {
    /// Width -> hidden width.
    pub fc1: Linear,
    /// Hidden width -> width.
    pub fc2: Linear,
}

impl Mlp {
    /// Shapes: `x` and the result `[batch, tokens, width]`; the result is f32.
    pub fn forward(&self, x: Tensor<3>, compute: Compute) -> Tensor<3> {
        linear(&self.fc2, self.hidden(x, None, compute), compute)
    }

    /// What comes between the two layers, `[batch, tokens, hidden width]`, with dropout.
    pub(crate) fn hidden(&self, x: Tensor<3>, mask: Option<&Mask<3>>, compute: Compute) -> Tensor<3> {
        let gelu = |x| Operation::Gelu.operand(x, compute.float);
        let activated = match &self.fc1.bias {
            Some(bias) if compute.fuses(Fusible::Gelu) => {
                ops::gelu(gelu(affine(x, self.fc1.weight.val(), None, compute)), bias.val())
            }
            _ => activation::gelu(gelu(linear(&self.fc1, x, compute))),
        };
        drop(activated, mask)
    }
}

/// LayerScale: one factor a feature on the output of a residual branch.
///
/// Touvron et al., Going Deeper with Image Transformers, 2021 (arXiv 2103.17239), section 2.
#[derive(Module, Debug)]
pub struct LayerScale {
    /// `[width]`.
    pub gamma: Param<Tensor<1>>,
}

/// `x + ls1(attention(norm(x)))`, then `x + ls2(mlp(norm(x)))`, each branch scaled per sample by stochastic depth.
///
/// timm 1.0, `vision_transformer.py`, `Block`.
#[derive(Module, Debug)]
pub struct Block {
    /// Before attention.
    pub norm1: LayerNorm,
    /// Mixes tokens.
    pub attn: Attention,
    /// On the attention branch, where the model has LayerScale.
    pub ls1: Option<LayerScale>,
    /// Before the MLP.
    pub norm2: LayerNorm,
    /// Works on each token alone.
    pub mlp: Mlp,
    /// On the MLP branch, where the model has LayerScale.
    pub ls2: Option<LayerScale>,
}

impl Block {
    /// Shapes: `x` and the result `[batch, tokens, width]` in f32; `branch_scales` `[2, batch]`, the factors of the attention branch
    /// and of the MLP branch per sample, none for 1.
    pub fn forward(&self, x: Tensor<3>, branch_scales: Option<Tensor<2>>, compute: Compute) -> Tensor<3> {
        self.dropping(x, branch_scales, &BlockMasks::default(), compute)
    }

    /// The same with dropout.
    pub(crate) fn dropping(
        &self,
        x: Tensor<3>,
        branch_scales: Option<Tensor<2>>,
        masks: &BlockMasks,
        compute: Compute,
    ) -> Tensor<3> {
        let tokens = |x| Operation::Tokens.operand(x, compute.float);
        // The end of a fused branch adds the bias last, after which a mask would come.
        if compute.fuses(Fusible::LayerNorm)
            && compute.fuses(Fusible::Residual)
            && masks.projection.is_none()
            && masks.output.is_none()
            && let (Some(beta1), Some(beta2)) = (&self.norm1.beta, &self.norm2.beta)
            && let (Some(proj_bias), Some(fc2_bias)) = (&self.attn.proj.bias, &self.mlp.fc2.bias)
        {
            let scales = |layer_scale: &Option<LayerScale>, index| Scales {
                features: layer_scale.as_ref().map(|layer_scale| layer_scale.gamma.val()),
                samples: branch_scales.as_ref().map(|scales| {
                    let [_, batch] = scales.dims();
                    scales.clone().narrow(0, index, 1).reshape([batch])
                }),
            };
            let begin = |norm: &LayerNorm, beta: &Param<Tensor<1>>, x: &Tensor<3>| {
                ops::layer_norm_of_branch(x.clone(), norm.gamma.val(), beta.val(), compute.norm_eps)
            };
            let (normed, skip) = begin(&self.norm1, beta1, &x);
            let mixed = self.attn.mix(normed, masks.attention.as_ref(), compute);
            let branch = tokens(affine(mixed, self.attn.proj.weight.val(), None, compute));
            let x = ops::residual(x, branch, proj_bias.val(), scales(&self.ls1, 0), skip);
            let (normed, skip) = begin(&self.norm2, beta2, &x);
            let hidden = self.mlp.hidden(normed, masks.hidden.as_ref(), compute);
            let branch = tokens(affine(hidden, self.mlp.fc2.weight.val(), None, compute));
            return ops::residual(x, branch, fc2_bias.val(), scales(&self.ls2, 1), skip);
        }
        let scale = |branch: Tensor<3>, layer_scale: &Option<LayerScale>, index: usize| {
            let mut branch = tokens(branch);
            if let Some(layer_scale) = layer_scale {
                branch = branch * layer_scale.gamma.val().unsqueeze();
            }
            match &branch_scales {
                Some(scales) => {
                    let [_, batch] = scales.dims();
                    let factors = scales.clone().narrow(0, index, 1).reshape([batch, 1, 1]);
                    branch * factors
                }
                None => branch,
            }
        };
        let mixed = self.attn.mix(layer_norm(&self.norm1, x.clone(), compute), masks.attention.as_ref(), compute);
        let attended = linear(&self.attn.proj, mixed, compute);
        let x = x + scale(drop(attended, masks.projection.as_ref()), &self.ls1, 0);
        let hidden = self.mlp.hidden(layer_norm(&self.norm2, x.clone(), compute), masks.hidden.as_ref(), compute);
        let transformed = linear(&self.mlp.fc2, hidden, compute);
        x + scale(drop(transformed, masks.output.as_ref()), &self.ls2, 1)
    }
}
