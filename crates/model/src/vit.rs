//! The network.

use crate::architecture::Pool;
use crate::block::Block;
use crate::dropout::{DropoutMasks, drop};
use crate::ops::{Compute, Form, Fusible, Ops};
use crate::patch::PatchEmbedding;
use crate::pixels::Pixels;
use crate::precision::{Operation, layer_norm, linear};
use burn::module::{Module, Param};
use burn::nn::{LayerNorm, Linear};
use burn::tensor::Tensor;

/// A Vision Transformer, as DeiT trains it and timm 1.0 stacks it.
///
/// Dosovitskiy et al., 2020 (arXiv 2010.11929); Touvron et al., Training data-efficient image transformers, 2020 (arXiv 2012.12877) and
/// DeiT III, 2022 (arXiv 2204.07118); registers: Darcet et al., 2023 (arXiv 2309.16588). Built by [`crate::Architecture::init`]. Fields
/// carry timm's names, so that a parameter's path is its name in a weights file ([`crate::parameter_name`]).
///
/// The order of tokens is class token, distillation token or registers, patches row by row; each of the former only where the model has
/// it.
#[derive(Module, Debug)]
pub struct VisionTransformer {
    /// `[1, 1, width]`.
    pub cls_token: Option<Param<Tensor<3>>>,
    /// `[1, registers, width]`.
    pub reg_token: Option<Param<Tensor<3>>>,
    /// `[1, tokens, width]`, the places of the tokens before the patches first, or `[1, patches, width]` where those have none.
    pub pos_embed: Param<Tensor<3>>,
    /// `[1, 1, width]`.
    pub dist_token: Option<Param<Tensor<3>>>,
    /// Pixels to tokens.
    pub patch_embed: PatchEmbedding,
    /// From input to output.
    pub blocks: Vec<Block>,
    /// After the last block, before pooling.
    pub norm: Option<LayerNorm>,
    /// After pooling, instead of `norm`.
    pub fc_norm: Option<LayerNorm>,
    /// Pooled token to logits.
    pub head: Linear,
    /// Distillation token to logits.
    pub head_dist: Option<Linear>,
    #[module(skip)]
    pub(crate) layout: Layout,
}

/// What the forward pass must know beyond the parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Layout {
    pub pool: Pool,
    pub no_embed_class: bool,
    pub norm_eps: f64,
    pub ops: Ops,
}

/// The logits of each head of a network.
#[derive(Debug, Clone)]
pub struct Heads {
    /// Of the class token or the pooled patches: `[batch, classes]` in f32.
    pub class: Tensor<2>,
    /// Of the distillation token, where there is one: `[batch, classes]` in f32.
    pub distillation: Option<Tensor<2>>,
}

impl Heads {
    /// The logits to predict with: the mean of both heads in a distilled network (DeiT, section 4), else those of the one head.
    pub fn mean(self) -> Tensor<2> {
        match self.distillation {
            Some(distillation) => (self.class + distillation) / 2.0,
            None => self.class,
        }
    }
}

impl VisionTransformer {
    /// Class logits; in a distilled network, the mean of both heads.
    ///
    /// Shapes: `images` `[batch, channels, height, width]`, normalised; `stochastic_depth` `[depth, 2, batch]` in f32, the factors of
    /// the attention branch and of the MLP branch of each block and sample: 0 where the branch is dropped and `1 / (1 - p)` where it is
    /// kept, with the `p` of [`crate::Architecture::drop_path_rates`]; none for evaluation. Result `[batch, classes]` in f32.
    ///
    /// Matrix products run in the float type of the images, so bf16 images give mixed precision with f32 parameters; everything else,
    /// the logits included, is f32 ([`crate::Operation::types`]).
    ///
    /// # Panics
    /// Where shapes do not fit the model.
    pub fn forward(&self, pixels: impl Into<Pixels>, stochastic_depth: Option<Tensor<3>>) -> Tensor<2> {
        self.heads(pixels, stochastic_depth).mean()
    }

    /// The logits of each head apart, for training with distillation. Arguments as in [`Self::forward`].
    ///
    /// # Panics
    /// Where shapes do not fit the model.
    pub fn heads(&self, pixels: impl Into<Pixels>, stochastic_depth: Option<Tensor<3>>) -> Heads {
        self.dropping(pixels, stochastic_depth, None)
    }

    /// The same with dropout.
    ///
    /// # Panics
    /// Where shapes do not fit the model.
    pub fn dropping(
        &self,
        pixels: impl Into<Pixels>,
        stochastic_depth: Option<Tensor<3>>,
        masks: Option<&DropoutMasks>,
    ) -> Heads {
        let pixels = pixels.into();
        let compute = self.compute(&pixels);
        let x = self.encode(pixels, stochastic_depth, masks);
        self.classify(x, masks, compute)
    }

