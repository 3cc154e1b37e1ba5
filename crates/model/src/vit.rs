//! The network.

use crate::block::Block;
use crate::patch::PatchEmbedding;
use crate::precision::{layer_norm, linear, to_f32};
use burn::module::{Module, Param};
use burn::nn::{LayerNorm, Linear};
use burn::tensor::{FloatDType, Tensor};

/// A Vision Transformer with a class token, as DeiT trains it and timm 1.0 stacks it.
///
/// Dosovitskiy et al., 2020 (arXiv 2010.11929); Touvron et al., Training data-efficient image transformers, 2020 (arXiv 2012.12877).
/// Built by [`crate::Architecture::init`]. Fields carry timm's names, so that a parameter's path is its name in a weights file
/// ([`crate::parameter_name`]).
#[derive(Module, Debug)]
pub struct VisionTransformer {
    /// `[1, 1, width]`.
    pub cls_token: Param<Tensor<3>>,
    /// `[1, 1 + patches, width]`, the class token's place first.
    pub pos_embed: Param<Tensor<3>>,
    /// Pixels to tokens.
    pub patch_embed: PatchEmbedding,
    /// From input to output.
    pub blocks: Vec<Block>,
    /// After the last block.
    pub norm: LayerNorm,
    /// Class token to logits.
    pub head: Linear,
}

impl VisionTransformer {
    /// Class logits.
    ///
    /// Shapes: `images` `[batch, channels, height, width]`, normalised; `stochastic_depth` `[depth, 2, batch]` in f32, the factors of
    /// the attention branch and of the MLP branch of each block and sample: 0 where the branch is dropped and `1 / (1 - p)` where it is
    /// kept, with the `p` of [`crate::Architecture::drop_path_rates`]; none for evaluation. Result `[batch, classes]` in f32.
    ///
    /// Matrix products run in the float type of the images, so bf16 images give mixed precision with f32 parameters; norms, softmax,
    /// token sums, the residual stream and the logits stay f32.
    ///
    /// # Panics
    /// Where shapes do not fit the model.
    pub fn forward(&self, images: Tensor<4>, stochastic_depth: Option<Tensor<3>>) -> Tensor<2> {
        let compute = compute_type(&images);
        let x = self.encode(images, stochastic_depth);
        let [batch, _, width] = x.dims();
        // The norm works on each token alone, so norming the class token is enough.
        let class = x.narrow(1, 0, 1).reshape([batch, width]);
        to_f32(linear(&self.head, layer_norm(&self.norm, class), compute))
    }

    /// Tokens after the last norm, the class token first; timm's `forward_features`.
    ///
    /// Shapes: `images` `[batch, channels, height, width]`, result `[batch, 1 + patches, width]` in f32.
    ///
    /// # Panics
    /// Where shapes do not fit the model.
    pub fn tokens(&self, images: Tensor<4>) -> Tensor<3> {
        layer_norm(&self.norm, self.encode(images, None))
    }

    /// Everything before the last norm. Shapes as in [`Self::forward`] and [`Self::tokens`].
    fn encode(&self, images: Tensor<4>, stochastic_depth: Option<Tensor<3>>) -> Tensor<3> {
        let compute = compute_type(&images);
        let [batch, ..] = images.dims();
        if let Some(factors) = &stochastic_depth {
            assert_eq!(
                factors.dims(),
                [self.blocks.len(), 2, batch],
                "stochastic depth takes factors of shape [depth, 2, batch]"
            );
        }

        let patches = to_f32(self.patch_embed.forward(images, compute));
        let [_, _, width] = patches.dims();
        let class = self.cls_token.val().expand([batch, 1, width]);
        let mut x = Tensor::cat(vec![class, patches], 1) + self.pos_embed.val();

        for (index, block) in self.blocks.iter().enumerate() {
            let scales = stochastic_depth.as_ref().map(|factors| factors.clone().narrow(0, index, 1).reshape([2, batch]));
            x = block.forward(x, scales, compute);
        }
        x
    }
}

fn compute_type(images: &Tensor<4>) -> FloatDType {
    images.dtype().into()
}
