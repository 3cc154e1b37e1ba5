//! Models by name: four short words, and timm's names.

use crate::architecture::{Pool, StochasticDepthMode};
use schemars::JsonSchema;
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

/// A known model: "tiny", "small", "base" or "large" (DeiT's Ti, S and B, and ViT-L, at patch 16 and 224 pixels), or one of timm's names
/// with or without the tag of its weights, as `deit3_base_patch16_224` or `vit_base_patch16_224.augreg_in21k_ft_in1k`.
///
/// A tag chooses how images are prepared, their size and the number of classes; without one it is timm's default tag. Every name stands
/// in timm 1.0.31; the table comes from `scripts/reference/model_presets.py`.
#[derive(Clone, Copy)]
pub struct Preset {
    entry: &'static Entry,
    /// The place in `entry.weights`, where a tag was written.
    tag: Option<usize>,
}

/// How a preset's weights expect images.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PresetData {
    /// Height and width of the input in pixels.
    pub input: [usize; 2],
    /// The part of the resized image that the centre crop keeps.
    pub crop_pct: f64,
    /// timm's crop mode: "center", "squash" or "border".
    pub crop_mode: &'static str,
    /// "bicubic" or "bilinear".
    pub interpolation: &'static str,
    /// Mean of each channel, of values in [0, 1].
    pub mean: [f64; 3],
    /// Standard deviation of each channel.
    pub std: [f64; 3],
}

/// A name that is none of the presets'.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct UnknownPreset {
    /// The name as written.
    pub name: String,
    /// The names most like it, best first; tags where the model is known.
    pub nearest: Vec<String>,
}

impl UnknownPreset {
    fn text(&self) -> String {
        let nearest = self.nearest.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
        format!("no preset is named \"{}\"; the nearest: {nearest}", self.name)
    }
}

/// What a preset says of the architecture, in the words of [`crate::ModelConfig`].
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    pub patch: usize,
    pub width: usize,
    pub depth: usize,
    pub heads: usize,
    pub mlp_ratio: f64,
    pub qkv_bias: bool,
    pub class_token: bool,
    pub distilled: bool,
    pub registers: usize,
    pub no_embed_class: bool,
    pub pool: Pool,
    pub fc_norm: bool,
    pub layer_scale: Option<f64>,
    pub norm_eps: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    model: Shape,
    weights: Vec<Weights>,
}

/// timm's pretrained configuration of one tag.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Weights {
    tag: String,
    input: [usize; 2],
    classes: usize,
    crop_pct: f64,
    crop_mode: String,
    interpolation: String,
    mean: [f64; 3],
    std: [f64; 3],
}

#[derive(Deserialize)]
struct Table {
    timm: String,
    presets: Vec<Entry>,
}

/// timm's table, after the four short words.
static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut table: Table =
        serde_json::from_str(include_str!("timm.json")).expect("the committed table is sound; a test reads it");
    let short = [("tiny", 192, 12, 3), ("small", 384, 12, 6), ("base", 768, 12, 12), ("large", 1024, 24, 16)];
    let short = short.map(|(name, width, depth, heads)| Entry {
        name: name.to_owned(),
        model: Shape { width, depth, heads, ..BASE },
        weights: Vec::new(),
    });
    table.presets.splice(0..0, short);
    table
});

/// DeiT-B.
const BASE: Shape = Shape {
    patch: 16,
    width: 768,
    depth: 12,
    heads: 12,
    mlp_ratio: 4.0,
    qkv_bias: true,
    class_token: true,
    distilled: false,
    registers: 0,
    no_embed_class: false,
    pool: Pool::Token,
    fc_norm: false,
    layer_scale: None,
    norm_eps: 1e-6,
};

/// The most names an error offers.
const NEAREST: usize = 4;

impl Preset {
    /// The preset of a name.
    ///
    /// # Errors
    /// An unknown name or tag, with the nearest there are.
    pub fn find(name: &str) -> Result<Self, UnknownPreset> {
        let (model, tag) = match name.split_once('.') {
            Some((model, tag)) => (model, Some(tag)),
            None => (name, None),
        };
        let unknown = |candidates: Vec<String>| {
            let mut nearest: Vec<(f64, String)> =
                candidates.into_iter().map(|candidate| (strsim::jaro_winkler(name, &candidate), candidate)).collect();
            nearest.sort_by(|(a, _), (b, _)| b.total_cmp(a));
            nearest.truncate(NEAREST);
            UnknownPreset { name: name.to_owned(), nearest: nearest.into_iter().map(|(_, candidate)| candidate).collect() }
        };
        let Some(entry) = TABLE.presets.iter().find(|entry| entry.name == model) else {
            return Err(unknown(TABLE.presets.iter().map(|entry| entry.name.clone()).collect()));
        };
        let Some(tag) = tag else {
            return Ok(Self { entry, tag: None });
        };
        match entry.weights.iter().position(|weights| weights.tag == tag) {
            Some(tag) => Ok(Self { entry, tag: Some(tag) }),
            None if entry.weights.is_empty() => Err(unknown(vec![entry.name.clone()])),
            None => Err(unknown(entry.weights.iter().map(|weights| format!("{model}.{}", weights.tag)).collect())),
        }
    }

