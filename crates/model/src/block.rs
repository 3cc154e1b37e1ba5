//! One pre-norm transformer block.

use crate::attention::Attention;
use crate::precision::{layer_norm, linear, to_f32};
use burn::module::{Module, Param};
use burn::nn::{LayerNorm, Linear};
use burn::tensor::{FloatDType, Tensor, activation};

/// Two layers with an exact (erf) GELU between them.
#[derive(Module, Debug)]
pub struct Mlp {
    /// Width -> hidden width.
    pub fc1: Linear,
    /// Hidden width -> width.
    pub fc2: Linear,
}

impl Mlp {
    /// Shapes: `x` and the result `[batch, tokens, width]`; products run in `compute`, which is the result's type too.
    pub fn forward(&self, x: Tensor<3>, compute: FloatDType) -> Tensor<3> {
        let hidden = activation::gelu(linear(&self.fc1, x, compute));
        linear(&self.fc2, hidden, compute)
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
    /// and of the MLP branch per sample, none for 1. Products run in `compute`.
    pub fn forward(&self, x: Tensor<3>, branch_scales: Option<Tensor<2>>, compute: FloatDType) -> Tensor<3> {
        let scale = |branch: Tensor<3>, layer_scale: &Option<LayerScale>, index: usize| {
            let mut branch = to_f32(branch);
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
        let attended = self.attn.forward(layer_norm(&self.norm1, x.clone()), compute);
        let x = x + scale(attended, &self.ls1, 0);
        let transformed = self.mlp.forward(layer_norm(&self.norm2, x.clone()), compute);
        x + scale(transformed, &self.ls2, 1)
    }
}
