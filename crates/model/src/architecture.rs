//! The architecture: a checked configuration as plain numbers.

use crate::attention::kernel::Kernel;
use crate::dropout::DropoutConfig;
use crate::ops::Ops;
use crate::plan::AttentionKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Everything that defines a network's shape, checked and free of defaults. Made by [`crate::ModelConfig::resolve`].
#[derive(Debug, Clone, PartialEq)]
pub struct Architecture {
    /// Height and width of an image in pixels, multiples of `patch`.
    pub image: [usize; 2],
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Channels of an image: 1 or 3.
    pub channels: usize,
    /// Number of classes.
    pub classes: usize,
    /// Features of a token (D).
    pub width: usize,
    /// Number of blocks.
    pub depth: usize,
    /// Heads of softmax and linear attention (H), a divisor of `width`.
    pub heads: usize,
    /// Features between the two layers of an MLP.
    pub mlp_hidden: usize,
    /// Whether the projection to queries, keys and values has a bias.
    pub qkv_bias: bool,
    /// Whether the patch embedding has a bias.
    pub patch_bias: bool,
    /// Whether there is a class token.
    pub class_token: bool,
    /// Whether there are a distillation token after the class token and a second head on it (DeiT).
    pub distilled: bool,
    /// Number of register tokens, between the class token and the patches. None in a distilled model.
    pub registers: usize,
    /// Whether the position embedding leaves out the class token and the registers (DeiT III; timm's `no_embed_class`).
    pub no_embed_class: bool,
    /// What the head sees.
    pub pool: Pool,
    /// Whether the last norm comes after pooling (timm's `fc_norm`) instead of before. Only with [`Pool::Avg`].
    pub fc_norm: bool,
    /// The initial value of LayerScale, none without it.
    pub layer_scale: Option<f64>,
    /// What every norm adds to the variance.
    pub norm_eps: f64,
    /// The greatest probability of dropping a residual branch; see [`Self::drop_path_rates`].
    pub stochastic_depth: f64,
    /// How that probability runs over the blocks.
    pub stochastic_depth_mode: StochasticDepthMode,
    /// Dropout in training.
    pub dropout: DropoutConfig,
    /// The attention of each block.
    pub layers: Vec<LayerAttention>,
    /// How its operations are computed; changes no number beyond rounding.
    pub ops: Ops,
}

/// What the head sees of the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pool {
    /// The class token.
    #[default]
    Token,
    /// The mean of the patch tokens, without class token and registers.
    Avg,
}

/// How the probability of dropping a residual branch runs over the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StochasticDepthMode {
    /// From 0 in the first block to the full probability in the last (Huang et al., 2016, arXiv 1603.09382; DeiT).
    #[default]
    Linear,
    /// The same in every block (DeiT III, Touvron et al., 2022, arXiv 2204.07118).
    Constant,
}

/// How one layer attends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayerAttention {
    /// The way tokens mix.
    pub kind: AttentionKind,
    /// The kernel of linear and Hydra attention; none for softmax.
    pub kernel: Option<Kernel>,
}

impl std::fmt::Display for LayerAttention {
    /// `softmax`, `linear/cosine`, `hydra/tanh`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kernel {
            Some(kernel) => write!(f, "{}/{}", self.kind.name(), kernel.name()),
            None => f.write_str(self.kind.name()),
        }
    }
}

impl Architecture {
    /// Rows and columns of patches.
    pub fn grid(&self) -> [usize; 2] {
        self.image.map(|side| side / self.patch)
    }

    /// Tokens before the patches: class token, distillation token and registers.
    pub fn prefix_tokens(&self) -> usize {
        usize::from(self.class_token) + usize::from(self.distilled) + self.registers
    }

    /// Tokens before the patches that have a place in the position embedding.
    pub fn embedded_prefix_tokens(&self) -> usize {
        if self.no_embed_class { 0 } else { self.prefix_tokens() }
    }

    /// Tokens of an image, those before the patches included (T).
    pub fn tokens(&self) -> usize {
        let [rows, columns] = self.grid();
        self.prefix_tokens() + rows * columns
    }

    /// The probability of dropping a residual branch, per block, as [`Self::stochastic_depth_mode`] says. Linear is timm's `linspace`,
    /// where a single block has 0.
    pub fn drop_path_rates(&self) -> Vec<f64> {
        let last = self.depth.saturating_sub(1).max(1) as f64;
        (0..self.depth)
            .map(|block| match self.stochastic_depth_mode {
                StochasticDepthMode::Linear => self.stochastic_depth * (block as f64 / last),
                StochasticDepthMode::Constant => self.stochastic_depth,
            })
            .collect()
    }
}
