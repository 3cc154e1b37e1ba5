//! The `[model]` section of a configuration.

use crate::architecture::Architecture;
use crate::error::ModelError;
use crate::plan::AttentionConfig;
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

/// The `[model]` section: a Vision Transformer. The defaults are DeiT-B at 224 pixels (Touvron et al., 2020, arXiv 2012.12877).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// Width, depth, heads and MLP ratio of a known model: "tiny", "small", "base" or "large". Without one, those of "base".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// Image size in pixels: 224, or [height, width]. Each side is a multiple of `patch_size`.
    pub image_size: ImageSize,
    /// Side of a patch in pixels.
    pub patch_size: usize,
    /// Channels of an image: 3 for colour, 1 for grey.
    pub channels: usize,
    /// Number of classes, at least 2.
    pub classes: usize,
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
    /// Whether the projection to queries, keys and values has a bias.
    pub qkv_bias: bool,
    /// Stochastic depth (DeiT's drop path): the probability, in [0, 1), of dropping a residual branch of a sample in the last block;
    /// it rises linearly from 0 in the first block.
    pub stochastic_depth: f64,
    /// Which attention sits in which layer.
    pub attention: AttentionConfig,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            preset: None,
            image_size: ImageSize::Square(224),
            patch_size: 16,
            channels: 3,
            classes: 1000,
            width: None,
            depth: None,
            heads: None,
            mlp_ratio: None,
            qkv_bias: true,
            stochastic_depth: 0.1,
            attention: AttentionConfig::default(),
        }
    }
}

/// A known size of model; DeiT's Ti, S and B, and ViT-L.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// Width 192, 12 blocks, 3 heads: 5.7 M parameters at patch 16, 224 pixels, 1000 classes.
    Tiny,
    /// Width 384, 12 blocks, 6 heads: 22.1 M parameters.
    Small,
    /// Width 768, 12 blocks, 12 heads: 86.6 M parameters.
    Base,
    /// Width 1024, 24 blocks, 16 heads: 304.3 M parameters.
    Large,
}

impl Preset {
    /// Every preset, small to large.
    pub const ALL: [Self; 4] = [Self::Tiny, Self::Small, Self::Base, Self::Large];

    /// The word that names the preset in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Small => "small",
            Self::Base => "base",
            Self::Large => "large",
        }
    }

    /// Width, depth and heads. The MLP ratio is 4 in all of them.
    fn shape(self) -> (usize, usize, usize) {
        match self {
            Self::Tiny => (192, 12, 3),
            Self::Small => (384, 12, 6),
            Self::Base => (768, 12, 12),
            Self::Large => (1024, 24, 16),
        }
    }
}

const MLP_RATIO: f64 = 4.0;

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
        let (preset_width, preset_depth, preset_heads) = self.preset.unwrap_or(Preset::Base).shape();

        let patch = within("patch_size", self.patch_size, 1, MAX_SIDE)?;
        let image = self.image_size.hw();
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
        let classes = within("classes", self.classes, 2, MAX_CLASSES)?;
        let width = within("width", self.width.unwrap_or(preset_width), 2, MAX_WIDTH)?;
        let depth = within("depth", self.depth.unwrap_or(preset_depth), 1, MAX_DEPTH)?;
        let heads = within("heads", self.heads.unwrap_or(preset_heads), 1, MAX_WIDTH)?;
        if width % heads != 0 {
            return Err(self.undivided(width, heads));
        }

        let ratio = self.mlp_ratio.unwrap_or(MLP_RATIO);
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

        let architecture = Architecture {
            image,
            patch,
            channels: self.channels,
            classes,
            width,
            depth,
            heads,
            mlp_hidden: hidden as usize,
            qkv_bias: self.qkv_bias,
            stochastic_depth: self.stochastic_depth,
            layers: self.attention.plan(depth)?,
        };
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
        Ok(Self {
            width: Some(architecture.width),
            depth: Some(architecture.depth),
            heads: Some(architecture.heads),
            mlp_ratio: Some(self.mlp_ratio.unwrap_or(MLP_RATIO)),
            attention: self.attention.resolved(architecture.depth)?,
            ..self.clone()
        })
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
