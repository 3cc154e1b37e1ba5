//! A network from its parameters, whatever supplies them.

use crate::architecture::Architecture;
use crate::attention::Attention;
use crate::block::{Block, LayerScale, Mlp};
use crate::patch::{PatchEmbedding, PatchProjection};
use crate::vit::{Layout, VisionTransformer};
use burn::module::Param;
use burn::nn::{LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Device, Tensor};

/// The standard deviation of weights, class token and position embedding.
const STD: f64 = 0.02;
/// timm's for registers.
const REGISTER_STD: f64 = 1e-6;

/// How a parameter begins in a network that is not loaded.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Start {
    /// Normal with this standard deviation.
    Normal(f64),
    /// Uniform between minus and plus this.
    Uniform(f64),
    /// This everywhere.
    Constant(f32),
}

/// Supplies the parameters of a network.
pub(crate) trait Assemble {
    /// Where the network lies.
    fn device(&self) -> &Device;

    /// The parameter of a timm name. `shape` is Burn's: linear weights are `[in, out]`.
    fn parameter<const D: usize>(&mut self, name: &str, shape: [usize; D], start: Start) -> Param<Tensor<D>>;
}

impl Architecture {
    /// Asks for every parameter once, in the order in which initial values are drawn.
    pub(crate) fn assemble(&self, supply: &mut impl Assemble) -> VisionTransformer {
        let width = self.width;
        let [rows, columns] = self.grid();
        let pixels = self.channels * self.patch * self.patch;
        let limit = Start::Uniform((pixels as f64).sqrt().recip());
        let normal = Start::Normal(STD);

        let cls_token = self.class_token.then(|| supply.parameter("cls_token", [1, 1, width], normal));
        let dist_token = self.distilled.then(|| supply.parameter("dist_token", [1, 1, width], normal));
        let reg_token =
            (self.registers > 0).then(|| supply.parameter("reg_token", [1, self.registers, width], Start::Normal(REGISTER_STD)));
        let positions = self.embedded_prefix_tokens() + rows * columns;
        let pos_embed = supply.parameter("pos_embed", [1, positions, width], normal);
        let patch_embed = PatchEmbedding {
            proj: PatchProjection {
                weight: supply.parameter("patch_embed.proj.weight", [width, self.channels, self.patch, self.patch], limit),
                bias: self.patch_bias.then(|| supply.parameter("patch_embed.proj.bias", [width], limit)),
            },
        };
        let blocks = (0..self.depth).map(|index| self.block(index, supply)).collect();
        VisionTransformer {
            cls_token,
            reg_token,
            pos_embed,
            dist_token,
            patch_embed,
            blocks,
            norm: (!self.fc_norm).then(|| self.layer_norm("norm", supply)),
            fc_norm: self.fc_norm.then(|| self.layer_norm("fc_norm", supply)),
            head: linear("head", width, self.classes, true, supply),
            head_dist: self.distilled.then(|| linear("head_dist", width, self.classes, true, supply)),
            layout: Layout { pool: self.pool, no_embed_class: self.no_embed_class, norm_eps: self.norm_eps, ops: self.ops },
        }
    }

    fn block(&self, index: usize, supply: &mut impl Assemble) -> Block {
        let at = |part: &str| format!("blocks.{index}.{part}");
        let layer_scale =
            |part: &str, supply: &mut _| self.layer_scale.map(|value| layer_scale(&at(part), self.width, value as f32, supply));
        Block {
            norm1: self.layer_norm(&at("norm1"), supply),
            attn: Attention::new(
                linear(&at("attn.qkv"), self.width, 3 * self.width, self.qkv_bias, supply),
                linear(&at("attn.proj"), self.width, self.width, true, supply),
                self.heads,
                self.layers[index],
            ),
            ls1: layer_scale("ls1", supply),
            norm2: self.layer_norm(&at("norm2"), supply),
            mlp: Mlp {
                fc1: linear(&at("mlp.fc1"), self.width, self.mlp_hidden, true, supply),
                fc2: linear(&at("mlp.fc2"), self.mlp_hidden, self.width, true, supply),
            },
            ls2: layer_scale("ls2", supply),
        }
    }

    fn layer_norm(&self, name: &str, supply: &mut impl Assemble) -> LayerNorm {
        // Burn's LayerNorm is made by its configuration alone; one feature, replaced at once, is the cheapest.
        let mut norm = LayerNormConfig::new(1).with_epsilon(self.norm_eps).init(supply.device());
        norm.gamma = supply.parameter(&format!("{name}.weight"), [self.width], Start::Constant(1.0));
        norm.beta = Some(supply.parameter(&format!("{name}.bias"), [self.width], Start::Constant(0.0)));
        norm
    }
}

fn layer_scale(name: &str, width: usize, value: f32, supply: &mut impl Assemble) -> LayerScale {
    LayerScale { gamma: supply.parameter(&format!("{name}.gamma"), [width], Start::Constant(value)) }
}

fn linear(name: &str, into: usize, out: usize, bias: bool, supply: &mut impl Assemble) -> Linear {
    Linear {
        weight: supply.parameter(&format!("{name}.weight"), [into, out], Start::Normal(STD)),
        bias: bias.then(|| supply.parameter(&format!("{name}.bias"), [out], Start::Constant(0.0))),
    }
}
