//! From our tensors, or a file's, to files that Python's libraries load.

use super::aside::Aside;
use super::layout::{Layout, to_hugging_face};
use super::plan::{LoadOptions, Plan};
use super::report::{LoadError, LoadReport};
use super::source::Source;
use super::store::SourceError;
use super::timm::{self, NamedTensor};
use crate::architecture::{Architecture, Pool};
use crate::plan::AttentionKind;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// A model that a layout cannot hold: every reason at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{layout}'s layout cannot hold this model: {}", reasons.join("; "))]
pub struct ExportError {
    /// The layout.
    pub layout: Layout,
    /// What it has no place for.
    pub reasons: Vec<String>,
}

/// The tensors of a model in a layout, without their values.
#[derive(Debug, Clone)]
pub struct Export {
    entries: Vec<Entry>,
    /// The contents of Hugging Face's `config.json`, for that layout.
    pub config: Option<Value>,
    /// What the file says of itself beside its tensors; Python's libraries pass over it.
    pub metadata: BTreeMap<String, String>,
    /// What a reader should know, a sentence each.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone)]
struct Entry {
    name: String,
    shape: Vec<usize>,
    /// timm's name of the tensor it is, or is a third of.
    from: String,
    third: Option<usize>,
}

impl Export {
    /// How a model of `architecture` is written in `layout`.
    ///
    /// Files carry the names that `timm.create_model(…).load_state_dict(…, strict=True)` and transformers' `from_pretrained` read.
    ///
    /// # Errors
    /// All parts of the model that the layout has no place for.
    pub fn new(architecture: &Architecture, layout: Layout) -> Result<Self, ExportError> {
        match layout {
            Layout::Timm => Ok(Self::timm(architecture)),
            Layout::HuggingFace => Self::hugging_face(architecture),
        }
    }

    /// Names and shapes, in model order.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.entries.iter().map(|entry| (entry.name.as_str(), entry.shape.as_slice()))
    }

    /// The tensors, from `supply`, which gives the values of a timm name in timm's layout.
    ///
    /// # Errors
    /// The first of `supply`.
    pub fn collect<E>(&self, mut supply: impl FnMut(&str) -> Result<Vec<f32>, E>) -> Result<Vec<NamedTensor>, E> {
        self.entries
            .iter()
            .map(|entry| {
                let values = entry.cut(supply(&entry.from)?);
                Ok(NamedTensor { name: entry.name.clone(), shape: entry.shape.clone(), values })
            })
            .collect()
    }

    /// Writes a safetensors file, tensor by tensor: aside first, under a name that no file has, then renamed into place. A symbolic link
    /// is replaced, not what it leads to. `supply` as in [`Self::collect`]; that it reads none of what is replaced is the caller's part
    /// ([`Source::files`]).
    ///
    /// # Errors
    /// The first of `supply`; where `path` is a folder, device, pipe or a link to one; where the file cannot be written.
    pub fn write(&self, path: &Path, mut supply: impl FnMut(&str) -> Result<Vec<f32>, SourceError>) -> Result<(), SourceError> {
        let (aside, file) = Aside::new(path)?;
        self.write_to(file, path, &mut supply)?;
        aside.put()
    }

