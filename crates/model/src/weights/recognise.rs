//! Which model a file of weights is of, from names and shapes.

use super::hugging_face::{Found, HuggingFaceConfig};
use super::layout::Layout;
use super::plan::Index;
use super::source::Source;
use crate::architecture::{Architecture, Pool};
use crate::config::{ImageSize, ModelConfig};
use crate::preset::{self, Preset};

/// What is known of a file beforehand. Each wins over what the file suggests, where the file leaves it open.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Hints {
    /// The model's name.
    pub preset: Option<Preset>,
    /// Whose names the file carries.
    pub layout: Option<Layout>,
    /// Heads of attention, which no shape shows.
    pub heads: Option<usize>,
    /// Height and width of the images the weights were trained on, which matters where the grid of positions is no square.
    pub image: Option<[usize; 2]>,
}

/// The model of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Recognised {
    /// Whose names it carries.
    pub layout: Layout,
    /// The preset: the hint, or the only one that fits.
    pub preset: Option<Preset>,
    /// Every preset of timm's whose architecture and image size are the file's.
    pub fits: Vec<Preset>,
    /// The architecture as a configuration with every key written out, softmax attention in every layer.
    pub config: ModelConfig,
    /// Rows and columns of patches of the file's position embedding.
    pub grid: [usize; 2],
    /// What was found and what had to be assumed, a sentence each, for the user to read.
    pub notes: Vec<String>,
}

/// A file whose model cannot be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct RecogniseError {
    /// The file.
    pub path: std::path::PathBuf,
    /// What is missing or contradicts itself.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
}

/// Features of a head in nearly every Vision Transformer.
const HEAD_WIDTH: usize = 64;
/// What transformers' `ViTConfig` and `DeiTConfig` say where a `config.json` does not.
const HUGGING_FACE_EPS: f64 = 1e-12;
/// The initial value of LayerScale where only its presence is known; it matters to new networks alone.
const LAYER_SCALE: f64 = 1e-4;

