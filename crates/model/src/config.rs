//! The `[model]` section of a configuration.

use crate::architecture::{Architecture, Pool, StochasticDepthMode};
use crate::dropout::DropoutConfig;
use crate::error::ModelError;
use crate::ops::Ops;
use crate::plan::AttentionConfig;
use crate::preset::{self, Preset};
use schemars::JsonSchema;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bounds that keep every count of parameters, multiply-accumulates and bytes within 64 bits, far above any model of this family.
const MAX_WIDTH: usize = 1 << 16;
const MAX_DEPTH: usize = 1 << 8;
const MAX_HIDDEN: usize = 1 << 20;
const MAX_CLASSES: usize = 1 << 24;
const MAX_TOKENS: usize = 1 << 18;
const MAX_SIDE: usize = 1 << 16;
const MAX_REGISTERS: usize = 1 << 10;

/// The `[model]` section: a Vision Transformer. Without any key it is DeiT-B at 224 pixels (Touvron et al., 2020, arXiv 2012.12877). A
/// preset gives every key another default; each key that is written wins over the preset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// A known model: "tiny", "small", "base" or "large", or a name of timm's as "deit3_base_patch16_224", which may carry the tag of its
    /// weights as "vit_base_patch16_224.augreg_in21k_ft_in1k". "base" if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// Image size in pixels: 224, or [height, width]. Each side is a multiple of `patch_size`. The preset's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_size: Option<ImageSize>,
    /// Side of a patch in pixels. The preset's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch_size: Option<usize>,
    /// Channels of an image: 3 for colour, 1 for grey.
    pub channels: usize,
    /// Number of classes, at least 2. The preset's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<usize>,
    /// Features of a token, instead of the preset's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    /// Number of blocks, instead of the preset's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<usize>,
    /// Heads of softmax and linear attention, instead of the preset's. They divide the width. Hydra attention has no use for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<usize>,
    /// Hidden features of the MLP per feature of a token, instead of the preset's. The product is rounded down, as in timm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlp_ratio: Option<f64>,
    /// Whether the projection to queries, keys and values has a bias. The preset's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qkv_bias: Option<bool>,
    /// Whether the patch embedding has a bias.
    pub patch_bias: bool,
    /// Whether there is a class token. Without one, `pool = "avg"`. The preset's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_token: Option<bool>,
    /// DeiT's distillation token and second head. The prediction is the mean of both heads. The preset's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distilled: Option<bool>,
    /// Number of register tokens (Darcet et al., 2023, arXiv 2309.16588), 0 for none. The preset's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registers: Option<usize>,
    /// Whether the position embedding covers the patches alone, without class token and registers (DeiT III). The preset's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_embed_class: Option<bool>,
    /// What the head sees: "token" for the class token, "avg" for the mean of the patches. The preset's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// With `pool = "avg"`, whether the last norm comes after pooling (true, timm's usual) or before. The preset's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fc_norm: Option<bool>,
    /// The initial value of LayerScale's factors (Touvron et al., 2021, arXiv 2103.17239), 1e-4 in DeiT III; 0 for a model without
    /// LayerScale. The preset's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_scale: Option<f64>,
    /// What every norm adds to the variance: 1e-6 in timm, 1e-12 in Hugging Face's ViT and DeiT. The preset's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_eps: Option<f64>,
    /// Stochastic depth (DeiT's drop path): the probability, in [0, 1), of dropping a residual branch of a sample in the last block.
    pub stochastic_depth: f64,
    /// How that probability runs over the blocks: "linear" from 0 in the first block, or "constant" (DeiT III). The preset's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stochastic_depth_mode: Option<StochasticDepthMode>,
    /// Dropout; DeiT has none.
    pub dropout: DropoutConfig,
    /// Which attention sits in which layer.
    pub attention: AttentionConfig,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            preset: None,
            image_size: None,
            patch_size: None,
            channels: 3,
            classes: None,
            width: None,
            depth: None,
            heads: None,
            mlp_ratio: None,
            qkv_bias: None,
            patch_bias: true,
            class_token: None,
            distilled: None,
            registers: None,
            no_embed_class: None,
            pool: None,
            fc_norm: None,
            layer_scale: None,
            norm_eps: None,
            stochastic_depth: 0.1,
            stochastic_depth_mode: None,
            dropout: DropoutConfig::default(),
            attention: AttentionConfig::default(),
        }
    }
}