    fn write_to(
        &self,
        file: File,
        path: &Path,
        supply: &mut impl FnMut(&str) -> Result<Vec<f32>, SourceError>,
    ) -> Result<(), SourceError> {
        let broken = |error: std::io::Error| SourceError::new(path, format!("cannot write: {error}"));
        let mut out = BufWriter::new(file);
        // transformers refuses files whose metadata do not say that they are PyTorch's.
        let mut header = Map::new();
        let mut metadata = self.metadata.clone();
        metadata.insert("format".into(), "pt".into());
        header.insert("__metadata__".into(), json!(metadata));
        let mut begin = 0;
        for entry in &self.entries {
            let end = begin + 4 * entry.shape.iter().product::<usize>();
            let info = json!({ "dtype": "F32", "shape": entry.shape, "data_offsets": [begin, end] });
            header.insert(entry.name.clone(), info);
            begin = end;
        }
        let mut header = Value::Object(header).to_string();
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        out.write_all(&(header.len() as u64).to_le_bytes()).map_err(broken)?;
        out.write_all(header.as_bytes()).map_err(broken)?;
        for entry in &self.entries {
            let values = entry.cut(supply(&entry.from)?);
            if values.len() != entry.shape.iter().product::<usize>() {
                let message = format!("{} was given {} values for shape {:?}", entry.from, values.len(), entry.shape);
                return Err(SourceError::new(path, message));
            }
            let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
            out.write_all(&bytes).map_err(broken)?;
        }
        let file = out.into_inner().map_err(|error| broken(error.into_error()))?;
        file.sync_all().map_err(broken)
    }

    fn timm(architecture: &Architecture) -> Self {
        let entries = timm::expected(architecture)
            .into_iter()
            .map(|(name, shape)| Entry { from: name.clone(), name, shape, third: None })
            .collect();
        let others = other_attention(architecture);
        let mut notes = Vec::new();
        if !others.is_empty() {
            notes.push(format!(
                "timm has softmax attention alone: it loads the file and computes other outputs, since layers {} attend otherwise",
                others.join(", ")
            ));
        }
        notes.push(format!("timm's network: {}", timm_call(architecture)));
        Self { entries, config: None, metadata: BTreeMap::new(), notes }
    }

    fn hugging_face(architecture: &Architecture) -> Result<Self, ExportError> {
        let mut reasons = Vec::new();
        let mut refuse = |wrong: bool, reason: &str| {
            if wrong {
                reasons.push(reason.to_owned());
            }
        };
        refuse(!architecture.class_token, "there is no class token");
        refuse(architecture.pool != Pool::Token, "the head reads the mean of the patches");
        // One register is a distillation token that nobody reads, as in DeiTForImageClassification.
        refuse(architecture.registers > 1, "there are registers");
        refuse(architecture.no_embed_class, "the class token has no position embedding");
        refuse(architecture.layer_scale.is_some(), "there is LayerScale");
        refuse(!architecture.patch_bias, "the patch embedding has no bias");
        let others = other_attention(architecture);
        if !others.is_empty() {
            reasons.push(format!("attention is not softmax in layers {}", others.join(", ")));
        }
        if !reasons.is_empty() {
            return Err(ExportError { layout: Layout::HuggingFace, reasons });
        }

        let deit = architecture.distilled || architecture.registers == 1;
        let model = if deit { "deit" } else { "vit" };
        let class = match (deit, architecture.distilled) {
            (true, true) => "DeiTForImageClassificationWithTeacher",
            (true, false) => "DeiTForImageClassification",
            (false, _) => "ViTForImageClassification",
        };
        let mut entries = Vec::new();
        for (name, shape) in timm::expected(architecture) {
            let thirds = if name.contains(".attn.qkv.") { vec![Some(0), Some(1), Some(2)] } else { vec![None] };
            for third in thirds {
                let theirs = to_hugging_face(&name, third, model, architecture.distilled)
                    .expect("the parts without a name are refused above");
                let mut shape = shape.clone();
                if third.is_some() {
                    shape[0] /= 3;
                }
                entries.push(Entry { name: theirs, shape, from: name.clone(), third });
            }
        }
        Ok(Self {
            entries,
            config: Some(config(architecture, model, class)),
            metadata: BTreeMap::new(),
            notes: vec![format!("for transformers' {class}")],
        })
    }
}

impl Entry {
    /// The entry's part of the values of the tensor it comes from.
    fn cut(&self, values: Vec<f32>) -> Vec<f32> {
        match self.third {
            None => values,
            Some(third) => {
                let length = values.len() / 3;
                values[third * length..(third + 1) * length].to_vec()
            }
        }
    }
}