    /// Every preset without its tags: the short words, small to large, then timm's names in alphabetical order.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.presets.iter().map(|entry| Self { entry, tag: None })
    }

    /// The version of timm whose names and settings the table holds.
    pub fn timm_version() -> &'static str {
        &TABLE.timm
    }

    /// The name as it was found, tag included.
    pub fn name(self) -> String {
        match self.tag {
            Some(tag) => format!("{}.{}", self.entry.name, self.entry.weights[tag].tag),
            None => self.entry.name.clone(),
        }
    }

    /// The tags of the model's weights in timm, its default first. The short words have none.
    pub fn tags(self) -> impl Iterator<Item = &'static str> {
        self.entry.weights.iter().map(|weights| weights.tag.as_str())
    }

    /// How the preset's weights expect images; none for the short words, which name a size of model only.
    pub fn data(self) -> Option<PresetData> {
        self.weights().map(|weights| PresetData {
            input: weights.input,
            crop_pct: weights.crop_pct,
            crop_mode: &weights.crop_mode,
            interpolation: &weights.interpolation,
            mean: weights.mean,
            std: weights.std,
        })
    }

    /// Height and width of the input in pixels.
    pub fn image(self) -> [usize; 2] {
        self.weights().map_or([224, 224], |weights| weights.input)
    }

    /// Number of classes of the weights; none where they are features without a head, as DINOv2's.
    pub fn classes(self) -> Option<usize> {
        match self.weights() {
            Some(weights) => (weights.classes > 0).then_some(weights.classes),
            None => Some(1000),
        }
    }

    /// The architecture of the model.
    pub(crate) fn shape(self) -> Shape {
        self.entry.model
    }

    /// DeiT III was trained with the same stochastic depth in every block; the others with a linear one.
    pub(crate) fn stochastic_depth_mode(self) -> StochasticDepthMode {
        if self.entry.name.starts_with("deit3_") { StochasticDepthMode::Constant } else { StochasticDepthMode::Linear }
    }

    fn weights(self) -> Option<&'static Weights> {
        self.entry.weights.get(self.tag.unwrap_or(0))
    }
}

/// The shape of a model without a preset: that of "base".
pub(crate) fn base() -> Shape {
    BASE
}

impl fmt::Debug for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Preset({})", self.name())
    }
}

impl PartialEq for Preset {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.entry, other.entry) && self.tag == other.tag
    }
}

impl Eq for Preset {}

impl std::str::FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(name: &str) -> Result<Self, UnknownPreset> {
        Self::find(name)
    }
}

impl Serialize for Preset {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

impl<'de> Deserialize<'de> for Preset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::find(&name).map_err(de::Error::custom)
    }
}

impl JsonSchema for Preset {
    fn schema_name() -> Cow<'static, str> {
        "Preset".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "A known model: \"tiny\", \"small\", \"base\", \"large\", or a name of timm's, with or without the tag of its weights.",
            "examples": ["small", "deit_base_patch16_224", "vit_base_patch16_224.augreg_in21k_ft_in1k"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_and_tag_is_found_again() {
        for preset in Preset::all() {
            assert_eq!(Preset::find(&preset.name()), Ok(preset));
            for tag in preset.tags() {
                let name = format!("{}.{tag}", preset.name());
                assert_eq!(Preset::find(&name).expect("a tag of the table").name(), name);
            }
        }
        assert_eq!(Preset::all().take(4).map(Preset::name).collect::<Vec<_>>(), ["tiny", "small", "base", "large"]);
    }

    /// Values read off timm 1.0.31 by hand: `timm.get_pretrained_cfg(name)`.
    #[test]
    fn tags_choose_timms_settings() {
        let data = |name: &str| Preset::find(name).expect(name).data().expect(name);
        let deit = data("deit_base_patch16_224");
        assert_eq!((deit.input, deit.crop_pct, deit.interpolation, deit.crop_mode), ([224, 224], 0.9, "bicubic", "center"));
        assert_eq!((deit.mean, deit.std), ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]));
        assert_eq!(data("deit_base_patch16_384").crop_pct, 1.0);
        assert_eq!(data("deit3_base_patch16_224").crop_pct, 0.9);
        assert_eq!(data("deit3_base_patch16_224.fb_in22k_ft_in1k").crop_pct, 1.0);
        assert_eq!(data("vit_base_patch16_224.augreg_in21k_ft_in1k").mean, [0.5; 3]);
        assert_eq!(data("vit_small_patch14_reg4_dinov2").input, [518, 518]);
        assert_eq!(Preset::find("vit_small_patch14_reg4_dinov2").expect("timm's").classes(), None);
        assert_eq!(Preset::find("vit_base_patch16_224.augreg_in21k").expect("timm's").classes(), Some(21843));
        assert_eq!(Preset::find("tiny").expect("a short word").data(), None);
    }

    #[test]
    fn unknown_names_and_tags_name_the_nearest() {
        let error = Preset::find("deit_base_patch16_225").expect_err("no such model");
        assert_eq!(error.nearest[0], "deit_base_patch16_224");
        assert!(error.to_string().contains("no preset is named \"deit_base_patch16_225\""), "{error}");
        let error = Preset::find("deit3_base_patch16_224.fb_in1").expect_err("no such tag");
        assert_eq!(error.nearest[0], "deit3_base_patch16_224.fb_in1k");
        assert_eq!(Preset::find("tiny.in1k").expect_err("no tags").nearest, ["tiny"]);
    }
}