/// The number of classes where neither a key nor the preset says one: ImageNet-1k's.
const CLASSES: usize = 1000;
const SIDE: usize = 224;

/// The size of an image in pixels: one number for a square, or `[height, width]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum ImageSize {
    /// The side of a square.
    Square(usize),
    /// Height and width.
    HeightWidth([usize; 2]),
}

impl ImageSize {
    /// Height and width in pixels.
    pub fn hw(self) -> [usize; 2] {
        match self {
            Self::Square(side) => [side, side],
            Self::HeightWidth(sides) => sides,
        }
    }
}

// Written by hand because serde's untagged enums report every mistake as "did not match any variant".
impl<'de> Deserialize<'de> for ImageSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Size;

        impl<'de> Visitor<'de> for Size {
            type Value = ImageSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an image size in pixels: 224, or [height, width]")
            }

            fn visit_u64<E: de::Error>(self, side: u64) -> Result<ImageSize, E> {
                let unexpected = || E::invalid_value(de::Unexpected::Unsigned(side), &self);
                usize::try_from(side).map(ImageSize::Square).map_err(|_| unexpected())
            }

            fn visit_i64<E: de::Error>(self, side: i64) -> Result<ImageSize, E> {
                let unexpected = || E::invalid_value(de::Unexpected::Signed(side), &self);
                usize::try_from(side).map(ImageSize::Square).map_err(|_| unexpected())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sides: A) -> Result<ImageSize, A::Error> {
                let mut next = |index: usize| sides.next_element()?.ok_or_else(|| de::Error::invalid_length(index, &Size));
                let size = [next(0)?, next(1)?];
                match sides.next_element::<de::IgnoredAny>()? {
                    None => Ok(ImageSize::HeightWidth(size)),
                    Some(_) => Err(de::Error::invalid_length(3, &Size)),
                }
            }
        }

        deserializer.deserialize_any(Size)
    }
}