/// Tells layout and architecture of a file from its names and shapes, its `config.json` where Hugging Face's lies beside it, and hints.
/// Where file and preset differ the file is right, and a note says so.
///
/// # Errors
/// Where a tensor that decides is missing or has an impossible shape, where `config.json` asks for an activation that is not supported or
/// has impossible values, or where neither the file nor a hint tells heads or grid.
pub fn recognise(source: &Source, hints: &Hints) -> Result<Recognised, RecogniseError> {
    let index = Index::new(source, hints.layout);
    let error = |message: String, help: Option<&str>| RecogniseError {
        path: source.path().to_owned(),
        message,
        help: help.map(str::to_owned),
    };
    let config = HuggingFaceConfig::new(source, index.layout).map_err(|wrong| error(wrong.message, wrong.help.as_deref()))?;
    let mut notes = vec![format!("names are {}'s", index.layout)];

    // Shapes of the parts that decide.
    let shape = |name: &str| index.shape(name);
    let need = |name: &str| shape(name).ok_or_else(|| error(format!("has no {name} under {}'s names", index.layout), None));
    let has = |name: &str| index.tensors.contains_key(name);
    let preset_shape = hints.preset.map(Preset::shape);

    let (width, channels, patch) = match need("patch_embed.proj.weight")?.as_slice() {
        &[width, channels, rows, columns] if rows == columns => (width, channels, rows),
        &[width, pixels] => {
            // A linear layer over patches: three channels are assumed.
            let patch = (pixels / 3).isqrt();
            if patch * patch * 3 != pixels {
                return Err(error(
                    format!("patch_embed.proj.weight has shape [{width}, {pixels}]: no square patch of 3 channels"),
                    None,
                ));
            }
            (width, 3, patch)
        }
        other => {
            return Err(error(format!("patch_embed.proj.weight has shape {other:?}: no convolution over square patches"), None));
        }
    };
    let depth = index
        .tensors
        .keys()
        .filter_map(|name| name.strip_prefix("blocks.")?.split('.').next()?.parse::<usize>().ok())
        .max()
        .map_or(0, |last| last.saturating_add(1));
    let hidden = need("blocks.0.mlp.fc1.weight")?.first().copied().unwrap_or(0);
    let class_token = has("cls_token");
    let distilled = has("dist_token");
    let registers = shape("reg_token").and_then(|shape| shape.get(1).copied()).unwrap_or(0);
    // DeiTForImageClassification, without the teacher's head.
    let unread_token = index.layout == Layout::HuggingFace && registers == 1;
    let layer_scale = has("blocks.0.ls1.gamma");
    let fc_norm = has("fc_norm.weight");
    let pool = match (fc_norm, class_token, preset_shape) {
        (true, ..) | (_, false, _) => Pool::Avg,
        (false, true, Some(preset)) if !preset.fc_norm => preset.pool,
        (false, true, _) => Pool::Token,
    };

    // The grid of positions, and whether the tokens before the patches have a place in it.
    let places = match need("pos_embed")?.as_slice() {
        &[1, places, _] => places,
        other => return Err(error(format!("pos_embed has shape {other:?}, not [1, places, width]"), None)),
    };
    let prefix = usize::from(class_token) + usize::from(distilled) + registers;
    let image_hint = hints.image.or_else(|| config.image()).or_else(|| hints.preset.map(Preset::image));
    let grid_hint = image_hint.map(|image| image.map(|side| side / patch.max(1)));
    let preset_embeds = preset_shape.map(|preset| !preset.no_embed_class);
    let (embeds, grid) = grid_of(places, prefix, grid_hint, preset_embeds).ok_or_else(|| {
        error(
            format!("pos_embed has {places} places: {prefix} tokens before a grid that is no square"),
            Some("say the size of the images the weights were trained on with --image HEIGHTxWIDTH"),
        )
    })?;
    let image = grid.map(|side| side * patch);

    let classes = match shape("head.weight") {
        Some(shape) => shape.first().copied().unwrap_or(0),
        None => {
            let classes = hints.preset.and_then(Preset::classes).unwrap_or(1000);
            notes.push(format!("there is no head; {classes} classes assumed"));
            classes
        }
    };
    let preset_eps = preset_shape.map(|preset| preset.norm_eps);
    let norm_eps = match index.layout {
        Layout::HuggingFace => match config.norm_eps().map_err(|message| error(message, None))? {
            Some(eps) => eps,
            None => {
                notes.push(format!("no config.json says layer_norm_eps; transformers' default {HUGGING_FACE_EPS:e} taken"));
                HUGGING_FACE_EPS
            }
        },
        Layout::Timm => preset_eps.unwrap_or_else(|| preset::base().norm_eps),
    };

    let mut result = ModelConfig {
        image_size: Some(if image[0] == image[1] { ImageSize::Square(image[0]) } else { ImageSize::HeightWidth(image) }),
        patch_size: Some(patch),
        channels,
        classes: Some(classes),
        width: Some(width),
        depth: Some(depth),
        mlp_ratio: Some(ratio(hidden, width)),
        qkv_bias: Some(has("blocks.0.attn.qkv.bias")),
        patch_bias: has("patch_embed.proj.bias"),
        class_token: Some(class_token),
        distilled: Some(distilled),
        registers: Some(registers),
        no_embed_class: Some(!embeds),
        pool: Some(pool),
        fc_norm: (pool == Pool::Avg).then_some(fc_norm),
        layer_scale: Some(match (layer_scale, preset_shape.and_then(|preset| preset.layer_scale)) {
            (false, _) => 0.0,
            (true, Some(value)) => value,
            (true, None) => LAYER_SCALE,
        }),
        norm_eps: Some(norm_eps),
        ..ModelConfig::default()
    };

    // Heads show in no shape.
    let candidates: Vec<Preset> =
        Preset::all().filter(|preset| preset.data().is_some()).filter(|preset| fits(*preset, &result, index.layout)).collect();
    let same_heads = candidates.first().map(|first| first.shape().heads).filter(|heads| {
        let same_image = |preset: &&Preset| preset.image() == image;
        candidates.iter().filter(same_image).all(|preset| preset.shape().heads == *heads)
    });
    // What the user says stands in for a wrong value too.
    let said = config.heads(width);
    if let Some(hint) = hints.heads
        && said != Ok(None)
        && said != Ok(Some(hint))
    {
        notes.push(match &said {
            Ok(heads) => format!("config.json says {} heads, and {hint} are taken as given", heads.unwrap_or_default()),
            Err(message) => message.clone(),
        });
    }
    let (heads, reason) = if let Some(heads) = hints.heads {
        (heads, "as given")
    } else if let Some(heads) = said.map_err(|message| error(message, Some("say the number of heads with --heads N")))? {
        (heads, "from config.json")
    } else if let Some(preset) = preset_shape.filter(|preset| preset.width == width) {
        (preset.heads, "from the preset")
    } else if let Some(heads) = same_heads {
        (heads, "as in the presets that fit")
    } else if width >= HEAD_WIDTH && width.is_multiple_of(HEAD_WIDTH) {
        (width / HEAD_WIDTH, "assuming 64 features a head")
    } else {
        return Err(error(
            format!("a width of {width} is no multiple of {HEAD_WIDTH}, and no shape shows the number of heads"),
            Some("say the number of heads with --heads N, or name the preset"),
        ));
    };
    notes.push(format!("{heads} heads, {reason}"));
    result.heads = Some(heads);

    let fits: Vec<Preset> =
        candidates.into_iter().filter(|preset| preset.shape().heads == heads && preset.image() == image).collect();
    let preset = hints.preset.or(match fits.as_slice() {
        [only] => Some(*only),
        _ => None,
    });
    result.preset = preset;
    let architecture =
        result.resolve().map_err(|model| error(format!("its shapes give no possible model: {model}"), model.help.as_deref()))?;
    if let Some(preset) = hints.preset {
        notes.extend(differences(preset, &architecture, unread_token));
    }
    if unread_token {
        notes.push("the distillation token, which no head reads, is kept as a register".to_owned());
    }
    notes.extend(config.contradictions(&Found {
        width,
        depth,
        hidden,
        patch,
        channels,
        image,
        qkv_bias: has("blocks.0.attn.qkv.bias"),
        classes: shape("head.weight").and_then(|shape| shape.first().copied()),
    }));
    notes.push(describe(&architecture));
    notes.push(match fits.as_slice() {
        [] => "no preset of timm's has this architecture".to_owned(),
        names => format!("fits {}", names.iter().map(|preset| preset.name()).collect::<Vec<_>>().join(", ")),
    });
    let config = result.resolved().map_err(|model| error(format!("its shapes give no possible model: {model}"), None))?;
    Ok(Recognised { layout: index.layout, preset, fits, config, grid, notes })
}