/// The Python expression that makes timm's network of an architecture, as far as timm has it.
fn timm_call(architecture: &Architecture) -> String {
    let Architecture { image: [height, width], patch, channels, classes, depth, heads, mlp_hidden, .. } = *architecture;
    let image = if height == width { height.to_string() } else { format!("({height}, {width})") };
    let class = if architecture.distilled { "VisionTransformerDistilled" } else { "VisionTransformer" };
    let mut call = format!(
        "{class}(img_size={image}, patch_size={patch}, in_chans={channels}, num_classes={classes}, embed_dim={}, depth={depth}, \
         num_heads={heads}, mlp_ratio={}",
        architecture.width,
        mlp_hidden as f64 / architecture.width as f64
    );
    let mut add = |wanted: bool, text: String| {
        if wanted {
            call.push_str(", ");
            call.push_str(&text);
        }
    };
    add(!architecture.qkv_bias, "qkv_bias=False".into());
    add(!architecture.class_token, "class_token=False".into());
    add(architecture.registers > 0, format!("reg_tokens={}", architecture.registers));
    add(architecture.no_embed_class, "no_embed_class=True".into());
    add(
        architecture.pool == Pool::Avg,
        format!("global_pool='avg', fc_norm={}", if architecture.fc_norm { "True" } else { "False" }),
    );
    add(architecture.layer_scale.is_some(), "init_values=1e-4".into());
    add(
        architecture.norm_eps != 1e-6,
        format!("norm_layer=functools.partial(torch.nn.LayerNorm, eps={:e})", architecture.norm_eps),
    );
    call.push(')');
    call
}

/// Hugging Face's `config.json`.
fn config(architecture: &Architecture, model: &str, class: &str) -> Value {
    let [height, width] = architecture.image;
    let image = if height == width { json!(height) } else { json!([height, width]) };
    let labels: Map<String, Value> =
        (0..architecture.classes).map(|index| (index.to_string(), json!(format!("LABEL_{index}")))).collect();
    let indices: Map<String, Value> = (0..architecture.classes).map(|index| (format!("LABEL_{index}"), json!(index))).collect();
    json!({
        "architectures": [class],
        "model_type": model,
        "hidden_size": architecture.width,
        "num_hidden_layers": architecture.depth,
        "num_attention_heads": architecture.heads,
        "intermediate_size": architecture.mlp_hidden,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.02,
        "layer_norm_eps": architecture.norm_eps,
        "image_size": image,
        "patch_size": architecture.patch,
        "num_channels": architecture.channels,
        "qkv_bias": architecture.qkv_bias,
        "id2label": labels,
        "label2id": indices,
    })
}

/// Layers whose attention Python's libraries lack.
fn other_attention(architecture: &Architecture) -> Vec<String> {
    let layers = architecture.layers.iter().enumerate();
    layers.filter(|(_, layer)| layer.kind != AttentionKind::Softmax).map(|(index, layer)| format!("{index} ({layer})")).collect()
}

/// Writes a file's weights, for a model of `architecture`, as a safetensors file of another layout. No network is made; a few tensors
/// are in memory at a time. The report is that of loading.
///
/// # Errors
/// As [`super::load`] and [`Export::write`], and where `path` is one of the files that are read.
pub fn convert(
    source: &Source,
    architecture: &Architecture,
    options: &LoadOptions,
    export: &Export,
    path: &Path,
) -> Result<LoadReport, LoadError> {
    let target = path.canonicalize();
    if let Ok(target) = &target
        && source.files().any(|file| file.canonicalize().is_ok_and(|file| file == *target))
    {
        return Err(SourceError::new(path, "is one of the files that the weights are read from")
            .help("name another file to write")
            .into());
    }
    let plan = Plan::new(source, architecture, options)?;
    export.write(path, |name| {
        plan.read(source, name)?
            .ok_or_else(|| SourceError::new(source.path(), format!("holds no {name}, and nothing else gives its values")))
    })?;
    Ok(plan.report)
}
