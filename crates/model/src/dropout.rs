//! Dropout where timm's `VisionTransformer` has it (Srivastava et al., Dropout, JMLR 2014; of patches: Liu et al., PatchDropout, 2022,
//! arXiv 2208.07220).
//!
//! Nothing is drawn here: what is dropped is an argument of the forward pass, as stochastic depth is.

use crate::error::ModelError;
use crate::plan::AttentionKind;
use crate::{Architecture, LayerAttention};
use burn::tensor::{Bool, Int, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[model.dropout]`: probabilities, in [0, 1), of dropping a value in training; 0, as DeiT has them all, costs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DropoutConfig {
    /// Features before the head; timm's `drop_rate`.
    pub head: f64,
    /// Features of the tokens after the position embedding is added; timm's `pos_drop_rate`.
    pub positions: f64,
    /// Whole patches, as many in every image, before the first block; timm's `patch_drop_rate`. Nothing is scaled up for them, so the
    /// token sums of linear and Hydra attention are smaller in training than in evaluation.
    pub patches: f64,
    /// Features after attention's projection and after both layers of the MLP; timm's `proj_drop_rate`.
    pub projections: f64,
    /// Entries of the attention map, which softmax layers alone have; timm's `attn_drop_rate`.
    pub attention: f64,
}

impl DropoutConfig {
    /// Whether anything is dropped.
    pub fn on(&self) -> bool {
        *self != Self::default()
    }

    /// Checks every probability, and that every layer has an attention map where its entries are dropped.
    pub(crate) fn check(&self, layers: &[LayerAttention]) -> Result<(), ModelError> {
        for (key, rate) in [
            ("dropout.head", self.head),
            ("dropout.positions", self.positions),
            ("dropout.patches", self.patches),
            ("dropout.projections", self.projections),
            ("dropout.attention", self.attention),
        ] {
            if !(0.0..1.0).contains(&rate) {
                return Err(ModelError::new(key, format!("{rate} is no probability in [0, 1)")));
            }
        }
        let other = layers.iter().position(|layer| layer.kind != AttentionKind::Softmax);
        match other {
            Some(layer) if self.attention > 0.0 => Err(ModelError::new(
                "dropout.attention",
                format!(
                    "layer {layer} is {} attention, which has no attention map to drop entries of",
                    layers[layer].kind.name()
                ),
            )
            .help("set it to 0; dropout.projections works in layers of every kind")),
            _ => Ok(()),
        }
    }
}

/// Values that are dropped: they become 0, and the others are divided by the probability of being kept.
#[derive(Debug, Clone)]
pub struct Mask<const D: usize> {
    dropped: Tensor<D, Bool>,
    kept: f64,
}

impl<const D: usize> Mask<D> {
    /// `dropped` is true where a value is dropped, which happens with probability `rate`.
    pub fn new(dropped: Tensor<D, Bool>, rate: f64) -> Self {
        Self { dropped, kept: 1.0 - rate }
    }
}

/// `x` without what the mask drops.
pub(crate) fn drop<const D: usize>(x: Tensor<D>, mask: Option<&Mask<D>>) -> Tensor<D> {
    match mask {
        Some(mask) => x.mask_fill(mask.dropped.clone(), 0.0).div_scalar(mask.kept),
        None => x,
    }
}

/// The patches that are kept of each image of a batch, as many in each.
#[derive(Debug, Clone)]
pub struct KeptPatches {
    /// `[batch * count]`: image after image, each the number of the image times the patches of an image, plus the patch's number.
    pub rows: Tensor<1, Int>,
    /// Patches kept of an image.
    pub count: usize,
}

impl KeptPatches {
    /// How many of `patches` patches are kept where each is dropped with probability `rate`: timm's `max(1, int(patches (1 - rate)))`.
    pub fn count(patches: usize, rate: f64) -> usize {
        ((patches as f64 * (1.0 - rate)) as usize).max(1)
    }

    /// Tokens `[batch, prefix + patches, width]` to `[batch, prefix + count, width]`; the `prefix` tokens before the patches all stay.
    pub(crate) fn apply(&self, x: Tensor<3>, prefix: usize) -> Tensor<3> {
        let [batch, tokens, width] = x.dims();
        let patches = x.clone().narrow(1, prefix, tokens - prefix).reshape([batch * (tokens - prefix), width]);
        let kept = patches.select(0, self.rows.clone()).reshape([batch, self.count, width]);
        match prefix {
            0 => kept,
            _ => Tensor::cat(vec![x.narrow(1, 0, prefix), kept], 1),
        }
    }
}

/// What one block drops. Tokens are those that are left of [`DropoutMasks::patches`].
#[derive(Debug, Clone, Default)]
pub struct BlockMasks {
    /// The attention map, `[batch, heads, tokens, tokens]`; in softmax layers only.
    pub attention: Option<Mask<4>>,
    /// After attention's projection, `[batch, tokens, width]`.
    pub projection: Option<Mask<3>>,
    /// After the MLP's activation, `[batch, tokens, hidden width]`.
    pub hidden: Option<Mask<3>>,
    /// After the MLP, `[batch, tokens, width]`.
    pub output: Option<Mask<3>>,
}

/// What a forward pass drops.
#[derive(Debug, Clone, Default)]
pub struct DropoutMasks {
    /// After the position embedding, `[batch, tokens, width]`.
    pub positions: Option<Mask<3>>,
    /// Which patches enter the first block.
    pub patches: Option<KeptPatches>,
    /// One for each block.
    pub blocks: Vec<BlockMasks>,
    /// Before the head, `[batch, width]`.
    pub head: Option<Mask<2>>,
    /// Before the distillation token's head, `[batch, width]`.
    pub head_dist: Option<Mask<2>>,
}

impl Architecture {
    /// Tokens of an image in the blocks in training: without the patches that [`DropoutConfig::patches`] drops.
    pub fn training_tokens(&self) -> usize {
        match self.dropout.patches {
            0.0 => self.tokens(),
            rate => self.prefix_tokens() + KeptPatches::count(self.tokens() - self.prefix_tokens(), rate),
        }
    }
}