/// Whether the tokens before the patches have places, and the grid of the rest.
fn grid_of(places: usize, prefix: usize, hint: Option<[usize; 2]>, preset_embeds: Option<bool>) -> Option<(bool, [usize; 2])> {
    let ways = match preset_embeds {
        _ if prefix == 0 => vec![true],
        Some(embeds) => vec![embeds, !embeds],
        None => vec![true, false],
    };
    let patches = |embeds: bool| places.checked_sub(if embeds { prefix } else { 0 }).filter(|patches| *patches > 0);
    // A known image decides first, then a square.
    let known = hint.and_then(|[rows, columns]| {
        ways.iter().find(|embeds| patches(**embeds) == rows.checked_mul(columns)).map(|embeds| (*embeds, [rows, columns]))
    });
    known.or_else(|| {
        ways.iter().find_map(|embeds| {
            let patches = patches(*embeds)?;
            let side = patches.isqrt();
            (side * side == patches).then_some((*embeds, [side, side]))
        })
    })
}

/// The MLP ratio that gives exactly `hidden` features when the product is rounded down.
fn ratio(hidden: usize, width: usize) -> f64 {
    let ratio = hidden as f64 / width as f64;
    if (width as f64 * ratio).floor() as usize == hidden { ratio } else { (hidden as f64 + 0.5) / width as f64 }
}

/// Whether a preset's architecture is the file's, heads and image size aside. What a layout fixes does not count.
fn fits(preset: Preset, config: &ModelConfig, layout: Layout) -> bool {
    let shape = preset.shape();
    let hidden = |width: usize, ratio: f64| (width as f64 * ratio).floor() as usize;
    Some(shape.patch) == config.patch_size
        && Some(shape.width) == config.width
        && Some(shape.depth) == config.depth
        && config.mlp_ratio.map(|ratio| hidden(shape.width, ratio)) == Some(hidden(shape.width, shape.mlp_ratio))
        && Some(shape.qkv_bias) == config.qkv_bias
        && Some(shape.class_token) == config.class_token
        && Some(shape.distilled) == config.distilled
        && Some(shape.registers) == config.registers
        && (Some(shape.no_embed_class) == config.no_embed_class || (!shape.class_token && shape.registers == 0))
        && Some(shape.pool) == config.pool
        && shape.fc_norm == config.fc_norm.unwrap_or(false)
        && shape.layer_scale.is_some() == config.layer_scale.is_some_and(|value| value != 0.0)
        && (layout == Layout::HuggingFace || Some(shape.norm_eps) == config.norm_eps)
}