impl ModelConfig {
    /// Checks every value and works out the architecture.
    ///
    /// # Errors
    /// The first key that holds an impossible value, that clashes with another, or that has no effect.
    pub fn resolve(&self) -> Result<Architecture, ModelError> {
        let preset = self.preset.map_or_else(preset::base, Preset::shape);

        let patch = within("patch_size", self.patch_size.unwrap_or(preset.patch), 1, MAX_SIDE)?;
        let image = self.image();
        for side in image {
            within("image_size", side, 1, MAX_SIDE)?;
            if side % patch != 0 {
                let below = side / patch * patch;
                let near = match below {
                    0 => format!("{patch}"),
                    _ => format!("{below} or {}", below + patch),
                };
                return Err(ModelError::new("image_size", format!("{side} is not a multiple of patch_size {patch}"))
                    .help(format!("use {near}, or another patch_size")));
            }
        }
        if !matches!(self.channels, 1 | 3) {
            return Err(ModelError::new("channels", format!("{} is neither 1 (grey) nor 3 (colour)", self.channels)));
        }
        let classes = within("classes", self.class_count(), 2, MAX_CLASSES)?;
        let width = within("width", self.width.unwrap_or(preset.width), 2, MAX_WIDTH)?;
        let depth = within("depth", self.depth.unwrap_or(preset.depth), 1, MAX_DEPTH)?;
        let heads = within("heads", self.heads.unwrap_or(preset.heads), 1, MAX_WIDTH)?;
        if width % heads != 0 {
            return Err(self.undivided(width, heads));
        }

        let ratio = self.mlp_ratio.unwrap_or(preset.mlp_ratio);
        let hidden = (width as f64 * ratio).floor();
        if !(2.0..=MAX_HIDDEN as f64).contains(&hidden) {
            return Err(ModelError::new(
                "mlp_ratio",
                format!("{ratio} times the width {width} is no hidden size between 2 and {MAX_HIDDEN}"),
            ));
        }
        if !(0.0..1.0).contains(&self.stochastic_depth) {
            return Err(ModelError::new("stochastic_depth", format!("{} is no probability in [0, 1)", self.stochastic_depth)));
        }
        let norm_eps = self.norm_eps.unwrap_or(preset.norm_eps);
        if !(norm_eps > 0.0 && norm_eps < 1.0) {
            return Err(ModelError::new("norm_eps", format!("{norm_eps} does not lie between 0 and 1")));
        }
        let layer_scale = match self.layer_scale {
            Some(value) if !value.is_finite() => {
                return Err(ModelError::new("layer_scale", format!("{value} is no initial value")));
            }
            Some(0.0) => None,
            Some(value) => Some(value),
            None => preset.layer_scale,
        };
        let tokens = self.token_plan(&preset)?;

        let architecture = Architecture {
            image,
            patch,
            channels: self.channels,
            classes,
            width,
            depth,
            heads,
            mlp_hidden: hidden as usize,
            qkv_bias: self.qkv_bias.unwrap_or(preset.qkv_bias),
            patch_bias: self.patch_bias,
            class_token: tokens.class_token,
            distilled: tokens.distilled,
            registers: tokens.registers,
            no_embed_class: tokens.no_embed_class,
            pool: tokens.pool,
            fc_norm: tokens.fc_norm,
            layer_scale,
            norm_eps,
            stochastic_depth: self.stochastic_depth,
            stochastic_depth_mode: self.stochastic_depth_mode(),
            dropout: self.dropout,
            layers: self.attention.plan(depth)?,
            ops: Ops::default(),
        };
        architecture.dropout.check(&architecture.layers)?;
        if architecture.tokens() > MAX_TOKENS {
            return Err(ModelError::new(
                "patch_size",
                format!(
                    "an image of {} x {} pixels gives {} tokens, more than {MAX_TOKENS}",
                    image[0],
                    image[1],
                    architecture.tokens()
                ),
            )
            .help("use larger patches or smaller images"));
        }
        Ok(architecture)
    }

