//! The architecture: a checked configuration as plain numbers.

use crate::attention::kernel::Kernel;
use crate::plan::AttentionKind;

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
    /// Probability of dropping a residual branch of the last block; see [`Self::drop_path_rates`].
    pub stochastic_depth: f64,
    /// The attention of each block.
    pub layers: Vec<LayerAttention>,
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

    /// Tokens of an image, the class token included (T).
    pub fn tokens(&self) -> usize {
        let [rows, columns] = self.grid();
        1 + rows * columns
    }

    /// The probability of dropping a residual branch, per block: linear in depth from 0 in the first block to
    /// [`Self::stochastic_depth`] in the last (Huang et al., 2016, arXiv 1603.09382, as timm's `linspace`; a single block has 0).
    pub fn drop_path_rates(&self) -> Vec<f64> {
        let last = self.depth.saturating_sub(1).max(1) as f64;
        (0..self.depth).map(|block| self.stochastic_depth * (block as f64 / last)).collect()
    }
}