/// Where a file differs from the preset it was said to be. An unread distillation token has a note of its own.
fn differences(preset: Preset, file: &Architecture, unread_token: bool) -> Vec<String> {
    let Ok(named) = (ModelConfig { preset: Some(preset), ..ModelConfig::default() }).resolve() else {
        return Vec::new();
    };
    let mut differences = Vec::new();
    let mut compare = |what: &str, named: String, file: String| {
        if named != file {
            differences.push(format!("{what} is {file} in the file and {named} in {}", preset.name()));
        }
    };
    compare("image_size", format!("{:?}", named.image), format!("{:?}", file.image));
    compare("patch_size", named.patch.to_string(), file.patch.to_string());
    compare("channels", named.channels.to_string(), file.channels.to_string());
    compare("classes", named.classes.to_string(), file.classes.to_string());
    compare("width", named.width.to_string(), file.width.to_string());
    compare("depth", named.depth.to_string(), file.depth.to_string());
    compare("the MLP's hidden width", named.mlp_hidden.to_string(), file.mlp_hidden.to_string());
    compare("qkv_bias", named.qkv_bias.to_string(), file.qkv_bias.to_string());
    compare("class_token", named.class_token.to_string(), file.class_token.to_string());
    compare("distilled", named.distilled.to_string(), file.distilled.to_string());
    if !unread_token || named.registers > 0 {
        compare("registers", named.registers.to_string(), file.registers.to_string());
    }
    compare("no_embed_class", named.no_embed_class.to_string(), file.no_embed_class.to_string());
    compare("pool", format!("{:?}", named.pool).to_lowercase(), format!("{:?}", file.pool).to_lowercase());
    compare("fc_norm", named.fc_norm.to_string(), file.fc_norm.to_string());
    compare("LayerScale", named.layer_scale.is_some().to_string(), file.layer_scale.is_some().to_string());
    compare("norm_eps", format!("{:e}", named.norm_eps), format!("{:e}", file.norm_eps));
    differences
}

fn describe(architecture: &Architecture) -> String {
    let Architecture { width, depth, patch, image, classes, registers, .. } = architecture;
    let mut text =
        format!("width {width}, {depth} blocks, patch {patch}, images of {} x {}, {classes} classes", image[0], image[1]);
    if architecture.distilled {
        text.push_str(", distilled");
    }
    if architecture.layer_scale.is_some() {
        text.push_str(", LayerScale");
    }
    if *registers > 0 {
        text.push_str(&format!(", registers: {registers}"));
    }
    if architecture.no_embed_class && architecture.prefix_tokens() > 0 {
        text.push_str(", no position for the class token");
    }
    if architecture.pool == Pool::Avg {
        text.push_str(", average pool");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_follow_the_hint_then_a_square() {
        assert_eq!(grid_of(197, 1, None, None), Some((true, [14, 14])));
        assert_eq!(grid_of(196, 1, None, None), Some((false, [14, 14])));
        assert_eq!(grid_of(217, 1, Some([12, 18]), None), Some((true, [12, 18])));
        assert_eq!(grid_of(217, 1, None, None), None);
        assert_eq!(grid_of(200, 4, None, Some(true)), Some((true, [14, 14])));
        assert_eq!(grid_of(256, 4, Some([16, 16]), None), Some((false, [16, 16])));
        assert_eq!(grid_of(196, 0, Some([24, 24]), None), Some((true, [14, 14])));
        assert_eq!(grid_of(0, 1, None, None), None);
    }

    #[test]
    fn ratios_round_to_the_hidden_width() {
        for width in 1..200 {
            for hidden in [1, width, 3 * width + 1, 4 * width, 6 * width - 1] {
                assert_eq!((width as f64 * ratio(hidden, width)).floor() as usize, hidden, "{hidden} / {width}");
            }
        }
    }
}