    /// The same configuration with every default and every value of the preset written out. It is valid, resolves to the same
    /// architecture, and stays as it is when resolved again.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub fn resolved(&self) -> Result<Self, ModelError> {
        let architecture = self.resolve()?;
        let preset = self.preset.map_or_else(preset::base, Preset::shape);
        let [height, width] = architecture.image;
        let size = if height == width { ImageSize::Square(height) } else { ImageSize::HeightWidth([height, width]) };
        Ok(Self {
            image_size: Some(self.image_size.unwrap_or(size)),
            patch_size: Some(architecture.patch),
            classes: Some(architecture.classes),
            width: Some(architecture.width),
            depth: Some(architecture.depth),
            heads: Some(architecture.heads),
            mlp_ratio: Some(self.mlp_ratio.unwrap_or(preset.mlp_ratio)),
            qkv_bias: Some(architecture.qkv_bias),
            class_token: Some(architecture.class_token),
            distilled: Some(architecture.distilled),
            registers: Some(architecture.registers),
            no_embed_class: Some(architecture.no_embed_class),
            pool: Some(architecture.pool),
            fc_norm: (architecture.pool == Pool::Avg).then_some(architecture.fc_norm),
            layer_scale: Some(architecture.layer_scale.unwrap_or(0.0)),
            norm_eps: Some(architecture.norm_eps),
            stochastic_depth_mode: Some(architecture.stochastic_depth_mode),
            attention: self.attention.resolved(architecture.depth)?,
            ..self.clone()
        })
    }

    /// Height and width of an image in pixels, as written or as the preset has them; not checked.
    pub fn image(&self) -> [usize; 2] {
        match (self.image_size, self.preset) {
            (Some(size), _) => size.hw(),
            (None, Some(preset)) => preset.image(),
            (None, None) => [SIDE, SIDE],
        }
    }

    /// The number of classes, as written or as the preset has it; not checked.
    pub fn class_count(&self) -> usize {
        self.classes.or_else(|| self.preset.and_then(Preset::classes)).unwrap_or(CLASSES)
    }

    fn stochastic_depth_mode(&self) -> StochasticDepthMode {
        self.stochastic_depth_mode.or_else(|| self.preset.map(Preset::stochastic_depth_mode)).unwrap_or_default()
    }

    /// The tokens beside the patches, and what the head reads.
    fn token_plan(&self, preset: &preset::Shape) -> Result<TokenPlan, ModelError> {
        let class_token = self.class_token.unwrap_or(preset.class_token);
        // A preset's pooling goes where the token that it reads goes.
        let pool = match (self.pool, self.class_token) {
            (Some(pool), _) => pool,
            (None, Some(false)) => Pool::Avg,
            (None, _) => preset.pool,
        };
        let distilled = self.distilled.unwrap_or(preset.distilled);
        let registers = within("registers", self.registers.unwrap_or(preset.registers), 0, MAX_REGISTERS)?;
        if pool == Pool::Token && !class_token {
            let key = if self.pool.is_some() { "pool" } else { "class_token" };
            return Err(ModelError::new(key, "the head reads the class token, and the model has none")
                .help("write pool = \"avg\", or class_token = true"));
        }
        if distilled && (!class_token || pool != Pool::Token) {
            return Err(ModelError::new("distilled", "a distilled model's heads read the class and the distillation token")
                .help("write distilled = false, or class_token = true and pool = \"token\""));
        }
        if distilled && registers > 0 {
            return Err(ModelError::new("registers", "a distilled model has no registers")
                .help("write registers = 0, or distilled = false"));
        }
        let fc_norm = match (self.fc_norm, pool) {
            (Some(true), Pool::Token) => {
                return Err(ModelError::new("fc_norm", "only pool = \"avg\" can put the norm after pooling")
                    .help("remove the key, or write pool = \"avg\""));
            }
            (Some(fc_norm), _) => fc_norm,
            (None, Pool::Token) => false,
            (None, Pool::Avg) => preset.pool == Pool::Token || preset.fc_norm,
        };
        let no_embed_class = self.no_embed_class.unwrap_or(preset.no_embed_class);
        Ok(TokenPlan { class_token, distilled, registers, no_embed_class, pool, fc_norm })
    }

    /// The error of heads that do not divide the width, at the key the user wrote.
    fn undivided(&self, width: usize, heads: usize) -> ModelError {
        let key = match (self.heads, self.width) {
            (None, Some(_)) => "width",
            _ => "heads",
        };
        let divisors: Vec<usize> = (1..=width).filter(|h| width.is_multiple_of(*h)).collect();
        let below = divisors.iter().rev().find(|&&h| h < heads);
        let above = divisors.iter().find(|&&h| h > heads);
        let near = [below, above].into_iter().flatten().map(usize::to_string).collect::<Vec<_>>().join(" or ");
        ModelError::new(key, format!("{heads} heads do not divide the width {width}"))
            .help(format!("nearest that do: heads = {near}"))
    }
}

struct TokenPlan {
    class_token: bool,
    distilled: bool,
    registers: usize,
    no_embed_class: bool,
    pool: Pool,
    fc_norm: bool,
}

/// `value` where it lies in `[low, high]`.
fn within(key: &str, value: usize, low: usize, high: usize) -> Result<usize, ModelError> {
    if value < low {
        return Err(ModelError::new(key, format!("{value} is less than {low}")));
    }
    if value > high {
        return Err(ModelError::new(key, format!("{value} is more than {high}")));
    }
    Ok(value)
}
