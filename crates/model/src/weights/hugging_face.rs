//! Hugging Face's `config.json`: what it decides, and what of it the tensors contradict.

use super::layout::Layout;
use super::source::Source;
use super::store::SourceError;
use serde_json::Value;

/// The `config.json` of a source whose names are Hugging Face's, where one lies beside it.
#[derive(Clone, Copy)]
pub(crate) struct HuggingFaceConfig<'a>(Option<&'a Value>);

/// What the tensors say of the network, for comparison.
pub(crate) struct Found {
    pub width: usize,
    pub depth: usize,
    pub hidden: usize,
    pub patch: usize,
    pub channels: usize,
    pub image: [usize; 2],
    pub qkv_bias: bool,
    /// Rows of the head, where there is one.
    pub classes: Option<usize>,
}

impl<'a> HuggingFaceConfig<'a> {
    /// The configuration, none of it where `layout` is another.
    ///
    /// # Errors
    /// Where it asks for an activation that the network does not have: other outputs would be computed.
    pub fn new(source: &'a Source, layout: Layout) -> Result<Self, SourceError> {
        let config = Self(source.hugging_face_config().filter(|_| layout == Layout::HuggingFace));
        match config.get("hidden_act") {
            // Both are x Φ(x) with the error function; the others that transformers knows are approximations of it or other functions.
            None => Ok(config),
            Some(Value::String(name)) if matches!(name.as_str(), "gelu" | "gelu_python") => Ok(config),
            Some(other) => Err(SourceError::new(
                source.path(),
                format!("config.json says hidden_act = {other}, which is not supported: it is gelu, the exact one, alone"),
            )),
        }
    }

    fn get(self, key: &str) -> Option<&'a Value> {
        self.0?.get(key)
    }

    /// Heads of attention.
    ///
    /// # Errors
    /// Where the value is no positive divisor of the width, as a message.
    pub fn heads(self, width: usize) -> Result<Option<usize>, String> {
        let Some(value) = self.get("num_attention_heads") else {
            return Ok(None);
        };
        match value.as_u64().and_then(|heads| usize::try_from(heads).ok()) {
            Some(heads) if heads > 0 && width.is_multiple_of(heads) => Ok(Some(heads)),
            _ => Err(format!("config.json says num_attention_heads = {value}, no positive divisor of the width {width}")),
        }
    }

    /// The small number under the root of LayerNorm.
    ///
    /// # Errors
    /// Where the value is no positive number, as a message.
    pub fn norm_eps(self) -> Result<Option<f64>, String> {
        let Some(value) = self.get("layer_norm_eps") else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(eps) if eps > 0.0 => Ok(Some(eps)),
            _ => Err(format!("config.json says layer_norm_eps = {value}, no positive number")),
        }
    }

    /// Height and width of the images.
    pub fn image(self) -> Option<[usize; 2]> {
        pair(self.get("image_size")?)
    }

    /// A note for each value that the tensors contradict.
    pub fn contradictions(self, found: &Found) -> Vec<String> {
        let mut notes = Vec::new();
        let mut compare = |key: &str, agrees: &dyn Fn(&Value) -> bool, file: String| {
            if let Some(value) = self.get(key).filter(|value| !agrees(value)) {
                notes.push(format!("config.json says {key} = {value} and the tensors {file}: the tensors are right"));
            }
        };
        for (key, number) in [
            ("hidden_size", found.width),
            ("num_hidden_layers", found.depth),
            ("intermediate_size", found.hidden),
            ("num_channels", found.channels),
        ] {
            compare(key, &|value| side(value) == Some(number), number.to_string());
        }
        let patch = [found.patch; 2];
        compare("patch_size", &|value| pair(value) == Some(patch), found.patch.to_string());
        compare("image_size", &|value| pair(value) == Some(found.image), format!("{:?}", found.image));
        compare("qkv_bias", &|value| value.as_bool() == Some(found.qkv_bias), found.qkv_bias.to_string());
        let labels = self.get("id2label").and_then(Value::as_object).map(serde_json::Map::len);
        if let (Some(labels), Some(classes)) = (labels, found.classes)
            && labels != classes
        {
            notes.push(format!("config.json names {labels} classes and the head has {classes}: the head is right"));
        }
        notes
    }
}

fn side(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|side| usize::try_from(side).ok())
}

/// One side of a square, or height and width.
fn pair(value: &Value) -> Option<[usize; 2]> {
    match value {
        Value::Array(sides) => match sides.as_slice() {
            [height, width] => Some([side(height)?, side(width)?]),
            _ => None,
        },
        _ => side(value).map(|side| [side, side]),
    }
}