    /// The logits of each head from the tokens after the last block, `[batch, tokens, width]`.
    pub(crate) fn classify(&self, x: Tensor<3>, masks: Option<&DropoutMasks>, compute: Compute) -> Heads {
        let classify = |head: &Linear, token: Tensor<2>| Operation::Losses.operand(linear(head, token, compute), compute.float);
        let (mask, mask_dist) = masks.map_or((None, None), |masks| (masks.head.as_ref(), masks.head_dist.as_ref()));
        // A norm works on each token alone, so norming the token that is read is enough.
        let token = |index: usize| {
            let [batch, _, width] = x.dims();
            norm(&self.norm, x.clone().narrow(1, index, 1).reshape([batch, width]), compute)
        };
        let pooled = match self.layout.pool {
            Pool::Token => token(0),
            Pool::Avg => {
                let [batch, tokens, width] = x.dims();
                let prefix = self.prefix_tokens();
                let patches = norm(&self.norm, x.clone().narrow(1, prefix, tokens - prefix), compute);
                patches.mean_dim(1).reshape([batch, width])
            }
        };
        Heads {
            class: classify(&self.head, drop(norm(&self.fc_norm, pooled, compute), mask)),
            distillation: self.head_dist.as_ref().map(|head| classify(head, drop(token(1), mask_dist))),
        }
    }

    /// Tokens after the last norm that comes before pooling; timm's `forward_features`.
    ///
    /// Shapes: `images` `[batch, channels, height, width]`, result `[batch, tokens, width]` in f32.
    ///
    /// # Panics
    /// Where shapes do not fit the model.
    pub fn tokens(&self, pixels: impl Into<Pixels>) -> Tensor<3> {
        let pixels = pixels.into();
        let compute = self.compute(&pixels);
        norm(&self.norm, self.encode(pixels, None, None), compute)
    }

    /// Tokens before the patches.
    pub fn prefix_tokens(&self) -> usize {
        let registers = self.reg_token.as_ref().map_or(0, |token| token.dims()[1]);
        usize::from(self.cls_token.is_some()) + usize::from(self.dist_token.is_some()) + registers
    }

    /// Side of the patches that [`ops::byte_patches`](crate::ops::byte_patches()) should cut for this network; `None` where its device takes
    /// no bytes, or its operations are plain.
    pub fn byte_patch(&self) -> Option<usize> {
        let form = Form::of(&self.pos_embed.val(), self.layout.ops);
        form.fuses(Fusible::BytePatches).then(|| self.patch_embed.proj.weight.dims()[2])
    }

    pub(crate) fn compute(&self, pixels: &Pixels) -> Compute {
        Compute { float: pixels.float(), ..Compute::of(&self.pos_embed.val(), self.layout.ops, self.layout.norm_eps) }
    }

    /// Everything before the last norm. Shapes as in [`Self::forward`] and [`Self::tokens`].
    fn encode(&self, pixels: Pixels, stochastic_depth: Option<Tensor<3>>, masks: Option<&DropoutMasks>) -> Tensor<3> {
        let compute = self.compute(&pixels);
        let drops = Drops { stochastic_depth, masks };
        let mut x = self.embed(pixels, &drops, compute);
        for (index, block) in self.blocks.iter().enumerate() {
            x = drops.block(block, index, x, compute);
        }
        x
    }

    /// The tokens that enter the first block, `[batch, tokens, width]` in f32.
    pub(crate) fn embed(&self, pixels: Pixels, drops: &Drops<'_>, compute: Compute) -> Tensor<3> {
        let batch = pixels.batch();
        if let Some(factors) = &drops.stochastic_depth {
            assert_eq!(
                factors.dims(),
                [self.blocks.len(), 2, batch],
                "stochastic depth takes factors of shape [depth, 2, batch]"
            );
        }

        let mut patches = Operation::Tokens.operand(self.patch_embed.forward(pixels, compute), compute.float);
        if self.layout.no_embed_class {
            patches = patches + self.pos_embed.val();
        }
        let [_, _, width] = patches.dims();
        let mut tokens: Vec<Tensor<3>> = [&self.cls_token, &self.dist_token, &self.reg_token]
            .into_iter()
            .flatten()
            .map(|token| token.val().expand([batch, token.dims()[1], width]))
            .collect();
        tokens.push(patches);
        let mut x = if tokens.len() == 1 { tokens.remove(0) } else { Tensor::cat(tokens, 1) };
        if !self.layout.no_embed_class {
            x = x + self.pos_embed.val();
        }

        if let Some(masks) = drops.masks {
            assert_eq!(masks.blocks.len(), self.blocks.len(), "dropout takes the masks of every block");
            x = drop(x, masks.positions.as_ref());
            if let Some(patches) = &masks.patches {
                x = patches.apply(x, self.prefix_tokens());
            }
        }
        x
    }
}

/// What a forward pass drops: the factors of [`VisionTransformer::forward`] and the masks of [`VisionTransformer::dropping`].
#[derive(Debug, Clone)]
pub(crate) struct Drops<'a> {
    pub stochastic_depth: Option<Tensor<3>>,
    pub masks: Option<&'a DropoutMasks>,
}

impl Drops<'_> {
    /// The forward pass of one block, the `index`-th.
    pub(crate) fn block(&self, block: &Block, index: usize, x: Tensor<3>, compute: Compute) -> Tensor<3> {
        let scales = self.stochastic_depth.as_ref().map(|factors| {
            let [_, _, batch] = factors.dims();
            factors.clone().narrow(0, index, 1).reshape([2, batch])
        });
        match self.masks {
            Some(masks) => block.dropping(x, scales, &masks.blocks[index], compute),
            None => block.forward(x, scales, compute),
        }
    }
}

fn norm<const D: usize>(layer: &Option<LayerNorm>, x: Tensor<D>, compute: Compute) -> Tensor<D> {
    match layer {
        Some(layer) => layer_norm(layer, x, compute),
        None => x,
    }
}
